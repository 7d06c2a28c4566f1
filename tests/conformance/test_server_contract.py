"""The embedded server, from PyTorch's documentation of EtcdServer."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from sides import Side, documented
from torch.distributed.elastic.rendezvous import RendezvousParameters

# Upstream's lease thread ends with an exception on every etcd 3.5 (L-A).
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


@pytest.fixture
def server(side: Side, binary: str) -> Iterator[Any]:
    server = side.server.EtcdServer()
    server.start()
    yield server
    server.stop()


def test_a_server_starts_and_says_where_it_is(server: Any) -> None:
    host, port = server.get_host(), server.get_port()
    assert (host, server.get_endpoint()) == ("localhost", f"{host}:{port}")
    assert port > 0
    assert server.get_client().version


def test_a_rendezvous_on_it(side: Side, server: Any) -> None:
    params = RendezvousParameters(
        "etcd", server.get_endpoint(), uuid.uuid4().hex, 1, 1, timeout=20, last_call_timeout=1, local_addr="127.0.0.1"
    )
    info = side.handler.create_rdzv_handler(params).next_rendezvous()
    assert (info.rank, info.world_size) == (0, 1)
    assert info.store is not None


def test_a_server_that_was_stopped_is_gone(side: Side, binary: str) -> None:
    server = side.server.EtcdServer()
    server.start()
    client = server.get_client()
    server.stop()
    with pytest.raises(Exception, match=r"(?i)connection|machines"):
        client.read("/")


def test_a_wrong_binary_is_named(side: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_ETCD_BINARY_PATH", os.path.join(os.sep, "nonexistent", "etcd"))
    # Upstream takes the etcd on PATH instead, and speaks of that one if there is none.
    with documented(side, "E-D", "DID NOT RAISE|No such file or directory: 'etcd'"):
        server = side.server.EtcdServer()
        with pytest.raises(Exception, match="TORCHELASTIC_ETCD_BINARY_PATH"):
            server.start(timeout=5, num_retries=1)
