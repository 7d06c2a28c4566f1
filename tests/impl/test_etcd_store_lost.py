"""EtcdStore when requests and replies are lost: every update takes effect once (defect S-B)."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import etcd
import pytest
from rallypoint.impl.etcd_http import EtcdHttp
from rallypoint.impl.etcd_store import EtcdStore
from rallypoint.live.proxy import Fault, FaultProxy, is_write
from torch.distributed import DistStoreError


def lossy(proxy: FaultProxy, prefix: str, nth: int, fault: Fault = Fault.DROP_REPLY) -> EtcdStore:
    """A store whose ``nth`` request loses its reply (or is lost itself)."""
    proxy.order(fault, lambda one: True, nth=nth)
    return EtcdStore(etcd.Client(proxy.host, proxy.port), prefix, timedelta(seconds=15))


FAULTS = [(fault, nth) for fault in (Fault.DROP_REPLY, Fault.DROP_REQUEST) for nth in (1, 2, 3)]


@pytest.mark.parametrize("present", [False, True], ids=["absent", "present"])
@pytest.mark.parametrize("lose", FAULTS, ids=[f"{fault.name}-{nth}" for fault, nth in FAULTS])
def test_S_B_one_effect_whatever_is_lost(
    proxy: FaultProxy, prefix: str, etcd_store: EtcdStore, lose: tuple[Fault, int], present: bool
) -> None:
    """Every kind of update, with each of its first three requests or replies lost in turn."""
    fault, nth = lose
    lost = 0
    calls: list[tuple[str, Callable[[Any, str], object], bytes, bytes]] = [
        ("add", lambda store, key: store.add(key, 1), b"1", b"8"),
        ("append", lambda store, key: store.append(key, "x"), b"x", b"7x"),
        ("compare_set", lambda store, key: store.compare_set(key, "7" if present else "", "y"), b"y", b"y"),
        ("set", lambda store, key: store.set(key, "z"), b"z", b"z"),
    ]
    for name, call, absent, existing in calls:
        if present:
            etcd_store.set(name, "7")
        store = lossy(proxy, prefix, nth, fault)
        result = call(store, name)
        assert etcd_store.get(name) == (existing if present else absent)
        assert result in (None, int(etcd_store.get(name)) if name == "add" else etcd_store.get(name))
        store.check(["x"])  # use up the fault if the call needed fewer requests
        lost = sum(one.fault is fault for one in proxy.seen())
    assert lost >= 3


@pytest.mark.parametrize("present", [False, True], ids=["absent", "present"])
@pytest.mark.parametrize(
    "calls",
    [
        (lambda store: store.add("k", 1), lambda store: store.add("k", 10)),
        (lambda store: store.add("k", 1), lambda store: store.set("k", "5")),
        (lambda store: store.append("k", "1"), lambda store: store.append("k", "2")),
        (lambda store: store.set("k", "1"), lambda store: store.add("k", 1)),
        (lambda store: store.set("k", "1"), lambda store: store.set("k", "2")),
        (lambda store: store.add("k", 1), lambda store: store.delete_key("k")),
        (lambda store: store.set("k", "1"), lambda store: store.delete_key("k")),
    ],
    ids=["add-add", "add-set", "append-append", "set-add", "set-set", "add-delete", "set-delete"],
)
def test_S_B_a_lost_reply_and_then_somebody_elses_write(
    proxy: FaultProxy,
    prefix: str,
    etcd_store: EtcdStore,
    calls: tuple[Callable[[EtcdStore], object], Callable[[EtcdStore], object]],
    present: bool,
) -> None:
    """The value that the lost write left is gone when its author looks again: only the history can tell."""
    call, then = calls
    if present:
        etcd_store.set("k", "7")
    reference = EtcdStore(etcd_store.client, prefix + "/reference", timedelta(seconds=5))
    if present:
        reference.set("k", "7")
    call(reference)
    then(reference)
    store = EtcdStore(etcd.Client(proxy.host, proxy.port), prefix, timedelta(seconds=15))
    proxy.order(Fault.DROP_REPLY, is_write)
    gate = proxy.order(Fault.DELAY_REQUEST, lambda one: one.number > 0 and proxy._seen[-1].fault is Fault.DROP_REPLY)
    with ThreadPoolExecutor() as pool:
        result = pool.submit(call, store)
        proxy.await_seen(lambda one: one.fault is Fault.DROP_REPLY and one.status is not None)
        then(etcd_store)
        gate.set()
        result.result(10)
    assert etcd_store.check(["k"]) == reference.check(["k"])
    if reference.check(["k"]):
        assert etcd_store.get("k") == reference.get("k")


def test_S_B_two_equal_adds_of_which_one_is_lost(proxy: FaultProxy, prefix: str, etcd_store: EtcdStore) -> None:
    """Both would write the same number on the same state: without a mark the loser takes the winner's for its own."""
    etcd_store.set("k", "5")
    store = EtcdStore(etcd.Client(proxy.host, proxy.port), prefix, timedelta(seconds=15))
    proxy.order(Fault.DROP_REQUEST, is_write)
    gate = proxy.order(Fault.DELAY_REQUEST, is_write)
    with ThreadPoolExecutor() as pool:
        result = pool.submit(store.add, "k", 1)
        proxy.await_seen(lambda one: one.fault is Fault.DROP_REQUEST)
        assert etcd_store.add("k", 1) == 6
        gate.set()
        assert result.result(10) == 7
    assert etcd_store.get("k") == b"7"


def test_a_lost_reply_of_delete_key_and_of_a_queue(proxy: FaultProxy, prefix: str, etcd_store: EtcdStore) -> None:
    etcd_store.set("k", "v")
    store = EtcdStore(etcd.Client(proxy.host, proxy.port), prefix, timedelta(seconds=15))
    proxy.order(Fault.DROP_REPLY, is_write)
    assert store.delete_key("k") is True
    proxy.order(Fault.DROP_REPLY, is_write)
    store.queue_push("q", "1")
    assert etcd_store.queue_len("q") == 1
    etcd_store.queue_push("q", "2")
    proxy.order(Fault.DROP_REPLY, is_write)
    assert store.queue_pop("q") == b"1"
    assert etcd_store.queue_pop("q") == b"2"


def test_a_write_that_nobody_can_tell_of_is_an_error_not_a_second_effect(
    proxy: FaultProxy, prefix: str, http: EtcdHttp, etcd_store: EtcdStore
) -> None:
    etcd_store.set("k", "0")
    store = EtcdStore(etcd.Client(proxy.host, proxy.port), prefix, timedelta(seconds=15))
    proxy.order(Fault.DROP_REPLY, is_write)
    gate = proxy.order(Fault.DELAY_REQUEST, lambda one: one.number > 1)
    with ThreadPoolExecutor() as pool:
        result = pool.submit(store.add, "k", 1)
        proxy.await_seen(lambda one: one.fault is Fault.DROP_REPLY and one.status is not None)
        writer = EtcdStore(http, prefix)
        writer.set("k", "100")
        list(pool.map(lambda number: writer.set("noise", str(number)), range(1010)))
        gate.set()
        with pytest.raises(DistStoreError, match="may or may not"):
            result.result(10)
    assert etcd_store.get("k") == b"100"
