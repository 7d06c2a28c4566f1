"""A cluster of three loses its leader at the worst moments: our workers still meet, and agree."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Lock

import pytest
from rallypoint.impl.etcd_cluster import EtcdCluster
from rallypoint.impl.etcd_rendezvous import EtcdRendezvousHandler, create_rdzv_handler
from rallypoint.model import etcd as requests
from rallypoint.model.worker import Worker
from torch.distributed.elastic.rendezvous import RendezvousParameters

COUNT = 3


@pytest.fixture(scope="module")
def cluster() -> Iterator[EtcdCluster]:
    with EtcdCluster(3) as one:
        yield one


class Assassin:
    """Kills the leader once: right before the first request at ``pc``, or right after its reply."""

    def __init__(self, cluster: EtcdCluster, pc: str, moment: str) -> None:
        self._cluster = cluster
        self._pc = pc
        self._moment = moment
        self._lock = Lock()
        self.victim: int | None = None

    def shadow(self, handler: EtcdRendezvousHandler) -> None:
        rendezvous = handler._rdzv_impl
        note, pc = rendezvous._note, ""

        def on_step(worker: Worker) -> None:
            nonlocal pc
            pc = worker.pc
            note(worker)
            if self._moment == "before":
                self._strike(pc)

        def on_reply(request: requests.Request, reply: requests.Reply, index: int) -> None:
            if self._moment == "after" and isinstance(request, requests.Cas):
                self._strike(pc)

        rendezvous._note = on_step  # type: ignore[method-assign]
        rendezvous._driver.client._observer = on_reply

    def _strike(self, pc: str) -> None:
        with self._lock:
            if pc == self._pc and self.victim is None:
                self.victim = self._cluster.leader()
                self._cluster.kill(self.victim)


@pytest.mark.parametrize(
    ("pc", "moment"),
    [
        ("join", "before"),
        ("confirm", "after"),
        pytest.param("join", "after", marks=pytest.mark.slow),
        pytest.param("confirm", "before", marks=pytest.mark.slow),
    ],
)
def test_the_leader_is_killed_around_a_compare_and_swap(cluster: EtcdCluster, pc: str, moment: str) -> None:
    assassin = Assassin(cluster, pc, moment)
    endpoints = ",".join(f"{host}:{port}" for host, port in cluster.endpoints)
    parameters = RendezvousParameters("etcd", endpoints, f"{pc}-{moment}", COUNT, COUNT, "127.0.0.1", timeout=60)
    handlers = [create_rdzv_handler(parameters) for _ in range(COUNT)]
    for handler in handlers:
        assassin.shadow(handler)
    with ThreadPoolExecutor(COUNT) as pool:
        infos = list(pool.map(lambda handler: handler.next_rendezvous(), handlers))
    assert assassin.victim is not None
    assert sorted(info.rank for info in infos) == list(range(COUNT))
    assert {info.world_size for info in infos} == {COUNT}
    assert len({str(info.bootstrap_store_info) for info in infos}) == 1
    assert len({handler._rdzv_impl._worker.version for handler in handlers}) == 1
    assert [handler.num_nodes_waiting() for handler in handlers] == [0] * COUNT
    assert handlers[0].shutdown()
    assert all(handler.is_closed() for handler in handlers)
    for handler in handlers[1:]:
        handler._rdzv_impl.leave()
    cluster.restart(assassin.victim)
