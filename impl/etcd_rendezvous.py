"""Drop-in for ``torch.distributed.elastic.rendezvous.etcd_rendezvous``: same names, same wire format.

May live here: torch's interface, options and exceptions. Must not live here: decisions about the rendezvous
(``model/worker.py``) or how etcd is talked to (``etcd_v2.py``).

Source of the contract: PyTorch documentation, "Rendezvous" (``torch.distributed.elastic.rendezvous``).
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import socket
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn

import torch.distributed as dist
from rallypoint.impl.access import access_of
from rallypoint.impl.driver import Driver
from rallypoint.impl.etcd_http import EtcdHttp, joined_key, key_segment
from rallypoint.impl.etcd_store import EtcdStore
from rallypoint.impl.etcd_v2 import EtcdUnavailable, EtcdV2
from rallypoint.impl.outage import POLL, Outage
from rallypoint.model import document as docs
from rallypoint.model import etcd as requests
from rallypoint.model import worker as machine
from rallypoint.model.errors import UnusableError
from rallypoint.model.worker import Rules, Standing, Worker
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStateError,
    RendezvousStoreInfo,
    RendezvousTimeoutError,
)

if TYPE_CHECKING:
    import etcd

__all__ = [
    "EtcdRendezvous",
    "EtcdRendezvousHandler",
    "EtcdRendezvousRetryImmediately",
    "EtcdRendezvousRetryableFailure",
    "create_rdzv_handler",
]

logger = logging.getLogger(__name__)

DEFAULT_TIMEOUT = 600
DEFAULT_LAST_CALL_TIMEOUT = 30
DEFAULT_PREFIX = "/torchelastic/p2p"
ANSWER = 10.0  # seconds for writes outside the barrier, repeated until they are answered
LONGEST = 10**9  # seconds, for every time that is asked for
BOOTSTRAP_SLICE = 1.0  # seconds between two looks at the version while rank 0's address is awaited


class EtcdRendezvousRetryableFailure(Exception):  # noqa: N818
    """Upstream's name. Never raised here: what upstream retries, the model decides."""


class EtcdRendezvousRetryImmediately(Exception):  # noqa: N818
    """Upstream's name. Never raised here: what upstream retries, the model decides."""


class _SupersededError(Exception):
    """The version ended before its members had the address of rank 0."""


@contextmanager
def _rendezvous_errors(where: str) -> Iterator[None]:
    """Nothing leaves but torch's rendezvous errors (L-F)."""
    try:
        yield
    except (EtcdUnavailable, UnusableError) as error:
        raise RendezvousConnectionError(f"{where}: {error}") from error
    except docs.BrokenDocumentError as error:
        raise RendezvousStateError(f"{where}: {error}") from error


def _extra_data(text: str | None) -> dict[str, Any]:
    """The shared object of a version; None: nobody has written it. Raises RendezvousStateError if it is none."""
    try:
        data = {} if text is None else json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RendezvousStateError(f"extra data is no JSON that can be read: {error}") from error
    if not isinstance(data, dict):
        raise RendezvousStateError(f"extra data is {text!r:.40}: it must be a JSON object")
    return data


def _participant() -> str:
    """A new identity: unique per attempt to meet, readable by an operator."""
    host = "".join(letter if letter.isalnum() or letter == "-" else "-" for letter in socket.gethostname())
    return f"{host}-{os.getpid()}-{secrets.token_hex(4)}"


class EtcdRendezvous:
    """The rendezvous of one run id. Not for use by several threads at once, but for ``standing`` and ``is_closed``.

    ``client``: an ``etcd.Client`` (its address, certificates and user are taken) or an ``EtcdHttp``. ``prefix``: with
    or without leading slash (L-H). ``timeout`` and ``last_call_timeout`` in seconds. ``ttls``: seconds for
    ``setup_ttl``, ``joinable_ttl``, ``frozen_ttl``, ``keep_alive_ttl``; etcd's unit is a whole second.
    Raises ValueError for unusable arguments, RendezvousConnectionError if etcd cannot be used.
    """

    def __init__(
        self,
        client: etcd.Client | EtcdHttp,
        prefix: str,
        run_id: str,
        num_min_workers: int,
        num_max_workers: int,
        timeout: float,
        last_call_timeout: float,
        *,
        ttls: Mapping[str, Any] | None = None,
    ) -> None:
        if not isinstance(run_id, str) or not run_id.strip():
            raise ValueError(f"run_id is {run_id!r}: it must be a non-empty text that names the job")
        if not 0 < timeout <= LONGEST or not 0 <= last_call_timeout <= LONGEST:
            times = f"timeout={timeout}, last_call_timeout={last_call_timeout}"
            raise ValueError(f"{times}: times must be positive, and at most {LONGEST} s")
        for name, seconds in (ttls or {}).items():
            if not 1 <= seconds <= LONGEST:
                raise ValueError(f"{name}={seconds}: etcd counts whole seconds, at least 1, and here at most {LONGEST}")
        self.client = client
        self._run_id = run_id
        self._timeout = timeout
        self._last_call_timeout = last_call_timeout
        self._directory = joined_key(prefix, f"run_{key_segment(run_id)}")
        self.rules = Rules(num_min_workers, num_max_workers, root=self._directory + "/rdzv", **(ttls or {}))
        with _rendezvous_errors("cannot use etcd"):
            self._http = client if isinstance(client, EtcdHttp) else EtcdHttp.of_client(client)
        self._driver = Driver(EtcdV2(self._http, ""), self.rules)
        self._asking = Driver(self._driver.client, self.rules)
        self._worker = Worker("")
        self._deadline = 0.0
        self._waited_for = "nothing"
        weakref.finalize(self, self._driver.abandon)
        with _rendezvous_errors(f"run {run_id!r}"):
            self._asking.once(requests.Create(machine.counter(self.rules), "0"), time.monotonic() + ANSWER)

    def rendezvous_barrier(self) -> tuple[str, int, int]:
        """Meet: blocks until this worker is a member of a version with min to max members.

        Returns (version, rank, world size); the version as decimal text, as PyTorch's class does. A member that calls
        again leaves its version first.
        Raises RendezvousTimeoutError after ``timeout`` seconds, RendezvousClosedError, RendezvousConnectionError,
        RendezvousStateError.
        """
        self._deadline = time.monotonic() + self._timeout
        return self._meet()

    def _disown_in_fork(self) -> None:
        """The membership that a fork finds here is its parent's."""
        if self._driver.forked():
            self._worker = Worker("")

    def _meet(self) -> tuple[str, int, int]:
        self._disown_in_fork()
        start = machine.reenter(self.rules, self._worker, _participant())
        with _rendezvous_errors(f"run {self._run_id!r}"):
            ended = self._driver.run(start, self._deadline, self._last_call_timeout, self._note)
        if ended.pc != machine.MEMBER:
            self._fail(ended.pc)
        assert ended.rank is not None
        assert ended.world is not None
        logger.info("run %r: rank %d of %d in version %s", self._run_id, ended.rank, ended.world, ended.version)
        return str(ended.version), ended.rank, ended.world

    def _note(self, worker: Worker) -> None:
        if worker.pc not in machine.ENDED and worker.pc != "withdraw":
            self._waited_for = machine.reason(self.rules, worker)
        self._worker = worker

    def _fail(self, outcome: str) -> NoReturn:
        self._worker = Worker("")
        if outcome == "closed":
            raise RendezvousClosedError(f"run {self._run_id!r} is closed")
        if outcome == "timed_out":
            raise RendezvousTimeoutError(
                f"run {self._run_id!r}: not met within {self._timeout} s; last seen {self._waited_for}"
            )
        raise RendezvousStateError(f"run {self._run_id!r}: the version counter is gone; the run's keys were removed")

    def standing(self) -> Standing:
        """How many workers wait to be let in, and why this member should meet again.

        Raises RendezvousConnectionError, RendezvousStateError.
        """
        with _rendezvous_errors(f"run {self._run_id!r}"):
            deadline = time.monotonic() + POLL
            text = self._text(deadline)
            version = None if text is None else docs.parse(text).version
            keys: tuple[str, ...] = ()
            if version is not None:
                listing = self._asking.once(requests.List(machine.directory(self.rules, version)), deadline)
                keys = listing.keys if isinstance(listing, requests.Listing) else ()
            if self._worker.pc == machine.MEMBER:
                return machine.standing(self.rules, self._worker, text, keys)
            document = None if text is None else docs.parse(text)
            final = document is not None and document.status == docs.FINAL
            return Standing(machine.waiting(self.rules, document, keys) if document and final else 0, False, "")

    def _text(self, deadline: float) -> str | None:
        reply = self._asking.once(requests.Get(machine.active(self.rules)), deadline)
        return reply.value if isinstance(reply, requests.Done) else None

    def is_closed(self) -> bool:
        """The run is over. Raises RendezvousConnectionError, RendezvousStateError."""
        with _rendezvous_errors(f"run {self._run_id!r}"):
            text = self._text(time.monotonic() + POLL)
            return text is not None and docs.parse(text).status == docs.CLOSED

    def set_closed(self) -> None:
        """Nobody may meet under this run id any more; also before anybody has (L-D)."""
        with _rendezvous_errors(f"run {self._run_id!r}"):
            closer = machine.start_closing(Worker(_participant()))
            ended = self._asking.run(closer, time.monotonic() + ANSWER, 0, lambda _: None)
        if ended.pc != "closed":
            raise RendezvousConnectionError(f"run {self._run_id!r}: not closed, etcd did not answer in {ANSWER} s")

    def leave(self) -> None:
        """Give up membership at once, so that nobody waits for a TTL; close idle connections. May be repeated.

        In a fork the parent stays a member.
        """
        self._disown_in_fork()
        worker, self._worker = self._worker, Worker("")
        self._driver.release()
        if worker.lease is not None:
            try:
                self._asking.once(requests.Delete(worker.lease), time.monotonic() + ANSWER / 2)
            except (EtcdUnavailable, UnusableError) as error:
                logger.warning("run %r: %s is left to its TTL: %s", self._run_id, worker.lease, error)
        self._http.close()

    def setup_kv_store(self, rdzv_version: str | int) -> EtcdStore:
        """The store of one version; versions never share a key."""
        return EtcdStore(self._http, f"{machine.directory(self.rules, int(rdzv_version))}/kv")

    def store_extra_data(self, rdzv_version: str | int, key: str, value: str) -> None:
        """Publish ``value`` under ``key`` in a version, by compare-and-swap on one shared JSON object.

        Raises RendezvousConnectionError, RendezvousStateError.
        """
        node = f"{machine.directory(self.rules, int(rdzv_version))}/extra_data"
        deadline = time.monotonic() + self._timeout
        with _rendezvous_errors(f"run {self._run_id!r}"):
            while True:
                reply = self._asking.once(requests.Get(node), deadline)
                if reply == requests.Done(None):
                    raise RendezvousStateError(f"extra data: {node} is a directory")
                text = reply.value if isinstance(reply, requests.Done) else None
                data = _extra_data(text)
                if data.get(key) == value:
                    return
                new = json.dumps({**data, key: value})
                write = requests.Create(node, new) if text is None else requests.Cas(node, text, new)
                if isinstance(self._asking.once(write, deadline), requests.Done):
                    return

    def load_extra_data(self, rdzv_version: str | int, key: str, timeout: timedelta | float | None = None) -> str:
        """The value under ``key``, waiting for it at most ``timeout`` (default: the rendezvous timeout; L-T).

        Raises RendezvousTimeoutError, RendezvousConnectionError, RendezvousStateError.
        """
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        node = f"{machine.directory(self.rules, int(rdzv_version))}/extra_data"
        deadline = time.monotonic() + (self._timeout if seconds is None else seconds)
        text = None
        with _rendezvous_errors(f"run {self._run_id!r}"):
            while True:
                reply = self._driver.client.perform(requests.Await(node, text), deadline)
                if not isinstance(reply, requests.Snapshot):
                    raise RendezvousTimeoutError(f"extra data {key!r} was not published in time")
                text = reply.value
                if key in (data := _extra_data(text)):
                    value: str = data[key]
                    return value

    def bootstrap(self, version: str, rank: int, local_addr: str | None, store: EtcdStore) -> RendezvousStoreInfo:
        """The address of this version's rank 0: published by it, awaited by the others, within the barrier's timeout.

        Raises _SupersededError if the version ends first (L-S), RendezvousClosedError, RendezvousTimeoutError,
        RendezvousConnectionError.
        """
        usual = store.timeout
        try:
            while (left := self._deadline - time.monotonic()) > 0:
                store.set_timeout(timedelta(seconds=left if rank == 0 else min(left, BOOTSTRAP_SLICE)))
                try:
                    return RendezvousStoreInfo.build(rank, store, local_addr=local_addr)
                except LookupError:
                    self._look_after(version)
                except dist.DistNetworkError as error:
                    raise RendezvousConnectionError(f"run {self._run_id!r}: {error}") from error
        finally:
            store.set_timeout(usual)
        self.leave()
        raise RendezvousTimeoutError(f"run {self._run_id!r}: rank 0 of version {version} did not publish its address")

    def _look_after(self, version: str) -> None:
        """Between two looks for rank 0's address: is the version still worth waiting for?"""
        try:
            if self.is_closed():
                self.leave()
                raise RendezvousClosedError(f"run {self._run_id!r} was closed before version {version} had an address")
            standing = self.standing()
        except RendezvousConnectionError as error:
            logger.warning("%s", error)
            return
        if standing.stale:
            raise _SupersededError(standing.reason)


class EtcdRendezvousHandler(RendezvousHandler):
    """torch's handler interface over an ``EtcdRendezvous``.

    ``local_addr``: what rank 0 publishes; None: its FQDN. ``backend``: the name under which torch asked for the
    handler; torch refuses a handler with another name.
    """

    def __init__(self, rdzv_impl: EtcdRendezvous, local_addr: str | None = None, *, backend: str = "etcd") -> None:
        self._rdzv_impl = rdzv_impl
        self._local_addr = local_addr
        self._backend = backend
        self._outage = Outage(rdzv_impl._timeout)

    def get_backend(self) -> str:
        return self._backend

    def get_run_id(self) -> str:
        return self._rdzv_impl._run_id

    def next_rendezvous(self) -> RendezvousInfo:
        """Meet, and agree on the address of rank 0. Raises as ``EtcdRendezvous.rendezvous_barrier`` does."""
        version, rank, world_size = self._rdzv_impl.rendezvous_barrier()
        while True:
            store = self._rdzv_impl.setup_kv_store(version)
            try:
                bootstrap = self._rdzv_impl.bootstrap(version, rank, self._local_addr, store)
            except _SupersededError as ended:
                logger.warning("run %r: meeting again: %s", self.get_run_id(), ended)
                version, rank, world_size = self._rdzv_impl._meet()
                continue
            return RendezvousInfo(store, rank, world_size, bootstrap)

    def is_closed(self) -> bool:
        """True once the run is closed; while etcd is away, what is known: not closed."""
        return self._outage.ask(self._rdzv_impl.is_closed, False)

    def set_closed(self) -> None:
        self._rdzv_impl.set_closed()

    def num_nodes_waiting(self) -> int:
        """How many workers wait to be let in; at least 1 if this member must meet again (the reason is logged).

        While etcd is away the answer is 0: healthy workers go on (G-A).
        """
        standing = self._outage.ask(self._rdzv_impl.standing, Standing(0, False, ""))
        if standing.stale:
            logger.warning("run %r: told to meet again: %s", self.get_run_id(), standing.reason)
        return standing.waiting

    def shutdown(self) -> bool:
        """Close the run for everybody and leave it. False (and a log entry) if it could not be closed."""
        try:
            self._rdzv_impl.set_closed()
        except RendezvousError as error:
            logger.warning("shutdown: %s", error)
            return False
        finally:
            self._rdzv_impl.leave()
        return True


OPTIONS = {
    "timeout": "seconds until next_rendezvous gives up (600)",
    "last_call_timeout": "seconds for late workers to join once min are in; with 0 they turn each other away (30)",
    "etcd_prefix": f"etcd directory of all runs ({DEFAULT_PREFIX})",
    "protocol": "http or https (http)",
    "cacert": "file with the CA to check the server against (with https: the system's)",
    "cert": "file with the client certificate (none)",
    "key": "file with its private key (none)",
    "username": "etcd user (none)",
    "password": "the user's password; torchrun logs it, as it does all options (none)",
    "password_file": "file with the password, which keeps it out of logs and command lines (none)",
    "setup_ttl": "seconds until a version in the making is given up (5)",
    "joinable_ttl": "seconds until a version is given up whose last call nobody ends (10)",
    "frozen_ttl": "seconds for a confirmation (10)",
    "keep_alive_ttl": "seconds until a lost worker is noticed (10)",
}
"""Option of ``RendezvousParameters`` -> meaning, unit and default."""


def create_rdzv_handler(params: RendezvousParameters) -> EtcdRendezvousHandler:
    """A handler from torch's parameters; ``OPTIONS`` lists the options. ``endpoint``: HOST[:PORT], or several.

    Raises ValueError for an unknown or unusable option, RendezvousConnectionError if etcd cannot be used.
    """
    unknown = sorted(set(params.config) - set(OPTIONS))
    if unknown:
        raise ValueError(f"unknown rendezvous option {', '.join(unknown)}; the known ones are {', '.join(OPTIONS)}")
    protocol = str(params.get("protocol") or "http").lower()
    if protocol not in ("http", "https"):
        raise ValueError(f"protocol={protocol!r}: the etcd protocol must be http or https")
    access = access_of(params, protocol)
    ttls = {
        name: _seconds(params, name, 0) for name in OPTIONS if name.endswith("_ttl") and params.get(name) is not None
    }
    with _rendezvous_errors("cannot use etcd"):
        http = EtcdHttp(access)
    rendezvous = EtcdRendezvous(
        http,
        params.get("etcd_prefix") or DEFAULT_PREFIX,
        params.run_id,
        params.min_nodes,
        params.max_nodes,
        _seconds(params, "timeout", DEFAULT_TIMEOUT),
        _seconds(params, "last_call_timeout", DEFAULT_LAST_CALL_TIMEOUT),
        ttls=ttls,
    )
    return EtcdRendezvousHandler(rendezvous, params.local_addr, backend=params.backend)


def _seconds(params: RendezvousParameters, name: str, default: int) -> int:
    try:
        value = params.get_as_int(name, default)
    except OverflowError as error:
        raise ValueError(f"{name}={params.get(name)}: not a number of seconds") from error
    return default if value is None else value
