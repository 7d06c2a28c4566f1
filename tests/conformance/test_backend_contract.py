"""The contract of a rendezvous backend and of ``create_backend``, from PyTorch's documentation of RendezvousBackend."""

from __future__ import annotations

import socket
import threading
import uuid
from base64 import b64encode
from typing import Any

import pytest
from rallypoint.impl.etcd_server import EtcdServer
from sides import OURS, Side, documented
from torch.distributed.elastic.rendezvous import RendezvousConnectionError, RendezvousParameters, RendezvousStateError

PROMPT = 20.0  # seconds for a thread that has nothing left to wait for


@pytest.fixture
def backend(side: Side, etcd_server: EtcdServer, prefix: str) -> Any:
    return side.backend.EtcdRendezvousBackend(etcd_server.get_client(), "job", prefix)


def parameters(endpoint: str, **config: Any) -> RendezvousParameters:
    run_id = f"conformance-{uuid.uuid4().hex}"
    return RendezvousParameters("etcd-v2", endpoint, run_id, 1, 1, **config)


def test_the_name(backend: Any) -> None:
    assert backend.name == "etcd-v2"


def test_no_state_is_none(backend: Any) -> None:
    assert backend.get_state() is None


def test_a_first_state_is_set_without_a_token(backend: Any) -> None:
    state, token, has_set = backend.set_state(b"first")
    assert (state, has_set) == (b"first", True)
    assert token is not None


def test_what_was_set_is_what_is_got(backend: Any) -> None:
    _, token, _ = backend.set_state(b"\x00first\xff")
    assert backend.get_state() == (b"\x00first\xff", token)


def test_the_current_token_replaces(backend: Any) -> None:
    _, first, _ = backend.set_state(b"first")
    state, second, has_set = backend.set_state(b"second", first)
    assert (state, has_set) == (b"second", True)
    assert second != first
    assert backend.get_state() == (b"second", second)


def test_an_old_token_changes_nothing(backend: Any) -> None:
    _, first, _ = backend.set_state(b"first")
    _, second, _ = backend.set_state(b"second", first)
    assert backend.set_state(b"third", first) == (b"second", second, False)
    assert backend.get_state() == (b"second", second)


@pytest.mark.parametrize("token", [None, "no token of anybody"])
def test_without_a_valid_token_an_existing_state_stays(backend: Any, token: object) -> None:
    _, first, _ = backend.set_state(b"first")
    assert backend.set_state(b"second", token) == (b"first", first, False)


def test_a_state_that_nobody_can_have_written_is_an_error(backend: Any, etcd_server: EtcdServer, prefix: str) -> None:
    etcd_server.get_client().write(f"{prefix}/job", "abcde")  # no base64 has five letters
    with pytest.raises(RendezvousStateError):
        backend.get_state()


@pytest.mark.parametrize("text", ["@@@@", ""])
def test_neither_is_a_state_what_decodes_to_nothing(
    side: Side, backend: Any, etcd_server: EtcdServer, prefix: str, text: str
) -> None:
    etcd_server.get_client().write(f"{prefix}/job", text)
    with documented(side, "B-D", "DID NOT RAISE RendezvousStateError"), pytest.raises(RendezvousStateError):
        backend.get_state()


def test_a_token_never_creates(side: Side, backend: Any) -> None:
    with documented(side, "B-B", r"AssertionError: assert \(b'first', \d+, True\) is None"):
        assert backend.set_state(b"first", 0) is None
        assert backend.get_state() is None


def test_a_vanished_state_is_no_connection_error(
    side: Side, backend: Any, etcd_server: EtcdServer, prefix: str
) -> None:
    _, token, _ = backend.set_state(b"first")
    etcd_server.get_client().delete(f"{prefix}/job")
    with documented(side, "B-H", "RendezvousConnectionError: "):
        assert backend.set_state(b"second", token) is None


@pytest.mark.parametrize("config", [{}, {"protocol": "hTTp", "read_timeout": "10"}])
def test_a_created_backend_and_its_store_use_the_documented_keys(
    side: Side, etcd_server: EtcdServer, config: dict[str, str]
) -> None:
    params = parameters(etcd_server.get_endpoint(), **config)
    backend, store = side.backend.create_backend(params)
    assert isinstance(store, side.store.EtcdStore)
    assert store.client.read_timeout == int(config.get("read_timeout", 60))
    backend.set_state(b"state")
    client = etcd_server.get_client()
    written = client.get(f"/torch/elastic/rendezvous/{params.run_id}")
    assert written.value == b64encode(b"state").decode()
    assert 7100 < written.ttl <= 7200
    key = f"k-{params.run_id}"
    store.set(key, "value")
    path = f"/torch/elastic/store/{b64encode(key.encode()).decode()}"
    assert client.get(path).value == b64encode(b"value").decode()
    client.delete(path)


def test_a_server_that_does_not_answer_is_a_connection_error(side: Side) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(RendezvousConnectionError, match="connection to etcd has failed"):
            side.backend.create_backend(parameters(endpoint, read_timeout="1"))


def test_a_protocol_other_than_http_is_refused(side: Side, endpoint: str) -> None:
    with pytest.raises(ValueError, match="protocol must be HTTP or HTTPS"):
        side.backend.create_backend(parameters(endpoint, protocol="ftp"))


@pytest.mark.parametrize("seconds", ["0", "-10"])
def test_a_read_timeout_that_is_none_is_refused(side: Side, endpoint: str, seconds: str) -> None:
    with pytest.raises(ValueError, match="read timeout must be a positive integer"):
        side.backend.create_backend(parameters(endpoint, read_timeout=seconds))


def test_the_store_of_a_backend_waits_for_a_key(side: Side, endpoint: str) -> None:
    params = parameters(endpoint)
    _, waiting = side.backend.create_backend(params)
    _, setting = side.backend.create_backend(params)
    # The directory exists, and the key comes late: the wait that upstream can miss is another one (S-G).
    setting.set(f"before-{params.run_id}", "x")
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(waiting.get(f"late-{params.run_id}")), daemon=True)
    reader.start()
    reader.join(0.5)
    assert reader.is_alive(), "get returned before the key was set"
    setting.set(f"late-{params.run_id}", "here")
    reader.join(PROMPT)
    assert got == [b"here"]


def test_ours_is_the_class_that_is_tested(side: Side) -> None:
    assert side.backend.EtcdRendezvousBackend.__module__.startswith("rallypoint") == (side.name == OURS)
