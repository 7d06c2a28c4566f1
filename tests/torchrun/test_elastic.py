"""Real torchrun agents that come and go: training goes on in the right world each time."""

from __future__ import annotations

import pytest
from crew import Crew
from rallypoint.impl.etcd_server import EtcdServer

OURS = ["rallypoint", "rallypoint-etcd-v2"]


def keys_of(pid: int, etcd: EtcdServer) -> list[str]:
    """The keys that a process leases: keep-alives bear the process id of their owner."""
    nodes = etcd.get_client().read("/", recursive=True).leaves
    return [node.key for node in nodes if f"-{pid}-" in node.key]


@pytest.mark.slow
@pytest.mark.parametrize("backend", OURS)
def test_D_A_an_agent_joins_later_leaves_and_comes_back(backend: str, etcd_server: EtcdServer) -> None:
    """Also R01, R06, R33 and R36: the signal that ends B neither closes the run nor ends A, and B may come back."""
    with Crew(backend, etcd_server.get_endpoint()) as crew:
        crew.start("A")
        assert crew.trains("A", 0, 40), crew.log()
        for _ in range(2):
            mark = crew.mark()
            crew.start("B")
            assert crew.trains("AB", mark, 40), crew.log()
            mark = crew.mark()
            pid = crew.agents["B"].pid
            assert crew.terminate("B") != 0
            assert keys_of(pid, etcd_server) == []  # nobody has to wait for its TTL
            assert crew.trains("A", mark, 40), crew.log()
        mark = crew.mark()
        crew.start("B")
        assert crew.trains("AB", mark, 40), crew.log()
        assert crew.finish() == {"A": 0, "B": 0}, crew.log()


@pytest.mark.slow
def test_D_A_upstreams_own_handler_hangs_in_the_same_sequence(etcd_server: EtcdServer) -> None:
    """What ours is compared with: B joins, and 30 s later the group of two still has not made a step."""
    with Crew("etcd-v2", etcd_server.get_endpoint()) as crew:
        crew.start("A")
        assert crew.trains("A", 0, 40), crew.log()
        mark = crew.mark()
        crew.start("B")
        assert not crew.trains("AB", mark, 30), crew.steps()
        assert crew.steps()[mark:] == []
