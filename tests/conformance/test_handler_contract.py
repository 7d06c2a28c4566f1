"""The handler of the backend ``etcd``, from PyTorch's documentation of RendezvousHandler and its registry."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from rallypoint.impl.etcd_server import EtcdServer
from sides import Side, documented
from torch.distributed.elastic.rendezvous import RendezvousClosedError, RendezvousParameters

# Upstream's lease thread ends with an exception on every etcd 3.5 (L-A).
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
MORE = {"timeout": 60, "last_call_timeout": 30, "protocol": "http"}


def parameters(endpoint: str, **config: Any) -> RendezvousParameters:
    return RendezvousParameters("etcd", endpoint, uuid.uuid4().hex, 1, 1, local_addr="127.0.0.1", **config)


@pytest.mark.parametrize("config", [{}, MORE])
def test_a_handler_knows_its_run(side: Side, endpoint: str, config: dict[str, Any]) -> None:
    params = parameters(endpoint, **config)
    assert side.handler.create_rdzv_handler(params).get_run_id() == params.run_id


def test_a_handler_knows_its_backend(side: Side, endpoint: str) -> None:
    assert side.handler.create_rdzv_handler(parameters(endpoint, **MORE)).get_backend() == "etcd"


def test_one_node_meets_itself_and_closes(side: Side, endpoint: str) -> None:
    params = parameters(endpoint, timeout=20, last_call_timeout=1)
    handler = side.handler.create_rdzv_handler(params)
    info = handler.next_rendezvous()
    assert (info.rank, info.world_size) == (0, 1)
    assert info.bootstrap_store_info.master_addr == "127.0.0.1"
    info.store.set("k", "v")
    assert info.store.get("k") == b"v"
    assert not handler.is_closed()
    assert handler.num_nodes_waiting() == 0
    assert handler.shutdown()
    assert handler.is_closed()
    with pytest.raises(RendezvousClosedError):
        side.handler.create_rdzv_handler(params).next_rendezvous()


def test_a_run_is_closed_before_anybody_met(side: Side, endpoint: str) -> None:
    handler = side.handler.create_rdzv_handler(parameters(endpoint))
    with documented(side, "L-D", "AssertionError: assert False"):
        assert handler.shutdown()
        assert handler.is_closed()


def test_a_prefix_without_a_slash_is_one(side: Side, etcd_server: EtcdServer) -> None:
    rendezvous = side.handler.EtcdRendezvous(
        client=etcd_server.get_client(),
        prefix=f"conformance-{uuid.uuid4().hex}",
        run_id="job",
        num_min_workers=1,
        num_max_workers=1,
        timeout=20,
        last_call_timeout=1,
    )
    version, rank, world = rendezvous.rendezvous_barrier()
    assert (rank, world) == (0, 1)
    store = rendezvous.setup_kv_store(version)
    store.set("k", "v")
    with documented(side, "L-H", r"AssertionError: assert False\n.*check\(\['k'\]\)"):
        assert store.check(["k"])
    rendezvous.set_closed()
