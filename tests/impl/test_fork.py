"""A fork and its parent: none reads the other's replies, gives up its leases, or ends its etcd."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from forks import BOUND, in_fork, result, start
from rallypoint.impl.etcd_cluster import EtcdCluster
from rallypoint.impl.etcd_http import EtcdHttp, joined_key
from rallypoint.impl.etcd_process import is_healthy
from rallypoint.impl.etcd_rendezvous import EtcdRendezvous
from rallypoint.impl.etcd_server import EtcdServer
from rallypoint.impl.etcd_v2 import EtcdV2
from rallypoint.impl.leases import KEEPER
from rallypoint.model import etcd as model
from rallypoint.model.worker import Lease


def soon() -> float:
    return time.monotonic() + 10


def test_a_child_never_sends_on_its_parents_connection(http: EtcdHttp, prefix: str) -> None:
    """On a shared connection each may read the reply that is the other's, as a value of the wrong key."""
    http.call("PUT", prefix, {"value": "v"}, soon())
    inherited = http._clients

    def renewed() -> bool:
        http.call("GET", prefix, {}, soon())
        return http._clients[0] is not inherited[0]

    assert in_fork(renewed) == "True"
    http.call("GET", prefix, {}, soon())
    assert http._clients is inherited


def test_a_lock_held_at_the_fork_does_not_stop_the_child(http: EtcdHttp, prefix: str) -> None:
    http.call("PUT", prefix, {"value": "v"}, soon())
    pools = http._clients[0].http.pools

    def fail_over() -> str:
        http.call("GET", prefix, {}, soon())
        http._leave(0)
        http.close()
        return "done"

    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        with http._lock, pools.lock:
            held.set()
            over.wait(BOUND)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(hold)
        held.wait(BOUND)
        child = start(fail_over)
        over.set()
    assert result(child) == "'done'"


def test_no_ticket_is_given_twice(http: EtcdHttp, prefix: str) -> None:
    tickets = [KEEPER.hold(EtcdV2(http, ""), Lease(joined_key(prefix, key), 60)) for key in "abc"]
    child = int(in_fork(lambda: KEEPER.hold(EtcdV2(http, ""), Lease(joined_key(prefix, "d"), 60))))
    for ticket in tickets:
        KEEPER.release(ticket)
    assert child not in tickets


@pytest.fixture
def member(etcd_server: EtcdServer, prefix: str) -> Any:
    """A member of a version of its own."""
    run = EtcdRendezvous(etcd_server.get_client(), prefix, "job", 1, 1, 10, 0, ttls={"keep_alive_ttl": 2})
    run.rendezvous_barrier()
    yield run
    run.leave()


@pytest.mark.parametrize(
    "call",
    [
        lambda run: run.leave(),
        lambda run: run._driver.release(),
        lambda run: run._driver.abandon(),
    ],
    ids=["leave", "release", "abandon"],
)
def test_a_childs_end_is_not_its_parents(
    call: Callable[[EtcdRendezvous], None], member: EtcdRendezvous, http: EtcdHttp
) -> None:
    lease = member._worker.lease
    assert lease is not None
    assert in_fork(lambda: call(member)) == "None"
    assert isinstance(EtcdV2(http, "").perform(model.Get(lease), soon()), model.Done)
    assert member._driver._tickets
    assert not member.standing().stale


def test_what_a_child_keeps_its_own_keeper_renews(member: EtcdRendezvous) -> None:
    def held() -> bool:
        driver = member._driver
        driver._keep(tuple(driver._tickets))
        return bool(driver._tickets) and set(driver._tickets.values()) <= set(KEEPER._held)

    assert in_fork(held) == "True"


def test_a_child_that_meets_does_not_make_its_parent_leave(member: EtcdRendezvous, http: EtcdHttp) -> None:
    lease = member._worker.lease
    assert lease is not None
    member._timeout = 0.3
    assert "TimeoutError" in in_fork(member.rendezvous_barrier)
    assert isinstance(EtcdV2(http, "").perform(model.Get(lease), soon()), model.Done)


def test_an_inherited_driver_keeps_the_childs_own_leases(
    member: EtcdRendezvous, etcd_server: EtcdServer, prefix: str
) -> None:
    def own_lease_after_the_parents_is_given_up() -> bool:
        run = EtcdRendezvous(etcd_server.get_client(), prefix, "child", 1, 1, 10, 0, ttls={"keep_alive_ttl": 1})
        run.rendezvous_barrier()
        member._driver.abandon()
        lease = run._worker.lease
        assert lease is not None
        time.sleep(2.5)  # longer than the TTL, which is the point
        return isinstance(run._driver.client.perform(model.Get(lease), soon()), model.Done)

    assert in_fork(own_lease_after_the_parents_is_given_up) == "True"


@pytest.mark.parametrize("end", [EtcdServer.stop, EtcdServer.__exit__, EtcdServer.kill])
def test_a_child_does_not_end_its_parents_etcd(end: Callable[[EtcdServer], object], own_etcd: EtcdServer) -> None:
    pid, directory = own_etcd.pid, own_etcd._temporary
    assert in_fork(lambda: end(own_etcd)) == "None"
    assert is_healthy("127.0.0.1", own_etcd.get_port(), 5)
    assert own_etcd.pid == pid
    assert os.path.isdir(directory)


def test_after_stop_a_childs_etcd_is_another_one(own_etcd: EtcdServer) -> None:
    directory, port = own_etcd._temporary, own_etcd.get_port()

    def again() -> tuple[bool, bool]:
        own_etcd.stop()
        own_etcd.start()
        different = own_etcd._temporary != directory, own_etcd.get_port() != port
        own_etcd.stop()
        return different

    assert in_fork(again) == "(True, True)"
    assert os.path.isdir(directory)


@pytest.mark.parametrize("state", ["new", "killed", "stopped"])
def test_what_a_child_starts_is_its_own(state: str) -> None:
    """An etcd of another name, on another port; also if the parent's was not running at the fork."""
    server = EtcdServer()
    if state != "new":
        server.start()
        server.stop() if state == "stopped" else server.kill()
    directory, port = server._temporary, server.get_port()

    def started_anew() -> tuple[bool, bool]:
        server.start()
        different = server._temporary != directory, server.get_port() != port
        server.stop()
        return different

    try:
        assert in_fork(started_anew) == "(True, True)"
        server.start()
        assert is_healthy("127.0.0.1", server.get_port(), 5)
        assert server._temporary == directory
    finally:
        server.stop()


def test_a_child_starts_nothing_of_its_parents_cluster() -> None:
    with EtcdCluster(1) as cluster:
        cluster.kill(0)
        for call in (lambda: cluster.restart(0), cluster.start):
            assert "make an EtcdCluster in the fork" in in_fork(call)
        cluster.restart(0)
        assert is_healthy(*cluster.endpoints[0], 5)


def test_a_child_does_not_end_its_parents_cluster() -> None:
    with EtcdCluster(1) as cluster:
        pid = cluster.pid(0)
        assert in_fork(cluster.stop) == "None"
        assert is_healthy(*cluster.endpoints[0], 5)
        assert cluster.pid(0) == pid


def test_an_etcds_end_is_told_to_its_creator_also_if_a_child_asked_first(own_etcd: EtcdServer) -> None:
    process = own_etcd._process
    assert process is not None
    os.kill(own_etcd.pid, signal.SIGKILL)
    assert in_fork(lambda: process.ended(1.0)) == "None"
    end = process.ended(5.0)
    assert end is not None
    assert end.code == -signal.SIGKILL
