"""Drop-in for ``torch.distributed.elastic.rendezvous.etcd_rendezvous``: same names, same wire format.

May live here: torch's handler interface and its events. Must not live here: the run on etcd (``etcd_run.py``), options
and the URL form (``etcd_options.py``).

Source of the contract: PyTorch documentation, "Rendezvous" (``torch.distributed.elastic.rendezvous``).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rallypoint.impl.access import access_of
from rallypoint.impl.etcd_http import EtcdHttp
from rallypoint.impl.etcd_options import OPTIONS, TTLS, rendezvous_parameters, settings_of
from rallypoint.impl.etcd_run import EtcdRendezvous, SupersededError, rendezvous_errors
from rallypoint.impl.outage import Outage
from rallypoint.model.worker import Standing
from torch.distributed.elastic.events import construct_and_record_rdzv_event
from torch.distributed.elastic.events.api import NodeState
from torch.distributed.elastic.rendezvous import (
    RendezvousError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
)

__all__ = [
    "OPTIONS",
    "EtcdRendezvous",
    "EtcdRendezvousHandler",
    "EtcdRendezvousRetryImmediately",
    "EtcdRendezvousRetryableFailure",
    "create_rdzv_handler",
    "rendezvous_parameters",
]

logger = logging.getLogger(__name__)


class EtcdRendezvousRetryableFailure(Exception):  # noqa: N818
    """Upstream's name. Never raised here: what upstream retries, the model decides."""


class EtcdRendezvousRetryImmediately(Exception):  # noqa: N818
    """Upstream's name. Never raised here: what upstream retries, the model decides."""


class EtcdRendezvousHandler(RendezvousHandler):
    """torch's handler interface over an ``EtcdRendezvous``. Records torch's rendezvous events.

    ``local_addr``: what rank 0 publishes; None: its FQDN. ``backend``: the name under which torch asked for the
    handler; torch refuses a handler with another name.
    """

    def __init__(self, rdzv_impl: EtcdRendezvous, local_addr: str | None = None, *, backend: str = "etcd") -> None:
        self._rdzv_impl = rdzv_impl
        self._local_addr = local_addr
        self._backend = backend
        self._outage = Outage(rdzv_impl._timeout)
        self._told = ""

    def get_backend(self) -> str:
        return self._backend

    def get_run_id(self) -> str:
        return self._rdzv_impl._run_id

    def next_rendezvous(self) -> RendezvousInfo:
        """Meet, and agree on the address of rank 0. Raises as ``EtcdRendezvous.rendezvous_barrier`` does."""
        started = time.monotonic()
        with self._failures_recorded("next_rendezvous"):
            self._record("next_rendezvous", f"trying to meet in run {self.get_run_id()!r}")
            version, rank, world_size = self._rdzv_impl.rendezvous_barrier()
            while True:
                store = self._rdzv_impl.setup_kv_store(version)
                try:
                    bootstrap = self._rdzv_impl.bootstrap(version, rank, self._local_addr, store)
                    break
                except SupersededError as ended:
                    logger.warning("run %r: meeting again: %s", self.get_run_id(), ended)
                    self._record("next_rendezvous", f"meeting again: {ended}", rank=rank)
                    version, rank, world_size = self._rdzv_impl._meet()
        self._told = ""
        met = f"met as rank {rank} of {world_size} in version {version}, after {time.monotonic() - started:.2f} s"
        self._record("next_rendezvous", met, rank=rank, master=f"{bootstrap.master_addr}:{bootstrap.master_port}")
        return RendezvousInfo(store, rank, world_size, bootstrap)

    def is_closed(self) -> bool:
        """True once the run is closed; while etcd is away, what is known: not closed."""
        with self._failures_recorded("is_closed"):
            return self._outage.ask(self._rdzv_impl.is_closed, False)

    def set_closed(self) -> None:
        """As ``EtcdRendezvous.set_closed``."""
        with self._failures_recorded("set_closed"):
            self._rdzv_impl.set_closed()
        self._record("set_closed", f"closed run {self.get_run_id()!r}", NodeState.SUCCEEDED)

    def num_nodes_waiting(self) -> int:
        """How many workers wait to be let in; at least 1 if this member must meet again (the reason is logged).

        While etcd is away the answer is 0: healthy workers go on (G-A).
        """
        with self._failures_recorded("num_nodes_waiting"):
            standing = self._outage.ask(self._rdzv_impl.standing, Standing(0, False, ""))
        if standing.reason and standing.reason != self._told:
            logger.log(
                logging.WARNING if standing.stale else logging.INFO, "run %r: %s", self.get_run_id(), standing.reason
            )
            self._record("num_nodes_waiting", standing.reason)
        self._told = standing.reason
        return standing.waiting

    def shutdown(self) -> bool:
        """Close the run for everybody and leave it. False (and a log entry) if it could not be closed."""
        try:
            self.set_closed()
        except RendezvousError as error:
            logger.warning("shutdown: %s", error)
            return False
        finally:
            self._rdzv_impl.leave()
        return True

    @contextmanager
    def _failures_recorded(self, call: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._record(call, f"{type(error).__name__}: {error}", NodeState.FAILED)
            raise

    def _record(
        self,
        call: str,
        message: str,
        state: NodeState = NodeState.RUNNING,
        *,
        rank: int | None = None,
        master: str = "",
    ) -> None:
        """An event as torch's dynamic handler records them; costs next to nothing while nobody listens."""
        construct_and_record_rdzv_event(
            self.get_run_id(),
            message,
            state,
            name=f"{type(self).__name__}.{call}",
            hostname=self._local_addr or "",
            master_endpoint=master,
            rank=rank,
        )


def create_rdzv_handler(params: RendezvousParameters | str) -> EtcdRendezvousHandler:
    """A handler from torch's parameters, or from the URL form (``rendezvous_parameters``).

    ``OPTIONS`` lists the options. ``endpoint``: HOST[:PORT], or several, separated by commas.
    Raises ValueError for an unknown or unusable option, RendezvousConnectionError if etcd cannot be used.
    """
    if isinstance(params, str):
        params = rendezvous_parameters(params)
    try:
        return _handler(params)
    except (RendezvousError, ValueError) as error:
        message = f"{type(error).__name__}: {error}"
        construct_and_record_rdzv_event(str(params.run_id), message, NodeState.FAILED)
        raise


def _handler(params: RendezvousParameters) -> EtcdRendezvousHandler:
    settings = settings_of(params.config)
    access = access_of(params, settings["protocol"])
    with rendezvous_errors("cannot use etcd"):
        http = EtcdHttp(access)
    rendezvous = EtcdRendezvous(
        http,
        settings["etcd_prefix"],
        params.run_id,
        params.min_nodes,
        params.max_nodes,
        settings["timeout"],
        settings["last_call_timeout"],
        ttls={name: settings[name] for name in TTLS},
    )
    return EtcdRendezvousHandler(rendezvous, params.local_addr, backend=params.backend)
