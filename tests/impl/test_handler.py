"""EtcdRendezvousHandler, EtcdRendezvous and create_rdzv_handler on a real etcd: contract, bounds, hygiene."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from rallypoint.impl import etcd_run
from rallypoint.impl.etcd_http import Answer, EtcdHttp, joined_key
from rallypoint.impl.etcd_rendezvous import EtcdRendezvous, EtcdRendezvousHandler, create_rdzv_handler
from rallypoint.impl.etcd_server import EtcdServer, find_free_port
from rallypoint.impl.etcd_store import EtcdStore
from rallypoint.impl.outage import POLL
from rallypoint.model.etcd import COMPARE_FAILED, Failed
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStateError,
    RendezvousStoreInfo,
    RendezvousTimeoutError,
)
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

Make = Callable[..., EtcdRendezvousHandler]


def params(endpoint: str, run_id: str, lowest: int, highest: int, **config: Any) -> RendezvousParameters:
    return RendezvousParameters("etcd", endpoint, run_id, lowest, highest, "127.0.0.1", **config)


def meet(*handlers: EtcdRendezvousHandler) -> list[RendezvousInfo]:
    """All handlers at once; results in the order of the handlers."""
    with ThreadPoolExecutor(len(handlers)) as pool:
        return list(pool.map(lambda handler: handler.next_rendezvous(), handlers))


def leases(http: EtcdHttp, prefix: str) -> list[str]:
    """The names of all keys with a TTL below the prefix, but for closed marks."""
    reply = http.call("GET", prefix, {"recursive": "true"}, time.monotonic() + 5)
    nodes, found = [reply.node] if isinstance(reply, Answer) else [], []
    while nodes:
        node = nodes.pop()
        nodes += node.children
        if node.ttl is not None and "closed" not in (node.value or ""):
            found.append(node.key)
    return found


def test_members_get_dense_ranks_one_world_one_address_and_a_working_store(make: Make) -> None:
    infos = meet(*(make(3, 3) for _ in range(3)))
    assert sorted(info.rank for info in infos) == [0, 1, 2]
    assert {info.world_size for info in infos} == {3}
    addresses = {str(vars(info.bootstrap_store_info)) for info in infos}
    assert len(addresses) == 1
    assert "master_addr" in addresses.pop()
    infos[0].store.set("key", "value")
    assert infos[2].store.get("key") == b"value"


def test_the_documented_small_answers(make: Make) -> None:
    handler = make(run_id="an-id")
    assert handler.get_backend() == "etcd"
    assert handler.get_run_id() == "an-id"
    assert handler.use_agent_store is False
    assert handler.num_nodes_waiting() == 0
    assert handler.is_closed() is False


@pytest.mark.parametrize("name", ["rallypoint", "rallypoint-etcd"])
def test_torch_finds_the_handler_by_its_entry_point(etcd_server: EtcdServer, prefix: str, name: str) -> None:
    asked = RendezvousParameters(name, etcd_server.get_endpoint(), "job", 1, 1, "127.0.0.1", etcd_prefix=prefix)
    handler = get_rendezvous_handler(asked)
    assert isinstance(handler, EtcdRendezvousHandler)
    assert handler.get_backend() == name
    assert handler.next_rendezvous().world_size == 1
    assert handler.shutdown()


def test_a_late_worker_is_counted_and_let_in_when_the_members_meet_again(make: Make) -> None:
    first = make(last_call_timeout=0)
    assert first.next_rendezvous().world_size == 1
    first._rdzv_impl._last_call_timeout = 10  # the second time, wait for the one that is known to come
    second = make(last_call_timeout=10)
    with ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(second.next_rendezvous)
        deadline = time.monotonic() + 10
        while first.num_nodes_waiting() == 0 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert first.num_nodes_waiting() == 1
        again = pool.submit(first.next_rendezvous)
        assert [again.result(15).world_size, waiting.result(15).world_size] == [2, 2]


def test_L_P_voluntary_re_rendezvous_does_not_wait_for_a_ttl(make: Make) -> None:
    handlers = [make(4, 4, keep_alive_ttl=10) for _ in range(4)]
    meet(*handlers)
    took = []
    for _ in range(3):
        started = time.monotonic()
        infos = meet(*handlers)
        took.append(time.monotonic() - started)
        assert sorted(info.rank for info in infos) == [0, 1, 2, 3]
    assert min(took) < 0.5, "a member's re-entry waited for something"
    assert max(took) < 5, "a member's re-entry waited for a keep-alive to run out"


def test_a_lost_member_is_told_to_the_others_within_its_ttl(make: Make) -> None:
    handlers = [make(2, 2) for _ in range(2)]
    meet(*handlers)
    assert handlers[0].num_nodes_waiting() == 0
    handlers[1]._rdzv_impl._driver.release()  # what a killed process does: it renews no more
    deadline = time.monotonic() + 2 + 2
    while handlers[0].num_nodes_waiting() == 0:
        assert time.monotonic() < deadline, "a lost member was not told within the TTL and one poll"
        time.sleep(0.05)


def test_L_D_closing_closes_also_before_anybody_met(make: Make) -> None:
    make().set_closed()
    assert make().is_closed()
    with pytest.raises(RendezvousClosedError, match="job"):
        make().next_rendezvous()


def test_shutdown_closes_for_everybody_and_frees_the_keep_alive(make: Make, http: EtcdHttp) -> None:
    handlers = [make(2, 2) for _ in range(2)]
    meet(*handlers)
    lease = handlers[0]._rdzv_impl._worker.lease
    assert lease is not None
    assert handlers[0].shutdown() is True
    assert handlers[1].is_closed()
    with pytest.raises(RendezvousClosedError):
        handlers[1].next_rendezvous()
    assert type(http.call("GET", lease, {}, time.monotonic() + 5)).__name__ == "Refusal"


def test_timeout_is_kept_and_says_what_was_waited_for(make: Make, prefix: str, http: EtcdHttp) -> None:
    handler = make(2, 2, timeout=1)
    started = time.monotonic()
    with pytest.raises(RendezvousTimeoutError, match="waiting for peers: 1 of 2 to 2 are in"):
        handler.next_rendezvous()
    assert time.monotonic() - started < 2.5
    assert leases(http, prefix) == [], "the worker that gave up left a keep-alive"


def test_extra_data_goes_to_all_and_L_T_its_timeout_works(make: Make) -> None:
    one, other = make()._rdzv_impl, make()._rdzv_impl
    version = one.rendezvous_barrier()[0]
    one.store_extra_data(version, "a", "1")
    other.store_extra_data(version, "b", "2")
    assert (other.load_extra_data(version, "a"), one.load_extra_data(version, "b")) == ("1", "2")
    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(one.load_extra_data, version, "c", 10)
        other.store_extra_data(version, "c", "3")
        assert late.result(10) == "3"
    started = time.monotonic()
    with pytest.raises(RendezvousTimeoutError, match="nobody"):
        one.load_extra_data(version, "nobody", timeout=1)
    assert time.monotonic() - started < 2.5


@pytest.mark.parametrize(
    "text", ["[1]", "null", "5", '"text"', "no json", "[" * 100_000], ids=["list", "null", "5", "text", "none", "deep"]
)
def test_foreign_extra_data_is_a_state_error(make: Make, http: EtcdHttp, prefix: str, text: str) -> None:
    run = make()._rdzv_impl
    version = run.rendezvous_barrier()[0]
    http.call("PUT", joined_key(prefix, f"run_job/rdzv/v_{version}/extra_data"), {"value": text}, time.monotonic() + 5)
    with pytest.raises(RendezvousStateError, match="extra data is"):
        run.store_extra_data(version, "a", "1")
    with pytest.raises(RendezvousStateError, match="extra data is"):
        run.load_extra_data(version, "a", 1)


def test_a_directory_in_place_of_the_extra_data_is_told_at_once(make: Make, prefix: str, http: EtcdHttp) -> None:
    handler = make()
    http.call("PUT", joined_key(prefix, "run_job/rdzv/v_1/extra_data"), {"dir": "true"}, time.monotonic() + 5)
    with pytest.raises(RendezvousStateError, match="is a directory"):
        handler._rdzv_impl.store_extra_data("1", "a", "1")


def test_the_pause_after_a_refusal_does_not_outlast_the_deadline(make: Make) -> None:
    driver = make()._rdzv_impl._driver
    driver._refusals = 8
    started = time.monotonic()
    for _ in range(20):
        driver._pace(Failed(COMPARE_FAILED), started)
    assert time.monotonic() - started < 0.3


def test_a_long_run_id_is_a_run_id(make: Make) -> None:
    assert make(1, 1, run_id="n" * 1000).next_rendezvous().rank == 0


@pytest.mark.parametrize("run_id", ["job?1", "job#3", "../other", "a/b", "..", "%2e", "zwölf", "a b", "{}"])
def test_any_run_id_is_a_run_of_its_own(make: Make, run_id: str) -> None:
    assert make(1, 1, run_id=run_id).next_rendezvous().rank == 0
    assert make(1, 1, run_id=run_id + "x").next_rendezvous().rank == 0


def test_a_number_is_a_run_id_as_for_pytorchs_class(etcd_server: EtcdServer, prefix: str) -> None:
    run = EtcdRendezvous(etcd_server.get_client(), prefix, 1, 1, 1, 10, 0)
    assert run.rendezvous_barrier()[1:] == (0, 1)
    assert EtcdRendezvousHandler(run, None).get_run_id() == "1"
    run.leave()


@pytest.mark.parametrize("slashes", ["rel{}", "/abs{}", "/trail{}/", "//double{}//"])
def test_L_H_a_prefix_with_and_without_slashes(etcd_server: EtcdServer, prefix: str, slashes: str) -> None:
    name = slashes.format(prefix.rpartition("/")[2])
    run = EtcdRendezvous(etcd_server.get_client(), name, "job", 1, 1, 10, 0)
    version, rank, world = run.rendezvous_barrier()
    assert (rank, world) == (0, 1)
    store = run.setup_kv_store(version)
    store.set("key", "value")
    assert store.get("key") == b"value"
    run.leave()


def test_L_F_only_rendezvous_errors_leave(make: Make, own_etcd: EtcdServer, http: EtcdHttp, prefix: str) -> None:
    handler = make()
    document = joined_key(prefix, "run_job/rdzv/active_version")
    for text in ("no json", json.dumps({"status": "odd"}), json.dumps({"status": "final", "version": "1"})):
        http.call("PUT", document, {"value": text}, time.monotonic() + 5)
        for ask in (handler.is_closed, handler.num_nodes_waiting, handler.next_rendezvous, handler.set_closed):
            with pytest.raises(RendezvousStateError, match="not a rendezvous document"):
                ask()


def test_L_F_a_foreign_address_of_rank_0_is_a_state_error(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    handler = make(1, 1)
    publish = RendezvousStoreInfo.build

    def build(rank: int, store: EtcdStore, local_addr: str | None) -> RendezvousStoreInfo:
        publish(rank, store, local_addr)
        store.set("MASTER_PORT", "none")
        return publish(1, store, local_addr)

    monkeypatch.setattr(RendezvousStoreInfo, "build", build)
    with pytest.raises(RendezvousStateError, match="address of rank 0"):
        handler.next_rendezvous()


def test_L_F_a_directory_in_place_of_the_document_is_a_state_error(make: Make, http: EtcdHttp, prefix: str) -> None:
    handler = make()
    http.call("PUT", joined_key(prefix, "run_job/rdzv/active_version"), {"dir": "true"}, time.monotonic() + 5)
    for ask in (handler.is_closed, handler.num_nodes_waiting, handler.next_rendezvous, handler.set_closed):
        with pytest.raises(RendezvousStateError, match="a directory is in its place"):
            ask()


def test_an_unreachable_etcd_is_a_connection_error() -> None:
    with find_free_port() as reserved:
        endpoint = f"127.0.0.1:{reserved.getsockname()[1]}"
    started = time.monotonic()
    with pytest.raises(RendezvousConnectionError, match="cannot be reached"):
        create_rdzv_handler(params(endpoint, "job", 1, 1, timeout=1))
    assert time.monotonic() - started < 3


def test_L_V_G_A_an_outage_shorter_than_the_ttl_is_survived(
    own_etcd: EtcdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_run, "POLL", 0.5)
    options = {"keep_alive_ttl": 3, "timeout": 30, "last_call_timeout": 0}
    member = create_rdzv_handler(params(own_etcd.get_endpoint(), "job", 1, 1, **options))
    assert member.next_rendezvous().rank == 0
    own_etcd.kill()
    assert member.num_nodes_waiting() == 0, "an outage is no reason to meet again"
    assert member.is_closed() is False
    own_etcd.start()
    time.sleep(4)  # longer than the TTL: only renewals after the outage keep the key
    assert member.num_nodes_waiting() == 0, "the keep-alive was not renewed after the outage"
    assert member.shutdown()


def test_D_I_no_call_hangs_with_a_hung_etcd(own_etcd: EtcdServer) -> None:
    """None outlasts its time-out by more than a poll. What has none of its own has that of an agent's questions."""
    handler = create_rdzv_handler(params(own_etcd.get_endpoint(), "job", 2, 2, timeout=2))
    run = handler._rdzv_impl
    own_etcd.pause()
    calls: list[tuple[Callable[[], object], float]] = [
        (handler.next_rendezvous, 2),
        (handler.set_closed, 2),
        (handler.is_closed, POLL),
        (handler.num_nodes_waiting, POLL),
        (lambda: run.load_extra_data("1", "key", timeout=0.5), 0.5),
        (lambda: run.load_extra_data("1", "key", timeout=timedelta(seconds=0.5)), 0.5),
        (lambda: run.store_extra_data("1", "key", "value"), 2),
    ]
    try:
        with ThreadPoolExecutor(len(calls)) as pool:
            took = list(pool.map(lambda call: _seconds(call[0]), calls))
        assert [seconds < limit + POLL for seconds, (_, limit) in zip(took, calls, strict=True)] == [True] * len(calls)
        assert _seconds(handler.shutdown) < 2 + POLL
    finally:
        own_etcd.resume()


def _seconds(call: Callable[[], object]) -> float:
    """How long it takes, to return or to raise one of torch's errors."""
    started = time.monotonic()
    with contextlib.suppress(RendezvousError):
        call()
    return time.monotonic() - started


def test_D_I_etcd_hangs_while_rank_0_publishes_its_address(
    own_etcd: EtcdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler = create_rdzv_handler(
        params(own_etcd.get_endpoint(), "job", 1, 1, timeout=1.5, last_call_timeout=0, keep_alive_ttl=2)
    )
    made = handler._rdzv_impl.setup_kv_store

    def made_then_hung(version: str | int) -> EtcdStore:
        store = made(version)
        own_etcd.pause()
        return store

    monkeypatch.setattr(handler._rdzv_impl, "setup_kv_store", made_then_hung)
    try:
        started = time.monotonic()
        with pytest.raises(RendezvousTimeoutError, match="rank 0 of version"):
            handler.next_rendezvous()
        assert time.monotonic() - started < 1.5 + POLL
    finally:
        own_etcd.resume()


def test_nothing_is_left_behind(etcd_server: EtcdServer, prefix: str, http: EtcdHttp) -> None:
    assert leases(http, prefix) == []  # opens its connection
    threads = set(threading.enumerate())
    sockets = _sockets()
    for end in ("shutdown", "leave", "forget", "forget in the midst"):
        options = {"etcd_prefix": f"{prefix}/{end[-5:]}", "timeout": 0.5, "last_call_timeout": 0}
        lowest = 2 if end.endswith("midst") else 1
        handler = create_rdzv_handler(params(etcd_server.get_endpoint(), "job", lowest, 2, **options))
        with contextlib.suppress(RendezvousTimeoutError):
            handler.next_rendezvous()
        if end == "shutdown":
            handler.shutdown()
        elif end == "leave":
            handler._rdzv_impl.leave()
        del handler
        gc.collect()
    deadline = time.monotonic() + 5
    while set(threading.enumerate()) - threads and time.monotonic() < deadline:
        time.sleep(0.02)
    assert set(threading.enumerate()) - threads == set()
    assert [key for key in leases(http, prefix) if "active_version" not in key] == []
    assert _sockets() <= sockets


def test_a_half_built_handler_leaves_nothing_behind(etcd_server: EtcdServer, prefix: str) -> None:
    threads = set(threading.enumerate())
    sockets = _sockets()
    caught = []
    with EtcdServer(enable_v2=False) as server:
        before = _sockets()
        for change in ({"keep_alive_ttl": 0}, {"timeout": -1}, {}):
            with pytest.raises((ValueError, RendezvousConnectionError)) as error:
                create_rdzv_handler(params(server.get_endpoint(), "job", 1, 1, etcd_prefix=prefix, **change))
            caught.append(error.value)  # whoever keeps the error keeps no connection
        assert "no v2 API" in str(caught[-1])
        assert _sockets() == before
    assert set(threading.enumerate()) == threads
    assert _sockets() == sockets


def _sockets() -> int:
    return sum(
        os.path.islink(link) and os.readlink(link).startswith("socket:") for link in Path("/proc/self/fd").iterdir()
    )
