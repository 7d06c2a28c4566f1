"""EtcdStore alone: the wire, waiting, and torch (defects S-A to S-M, reports R15 to R28)."""

from __future__ import annotations

import gc
import threading
import time
import uuid
from base64 import b64encode
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import etcd
import pytest
import torch.distributed as dist
from forks import in_fork
from rallypoint.impl.etcd_http import EtcdHttp
from rallypoint.impl.etcd_server import EtcdServer
from rallypoint.impl.etcd_store import EtcdStore, StoreTimeoutError, cas_delay
from rallypoint.live.proxy import Exchange, Fault, FaultProxy, is_write
from torch.distributed import DistStoreError
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.elastic.rendezvous.etcd_store import EtcdStore as UpstreamStore

# The wire


@pytest.mark.parametrize("spelling", ["{}", "{}/", "/{}", "//{}//"])
def test_S_A_the_prefix_may_be_written_in_any_way(http: EtcdHttp, prefix: str, spelling: str) -> None:
    store = EtcdStore(http, spelling.format(prefix[1:]))
    store.set("k", "v")
    assert store.check(["k"])
    assert EtcdStore(http, prefix).get("k") == b"v"
    assert store.prefix == f"{prefix}/"


def test_unusable_prefixes_are_refused(http: EtcdHttp) -> None:
    for prefix, reason in (("", "of its own"), ("/", "of its own"), ("a/../b", "not a usable etcd key")):
        with pytest.raises(ValueError, match=reason):
            EtcdStore(http, prefix)


def test_the_wire_is_upstreams(etcd_server: EtcdServer, etcd_store: EtcdStore, prefix: str) -> None:
    client = etcd_server.get_client()
    theirs: Any = UpstreamStore(client, prefix, timedelta(seconds=5))
    etcd_store.set("k", "v")
    assert client.read(f"{prefix}/{b64encode(b'k').decode()}").value == b64encode(b"v").decode()
    assert theirs.get("k") == b"v"
    for value in ("", "a", "ab", "abc", b"\x00\xff\xfe"):  # every length of padding, before a mark
        etcd_store.append("a", value)
        assert theirs.get("a") == etcd_store.get("a")
    assert [theirs.add("n", 1), etcd_store.add("n", 1), theirs.add("n", 1), etcd_store.add("n", 1)] == [1, 2, 3, 4]
    assert theirs.get("n") == etcd_store.get("n") == b"4"
    theirs.set("t", b"\x00")
    assert etcd_store.get("t") == b"\x00"
    theirs.wait(["k", "n", "t"])


def test_S_F_what_upstream_sets_is_found(etcd_server: EtcdServer, etcd_store: EtcdStore, prefix: str) -> None:
    theirs: Any = UpstreamStore(etcd_server.get_client(), prefix)
    for key in ("ab?", "xy?z"):
        theirs.set(key, "theirs")
        assert etcd_store.get(key) == b"theirs"
        assert [theirs.add(f"n{key}", 1), etcd_store.add(f"n{key}", 1), theirs.add(f"n{key}", 1)] == [1, 2, 3]
    assert sorted(etcd_store.list_keys()) == ["ab?", "nab?", "nxy?z", "xy?z"]


def test_foreign_keys_and_values(etcd_server: EtcdServer, etcd_store: EtcdStore, prefix: str) -> None:
    client = etcd_server.get_client()
    client.write(f"{prefix}/{b64encode(b'k').decode()}", "@@@@?")
    with pytest.raises(DistStoreError, match="not base64"):
        etcd_store.get("k")
    client.write(f"{prefix}/what is this", "x")
    assert etcd_store.list_keys() == ["k"]
    etcd_store.set("text", "no number")
    with pytest.raises(ValueError, match="invalid literal"):
        etcd_store.add("text", 1)


def test_a_value_too_large_for_etcd_is_an_error(etcd_store: EtcdStore) -> None:
    etcd_store.set("k", b"x" * 3_000_000)
    assert len(etcd_store.get("k")) == 3_000_000
    with pytest.raises(dist.DistNetworkError, match="too large"):
        etcd_store.set("k", b"x" * 12_000_000)


def test_S_I_R27_a_get_or_wait_reads_its_key_and_nothing_else(proxy: FaultProxy, prefix: str) -> None:
    store = EtcdStore(etcd.Client(proxy.host, proxy.port), prefix)
    for number in range(20):
        store.set(f"key{number}", "x" * 1000)
    before = len(proxy.seen())
    store.get("key7")
    store.wait(["key7"])
    store.check(["key7"])
    requests = proxy.seen()[before:]
    assert [one.key for one in requests] == [f"{prefix}/{b64encode(b'key7').decode()}"] * 3


@pytest.mark.parametrize("members", [2, 4, 8, 16])
def test_R26_requests_per_member_do_not_grow(proxy: FaultProxy, prefix: str, members: int) -> None:
    store = EtcdStore(etcd.Client(proxy.host, proxy.port), prefix)
    for number in range(members):
        store.set(f"rank{number}", "address")
        store.add("arrived", 1)
    store.wait([f"rank{number}" for number in range(members)])
    assert len(proxy.seen()) <= 4 * members + 1


def test_R27_a_barrier_reads_two_small_keys(proxy: FaultProxy, prefix: str, etcd_store: Any) -> None:
    for number in range(20):
        etcd_store.set(f"key{number}", "x" * 1000)
    store: Any = EtcdStore(etcd.Client(proxy.host, proxy.port), prefix)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(store.barrier, "b", 2)
        etcd_store.barrier("b", 2)
        waiting.result(10)
    names = {f"{prefix}/{b64encode(key).decode()}" for key in (b"b/num_members", b"b/last_member")}
    assert {one.key for one in proxy.seen()} <= names


# Waiting


def test_S_G_R15_no_wake_up_is_lost_on_the_first_key(proxy: FaultProxy, prefix: str, etcd_store: EtcdStore) -> None:
    """The key is set after the waiter has read "not found" and before its watch reaches etcd."""
    store = EtcdStore(etcd.Client(proxy.host, proxy.port), prefix, timedelta(seconds=15))
    gate = proxy.order(Fault.DELAY_REQUEST, lambda one: "wait" in one.form)
    with ThreadPoolExecutor() as pool:
        waiter = pool.submit(store.get, "k")
        proxy.await_seen(lambda one: "wait" in one.form)
        etcd_store.set("k", "v")
        gate.set()
        assert waiter.result(3) == b"v"  # sooner than the end of a watch


def test_R28_a_barrier_is_not_opened_by_an_arrival_that_is_sent_twice(
    proxy: FaultProxy, prefix: str, etcd_store: Any
) -> None:
    store: Any = EtcdStore(etcd.Client(proxy.host, proxy.port), prefix, timedelta(seconds=15))
    proxy.order(Fault.DROP_REPLY, is_write)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(store.barrier, "b", 2)
        proxy.await_seen(lambda one: "wait" in one.form)
        assert etcd_store.get("b/num_members") == b"1"
        assert not waiting.done()
        etcd_store.barrier("b", 2)
        waiting.result(10)
    assert any(one.fault is Fault.DROP_REPLY for one in proxy.seen())


def test_R25_the_store_outlives_who_leaves_first(etcd_server: EtcdServer, prefix: str, etcd_store: Any) -> None:
    """No member serves the store: a late reader of the last barrier finds it when everybody else has gone."""

    def leave() -> None:
        store: Any = EtcdStore(etcd_server.get_client(), prefix)
        store.barrier("end", 1)
        store.set("last words", "v")

    assert in_fork(leave) == "None"
    etcd_store.barrier("end", 1)
    assert etcd_store.get("last words") == b"v"


def test_R81_a_cleared_history_does_not_stop_a_waiter(proxy: FaultProxy, prefix: str, http: EtcdHttp) -> None:
    """More than 1000 events elsewhere between the read and the watch."""
    store = EtcdStore(etcd.Client(proxy.host, proxy.port), prefix, timedelta(seconds=15))
    writer = EtcdStore(http, prefix)
    gate = proxy.order(Fault.DELAY_REQUEST, lambda one: "wait" in one.form)
    with ThreadPoolExecutor() as pool:
        waiter = pool.submit(store.get, "k")
        proxy.await_seen(lambda one: "wait" in one.form)
        writer.set("k", "v")
        list(pool.map(lambda number: writer.set("noise", str(number)), range(1010)))
        gate.set()
        assert waiter.result(3) == b"v"


def watches(proxy: FaultProxy) -> int:
    return sum("wait" in one.form for one in proxy._seen)


def test_R82_a_watch_that_is_cut_is_set_up_again(proxy: FaultProxy, prefix: str, etcd_store: EtcdStore) -> None:
    store = EtcdStore(etcd.Client(proxy.host, proxy.port), prefix, timedelta(seconds=15))
    with ThreadPoolExecutor() as pool:
        waiter = pool.submit(store.get, "k")
        for number in range(1, 4):
            proxy.await_seen(lambda _: watches(proxy) == number)  # noqa: B023  (called at once)
            proxy.cut()
        etcd_store.set("k", "v")
        assert waiter.result(10) == b"v"


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.get("k"),
        lambda store: store.wait(["k"]),
        lambda store: store.set("k", "v"),
        lambda store: store.add("k", 1),
        lambda store: store.check(["k"]),
        lambda store: store.num_keys(),
    ],
    ids=["get", "wait", "set", "add", "check", "num_keys"],
)
def test_S_L_timeouts_hold_on_a_hung_etcd(own_etcd: EtcdServer, call: Callable[[EtcdStore], object]) -> None:
    store = EtcdStore(own_etcd.get_client(), "/s", timedelta(seconds=0.6))
    own_etcd.pause()
    before = time.monotonic()
    with pytest.raises(StoreTimeoutError) as caught:
        call(store)
    assert 0.5 < time.monotonic() - before < 1.3
    assert isinstance(caught.value, DistStoreError)
    assert isinstance(caught.value, LookupError)


def test_an_outage_is_ridden_out(own_etcd: EtcdServer) -> None:
    store = EtcdStore(own_etcd.get_client(), "/s", timedelta(seconds=20))
    store.set("k", "1")
    own_etcd.kill()
    with ThreadPoolExecutor() as pool:
        calls: list[Future[Any]] = [
            pool.submit(store.add, "k", 1),
            pool.submit(store.get, "late"),
            pool.submit(store.set, "late", "v"),
        ]
        own_etcd.start()
        assert [one.result(15) for one in calls] == [2, b"v", None]


def test_an_etcd_without_v2_is_named() -> None:
    server = EtcdServer(enable_v2=False)
    server.start()
    try:
        with pytest.raises(dist.DistNetworkError, match="no v2 API"):
            EtcdStore(server.get_client(), "/s").get("k")
    finally:
        server.stop()


# Torch


def test_S_J_a_prefix_store_keeps_its_store(etcd_server: EtcdServer, prefix: str) -> None:
    store = PrefixStore("p", EtcdStore(etcd_server.get_client(), prefix))
    gc.collect()
    store.set("k", "v")
    assert store.get("k") == b"v"


def test_R22_the_constructor_waits_for_nobody_and_nothing(proxy: FaultProxy, prefix: str) -> None:
    """No peer, no port of its own, and no etcd either."""
    EtcdStore(etcd.Client(proxy.host, proxy.port), prefix).clone()
    assert proxy.seen() == []


def test_clones_share_their_connections(etcd_server: EtcdServer, prefix: str) -> None:
    store = EtcdStore(etcd_server.get_client(), prefix)
    assert store.clone().clone()._kv.http is store._kv.http
    assert store.clone().client is store.client


def test_R21_no_attribute_collides_with_torchs(etcd_store: EtcdStore) -> None:
    assert etcd_store.timeout == timedelta(seconds=20)
    assert EtcdStore(etcd_store.client, "/x").timeout == timedelta(seconds=300)


def test_cas_delay_is_there() -> None:
    before = time.monotonic()
    cas_delay()
    assert time.monotonic() - before < 1


def test_R24_replies_of_many_threads_are_not_mixed_up(etcd_store: EtcdStore) -> None:
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for turn in range(10):
                key = uuid.uuid4().hex
                etcd_store.set(key, f"{number}.{turn}")
                assert etcd_store.get(key) == f"{number}.{turn}".encode()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_seen_requests_are_described() -> None:
    assert is_write(Exchange(0, "PUT", "/v2/keys/a", "/a", {}))
    assert not is_write(Exchange(0, "GET", "/v2/keys/a", "/a", {}))
