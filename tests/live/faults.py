"""Faults to plant in the implementation: a judge that has never rejected anything is none.

Each is a change in the worker's process only, below what records and judges.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

from rallypoint.impl import leases
from rallypoint.impl.etcd_rendezvous import EtcdRendezvous
from rallypoint.impl.etcd_v2 import EtcdV2
from rallypoint.model import document as docs
from rallypoint.model import etcd
from rallypoint.model.worker import Standing


def ranks_rotated() -> AbstractContextManager[Any]:
    """Everybody gets its neighbour's rank: a consistent lie, which only the model can tell."""
    meet = EtcdRendezvous._meet

    def wrong(self: EtcdRendezvous) -> tuple[str, int, int]:
        version, rank, world = meet(self)
        return version, (rank + 1) % world, world

    return mock.patch.object(EtcdRendezvous, "_meet", wrong)


def rank_always_zero() -> AbstractContextManager[Any]:
    """Everybody is rank 0."""
    meet = EtcdRendezvous._meet

    def wrong(self: EtcdRendezvous) -> tuple[str, int, int]:
        version, _, world = meet(self)
        return version, 0, world

    return mock.patch.object(EtcdRendezvous, "_meet", wrong)


def never_renewed() -> AbstractContextManager[Any]:
    """The keeper never renews a lease."""
    return mock.patch.object(leases.LeaseKeeper, "_renew", return_value=60.0)


def confirm_skipped() -> AbstractContextManager[Any]:
    """A confirmation is taken for done without having been sent."""
    perform = EtcdV2.perform

    def wrong(self: EtcdV2, request: etcd.Request, deadline: float) -> etcd.Reply | None:
        if isinstance(request, etcd.Cas) and (docs.FROZEN in request.prev and "alive_" in request.value):
            return etcd.Done(request.value)
        return perform(self, request, deadline)

    return mock.patch.object(EtcdV2, "perform", wrong)


def compare_dropped() -> AbstractContextManager[Any]:
    """Compare-and-swap writes whatever the key holds."""
    perform = EtcdV2.perform

    def wrong(self: EtcdV2, request: etcd.Request, deadline: float) -> etcd.Reply | None:
        if isinstance(request, etcd.Cas):
            request = etcd.Put(request.key, request.value, request.ttl)
        return perform(self, request, deadline)

    return mock.patch.object(EtcdV2, "perform", wrong)


def never_told() -> AbstractContextManager[Any]:
    """A member is never told to meet again."""
    return mock.patch.object(EtcdRendezvous, "standing", return_value=Standing(0, False, ""))


FAULTS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    fault.__name__: fault
    for fault in (ranks_rotated, rank_always_zero, never_renewed, confirm_skipped, compare_dropped, never_told)
}


@contextlib.contextmanager
def planted(name: str | None) -> Iterator[None]:
    """With the named fault in this process; None: without any. KeyError for an unknown name."""
    if name is None:
        yield
        return
    with FAULTS[name]():
        yield
