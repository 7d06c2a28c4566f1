"""Each test of this folder runs on PyTorch's modules and on ours, against one real etcd."""

from __future__ import annotations

import pytest
from rallypoint.impl.etcd_server import EtcdServer, find_etcd
from sides import OURS, UPSTREAM, Side, side_of


@pytest.fixture(scope="session", params=[UPSTREAM, OURS])
def side(request: pytest.FixtureRequest) -> Side:
    return side_of(request.param)


@pytest.fixture
def endpoint(etcd_server: EtcdServer) -> str:
    return etcd_server.get_endpoint()


@pytest.fixture
def binary(monkeypatch: pytest.MonkeyPatch) -> str:
    """The path of the etcd that both sides' servers start."""
    path = find_etcd().path
    monkeypatch.setenv("TORCHELASTIC_ETCD_BINARY_PATH", path)
    return path
