"""One suite for TCPStore and EtcdStore: the same calls, the same results (defects S-F, S-M)."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from itertools import count
from typing import Any, TypeAlias

import numpy
import pytest
import torch
import torch.distributed as dist
from rallypoint.impl.etcd_server import EtcdServer
from rallypoint.impl.etcd_store import EtcdStore
from torch._C._distributed_c10d import TCPStore
from torch.distributed import DistStoreError
from torch.distributed.distributed_c10d import PrefixStore

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


class Name(str):
    __slots__ = ()


class Data(bytes):
    __slots__ = ()


@pytest.mark.parametrize("text", [Name("k"), Data(b"k"), bytearray(b"k")], ids=lambda text: type(text).__name__)
def test_S_N_derived_classes_are_texts(store: Store, text: Any) -> None:
    store.set(text, text)
    assert store.get(text) == b"k"
    store.append(text, text)
    assert store.compare_set(text, Data(b"kk"), text) == b"k"
    assert store.check([text])
    assert store.delete_key(text)


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
    assert [store.add("kinds", kind) for kind in (True, numpy.int64(2), torch.tensor(3))] == [1, 3, 6]
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
    assert store.multi_get(("a", "b")) == store.multi_get(key for key in "ab") == [b"1", b"2"]
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
        lambda store: store.get(None),
        lambda store: store.set("\ud800", "v"),
        lambda store: store.wait([5]),
        lambda store: store.wait([], 3),
        lambda store: store.set_timeout(3),
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


def test_S_M_what_torch_does_not_forward_under_a_prefix_store(etcd_server: EtcdServer, prefix: str) -> None:
    """Not to a store that is written in Python. When it does, the class's documentation has to say so."""
    store: Store = PrefixStore("p", EtcdStore(etcd_server.get_client(), prefix))
    for call in (lambda: store.queue_push("q", "v"), lambda: store.queue_len("q"), store.list_keys):
        with pytest.raises(NotImplementedError):
            call()


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
