"""The modelled key space against examples from etcd's documentation, one line each; properties: test_contracts."""

from __future__ import annotations

import pytest
from rallypoint.model import etcd
from rallypoint.model.etcd import Done, Failed, Listing, Reply, Request, Snapshot, Store

DIALOGUE: tuple[tuple[Request, Reply, int], ...] = (
    (etcd.Get("/r/doc"), Failed(etcd.NOT_FOUND), 0),
    (etcd.Create("/r/doc", "one", 5), Done("one"), 1),
    (etcd.Create("/r/doc", "two"), Failed(etcd.ALREADY_EXISTS), 1),
    (etcd.Cas("/r/doc", "two", "three"), Failed(etcd.COMPARE_FAILED), 1),
    (etcd.Cas("/r/doc", "one", "one"), Done("one"), 2),
    (etcd.Get("/r"), Done(None), 2),
    (etcd.Put("/r", "x"), Failed(etcd.NOT_A_FILE), 2),
    (etcd.Put("/r/doc/below", "x"), Failed(etcd.NOT_A_DIRECTORY), 2),
    (etcd.Mkdir("/r/v_1"), Done(None), 3),
    (etcd.Mkdir("/r/v_1"), Failed(etcd.ALREADY_EXISTS), 3),
    (etcd.Put("/r/v_1/rank_0", "", 10), Done(""), 4),
    (etcd.Refresh("/r/v_1/rank_0", 10), Done(""), 5),
    (etcd.List("/r/v_1"), Listing(("/r/v_1/rank_0",)), 5),
    (etcd.List("/r"), Listing(("/r/doc", "/r/v_1")), 5),
    (etcd.Await("/r/doc", "one", ("/r/v_1/rank_0", "/r/v_1/rank_1")), Snapshot("one", ("/r/v_1/rank_1",)), 5),
    (etcd.Cad("/r/doc", "other"), Failed(etcd.COMPARE_FAILED), 5),
    (etcd.Cad("/r/doc", "one"), Done(None), 6),
    (etcd.Delete("/r/doc"), Failed(etcd.NOT_FOUND), 6),
    (etcd.Delete("/r/v_1"), Failed(etcd.NOT_A_FILE), 6),
    (etcd.Delete("/r/v_1/rank_0"), Done(None), 7),
)
"""Request, reply, and etcd's index after it."""


def test_a_dialogue_with_every_kind_of_request() -> None:
    store = Store()
    for number, (request, reply, index) in enumerate(DIALOGUE):
        store, got = etcd.apply(store, request)
        assert (got, store.index) == (reply, index), f"line {number}: {request}"


def test_a_swap_without_a_ttl_takes_the_ttl_away() -> None:
    store, _ = etcd.apply(Store(), etcd.Create("/k", "a", 5))
    store, _ = etcd.apply(store, etcd.Cas("/k", "a", "b"))
    with pytest.raises(ValueError, match="no TTL"):
        etcd.expire(store, "/k")
    store, _ = etcd.apply(store, etcd.Refresh("/k", 5))
    assert etcd.expire(store, "/k").nodes == ()
