"""Upstream's dynamic handler as ``--rdzv-backend=rallypoint-etcd-v2`` runs it: on our backend and store.

May live here: what is put around upstream's handler. Must not live here: what its state means, beyond who takes part.

* One bootstrap address per round (D-A, D-B, D-C): upstream keeps the first for ever, its own or that of a lost peer.
* A rank 0 that is lost before it has published its address leads to another attempt (L-S).
* Outages are ridden out, and do not keep the agent from its workers (G-A, D-I, D-J).
* A member that is one no more, or has lost a peer, is told so (D-E, D-K).
* Upstream loads no foreign pickle (D-L; ``dynamic_state.py``).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from rallypoint.impl.dynamic_state import CheckedBackend
from rallypoint.impl.etcd_rendezvous_backend import EtcdRendezvousBackend, create_backend
from rallypoint.impl.etcd_store import EtcdStore
from rallypoint.impl.outage import POLL, Outage
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousTimeoutError,
)
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler, create_handler

logger = logging.getLogger(__name__)

BOOTSTRAP = timedelta(seconds=60)  # for rank 0 to publish its address
CACHED = ("_bootstrap_store_info", "_shared_tcp_store_server")  # what upstream must forget between rounds


class DynamicHandler(RendezvousHandler):
    """Upstream's handler ``inner``, with what it lacks around it. Made by ``create_dynamic_handler``."""

    def __init__(self, inner: DynamicRendezvousHandler, backend: EtcdRendezvousBackend, store: EtcdStore) -> None:
        self._inner = inner
        self._backend = backend
        self._store = store
        self._patience = backend._timeout
        backend._timeout = min(POLL, self._patience)
        self._outage = Outage(inner.settings.timeout.join.total_seconds())
        self._round: int | None = None
        self._world = 0

    @property
    def use_agent_store(self) -> bool:
        return bool(self._inner.use_agent_store)

    def get_backend(self) -> str:
        return str(self._inner.get_backend())

    def get_run_id(self) -> str:
        return str(self._inner.get_run_id())

    def next_rendezvous(self) -> RendezvousInfo:
        """Meet, and agree on the address of rank 0. Raises as torch's handler does, within the join timeout."""
        limit = self._inner.settings.timeout.join
        deadline = time.monotonic() + limit.total_seconds()
        with self._patient(limit):
            while True:
                try:
                    info = self._attempt()
                    break
                except LookupError as error:
                    if time.monotonic() >= deadline:
                        raise RendezvousTimeoutError(f"run {self.get_run_id()!r}: no address of rank 0") from error
                    logger.warning("run %r: meeting again: rank 0 did not publish its address", self.get_run_id())
        self._round, self._world = self._inner._state_holder.state.round, info.world_size
        return info

    def _attempt(self) -> RendezvousInfo:
        for name in CACHED:
            setattr(self._inner, name, None)
        before = self._store.timeout
        self._store.set_timeout(min(BOOTSTRAP, before))
        try:
            return self._inner.next_rendezvous()
        finally:
            self._store.set_timeout(before)

    def is_closed(self) -> bool:
        """True once the run is closed; while etcd is away, what is known: not closed."""
        return self._outage.ask(self._inner.is_closed, False)

    def set_closed(self) -> None:
        with self._patient(self._inner.settings.timeout.close):
            self._inner.set_closed()

    def num_nodes_waiting(self) -> int:
        """How many nodes wait to be let in; at least 1 if this one must meet again; 0 while etcd is away."""
        return self._outage.ask(self._waiting, 0)

    def _waiting(self) -> int:
        waiting = int(self._inner.num_nodes_waiting())
        state = self._inner._state_holder.state
        if waiting or state.closed or self._round is None:
            return waiting
        if state.round != self._round or self._inner._this_node not in state.participants:
            logger.warning("run %r: told to meet again: this node takes part no more", self.get_run_id())
            return 1
        if len(state.participants) < self._world:
            logger.warning("run %r: told to meet again: round %d has lost a member", self.get_run_id(), self._round)
            return 1
        return 0

    def shutdown(self) -> bool:
        """Close the run for everybody. False if it could not be closed."""
        with self._patient(self._inner.settings.timeout.close):
            return bool(self._inner.shutdown())

    @contextmanager
    def _patient(self, limit: timedelta) -> Iterator[None]:
        """Outages up to the read timeout are waited out here; elsewhere the agent must get back to its workers."""
        self._backend._timeout = min(self._patience, limit.total_seconds())
        try:
            yield
        finally:
            self._backend._timeout = min(POLL, self._patience)


def create_dynamic_handler(params: RendezvousParameters) -> DynamicHandler:
    """From parameters with options as ``create_backend`` and torch's ``create_handler`` name them.

    Raises ValueError for unusable options, RendezvousConnectionError if etcd cannot be reached or used.
    """
    backend, store = create_backend(params)
    inner = create_handler(store, CheckedBackend(backend, params.backend), params)
    return DynamicHandler(inner, backend, store)
