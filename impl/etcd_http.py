"""One attempt at one etcd v2 request, through python-etcd, and what came of it.

May live here: connections, time-outs, TLS, and telling replies from refusals from "nobody knows".
Must not live here: retries (the caller decides; a hidden repetition of a write is how upstream lost compare-and-swaps,
defects L-J to L-M and S-B), or anything about rendezvous.

python-etcd repeats writes by itself (urllib3's retries, and ``allow_reconnect`` on another server) and forgets the
configured address for the advertised ones (defect P-A). Both are switched off: one client per configured endpoint,
none of which is ever dropped.
"""

from __future__ import annotations

import json
import os
import ssl
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv6Address
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

from rallypoint.model.errors import UnusableError

ATTEMPT_TIMEOUT = 5.0  # seconds for one request
READ_TIMEOUT = 60.0  # seconds for one operation, as python-etcd and upstream have it
INDEX_CLEARED = 401  # error code: the index is older than the 1000 events that etcd keeps
REFUSED = frozenset({100, 101, 102, 104, 105, 107, 108, *range(200, 211), INDEX_CLEARED})
LONGEST_NAME = 1000  # bytes in one segment of a key
NO_V2 = "start etcd with --enable-v2 (3.5 or older), or use the v3 transport"


class EtcdUnavailable(Exception):  # noqa: N818  (a condition that passes, not an error of the caller)
    """No usable reply. ``maybe_applied``: the request may have been carried out, or may still be."""

    def __init__(self, reason: str, *, maybe_applied: bool) -> None:
        super().__init__(reason)
        self.reason = reason
        self.maybe_applied = maybe_applied


@dataclass(frozen=True, slots=True)
class Access:
    """Where etcd is and how to get in. ``endpoints``: (host, port), tried in turn."""

    endpoints: tuple[tuple[str, int], ...]
    protocol: str = "http"
    ca_cert: str | None = None
    cert: str | None = None
    key: str | None = None
    username: str | None = None
    password: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Node:
    """A key as etcd reports it; ``value`` None: a directory (or deleted). ``ttl`` in seconds."""

    key: str
    value: str | None
    is_dir: bool
    modified: int
    ttl: int | None
    children: tuple[Node, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """The request was carried out. ``index`` is etcd's index at that time (X-Etcd-Index)."""

    action: str
    node: Node
    index: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """Etcd refused the request, with one of its v2 error codes."""

    code: int
    cause: str
    index: int


_Kind = TypeVar("_Kind")

# Clients of a process that forked. Closing them could wait for a lock whose holder does not exist in the fork.
_inherited: list[Any] = []


class EtcdHttp:
    """Single attempts on the configured endpoints; safe for several threads, and in a fork of its process.

    After a failure the next endpoint is the current one, in a circle. ``attempt_timeout``: seconds for one request.
    ``read_timeout``: seconds that a caller without a deadline of its own gives one operation, repetitions included.
    Raises ValueError for an access that would not have the effect that it is meant to have, UnusableError if
    python-etcd is missing or a certificate cannot be read.
    """

    def __init__(
        self, access: Access, *, attempt_timeout: float = ATTEMPT_TIMEOUT, read_timeout: float = READ_TIMEOUT
    ) -> None:
        _check_access(access)
        if attempt_timeout <= 0 or read_timeout <= 0:
            raise ValueError("time-outs must be positive")
        self.access = access
        self.attempt_timeout = attempt_timeout
        self.read_timeout = read_timeout
        self._open()
        self._current = 0
        self.index = 0  # the highest index that etcd has told

    @classmethod
    def of_client(cls, client: Any, *, attempt_timeout: float = ATTEMPT_TIMEOUT) -> EtcdHttp:
        """With address, certificates, user and read time-out of an ``etcd.Client``, which itself is left alone."""
        try:
            address = urlsplit(client.base_uri)
            pool = client.http.connection_pool_kw
            access = Access(
                endpoints=((address.hostname or "", address.port or 2379),),
                protocol=address.scheme,
                ca_cert=pool.get("ca_certs"),
                cert=pool.get("cert_file"),
                key=pool.get("key_file"),
                username=client.username,
                password=client.password,
            )
            read_timeout = float(client.read_timeout or READ_TIMEOUT)
        except AttributeError as error:
            raise TypeError(f"not an etcd.Client: {client!r}") from error
        return cls(access, attempt_timeout=min(attempt_timeout, read_timeout), read_timeout=read_timeout)

    @property
    def endpoint(self) -> str:
        """The current endpoint, for messages."""
        return self._name(self._current)

    def close(self) -> None:
        """Close all idle connections. The object stays usable."""
        self._renew_in_fork()
        for client in self._clients:
            pools = client.http.pools
            for pool in filter(None, map(pools.get, pools.keys())):
                pool.close()  # since urllib3 2, clear() alone leaves that to the garbage collector
            pools.clear()

    def check(self, key: str, deadline: float) -> None:
        """One read on each endpoint until one answers.

        Raises UnusableError (no v2 API, TLS, user refused), or EtcdUnavailable if none can be reached.
        """
        for left in reversed(range(len(self._clients))):
            try:
                self.call("GET", key, {}, deadline)
                return
            except (EtcdUnavailable, UnusableError):
                if left == 0:
                    raise

    def call(self, method: str, key: str, params: Mapping[str, str], deadline: float) -> Answer | Refusal:
        """Perform one request once, by ``deadline`` (monotonic seconds) and within ``attempt_timeout``.

        ``key``: the absolute, unquoted key. Reads are linearizable (``quorum=true``).
        Raises EtcdUnavailable or UnusableError.
        """
        fields = {"quorum": "true", **params} if method == "GET" else dict(params)
        answer = self._attempt(method, key, fields, self._bound(deadline))
        if answer is None:
            raise EtcdUnavailable("the reply is cut off", maybe_applied=True)
        return answer

    def watch(self, key: str, index: int, deadline: float, *, recursive: bool) -> Answer | Refusal | None:
        """The first event on ``key`` (or below) with at least this index; None: none in time, or the watch was cut."""
        fields = {"wait": "true", "waitIndex": str(index), "recursive": str(recursive).lower()}
        return self._attempt("GET", key, fields, self._bound(deadline))

    def _open(self) -> None:
        self._clients = [_make_client(self.access, host, port) for host, port in self.access.endpoints]
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def _renew_in_fork(self) -> None:
        """Whoever used the parent's connections would read the parent's replies, and the parent the fork's."""
        if self._pid != os.getpid():
            _inherited.append(self._clients)
            self._open()

    def _bound(self, deadline: float) -> float:
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            raise EtcdUnavailable("the deadline has passed", maybe_applied=False)
        return min(remaining, self.attempt_timeout)

    def _attempt(self, method: str, key: str, fields: dict[str, str], timeout: float) -> Answer | Refusal | None:
        self._renew_in_fork()
        current = self._current
        path = f"/v2/keys{quote(checked_key(key))}"
        try:
            reply = self._exchange(current, path, method, fields, timeout)
        except (EtcdUnavailable, UnusableError):
            self._leave(current)
            raise
        if reply is not None:
            self.index = max(self.index, reply.index)
        return reply

    def _exchange(
        self, number: int, path: str, method: str, fields: dict[str, str], timeout: float
    ) -> Answer | Refusal | None:
        import etcd
        from urllib3 import Timeout

        try:
            response = self._clients[number].api_execute(path, method, params=fields, timeout=Timeout(total=timeout))
        except etcd.EtcdWatchTimedOut:
            return None
        except etcd.EtcdConnectionFailed as error:
            raise _connection_trouble(error.cause, self._name(number)) from error
        except etcd.EtcdClusterIdChanged as error:
            self.index = 0
            raise EtcdUnavailable("etcd was replaced by another cluster", maybe_applied=True) from error
        except etcd.EtcdException as error:
            return _read_refusal(error.payload or {}, self._name(number))
        except (ValueError, TypeError, OverflowError, RecursionError) as error:  # python-etcd, on what no etcd says
            raise EtcdUnavailable(f"the reply is not one of etcd ({error})", maybe_applied=True) from error
        return _read_answer(response)

    def _name(self, number: int) -> str:
        host, port = self.access.endpoints[number]
        return f"{self.access.protocol}://{bracketed(host)}:{port}"

    def _leave(self, failed: int) -> None:
        with self._lock:
            if self._current == failed:
                self._current = (failed + 1) % len(self._clients)


def bracketed(host: str) -> str:
    """The host as it is written before a port: IPv6 addresses in brackets."""
    return f"[{host}]" if ":" in host else host


def checked_key(key: str) -> str:
    """The key ("" and "/": the root), if it is one that reaches etcd as it is. Raises ValueError otherwise."""
    first, *parts = key.split("/")
    if first or (key != "/" and any(part in {"", ".", ".."} for part in parts)):
        raise ValueError(f"not a usable etcd key: {key!r}")
    return key


def key_segment(name: str) -> str:
    """One segment of a key for an arbitrary non-empty name, different for different names.

    Names without ``/ ? # %`` stand for themselves, as upstream writes them; in others these characters become ``%XX``
    (defects B-E, B-G). Raises ValueError for "", for text that has no UTF-8 form, and for a segment of more than
    ``LONGEST_NAME`` bytes.
    """
    if not name:
        raise ValueError("a name must not be empty")
    escaped = "/?#%." if set(name) == {"."} else "/?#%"
    segment = "".join(f"%{ord(letter):02X}" if letter in escaped else letter for letter in name)
    size = len(segment.encode())
    if size > LONGEST_NAME:
        raise ValueError(f"{name[:40]!r}... is too long a name: {size} bytes in an etcd key, at most {LONGEST_NAME}")
    return segment


def joined_key(*parts: str) -> str:
    """An absolute key from parts that may have any number of slashes at their ends (defects L-H, S-A)."""
    return "/" + "/".join(segment for part in parts for segment in part.split("/") if segment)


def _check_access(access: Access) -> None:
    """python-etcd drops half of a pair without a word, and certificates where the protocol is http."""
    if not access.endpoints:
        raise ValueError("at least one endpoint is needed")
    if access.protocol not in {"http", "https"}:
        raise ValueError(f"the protocol must be http or https, not {access.protocol!r}")
    if access.protocol == "http" and (access.ca_cert or access.cert or access.key):
        raise ValueError("certificates are for https: give protocol=https, or leave them out")
    if access.key and not access.cert:
        raise ValueError("a certificate's key is given without its certificate")
    if bool(access.username) != bool(access.password):
        raise ValueError("a user name and a password are needed, or neither")
    try:
        f"{access.username}{access.password}".encode("latin-1")
    except UnicodeEncodeError:
        raise ValueError("a user name or a password has letters outside Latin-1: HTTP cannot carry them") from None


def python_etcd() -> Any:
    """The module ``etcd``. Raises UnusableError if there is none, or if it is that of another package (R86)."""
    try:
        import etcd

        _ = etcd.Client, etcd.EtcdWatchTimedOut
        return etcd
    except (ImportError, AttributeError) as error:
        raise UnusableError("python-etcd is missing", str(error), "pip install python-etcd") from error


def _make_client(access: Access, host: str, port: int) -> Any:
    for path in filter(None, (access.ca_cert, access.cert, access.key)):
        if not (os.path.isfile(path) and os.access(path, os.R_OK)):
            raise UnusableError("cannot read a certificate file", path, "check the path and its rights")
    client = python_etcd().Client(
        host=bracketed(host),
        port=port,
        protocol=access.protocol,
        cert=(access.cert, access.key) if access.cert and access.key else access.cert,
        ca_cert=access.ca_cert,
        username=access.username,
        password=access.password,
        allow_redirect=False,
        allow_reconnect=False,
    )
    pool = client.http.connection_pool_kw
    pool["retries"] = False
    if access.protocol == "https":
        pool["cert_reqs"] = ssl.CERT_REQUIRED  # the default differs between versions of urllib3
    return client


def _read_answer(response: Any) -> Answer | None:
    """None for what no etcd has written, or what has been cut off."""
    try:
        body = json.loads(response.data.decode())
        index = int(response.headers.get("x-etcd-index", 0))
        return Answer(_typed(str, body["action"]), _read_node(body["node"]), index)
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _read_node(node: object) -> Node:
    fields = _typed(dict, node)
    is_dir = _typed(bool, fields.get("dir", False))
    return Node(
        key=_typed(str, fields.get("key", "/")),
        value=None if is_dir or "value" not in fields else _typed(str, fields["value"]),
        is_dir=is_dir,
        modified=_typed(int, fields.get("modifiedIndex", 0)),
        ttl=_typed(int, fields["ttl"]) if "ttl" in fields else None,
        children=tuple(map(_read_node, _typed(list, fields.get("nodes", [])))),
    )


def _typed(kind: type[_Kind], value: object) -> _Kind:
    if not isinstance(value, kind):
        raise TypeError(f"not a {kind.__name__}: {value!r}")
    return value


def _read_refusal(payload: Mapping[str, Any], where: str) -> Refusal:
    """What an error reply means. Raises EtcdUnavailable or UnusableError if it is not about the key."""
    numbers = (payload.get(name) for name in ("errorCode", "status", "index"))
    code, status, index = (number if isinstance(number, int) else 0 for number in numbers)
    message, cause = str(payload.get("message", "")), str(payload.get("cause", ""))
    if code == 300 and "Not a file" in cause:  # etcd 3.5 on a directory's TTL
        return Refusal(102, cause, index)
    if code in REFUSED:
        return Refusal(code, cause, index)
    if status in {401, 403} or code == 110:
        raise UnusableError(
            "etcd refused the user", where, "give a user name and password with the rights for this key"
        )
    if "page not found" in cause:
        raise UnusableError("this server has no v2 API", where, NO_V2)
    raise EtcdUnavailable(f"etcd at {where} says: {message} ({cause.strip()[:200]})", maybe_applied=True)


def _connection_trouble(cause: BaseException | None, where: str) -> EtcdUnavailable | UnusableError:
    from urllib3 import exceptions

    if isinstance(cause, exceptions.SSLError | ssl.SSLError):
        return UnusableError("no trusted TLS connection", where, f"check protocol and certificates ({cause})")
    hint = "; is TLS on there?" if where.startswith("https:") else ""
    never_sent = isinstance(cause, exceptions.NewConnectionError | exceptions.ConnectTimeoutError)
    return EtcdUnavailable(f"etcd at {where} cannot be reached ({cause}{hint})", maybe_applied=not never_sent)


def endpoints_of(text: str, default_port: int = 2379) -> tuple[tuple[str, int], ...]:
    """("host", port) pairs of ``HOST[:PORT],...``; IPv6 addresses in brackets, or bare without a port.

    Raises ValueError for anything else.
    """
    if "@" in text:  # nobody may see what stands before it
        raise ValueError("not HOST:PORT: a user and a password are options of their own")
    return tuple(_endpoint(part.strip(), default_port) for part in text.split(",") if part.strip())


def _endpoint(text: str, default_port: int) -> tuple[str, int]:
    try:
        if text.count(":") > 1 and not text.startswith("["):
            return str(IPv6Address(text)), default_port
        address = urlsplit(f"//{text}")
        host, port = address.hostname, address.port
    except ValueError as error:
        raise ValueError(f"not HOST:PORT: {text!r}") from error
    if not host or address.path or address.query or address.fragment or any(letter.isspace() for letter in text):
        raise ValueError(f"not HOST:PORT: {text!r}")
    return host, default_port if port is None else port
