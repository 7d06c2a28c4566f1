"""The keeper of leases by itself, on a real etcd."""

from __future__ import annotations

import time

from rallypoint.impl.etcd_http import EtcdHttp, joined_key
from rallypoint.impl.etcd_v2 import EtcdV2
from rallypoint.impl.leases import LeaseKeeper
from rallypoint.model import etcd as model
from rallypoint.model.worker import Lease


def test_a_huge_ttl_does_not_end_the_keeper(http: EtcdHttp, prefix: str) -> None:
    v2, keeper = EtcdV2(http, ""), LeaseKeeper()
    key = joined_key(prefix, "short")
    huge = keeper.hold(v2, Lease(joined_key(prefix, "long"), 1e12))
    thread = keeper._thread
    assert thread is not None
    thread.join(0.2)
    assert thread.is_alive()
    assert v2.perform(model.Create(key, "v", 1), time.monotonic() + 5) == model.Done("v")
    short = keeper.hold(v2, Lease(key, 1))
    thread.join(2.5)  # longer than the TTL, which is the point
    assert v2.perform(model.Get(key), time.monotonic() + 5) == model.Done("v")
    for ticket in (huge, short):
        keeper.release(ticket)
    thread.join(5)
    assert not thread.is_alive()
