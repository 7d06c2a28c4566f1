"""The store, from PyTorch's documentation of torch.distributed.Store."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import Any

import pytest
from rallypoint.impl.etcd_server import EtcdServer
from sides import Side, documented

PROMPT = 20.0  # seconds for a thread that has nothing left to wait for
SHORT = timedelta(seconds=1)


@pytest.fixture
def store(side: Side, etcd_server: EtcdServer, prefix: str) -> Any:
    return side.store.EtcdStore(etcd_server.get_client(), prefix, timedelta(seconds=20))


@pytest.mark.parametrize("value", ["v", b"v", b"\x00\xff", "", "x" * 5000])
def test_what_was_set_is_what_is_got(store: Any, value: str | bytes) -> None:
    store.set("k", value)
    assert store.get("k") == (value.encode() if isinstance(value, str) else value)


def test_the_last_value_counts(store: Any) -> None:
    store.set("k", "first")
    store.set("k", "second")
    assert store.get("k") == b"second"


def test_add_counts_from_nothing(store: Any) -> None:
    assert [store.add("n", step) for step in (1, 5, -2)] == [1, 6, 4]
    assert store.get("n") == b"4"


def test_add_loses_nothing(side: Side, etcd_server: EtcdServer, prefix: str) -> None:
    stores = [side.store.EtcdStore(etcd_server.get_client(), prefix, timedelta(seconds=20)) for _ in range(3)]
    threads = [threading.Thread(target=lambda one=one: [one.add("n", 1) for _ in range(5)]) for one in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PROMPT)
    assert stores[0].add("n", 0) == 15


def test_check_tells_what_is_there(store: Any) -> None:
    store.set("a", "1")
    assert store.check(["a"])
    assert not store.check(["a", "b"])


def test_wait_returns_once_all_are_there(store: Any) -> None:
    store.set("a", "1")
    late = threading.Timer(0.3, lambda: store.set("b", "2"))
    late.start()
    store.wait(["a", "b"], timedelta(seconds=PROMPT))
    late.join(PROMPT)
    assert store.check(["a", "b"])


@pytest.mark.parametrize("call", ["get", "wait"])
def test_what_does_not_come_is_a_timeout(store: Any, call: str) -> None:
    store.set("a", "1")
    store.set_timeout(SHORT)
    began = time.monotonic()
    with pytest.raises(LookupError):
        store.get("b") if call == "get" else store.wait(["b"], SHORT)
    assert SHORT.total_seconds() * 0.9 < time.monotonic() - began < 10


def test_two_prefixes_are_two_stores(side: Side, etcd_server: EtcdServer, store: Any, prefix: str) -> None:
    other = side.store.EtcdStore(etcd_server.get_client(), f"{prefix}-other", SHORT)
    store.set("k", "v")
    other.set("another", "v")
    assert not other.check(["k"])


@pytest.mark.parametrize("key", ["k", "a b", "é", "a/b", "x" * 200])
def test_any_text_is_a_key(store: Any, key: str) -> None:
    store.set(key, "v")
    assert store.get(key) == b"v"


def test_neither_is_the_base64_of_a_key_one_of_its_kind(side: Side, store: Any) -> None:
    store.set("ab?", "v")
    with documented(side, "S-F", r"AssertionError: assert False\n.*check\(\['ab\?'\]\)"):
        assert store.check(["ab?"])


@pytest.mark.parametrize("call", ["compare_set", "delete_key", "num_keys"])
def test_the_rest_of_the_interface(side: Side, store: Any, call: str) -> None:
    store.set("k", "old")
    with documented(side, "S-M", "RuntimeError: (fn INTERNAL ASSERT FAILED|Tried to call pure virtual function)"):
        if call == "compare_set":
            assert store.compare_set("k", "old", "new") == b"new"
        elif call == "delete_key":
            assert store.delete_key("k")
        else:
            assert store.num_keys() == 1


def test_a_directory_that_does_not_start_with_a_slash(side: Side, etcd_server: EtcdServer, prefix: str) -> None:
    store = side.store.EtcdStore(etcd_server.get_client(), prefix.lstrip("/"), SHORT)
    store.set("k", "v")
    with documented(side, "S-A", r"AssertionError: assert False\n.*check\(\['k'\]\)"):
        assert store.check(["k"])
