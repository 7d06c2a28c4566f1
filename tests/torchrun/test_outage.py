"""Etcd goes away under running agents and members: healthy workers live on (G-A), failed ones are still noticed."""

from __future__ import annotations

import time
from typing import Any

import pytest
from crew import Crew, becomes
from rallypoint.impl.etcd_server import EtcdServer
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousParameters
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

OURS = ["rallypoint", "rallypoint-etcd-v2"]
BOUND = 6.0  # seconds for one question: two polls, one of them by the heartbeat that is under way, and room


def member(backend: str, endpoint: str, run_id: str, **options: Any) -> RendezvousHandler:
    """A handler that has met, alone."""
    options = {"last_call_timeout": 1, **options}
    parameters = RendezvousParameters(backend, endpoint, run_id, 1, 1, "127.0.0.1", **options)
    handler = get_rendezvous_handler(parameters)
    info = handler.next_rendezvous()
    assert (info.rank, info.world_size) == (0, 1)
    return handler


@pytest.mark.slow
@pytest.mark.parametrize("away", [2, 8])
@pytest.mark.parametrize("backend", OURS)
def test_G_A_agents_and_workers_outlive_an_outage(backend: str, away: float, own_etcd: EtcdServer) -> None:
    """Shorter than every TTL: nobody restarts, and the run ends well."""
    with Crew(backend, own_etcd.get_endpoint(), nodes="2:2", conf="last_call_timeout=1") as crew:
        crew.start("A")
        crew.start("B")
        assert crew.trains("AB", 0, 40), crew.log()
        mark = crew.mark()
        own_etcd.kill()
        time.sleep(away)
        assert crew.steps_on("A"), crew.log()
        assert crew.steps_on("B"), crew.log()
        own_etcd.start()
        time.sleep(4)  # every agent has asked again, and its heartbeat has been due
        assert crew.steps_on("A"), crew.log()
        assert crew.finish() == {"A": 0, "B": 0}, crew.log()
        assert crew.steps()[mark:] == []


@pytest.mark.slow
@pytest.mark.parametrize("backend", OURS)
def test_D_I_a_worker_failure_is_noticed_while_etcd_hangs(backend: str, own_etcd: EtcdServer) -> None:
    conf = "last_call_timeout=1" if backend == "rallypoint" else "last_call_timeout=1,close_timeout=5"
    with Crew(backend, own_etcd.get_endpoint(), nodes="1:1", restarts=0, conf=conf) as crew:
        crew.start("A")
        assert crew.trains("A", 0, 40), crew.log()
        own_etcd.pause()
        time.sleep(6)  # a heartbeat has been due, and its request hangs
        crew.kill_worker("A")
        failed = time.monotonic()
        assert becomes(lambda: "exitcode: -9" in crew.log(), 2 * BOUND), crew.log()
        assert crew.agents["A"].wait(30) == 1, crew.log()
        assert time.monotonic() - failed < 30
        own_etcd.resume()


def wait_out_memory(backend: str) -> None:
    """Upstream's handler answers from its memory for 1 s."""
    if backend == "rallypoint-etcd-v2":
        time.sleep(1.1)


@pytest.mark.parametrize("backend", OURS)
def test_D_I_a_member_is_not_kept_from_its_workers_while_etcd_hangs(backend: str, own_etcd: EtcdServer) -> None:
    handler = member(backend, own_etcd.get_endpoint(), "run")
    own_etcd.pause()
    wait_out_memory(backend)
    asked = time.monotonic()
    assert handler.num_nodes_waiting() == 0
    assert time.monotonic() - asked < BOUND
    own_etcd.resume()
    assert handler.num_nodes_waiting() == 0
    assert handler.shutdown()
    assert becomes(handler.is_closed, 3)


@pytest.mark.parametrize("backend", OURS)
def test_G_A_P_A_the_configured_address_is_tried_again_after_an_outage(backend: str) -> None:
    """Etcd advertises an address where nobody listens; clients know it by another."""
    with EtcdServer(extra_args=["--advertise-client-urls", "http://127.0.0.1:9"]) as etcd:
        handler = member(backend, etcd.get_endpoint(), "run")
        etcd.kill()
        wait_out_memory(backend)
        assert not handler.is_closed()
        etcd.start()
        assert handler.shutdown()
        assert becomes(handler.is_closed, 3)
