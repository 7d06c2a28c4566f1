"""A gate before one worker: each request of its rendezvous is held at the proxy until the controller lets it go.

So the order in which requests reach etcd is the controller's, whatever the processes and the machine do. It works for
any client of the etcd v2 API: ours, and PyTorch's own class unchanged.

Never held: renewals (``refresh=true``: time's business, not the protocol's) and, unless ``hold_watches``, long polls
(they read at the instant of the event that ends them; the read that follows is held). Everything else that is below
``/v2/keys`` is. May live here: holding. Must not live here: what should come next (``walks_player.py``).
"""

from __future__ import annotations

import contextlib
import json
import queue
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from rallypoint.live.proxy import Exchange, Fault, FaultProxy
from rallypoint.model import document as docs

BOUND = 10.0  # seconds that anything here waits, unless told otherwise


class Mode(Enum):
    """What the gate does with a request."""

    HOLD = "held until the controller decides"
    PASS = "passed on at once"
    DENY = "answered 401 in etcd's place: no client repeats that, so its worker comes to its end at once"


class _Go(Enum):
    PASS = "pass"


Decision: TypeAlias = "Fault | bytes | _Go"


def is_renewal(exchange: Exchange) -> bool:
    """Only a TTL is renewed."""
    return exchange.method == "PUT" and exchange.form.get("refresh") == "true"


def is_watch(exchange: Exchange) -> bool:
    """A long poll."""
    return exchange.form.get("wait") == "true"


@dataclass(slots=True)
class Held:
    """One request that waits at the gate. The first decision counts; what follows it does nothing."""

    exchange: Exchange
    _gate: Gate
    _decision: Decision | None = None
    _decided: threading.Event = field(default_factory=threading.Event)

    @property
    def method(self) -> str:
        return self.exchange.method

    @property
    def key(self) -> str:
        return self.exchange.key

    @property
    def form(self) -> dict[str, str]:
        return self.exchange.form

    @property
    def step(self) -> str:
        """What the request is for, in the protocol's words; see ``step_of``."""
        return step_of(self.exchange)

    def release(self, *, drop_reply: bool = False) -> None:
        """Let it through. ``drop_reply``: etcd carries it out, and the connection ends without the reply."""
        self._decide(Fault.DROP_REPLY if drop_reply else _Go.PASS)

    def refuse(self) -> None:
        """Lose it: the connection ends, etcd never sees the request."""
        self._decide(Fault.DROP_REQUEST)

    def deny(self) -> None:
        """Answer it in etcd's place: this user may not."""
        self._decide(_denial(self.exchange))

    def await_reply(self, timeout: float = BOUND) -> int:
        """The status of etcd's reply to a released request. Raises TimeoutError."""
        number = self.exchange.number
        seen = self._gate.await_seen(lambda one: one.number == number and one.status is not None, timeout)
        return int(seen.status or 0)

    def _decide(self, decision: Decision) -> None:
        if self._decision is None:
            self._decision = decision
            self._decided.set()

    def __str__(self) -> str:
        return f"{self.method} {self.key} {self.form}"


class Gate(FaultProxy):
    """A fault proxy that holds. It begins in ``Mode.HOLD``; closing it frees (and loses) all that is held.

    ``on_arrival`` is called with each request that is held, in the order of their coming; without it they wait for
    ``await_request``.
    """

    def __init__(
        self,
        upstream: tuple[str, int],
        *,
        hold_watches: bool = False,
        on_arrival: Callable[[Held], None] | None = None,
    ) -> None:
        self._hold_watches = hold_watches
        self._arrivals: queue.SimpleQueue[Held] = queue.SimpleQueue()
        self._on_arrival = on_arrival or self._arrivals.put
        self._mode = Mode.HOLD
        self._lock = threading.Lock()
        self._held: list[Held] = []
        super().__init__(upstream)

    def await_request(self, timeout: float = BOUND) -> Held:
        """The next request that is held. Raises TimeoutError."""
        try:
            return self._arrivals.get(timeout=timeout)
        except queue.Empty:
            raise TimeoutError(f"no request came to the gate within {timeout:g} s") from None

    def set_mode(self, mode: Mode) -> None:
        """From now on; also for what is held, unless it stays held. ``DENY`` ends the open long polls, too."""
        with self._lock:
            self._mode = mode
            held = [one for one in self._held if one._decision is None]
            for one in held if mode is not Mode.HOLD else ():
                one._decide(_Go.PASS if mode is Mode.PASS else _denial(one.exchange))
        if mode is Mode.DENY and not held:
            self.cut()

    def cut(self) -> None:
        """As ``FaultProxy.cut``; no request of a connection that is cut arrives afterwards."""
        with self._lock:
            super().cut()

    def close(self) -> None:
        """As ``FaultProxy.close``."""
        self._closing.set()
        with self._lock:
            for one in self._held:
                one.refuse()
        super().close()

    def _decide(self, exchange: Exchange, client: socket.socket) -> Fault | bytes | None:
        if not exchange.path.startswith("/v2/keys"):
            return None
        held = Held(exchange, self)
        with self._lock:
            if self._closing.is_set():
                return Fault.DROP_REQUEST
            if self._mode is Mode.DENY:
                return _denial(exchange)
            if _is_gone(client):
                return Fault.DROP_REQUEST
            free = is_renewal(exchange) or (is_watch(exchange) and not self._hold_watches)
            if free or self._mode is Mode.PASS:
                return None
            self._held.append(held)
            self._on_arrival(held)
        held._decided.wait()  # ends with the gate at the latest
        with self._lock:
            self._held.remove(held)
        decision = held._decision
        if _is_gone(client):
            return Fault.DROP_REQUEST
        return None if isinstance(decision, _Go) else decision


def _is_gone(client: socket.socket) -> bool:
    """The client has given up: what it does not wait for must not reach etcd later."""
    with contextlib.suppress(BlockingIOError):
        try:
            return client.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        except ConnectionError:
            return True
    return False


def _denial(exchange: Exchange) -> bytes:
    body = json.dumps({"errorCode": 110, "message": "denied at the gate", "cause": exchange.key, "index": 0}).encode()
    head = f"HTTP/1.1 401 Unauthorized\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def step_of(exchange: Exchange) -> str:
    """What a request is for: "read", "create", "publish", "join", "freeze", "confirm", "announce", "close", "destroy"
    (of the shared document), "renew", "watch", or "METHOD last-segment-of-the-key" for all other keys."""
    form = exchange.form
    if is_renewal(exchange):
        return "renew"
    if is_watch(exchange):
        return "watch"
    if not exchange.key.endswith("/active_version"):
        return f"{exchange.method} {exchange.key.rpartition('/')[2]}"
    if exchange.method == "GET":
        return "read"
    if exchange.method == "DELETE":
        return "destroy"
    if "prevValue" not in form:
        return "create"
    return _change(form["prevValue"], form.get("value", ""))


def _change(before: str, after: str) -> str:
    try:
        old, new = docs.parse(before), docs.parse(after)
    except docs.BrokenDocumentError:
        return "write"
    if new.status == docs.CLOSED:
        return "close"
    if old.status == docs.SETUP:
        return "publish"
    if old.status == docs.JOINABLE:
        return "freeze" if new.participants == old.participants else "join"
    return "confirm" if old.status == docs.FROZEN else "announce"
