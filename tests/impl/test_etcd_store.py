"""EtcdStore: one suite on TCPStore and EtcdStore, then what only EtcdStore can get wrong (S-A to S-M, R15 to R28)."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
import uuid
from base64 import b64encode
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from itertools import count
from typing import Any, TypeAlias

import etcd
import pytest
import torch
import torch.distributed as dist
from rallypoint.impl.etcd_http import EtcdHttp
from rallypoint.impl.etcd_server import EtcdServer
from rallypoint.impl.etcd_store import EtcdStore, StoreTimeoutError, cas_delay
from rallypoint.live.proxy import Exchange, Fault, FaultProxy, is_write
from torch._C._distributed_c10d import TCPStore
from torch.distributed import DistStoreError
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.elastic.rendezvous.etcd_store import EtcdStore as UpstreamStore

Store: TypeAlias = Any  # EtcdStore or TCPStore; torch's stubs know a part of the interface only
SHORT = timedelta(milliseconds=300)


@pytest.fixture(scope="session")
def tcp_stores() -> list[TCPStore]:
    """A server and its clients. Where names resolve slowly, each constructor can take seconds: they are kept."""
    return [TCPStore("127.0.0.1", 0, None, True, timeout=timedelta(seconds=20), wait_for_workers=False)]


def tcp_store(stores: list[TCPStore], number: int) -> TCPStore:
    while len(stores) <= number:
        stores.append(TCPStore("127.0.0.1", stores[0].port, None, False, wait_for_workers=False))
    stores[number].set_timeout(timedelta(seconds=20))
    return stores[number]


@pytest.fixture(params=["TCPStore", "EtcdStore"])
def make(
    request: pytest.FixtureRequest, etcd_server: EtcdServer, prefix: str, tcp_stores: list[TCPStore]
) -> Iterator[Callable[[], Store]]:
    """Stores on the same, empty key space, each with a connection of its own."""
    if request.param == "EtcdStore":
        yield lambda: EtcdStore(etcd_server.get_client(), prefix, timedelta(seconds=20))
    else:
        numbers = count()
        yield lambda: tcp_store(tcp_stores, next(numbers))
        for key in tcp_stores[0].list_keys():
            tcp_stores[0].delete_key(key)


@pytest.fixture
def store(make: Callable[[], Store]) -> Store:
    return make()


@pytest.fixture
def etcd_store(http: EtcdHttp, prefix: str) -> EtcdStore:
    return EtcdStore(http, prefix, timedelta(seconds=20))


# One suite, two stores


@pytest.mark.parametrize("key", ["k", "", "ab?", "ab?cd?", "é", "a b", "new\nline", "a/b", "../x", "x" * 500])
@pytest.mark.parametrize("value", ["", "v", b"\x00\xff", "\n", b"\xff" * 5000])
def test_set_get(store: Store, key: str, value: str | bytes) -> None:
    store.set(key, value)
    assert store.get(key) == (value.encode() if isinstance(value, str) else value)
    assert store.check([key])


@pytest.mark.parametrize("key", [b"\xff\xff\xff", b"\xff\x00", bytearray(b"k")])
def test_keys_of_bytes(store: Store, key: bytes) -> None:
    store.set(key, bytearray(b"v"))
    assert store.get(key) == b"v"
    assert store.delete_key(key)


def test_S_F_keys_with_slashes_in_their_base64_do_not_meet(store: Store) -> None:
    keys: list[str | bytes] = [
        "ab?",
        "ab?cd?",
        "ab?\x00",
        b"\xff\xff\xff",
        b"\xff\xff\xff\xff\xff\xff",
        b"\x00\x0f\xff",
        b"\xfc",
        "",
    ]
    keys += [b"\xff\xff\xff" + b"ab?", b"ab?" + b"\xff\xff\xff", b"\xff\xff\xffab?\xff\xff\xff", b"ab?\xff\xff\xffcd?"]
    for turn in range(2):
        for number, key in enumerate(keys if turn else reversed(keys)):
            store.set(key, str(number))
    assert [store.get(key) for key in keys] == [str(number).encode() for number in range(len(keys))]
    assert store.delete_key("ab?")
    assert store.get("ab?cd?") == b"1"
    assert not store.check(["ab?"])
    store.set("ab?", "again")
    assert store.get("ab?") == b"again"
    assert store.get("ab?cd?") == b"1"
    assert all(store.delete_key(key) for key in keys)


def test_add(store: Store) -> None:
    assert [store.add("n", 5), store.add("n", -7), store.add("n", 0)] == [5, -2, -2]
    assert store.get("n") == b"-2"
    store.set("m", "40")
    assert store.add("m", 2) == 42
    assert store.add("zero", 0) == 0
    assert store.check(["zero"])
    store.set("big", str(2**62))
    assert store.add("big", 2**62) == -(2**63)


def test_append(store: Store) -> None:
    store.append("a", "x")
    store.append("a", b"\x00y")
    assert store.get("a") == b"x\x00y"
    store.append("empty", "")
    assert store.check(["empty"])


def test_compare_set(store: Store) -> None:
    assert store.compare_set("k", "x", "y") == b"x"
    assert not store.check(["k"])
    assert store.compare_set("k", "", "a") == b"a"
    assert store.compare_set("k", "", "b") == b"a"
    assert store.compare_set("k", "wrong", "b") == b"a"
    assert store.compare_set("k", "a", "b") == b"b"
    assert store.get("k") == b"b"
    assert store.compare_set("e", "", "") == b""
    assert store.check(["e"])
    assert store.compare_set("e", "", "v") == b"v"


def test_delete_num_list(store: Store) -> None:
    before = store.num_keys()
    for key in ("a", "b", "ab?", "é"):
        store.set(key, "1")
    store.queue_push("queue", "1")
    assert store.num_keys() - before == 4
    assert sorted(store.list_keys()) == ["a", "ab?", "b", "é"]
    assert [store.delete_key("a"), store.delete_key("a")] == [True, False]
    assert not store.check(["a"])
    assert store.num_keys() - before == 3
    store.set("a", "2")
    assert store.get("a") == b"2"
    assert store.queue_pop("queue") == b"1"


def test_multi(store: Store) -> None:
    store.multi_set(["a", "b"], ["1", b"2"])
    assert store.multi_get(["b", "a"]) == [b"2", b"1"]
    assert store.multi_get([]) == []
    store.multi_set([], [])
    with pytest.raises(DistStoreError):
        store.multi_set(["a"], ["1", "2"])


def test_queues(store: Store) -> None:
    for item in ("1", b"\x00,\xff", "", "4"):
        store.queue_push("q", item)
    assert store.queue_len("q") == 4
    assert [store.queue_pop("q") for _ in range(4)] == [b"1", b"\x00,\xff", b"", b"4"]
    assert [store.queue_len("q"), store.queue_len("never")] == [0, 0]
    for queue in ("q", "never"):
        with pytest.raises(dist.QueueEmptyError):
            store.queue_pop(queue, False)
    store.set("q", "a key")
    store.queue_push("q", "an item")
    assert store.get("q") == b"a key"
    assert store.queue_pop("q", False) == b"an item"


def test_a_pop_waits_for_a_push(make: Callable[[], Store]) -> None:
    with ThreadPoolExecutor() as pool:
        popped = pool.submit(make().queue_pop, "q")
        make().queue_push("q", "x")
        assert popped.result(10) == b"x"


def test_wait_and_check(store: Store) -> None:
    assert not store.check(["a"])
    assert store.check([])
    store.wait([])
    store.set("a", "1")
    assert store.check(["a"])
    assert not store.check(["a", "b"])
    store.wait(["a"])
    store.wait(["a"], SHORT)


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.wait(["a", "nope"], SHORT),
        lambda store: store.get("nope"),
        lambda store: store.wait(["nope"]),
        lambda store: store.multi_get(["a", "nope"]),
        lambda store: store.queue_pop("nope"),
    ],
    ids=["wait-timeout", "get", "wait", "multi_get", "queue_pop"],
)
def test_a_wait_in_vain_ends_in_time(store: Store, call: Callable[[Store], object]) -> None:
    store.set("a", "1")
    store.set_timeout(SHORT)
    before = time.monotonic()
    with pytest.raises(DistStoreError, match=r"(?i)wait timeout after 300ms"):
        call(store)
    assert 0.3 <= time.monotonic() - before < 1.3


def test_get_waits_for_set(make: Callable[[], Store]) -> None:
    with ThreadPoolExecutor() as pool:
        results: list[Future[Any]] = [
            pool.submit(make().get, "k"),
            pool.submit(make().wait, ["j", "k"]),
            pool.submit(make().get, "ab?"),
        ]
        store = make()
        for key in ("k", "j", "ab?"):
            store.set(key, "v")
        assert [one.result(10) for one in results] == [b"v", None, b"v"]


def test_add_by_many_is_exact(make: Callable[[], Store]) -> None:
    with ThreadPoolExecutor(8) as pool:
        sums = list(pool.map(lambda _: make().add("n", 1), range(8)))
        sums += list(pool.map(lambda store: store.add("n", 1), [make()] * 8))
    assert sorted(sums) == list(range(1, 17))


def test_append_by_many_loses_nothing(make: Callable[[], Store]) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: make().append("a", f"<{number}>"), range(8)))
    assert sorted(make().get("a").decode()[1:-1].split("><")) == sorted(str(number) for number in range(8))


def test_barrier_releases_the_last_of_n(make: Callable[[], Store]) -> None:
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(make().barrier, "b", 3) for _ in range(2)]
        assert not any(one.done() for one in waiting)
        make().barrier("b", 3)
        assert [one.result(10) for one in waiting] == [None, None]
    with pytest.raises(DistStoreError):
        make().barrier("c", 2, SHORT)


def test_clone_and_timeouts(store: Store) -> None:
    store.set("k", "v")
    twin = store.clone()
    assert twin.get("k") == b"v"
    assert twin.timeout == store.timeout == timedelta(seconds=20)
    twin.set_timeout(SHORT)
    assert (twin.timeout, store.timeout) == (SHORT, timedelta(seconds=20))
    assert store.has_extended_api() is True


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.set(5, "v"),
        lambda store: store.set("k", 5),
        lambda store: store.set("k", None),
        lambda store: store.set("k", memoryview(b"v")),
        lambda store: store.add("k", 1.5),
        lambda store: store.add("k", "1"),
        lambda store: store.add("k", 2**63),
        lambda store: store.wait("k"),
        lambda store: store.check("k"),
        lambda store: store.multi_get("k"),
    ],
)
def test_wrong_types(store: Store, call: Callable[[Store], object]) -> None:
    with pytest.raises(TypeError):
        call(store)


def test_under_a_prefix_store(make: Callable[[], Store]) -> None:
    inner = make()
    store: Store = PrefixStore("p", PrefixStore("q", inner))
    store.set("k", "v")
    assert store.get("k") == inner.get("q/p/k") == b"v"
    assert store.add("n", 3) == 3
    store.append("k", "w")
    assert store.compare_set("k", "vw", "x") == b"x"
    store.multi_set(["a", "b"], ["1", "2"])
    assert store.multi_get(["a", "b"]) == [b"1", b"2"]
    assert store.check(["a", "b"])
    store.wait(["a"], SHORT)
    assert [store.delete_key("a"), store.delete_key("a")] == [True, False]
    assert store.num_keys() >= 3
    assert store.has_extended_api() is True
    store.barrier("bar", 1)
    assert store.clone().get("b") == b"2"
    with pytest.raises(DistStoreError):
        store.wait(["nope"], SHORT)


def test_S_M_store_based_collectives_of_gloo(make: Callable[[], Store]) -> None:
    def rank(number: int) -> tuple[float, float]:
        gloo: Any = dist.distributed_c10d.ProcessGroupGloo
        options = gloo._Options()
        options._devices = [gloo.create_device(hostname="127.0.0.1")]
        options._timeout = timedelta(seconds=30)
        group = gloo(PrefixStore("group", make()), number, 2, options)
        tensor = torch.tensor([float(number + 1)])
        group.allreduce([tensor]).wait()
        group.monitored_barrier()
        return float(tensor), group.size()

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(rank, range(2))) == [(3.0, 2), (3.0, 2)]


@pytest.mark.slow
def test_S_M_a_process_group_of_its_own(etcd_server: EtcdServer, prefix: str) -> None:
    """init_process_group, new_group and monitored_barrier, which are global to a process."""
    program = f"""
import sys, datetime, etcd, torch, torch.distributed as dist
from rallypoint.impl.etcd_store import EtcdStore
rank = int(sys.argv[1])
store = EtcdStore(etcd.Client("127.0.0.1", {etcd_server.get_port()}), "{prefix}")
dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=datetime.timedelta(seconds=30))
group = dist.new_group([0, 1])
dist.monitored_barrier(group)
seen = [None, None]
dist.all_gather_object(seen, rank, group)
print(seen)
dist.destroy_process_group()
"""
    loopback = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    ranks = [
        subprocess.Popen([sys.executable, "-c", program, str(rank)], stdout=subprocess.PIPE, text=True, env=loopback)
        for rank in range(2)
    ]
    assert [one.communicate(timeout=60)[0] for one in ranks] == ["[0, 1]\n"] * 2


# EtcdStore alone: the wire


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


def test_S_I_a_get_reads_its_key_and_nothing_else(proxy: FaultProxy, prefix: str) -> None:
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


# EtcdStore alone: waiting


def test_S_G_no_wake_up_is_lost_on_the_first_key(proxy: FaultProxy, prefix: str, etcd_store: EtcdStore) -> None:
    """The key is set after the waiter has read "not found" and before its watch reaches etcd."""
    store = EtcdStore(etcd.Client(proxy.host, proxy.port), prefix, timedelta(seconds=15))
    gate = proxy.order(Fault.DELAY_REQUEST, lambda one: "wait" in one.form)
    with ThreadPoolExecutor() as pool:
        waiter = pool.submit(store.get, "k")
        proxy.await_seen(lambda one: "wait" in one.form)
        etcd_store.set("k", "v")
        gate.set()
        assert waiter.result(3) == b"v"  # sooner than the end of a watch


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


# EtcdStore alone: lost replies


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


# EtcdStore alone: torch


def test_S_J_a_prefix_store_keeps_its_store(etcd_server: EtcdServer, prefix: str) -> None:
    store = PrefixStore("p", EtcdStore(etcd_server.get_client(), prefix))
    gc.collect()
    store.set("k", "v")
    assert store.get("k") == b"v"


def test_R21_no_attribute_collides_with_torchs(etcd_store: EtcdStore) -> None:
    assert etcd_store.timeout == timedelta(seconds=20)
    assert EtcdStore(etcd_store.client, "/x").timeout == timedelta(seconds=300)


def test_cas_delay_is_there() -> None:
    before = time.monotonic()
    cas_delay()
    assert time.monotonic() - before < 1


def test_many_threads_on_one_store(etcd_store: EtcdStore) -> None:
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
