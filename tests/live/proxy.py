"""A proxy in front of one etcd that loses, delays and cuts, on order.

Every fault is a thing that networks do: a reply lost after the request was carried out, a request lost before, either
of them late, a connection cut, a port that refuses. What passed is recorded, so a test can say what it exercised.
Each connection has one thread; ``close`` ends them all.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import parse_qsl, unquote, urlsplit

if TYPE_CHECKING:
    from typing_extensions import Self

ENDING = 10.0  # seconds that ``close`` waits for the threads


class Fault(Enum):
    """What happens to a request that a rule picks."""

    DROP_REPLY = "carried out by etcd, then the connection is closed without the reply"
    DROP_REQUEST = "the connection is closed, etcd never sees the request"
    DELAY_REPLY = "carried out at once, the reply comes later"
    DELAY_REQUEST = "carried out later, even if the client has gone by then"


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request. ``key``: the decoded path below /v2/keys ("" for other paths); ``form``: query and body.

    ``status``: etcd's, None if it was not asked or did not answer.
    """

    number: int
    method: str
    path: str
    key: str
    form: dict[str, str] = field(hash=False)
    status: int | None = None
    fault: Fault | None = None


Predicate: TypeAlias = Callable[[Exchange], bool]


def is_write(exchange: Exchange) -> bool:
    """The request could change something."""
    return exchange.method in {"PUT", "POST", "DELETE"}


def is_any(exchange: Exchange) -> bool:
    """Every request."""
    return True


@dataclass(slots=True)
class _Rule:
    fault: Fault
    when: Predicate
    skip: int
    left: int
    seconds: float
    gate: threading.Event = field(default_factory=threading.Event)


class _ClosedError(Exception):
    """The other side has closed."""


class FaultProxy:
    """Listens on a free port of 127.0.0.1 and forwards to ``upstream`` (host, port) until closed."""

    def __init__(self, upstream: tuple[str, int]) -> None:
        self._upstream = upstream
        self._changed = threading.Condition()
        self._rules: list[_Rule] = []
        self._seen: list[Exchange] = []
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._closing = threading.Event()
        self._listener: socket.socket | None = None
        self.host, self.port = "127.0.0.1", 0
        self.admit()

    @property
    def endpoint(self) -> str:
        """HOST:PORT for clients."""
        return f"{self.host}:{self.port}"

    def order(
        self, fault: Fault, when: Predicate = is_write, *, nth: int = 1, times: int = 1, seconds: float = 60.0
    ) -> threading.Event:
        """From now on, do ``fault`` to the ``nth`` request for which ``when`` holds, and ``times - 1`` after it.

        ``seconds``: how long a delay lasts at most. Returns its gate: set it to let go at once what is delayed.
        Of several rules the first that still has something to do decides.
        """
        rule = _Rule(fault, when, nth - 1, times, seconds)
        with self._changed:
            self._rules.append(rule)
        return rule.gate

    def seen(self) -> list[Exchange]:
        """All requests so far, in the order in which they came in."""
        with self._changed:
            return list(self._seen)

    def await_seen(self, when: Predicate, timeout: float = 10.0) -> Exchange:
        """Wait for a request for which ``when`` holds (its ``status`` is there once etcd has replied).

        Raises TimeoutError.
        """
        with self._changed:
            found: list[Exchange] = []

            def there() -> bool:
                found[:] = [one for one in self._seen if when(one)]
                return bool(found)

            if not self._changed.wait_for(there, timeout):
                raise TimeoutError(f"no such request among the {len(self._seen)} that came in")
            return found[0]

    def cut(self) -> None:
        """Close all connections; new ones are welcome."""
        with self._changed:
            for sock in self._sockets:
                _shut(sock)

    def refuse(self) -> None:
        """Refuse new connections (the port is closed) and cut those that are open."""
        listener, self._listener = self._listener, None
        if listener is not None:
            _shut(listener)
            listener.close()
        self.cut()

    def admit(self) -> None:
        """Listen (again) on the same port."""
        if self._listener is not None or self._closing.is_set():
            return
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((self.host, self.port))
        listener.listen(256)
        self.port = listener.getsockname()[1]
        self._listener = listener
        self._start(self._accept, listener)

    def close(self) -> None:
        """End everything. Raises RuntimeError if a thread does not end in 10 s."""
        self._closing.set()
        with self._changed:
            for rule in self._rules:
                rule.gate.set()
        self.refuse()
        deadline = time.monotonic() + ENDING
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        alive = [thread.name for thread in self._threads if thread.is_alive()]
        if alive:
            raise RuntimeError(f"proxy threads still run: {alive}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, target: Callable[[socket.socket], None], sock: socket.socket) -> None:
        thread = threading.Thread(target=target, args=(sock,), name=f"proxy:{self.port}", daemon=True)
        with self._changed:
            self._threads = [one for one in self._threads if one.is_alive()]
            thread.start()
            self._threads.append(thread)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            self._keep(client)
            self._start(self._serve, client)

    def _keep(self, sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._changed:
            self._sockets.add(sock)
            if self._closing.is_set():
                _shut(sock)

    def _serve(self, client: socket.socket) -> None:
        """One client connection, with one of its own to etcd."""
        server: socket.socket | None = None
        reader = _Reader(client)
        try:
            while True:
                request = reader.message()
                exchange, rule = self._record(request)
                decided = self._decide(exchange, client)
                if isinstance(decided, bytes):
                    client.sendall(decided)
                    continue
                if decided is Fault.DROP_REQUEST or (rule is not None and rule.fault is Fault.DROP_REQUEST):
                    return
                if rule is not None and rule.fault is Fault.DELAY_REQUEST:
                    rule.gate.wait(rule.seconds)
                if server is None:
                    server = socket.create_connection(self._upstream, timeout=5)
                    server.settimeout(None)
                    self._keep(server)
                server.sendall(request)
                late = rule is not None and rule.fault is not Fault.DELAY_REPLY
                reply = _Reader(server, None if late else client).message()
                self._update(exchange, int(reply.split(b" ", 2)[1]))
                if decided is Fault.DROP_REPLY or (rule is not None and rule.fault is Fault.DROP_REPLY):
                    return
                if rule is not None and rule.fault is Fault.DELAY_REPLY:
                    rule.gate.wait(rule.seconds)
                client.sendall(reply)
        except (OSError, _ClosedError):
            pass
        finally:
            for sock in (client, server):
                if sock is not None:
                    _shut(sock)
                    sock.close()
                    with self._changed:
                        self._sockets.discard(sock)

    def _decide(self, exchange: Exchange, client: socket.socket) -> Fault | bytes | None:
        """What happens to a request, decided by a subclass, which may take its time.

        A fault that drops; bytes: the answer in etcd's place; None: what the rules say.
        """
        return None

    def _record(self, request: bytes) -> tuple[Exchange, _Rule | None]:
        with self._changed:
            exchange = _read_request(len(self._seen), request)
            rule = None
            for one in self._rules:
                if one.left and one.when(exchange):
                    if one.skip:
                        one.skip -= 1
                        continue
                    one.left -= 1
                    rule = one
                    break
            exchange = replace(exchange, fault=rule.fault if rule else None)
            self._seen.append(exchange)
            self._changed.notify_all()
            return exchange, rule

    def _update(self, exchange: Exchange, status: int) -> None:
        with self._changed:
            self._seen[exchange.number] = replace(exchange, status=status)
            self._changed.notify_all()


class _Reader:
    """Reads whole HTTP messages from a socket; gives up when the ``partner`` socket closes."""

    def __init__(self, sock: socket.socket, partner: socket.socket | None = None) -> None:
        self._sock = sock
        self._partner = partner
        self._buffer = b""

    def message(self) -> bytes:
        """Head and body as they came, or _ClosedError."""
        head = self._until(b"\r\n\r\n")
        headers = {
            name.strip().lower(): value.strip().lower()
            for name, _, value in (line.partition(b":") for line in head.split(b"\r\n")[1:])
        }
        if headers.get(b"transfer-encoding") == b"chunked":
            return head + self._chunks()
        return head + self._exactly(int(headers.get(b"content-length", b"0")))

    def _chunks(self) -> bytes:
        body = b""
        while True:
            line = self._until(b"\r\n")
            size = int(line.split(b";")[0], 16)
            body += line + self._exactly(size + 2)
            if size == 0:
                return body

    def _until(self, end: bytes) -> bytes:
        while end not in self._buffer:
            self._fill()
        data, _, self._buffer = self._buffer.partition(end)
        return data + end

    def _exactly(self, size: int) -> bytes:
        while len(self._buffer) < size:
            self._fill()
        data, self._buffer = self._buffer[:size], self._buffer[size:]
        return data

    def _fill(self) -> None:
        sockets = [self._sock] + ([self._partner] if self._partner is not None else [])
        readable = select.select(sockets, [], [])[0]
        if self._partner in readable and not self._partner_is_there():
            raise _ClosedError
        if self._sock in readable:
            data = self._sock.recv(1 << 16)
            if not data:
                raise _ClosedError
            self._buffer += data

    def _partner_is_there(self) -> bool:
        if self._partner is None:
            return True
        if self._partner.recv(1, socket.MSG_PEEK):
            self._partner = None  # it has sent the next request already: nothing to watch for
        else:
            return False
        return True


def _read_request(number: int, request: bytes) -> Exchange:
    head, _, body = request.partition(b"\r\n\r\n")
    method, target, _ = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ", 2)
    address = urlsplit(target)
    form = dict(parse_qsl(address.query, keep_blank_values=True))
    form.update(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))
    path = unquote(address.path)
    key = path.removeprefix("/v2/keys") if path.startswith("/v2/keys") else ""
    return Exchange(number, method, path, key, form)


def _shut(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
