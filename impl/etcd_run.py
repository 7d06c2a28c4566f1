"""``EtcdRendezvous``: the rendezvous of one run id on etcd, under upstream's name and with its methods.

May live here: the questions and orders of one process to its run, and how their failures reach torch. Must not live
here: decisions about the rendezvous (``model/worker.py``), torch's handler interface (``etcd_rendezvous.py``), options
(``etcd_options.py``), or how etcd is talked to (``etcd_v2.py``).
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import socket
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn

import torch.distributed as dist
from rallypoint.impl import extra_data
from rallypoint.impl.driver import Driver
from rallypoint.impl.etcd_http import EtcdHttp, joined_key, key_segment
from rallypoint.impl.etcd_options import duration, duration_or_none, prefix_of, time_to_live
from rallypoint.impl.etcd_store import EtcdStore
from rallypoint.impl.etcd_v2 import EtcdUnavailable, EtcdV2
from rallypoint.impl.outage import POLL
from rallypoint.model import document as docs
from rallypoint.model import etcd as requests
from rallypoint.model import worker as machine
from rallypoint.model.errors import UnusableError
from rallypoint.model.worker import Rules, Standing, Worker
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousStateError,
    RendezvousStoreInfo,
    RendezvousTimeoutError,
)

if TYPE_CHECKING:
    import etcd

logger = logging.getLogger(__name__)

ANSWER = 10.0  # seconds at most for writes outside the barrier, repeated until they are answered
LEAVING = 1.0  # seconds at most for giving up the lease; else it is left to its TTL
BOOTSTRAP_SLICE = 1.0  # seconds between two looks at the version while rank 0's address is awaited


class SupersededError(Exception):
    """The version ended before its members had the address of rank 0."""


@contextmanager
def rendezvous_errors(where: str) -> Iterator[None]:
    """Nothing leaves but torch's rendezvous errors (L-F)."""
    try:
        yield
    except (EtcdUnavailable, UnusableError) as error:
        raise RendezvousConnectionError(f"{where}: {error}") from error
    except docs.BrokenDocumentError as error:
        raise RendezvousStateError(f"{where}: {error}") from error


def _participant() -> str:
    """A new identity: unique per attempt to meet, readable by an operator."""
    host = "".join(letter if letter.isalnum() or letter == "-" else "-" for letter in socket.gethostname())
    return f"{host}-{os.getpid()}-{secrets.token_hex(4)}"


class _Publisher:
    """The store as rank 0 uses it: what it has written it need not read back, and wait for if the keys are lost."""

    def __init__(self, store: EtcdStore) -> None:
        self._store = store
        self._own: dict[str, bytes] = {}

    def set(self, key: str, value: str | bytes) -> None:
        self._store.set(key, value)
        self._own[key] = value.encode() if isinstance(value, str) else value

    def get(self, key: str) -> bytes:
        return self._own[key] if key in self._own else self._store.get(key)


def _unnamed(host: str, port: int) -> str | None:
    """The address by which this host reaches another, if its own name leads nowhere (R53); None: the name will do."""
    with contextlib.suppress(OSError):
        socket.getaddrinfo(socket.getfqdn(), None)
        return None
    with contextlib.suppress(OSError):
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)  # sends nothing
            return str(probe.getsockname()[0])
    return None


def _says_closed(text: str | None) -> bool:
    return text is not None and docs.parse(text).status == docs.CLOSED


def _forget(driver: Driver, http: EtcdHttp) -> None:
    """The run's object is gone, or the process ends."""
    driver.abandon()
    http.close()


class EtcdRendezvous:
    """The rendezvous of one run id. Not for use by several threads at once, but for ``standing`` and ``is_closed``.

    ``client``: an ``etcd.Client`` (its address, certificates and user are taken) or an ``EtcdHttp``. ``prefix``: with
    or without leading slash (L-H). ``timeout`` and ``last_call_timeout`` in seconds. ``ttls``: whole seconds for those
    of the options that end in ``_ttl``.
    Raises ValueError for unusable arguments, RendezvousConnectionError if etcd cannot be used.
    """

    def __init__(
        self,
        client: etcd.Client | EtcdHttp,
        prefix: str,
        run_id: str | int,
        num_min_workers: int,
        num_max_workers: int,
        timeout: float,
        last_call_timeout: float,
        *,
        ttls: Mapping[str, Any] | None = None,
    ) -> None:
        run_id = str(run_id) if type(run_id) is int else run_id  # as PyTorch's class takes it
        if not isinstance(run_id, str) or not run_id.strip():
            raise ValueError(f"run_id is {run_id!r}: it must be a non-empty text that names the job")
        self._timeout = duration("timeout", timeout)
        self._last_call_timeout = duration_or_none("last_call_timeout", last_call_timeout)
        ttls = {name: time_to_live(name, seconds) for name, seconds in (ttls or {}).items()}
        self.client = client
        self._run_id = run_id
        self._directory = joined_key(prefix_of("prefix", prefix), f"run_{key_segment(run_id)}")
        self.rules = Rules(num_min_workers, num_max_workers, root=self._directory + "/rdzv", **ttls)
        with rendezvous_errors("cannot use etcd"):
            self._http = client if isinstance(client, EtcdHttp) else EtcdHttp.of_client(client)
        self._driver = Driver(EtcdV2(self._http, ""), self.rules)
        self._asking = Driver(self._driver.client, self.rules)
        self._worker = Worker("")
        self._deadline = 0.0
        self._waited_for = "nothing"
        self._cut_off = False  # etcd did not answer the last look for rank 0's address
        self._answer = min(ANSWER, self._timeout)
        weakref.finalize(self, _forget, self._driver, self._http)
        with contextlib.ExitStack() as unfinished, rendezvous_errors(f"run {run_id!r}"):
            unfinished.callback(self._http.close)
            self._text(time.monotonic() + self._answer)
            unfinished.pop_all()

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
        try:
            with rendezvous_errors(f"run {self._run_id!r}"):
                ended = self._driver.run(start, self._deadline, self._last_call_timeout, self._note)
        except BaseException:  # Ctrl-C, too: nobody is to wait for this worker
            self.leave()
            raise
        if ended.pc != machine.MEMBER:
            self._fail(ended)
        assert ended.rank is not None
        assert ended.world is not None
        logger.info("run %r: rank %d of %d in version %s", self._run_id, ended.rank, ended.world, ended.version)
        return str(ended.version), ended.rank, ended.world

    def _note(self, worker: Worker) -> None:
        if worker.pc not in machine.ENDED and worker.pc != "withdraw":
            self._waited_for = machine.reason(self.rules, worker)
        self._worker = worker

    def _fail(self, ended: Worker) -> NoReturn:
        self._worker = Worker("")
        if ended.pc == "closed":
            raise RendezvousClosedError(f"run {self._run_id!r} is closed")
        if ended.pc == "timed_out":
            raise RendezvousTimeoutError(
                f"run {self._run_id!r}: not met within {self._timeout:g} s; last seen {self._waited_for}"
            )
        raise RendezvousStateError(f"run {self._run_id!r}: {machine.reason(self.rules, ended)}")

    def standing(self) -> Standing:
        """How many workers wait to be let in, and why this member should meet again.

        Raises RendezvousConnectionError, RendezvousStateError.
        """
        deadline = time.monotonic() + POLL
        with rendezvous_errors(f"run {self._run_id!r}"):
            return self._standing(self._text(deadline), deadline)

    def _standing(self, text: str | None, deadline: float) -> Standing:
        document = None if text is None else docs.parse(text)
        keys = self._keys(document, deadline)
        self._worker = machine.notice(self.rules, self._worker, text)
        if self._worker.pc in (machine.MEMBER, "closed"):
            return machine.standing(self.rules, self._worker, text, keys)
        final = document is not None and document.status == docs.FINAL
        return Standing(machine.waiting(self.rules, document, keys) if document and final else 0, False, "")

    def _keys(self, document: docs.Document | None, deadline: float) -> tuple[str, ...]:
        """What is in the directory of the document's version."""
        if document is None or document.version is None:
            return ()
        listing = self._asking.once(requests.List(machine.directory(self.rules, document.version)), deadline)
        return listing.keys if isinstance(listing, requests.Listing) else ()

    def _text(self, deadline: float) -> str | None:
        reply = self._asking.once(requests.Get(machine.active(self.rules)), deadline)
        if reply == requests.Done(None):
            raise docs.BrokenDocumentError("not a rendezvous document: a directory is in its place")
        return reply.value if isinstance(reply, requests.Done) else None

    def is_closed(self) -> bool:
        """The run is over. Raises RendezvousConnectionError, RendezvousStateError."""
        with rendezvous_errors(f"run {self._run_id!r}"):
            return _says_closed(self._text(time.monotonic() + POLL))

    def set_closed(self) -> None:
        """Nobody may meet under this run id any more, for ``closed_ttl`` seconds; also before anybody has (L-D).

        Raises RendezvousConnectionError, RendezvousStateError.
        """
        with rendezvous_errors(f"run {self._run_id!r}"):
            closer = machine.start_closing(Worker(_participant()))
            ended = self._asking.run(closer, time.monotonic() + self._answer, 0, lambda _: None)
            if ended.pc != "closed":
                raise RendezvousConnectionError(f"run {self._run_id!r}: could not be closed in {self._answer:g} s")
            self._worker = machine.notice(self.rules, self._worker, self._text(time.monotonic() + POLL))

    def leave(self) -> None:
        """Give up membership at once, so that nobody waits for a TTL; close idle connections. May be repeated.

        In a fork the parent stays a member.
        """
        self._disown_in_fork()
        worker, self._worker = self._worker, Worker("")
        self._driver.release()
        if worker.lease is not None:
            try:
                self._asking.once(requests.Delete(worker.lease), time.monotonic() + LEAVING)
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
        with rendezvous_errors(f"run {self._run_id!r}"):
            extra_data.publish(self._asking, self._extra(rdzv_version), key, value, time.monotonic() + self._timeout)

    def load_extra_data(self, rdzv_version: str | int, key: str, timeout: timedelta | float | None = None) -> str:
        """The value under ``key``, waiting for it at most ``timeout`` (default: the rendezvous timeout; L-T).

        Raises RendezvousTimeoutError, RendezvousConnectionError, RendezvousStateError.
        """
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        limit = self._timeout if seconds is None else seconds
        with rendezvous_errors(f"run {self._run_id!r}"):
            return extra_data.await_key(self._asking, self._extra(rdzv_version), key, time.monotonic() + limit)

    def _extra(self, rdzv_version: str | int) -> str:
        return f"{machine.directory(self.rules, int(rdzv_version))}/extra_data"

    def bootstrap(self, version: str, rank: int, local_addr: str | None, store: EtcdStore) -> RendezvousStoreInfo:
        """The address of this version's rank 0: published by it, awaited by the others, within the barrier's timeout.

        Raises SupersededError if the version ends first (L-S), RendezvousClosedError, RendezvousTimeoutError,
        RendezvousConnectionError, RendezvousStateError.
        """
        usual = store.timeout
        if rank == 0 and local_addr is None:
            local_addr = _unnamed(*self._http.access.endpoints[0])
        used: Any = _Publisher(store) if rank == 0 else store
        try:
            while (left := self._deadline - time.monotonic()) > 0:
                store.set_timeout(timedelta(seconds=left if rank == 0 else min(left, BOOTSTRAP_SLICE)))
                try:
                    return RendezvousStoreInfo.build(rank, used, local_addr=local_addr)
                except LookupError:
                    self._look_after(version)
                except dist.DistNetworkError as error:
                    raise RendezvousConnectionError(f"run {self._run_id!r}: {error}") from error
                except (dist.DistStoreError, ValueError) as error:
                    where = f"run {self._run_id!r}, address of rank 0 of version {version}"
                    raise RendezvousStateError(f"{where}: {error}") from error
        finally:
            store.set_timeout(usual)
        self.leave()
        raise RendezvousTimeoutError(f"run {self._run_id!r}: rank 0 of version {version} did not publish its address")

    def _look_after(self, version: str) -> None:
        """Between two looks for rank 0's address: is the version still worth waiting for?"""
        deadline = min(time.monotonic() + POLL, self._deadline)
        try:
            with rendezvous_errors(f"run {self._run_id!r}"):
                text = self._text(deadline)
                document = None if text is None else docs.parse(text)
                keys = self._keys(document, deadline)
        except RendezvousConnectionError as error:
            if not self._cut_off:
                logger.warning("%s; still waiting for the address of rank 0", error)
            self._cut_off = True
            return
        self._cut_off = False
        missing = tuple(key for key in (document and document.keep_alives) or () if key not in keys)
        waiting = replace(self._worker, pc="await_address")
        after = machine.step(self.rules, waiting, requests.Snapshot(text, missing))
        if after.pc == "closed":
            self.leave()
            raise RendezvousClosedError(f"run {self._run_id!r} was closed before version {version} had an address")
        if after.pc != "await_address":
            raise SupersededError(machine.standing(self.rules, self._worker, text, keys).reason)
