"""EtcdRendezvousHandler, EtcdRendezvous and create_rdzv_handler on a real etcd: contract, bounds, hygiene."""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from rallypoint.impl.etcd_http import EtcdHttp, joined_key
from rallypoint.impl.etcd_rendezvous import OPTIONS, EtcdRendezvous, EtcdRendezvousHandler, create_rdzv_handler
from rallypoint.impl.etcd_server import EtcdServer, find_free_port
from rallypoint.model.etcd import COMPARE_FAILED, Failed
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStateError,
    RendezvousTimeoutError,
)
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

Make = Callable[..., EtcdRendezvousHandler]


def params(endpoint: str, run_id: str, lowest: int, highest: int, **config: Any) -> RendezvousParameters:
    return RendezvousParameters("etcd", endpoint, run_id, lowest, highest, "127.0.0.1", **config)


@pytest.fixture
def make(etcd_server: EtcdServer, prefix: str) -> Iterator[Make]:
    """Makes handlers of one run; all leave at the end, whatever happened."""
    made: list[EtcdRendezvousHandler] = []

    def one(lowest: int = 1, highest: int = 2, run_id: str = "job", **config: Any) -> EtcdRendezvousHandler:
        config = {"timeout": 20, "last_call_timeout": 0, "etcd_prefix": prefix, "keep_alive_ttl": 2, **config}
        handler = create_rdzv_handler(params(etcd_server.get_endpoint(), run_id, lowest, highest, **config))
        made.append(handler)
        return handler

    yield one
    for handler in made:
        handler._rdzv_impl.leave()


def meet(*handlers: EtcdRendezvousHandler) -> list[RendezvousInfo]:
    """All handlers at once; results in the order of the handlers."""
    with ThreadPoolExecutor(len(handlers)) as pool:
        return list(pool.map(lambda handler: handler.next_rendezvous(), handlers))


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
    started = time.monotonic()
    infos = meet(*handlers)
    assert time.monotonic() - started < 5, "a member's re-entry waited for a keep-alive to run out"
    assert sorted(info.rank for info in infos) == [0, 1, 2, 3]


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
    started = time.monotonic()
    with pytest.raises(RendezvousTimeoutError, match="waiting for peers: 1 of 2 to 2 are in"):
        make(2, 2, timeout=1).next_rendezvous()
    assert time.monotonic() - started < 2.5
    listing = http.call("GET", joined_key(prefix, "run_job/rdzv/v_1"), {}, time.monotonic() + 5)
    assert listing.node.children == (), "the worker that gave up left a keep-alive"  # type: ignore[union-attr]


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


@pytest.mark.parametrize(
    ("run_id", "lowest", "highest", "config", "says"),
    [
        ("", 1, 2, {}, "run_id"),
        ("  ", 1, 2, {}, "run_id"),
        ("job", 1, 2, {"last_call_timeot": 3}, "unknown rendezvous option last_call_timeot"),
        ("job", 1, 2, {"timeout": 0}, "timeout"),
        ("job", 1, 2, {"timeout": -1}, "timeout"),
        ("job", 1, 2, {"last_call_timeout": -1}, "last_call_timeout"),
        ("job", 1, 2, {"timeout": "soon"}, "timeout"),
        ("job", 1, 2, {"timeout": 10**400}, "timeout"),
        ("job", 1, 2, {"timeout": float("inf")}, "timeout"),
        ("job", 1, 2, {"last_call_timeout": 10**10}, "last_call_timeout"),
        ("job", 1, 2, {"keep_alive_ttl": 0}, "keep_alive_ttl"),
        ("job", 1, 2, {"keep_alive_ttl": 10**10}, "keep_alive_ttl"),
        ("job", 1, 2, {"keep_alive_ttl": float("inf")}, "keep_alive_ttl"),
        ("n" * 1001, 1, 2, {}, "too long a name: 1001 bytes"),
        ("/" * 334, 1, 2, {}, "too long a name: 1002 bytes"),
        ("job", 1, 2, {"protocol": "gopher"}, "protocol"),
        ("job", 3, 2, {}, "minimum|min"),
        ("job", 0, 2, {}, "minimum|min"),
    ],
)
def test_unusable_arguments_are_one_clear_ValueError(
    etcd_server: EtcdServer, run_id: str, lowest: int, highest: int, config: dict[str, Any], says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        create_rdzv_handler(params(etcd_server.get_endpoint(), run_id, lowest, highest, **config))


def test_min_above_max_is_refused_by_the_class_too(etcd_server: EtcdServer, prefix: str) -> None:
    with pytest.raises(ValueError, match="1 <= min <= max"):
        EtcdRendezvous(etcd_server.get_client(), prefix, "job", 3, 2, 10, 1)


@pytest.mark.parametrize("times", [(float("nan"), 0), (float("inf"), 0), (10, float("nan")), (10**400, 0)])
def test_times_without_bound_are_refused_by_the_class_too(
    etcd_server: EtcdServer, prefix: str, times: tuple[float, float]
) -> None:
    with pytest.raises(ValueError, match="times must be positive, and at most"):
        EtcdRendezvous(etcd_server.get_client(), prefix, "job", 1, 2, *times)
    with pytest.raises(ValueError, match=r"setup_ttl=nan: etcd counts"):
        EtcdRendezvous(etcd_server.get_client(), prefix, "job", 1, 2, 10, 1, ttls={"setup_ttl": float("nan")})


def test_a_long_run_id_is_a_run_id(make: Make) -> None:
    assert make(1, 1, run_id="n" * 1000).next_rendezvous().rank == 0


@pytest.mark.parametrize("run_id", ["job?1", "job#3", "../other", "a/b", "..", "%2e", "zwölf", "a b", "{}"])
def test_any_run_id_is_a_run_of_its_own(make: Make, run_id: str) -> None:
    assert make(1, 1, run_id=run_id).next_rendezvous().rank == 0
    assert make(1, 1, run_id=run_id + "x").next_rendezvous().rank == 0


@pytest.mark.parametrize("slashes", ["rel{}", "/abs{}", "/trail{}/", "//double{}//"])
def test_L_H_a_prefix_with_and_without_slashes(etcd_server: EtcdServer, prefix: str, slashes: str) -> None:
    name = slashes.format(prefix.rpartition("/")[2])
    run = EtcdRendezvous(etcd_server.get_client(), name, "job", 1, 1, 10, 0)
    assert run.rendezvous_barrier() == ("1", 0, 1)
    store = run.setup_kv_store("1")
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


def test_an_unreachable_etcd_is_a_connection_error() -> None:
    with find_free_port() as reserved:
        endpoint = f"127.0.0.1:{reserved.getsockname()[1]}"
    started = time.monotonic()
    with pytest.raises(RendezvousConnectionError, match="cannot be reached"):
        create_rdzv_handler(params(endpoint, "job", 1, 1))
    assert time.monotonic() - started < 15


def test_a_server_without_the_v2_api_is_named() -> None:
    with EtcdServer(enable_v2=False) as server, pytest.raises(RendezvousConnectionError, match="no v2 API"):
        create_rdzv_handler(params(server.get_endpoint(), "job", 1, 1))


def test_L_V_G_A_an_outage_shorter_than_the_ttl_is_survived(own_etcd: EtcdServer) -> None:
    options = {"keep_alive_ttl": 5, "timeout": 30, "last_call_timeout": 0}
    member = create_rdzv_handler(params(own_etcd.get_endpoint(), "job", 1, 1, **options))
    assert member.next_rendezvous().rank == 0
    own_etcd.kill()
    assert member.num_nodes_waiting() == 0, "an outage is no reason to meet again"
    assert member.is_closed() is False
    own_etcd.start()
    time.sleep(6)  # longer than the TTL: only renewals after the outage keep the key
    assert member.num_nodes_waiting() == 0, "the keep-alive was not renewed after the outage"
    assert member.shutdown()


def test_D_I_no_call_hangs_with_a_hung_etcd(own_etcd: EtcdServer) -> None:
    handler = create_rdzv_handler(params(own_etcd.get_endpoint(), "job", 2, 2, timeout=3))
    os.kill(own_etcd.pid, signal.SIGSTOP)
    try:
        for ask, bound in (
            (handler.next_rendezvous, 3 + 2 + 1),
            (handler.shutdown, 17),
            (handler.num_nodes_waiting, 12),
        ):
            started = time.monotonic()
            with contextlib.suppress(RendezvousTimeoutError):
                ask()
            assert time.monotonic() - started < bound, f"{ask.__name__} outlasted its bound"
    finally:
        os.kill(own_etcd.pid, signal.SIGCONT)


def test_nothing_is_left_behind(etcd_server: EtcdServer, prefix: str) -> None:
    threads = set(threading.enumerate())
    sockets = _sockets()
    for end in ("shutdown", "leave", "forget"):
        options = {"etcd_prefix": f"{prefix}/{end}", "timeout": 10, "last_call_timeout": 0}
        handler = create_rdzv_handler(params(etcd_server.get_endpoint(), "job", 1, 1, **options))
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
    assert _sockets() <= sockets + 1  # the store of the handler that was forgotten is kept for torch (S-J)


def _sockets() -> int:
    return sum(
        os.path.islink(link) and os.readlink(link).startswith("socket:") for link in Path("/proc/self/fd").iterdir()
    )


def test_each_not_yet_is_said_once_per_change(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="rallypoint"), pytest.raises(RendezvousTimeoutError):
        make(2, 2, timeout=1).next_rendezvous()
    said = [record.getMessage() for record in caplog.records]
    assert len([text for text in said if "waiting for peers: 1 of 2" in text]) == 1
    assert logging.getLogger("rallypoint").handlers == []


def test_options_are_documented_with_unit_and_default() -> None:
    assert all("(" in meaning and meaning.endswith(")") for meaning in OPTIONS.values())
