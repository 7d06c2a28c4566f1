"""The shared state of a rendezvous as one compare-and-set register in etcd: drop-in for torch's module of this name.

On the wire as upstream: ``PREFIX/RUN-ID`` holds the base64 of the state, with a TTL; the token is its modifiedIndex.
Must not live here: what the state means. (Upstream's state is a pickle, and upstream's handler loads whatever it finds:
who can write this key runs code in every agent, defect D-L. Give the key to nobody else: etcd users, a network of its
own. Agents of ``--rdzv-backend=rallypoint-etcd-v2`` load only what ``dynamic_state.py`` has checked.)
"""

from __future__ import annotations

import re
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rallypoint.impl.access import access_of
from rallypoint.impl.etcd_http import (
    ATTEMPT_TIMEOUT,
    READ_TIMEOUT,
    Answer,
    EtcdHttp,
    EtcdUnavailable,
    Refusal,
    checked_key,
    joined_key,
    key_segment,
)
from rallypoint.impl.etcd_kv import TOO_LARGE, KeyValue
from rallypoint.impl.etcd_store import EtcdStore
from rallypoint.impl.etcd_sure import HistoryLostError, OutOfTimeError, insist, is_absent, write_once
from rallypoint.model.errors import UnusableError
from rallypoint.model.etcd import ALREADY_EXISTS, COMPARE_FAILED, NOT_A_FILE, NOT_FOUND
from torch.distributed.elastic.rendezvous.api import (
    RendezvousConnectionError,
    RendezvousParameters,
    RendezvousStateError,
)
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import RendezvousBackend

if TYPE_CHECKING:
    import etcd

STATE_PREFIX = "/torch/elastic/rendezvous"
STORE_PREFIX = "/torch/elastic/store"
LONGEST = 10**9  # seconds, for read_timeout and ttl
EMPTY = "===="  # base64 of an empty state, other than an empty value, which nobody writes on purpose (defect B-D)

CHANGED = frozenset({NOT_FOUND, COMPARE_FAILED, ALREADY_EXISTS, NOT_A_FILE})

Current = tuple[bytes, int]


class EtcdRendezvousBackend(RendezvousBackend):
    """One run's state below ``key_prefix``.

    ``client``: an ``etcd.Client``, whose address, certificates and user are taken, or an ``EtcdHttp``. ``run_id``: any
    non-empty text; each has a key of its own (``/ ? # %`` in it are escaped, defects B-E, B-G). ``ttl``: seconds after
    the last write until the state is forgotten, default 7200.
    Every call is over within the client's read timeout (60 s by default) and rides out any outage that is shorter.
    Raises ValueError if ``run_id`` is empty, has no UTF-8 form, or is too long for a key.
    """

    _DEFAULT_TTL = 7200

    def __init__(
        self,
        client: etcd.Client | EtcdHttp,
        run_id: str,
        key_prefix: str | None = None,
        ttl: int | None = None,
    ) -> None:
        if not run_id:
            raise ValueError("The run id must be a non-empty string.")
        self._http = client if isinstance(client, EtcdHttp) else EtcdHttp.of_client(client)
        self._timeout = self._http.read_timeout
        self._key = checked_key(joined_key(key_prefix or "", key_segment(run_id)))
        self._ttl = ttl if ttl and ttl > 0 else self._DEFAULT_TTL
        self._before_creation: Callable[[int, float], None] | None = None

    @property
    def name(self) -> str:
        """ "etcd-v2"."""
        return "etcd-v2"

    def get_state(self) -> Current | None:
        """The state and its token; None if there is none. Raises RendezvousConnectionError, RendezvousStateError."""
        with _rendezvous_errors():
            return self._read(self._deadline())

    def set_state(self, state: bytes, token: Any = None) -> tuple[bytes, int, bool] | None:
        """Write ``state`` if ``token`` is that of the current one, or if there is none and no token is given.

        Returns (state, its token, True) if it was written, also when that is only found out afterwards because the
        reply was lost (defect B-A); (current state, its token, False) if not; None if not and there is no state.
        Raises RendezvousConnectionError, RendezvousStateError.
        """
        with _rendezvous_errors():
            deadline = self._deadline()
            if token is None:
                return self._create(state, deadline)
            index = _index_of(token)
            reply = self._write(state, (index, index), deadline) if index else None
            if isinstance(reply, Answer):
                return state, reply.node.modified, True
            return self._refused(deadline)

    def _create(self, state: bytes, deadline: float) -> tuple[bytes, int, bool] | None:
        before = insist(self._http, "GET", self._key, {}, deadline).reply
        if not is_absent(before):
            return self._refused(deadline)
        if self._before_creation is not None:
            self._before_creation(before.index, deadline)
        reply = self._write(state, (0, before.index), deadline)
        if isinstance(reply, Answer):
            return state, reply.node.modified, True
        return self._refused(deadline)

    def _write(self, state: bytes, was: tuple[int, int], deadline: float) -> Answer | Refusal:
        params = {"value": _encoded(state), "ttl": str(self._ttl)}
        reply = write_once(self._http, self._key, params, was, deadline)
        if isinstance(reply, Refusal) and reply.code == TOO_LARGE:
            raise RendezvousStateError(f"The state of {len(state)} bytes is too large for etcd (10 MB as base64).")
        if isinstance(reply, Refusal) and reply.code not in CHANGED:
            raise RendezvousStateError(f"etcd refuses the key {self._key}: {reply.cause}")
        return reply

    def _refused(self, deadline: float) -> tuple[bytes, int, bool] | None:
        current = self._read(deadline)
        return None if current is None else (*current, False)

    def _read(self, deadline: float) -> Current | None:
        reply = insist(self._http, "GET", self._key, {}, deadline).reply
        if is_absent(reply):
            return None
        if isinstance(reply, Refusal) or reply.node.value is None:
            raise RendezvousStateError(f"The key {self._key} cannot hold a state: a directory is in its place.")
        return _decoded(reply.node.value), reply.node.modified

    def _deadline(self) -> float:
        return time.monotonic() + self._timeout


def create_backend(params: RendezvousParameters) -> tuple[EtcdRendezvousBackend, EtcdStore]:
    """A backend and a store from torchrun's parameters; both are used by upstream's agents under the same names.

    ``endpoint``: HOST[:PORT] or several, separated by commas; default localhost:2379.

    ============================ ==========================================================================
    option                       meaning and default
    ============================ ==========================================================================
    read_timeout                 seconds for one operation, retries included; 60
    protocol                     "http" or "https"; "http"
    ssl_cert, ssl_cert_key       client certificate and its key (also: cert, key); none
    ca_cert                      CA to check the server against (also: cacert); with https, the system's
    username, password           etcd user; none. torchrun logs all options, so better:
    password_file                file with the password
    ttl                          seconds after its last write until the state is forgotten; 7200
    ============================ ==========================================================================

    Raises ValueError for unusable options, RendezvousConnectionError if etcd cannot be reached or used.
    """
    http, ttl = _open(params), params.get_as_int("ttl")
    if ttl is not None and not 0 < ttl <= LONGEST:
        raise ValueError(f"The ttl must be a positive integer, and at most {LONGEST} s.")
    backend = EtcdRendezvousBackend(http, params.run_id, STATE_PREFIX, ttl)
    store = EtcdStore(http, STORE_PREFIX)
    backend._before_creation = _sweeper(KeyValue(http, STORE_PREFIX), params.run_id)
    with _rendezvous_errors():
        try:
            http.check(backend._key, backend._deadline())
        except EtcdUnavailable as error:  # in upstream's words
            message = "The connection to etcd has failed. See inner exception for details."
            raise RendezvousConnectionError(message) from error
    return backend, store


def _open(params: RendezvousParameters) -> EtcdHttp:
    timeout = params.get_as_int("read_timeout", int(READ_TIMEOUT))
    if timeout is None or timeout <= 0:
        raise ValueError("The read timeout must be a positive integer.")
    if timeout > LONGEST:
        raise ValueError(f"The read timeout must be at most {LONGEST} s.")
    protocol = str(params.get("protocol", "http")).strip().lower()
    if protocol not in {"http", "https"}:
        raise ValueError("The protocol must be HTTP or HTTPS.")
    access = access_of(params, protocol)
    with _rendezvous_errors():
        return EtcdHttp(access, attempt_timeout=min(ATTEMPT_TIMEOUT, timeout), read_timeout=timeout)


def _sweeper(space: KeyValue, run_id: str) -> Callable[[int, float], None]:
    """Removes what an earlier run of this id left in the store, as upstream's handler names it (defect S-C).

    Called while there is no state, so no round of this run is open: only keys that are older than that are removed, and
    nobody can still want them.
    """
    of_this_run = re.compile(rb"torch\.rendezvous\." + re.escape(run_id.encode()) + rb"\.[0-9]+/")

    def sweep(index: int, deadline: float) -> None:
        space.remove_older(lambda key: of_this_run.match(key) is not None, index, deadline)

    return sweep


def _index_of(token: object) -> int:
    """The modifiedIndex that a token stands for; 0 for what cannot be one."""
    if isinstance(token, bool) or not isinstance(token, int | str | bytes):
        return 0
    try:
        index = int(token)
    except ValueError:
        return 0
    return index if 0 < index < 1 << 63 else 0


def _encoded(state: bytes) -> str:
    return b64encode(state).decode() or EMPTY


def _decoded(text: str) -> bytes:
    """Strict: raises RendezvousStateError for what ``_encoded`` cannot have written."""
    if text == EMPTY:
        return b""
    try:
        state = b64decode(text)
    except ValueError as error:
        raise RendezvousStateError("The state object is corrupt. See inner exception for details.") from error
    if _encoded(state) != text:
        raise RendezvousStateError("The state object is corrupt: this is not how a state is written.")
    return state


@contextmanager
def _rendezvous_errors() -> Iterator[None]:
    """Nothing but RendezvousErrors leaves (and what is a programming error)."""
    try:
        yield
    except (UnusableError, EtcdUnavailable, OutOfTimeError, HistoryLostError) as error:
        raise RendezvousConnectionError(f"The connection to etcd has failed: {error}") from error
