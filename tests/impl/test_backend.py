"""EtcdRendezvousBackend, create_backend and the torchrun entry points: contract, defects B-A to B-L, S-C, D-I."""

from __future__ import annotations

import time
from base64 import b64decode, b64encode
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import etcd
import pytest
import torch.distributed as dist
from rallypoint.impl.etcd_http import EtcdHttp
from rallypoint.impl.etcd_rendezvous_backend import STATE_PREFIX, EtcdRendezvousBackend, create_backend
from rallypoint.impl.etcd_server import EtcdServer, find_free_port
from rallypoint.impl.etcd_store import EtcdStore
from rallypoint.live.proxy import Fault, FaultProxy, is_any, is_write
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.elastic.rendezvous import (
    RendezvousConnectionError,
    RendezvousParameters,
    RendezvousStateError,
)
from torch.distributed.elastic.rendezvous.etcd_rendezvous_backend import EtcdRendezvousBackend as UpstreamBackend
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler


@pytest.fixture
def backend(etcd_server: EtcdServer, prefix: str) -> EtcdRendezvousBackend:
    return EtcdRendezvousBackend(etcd_server.get_client(), "run", prefix)


@pytest.fixture
def lossy(proxy: FaultProxy, prefix: str) -> EtcdRendezvousBackend:
    """The same state, by way of the proxy."""
    return EtcdRendezvousBackend(etcd.Client(proxy.host, proxy.port), "run", prefix)


def written(result: tuple[bytes, Any, bool] | None, state: bytes) -> int:
    """The token of a successful ``set_state``."""
    assert result is not None
    assert (result[0], result[2]) == (state, True)
    assert isinstance(result[1], int)
    return result[1]


def parameters(endpoint: str, run_id: str = "run", **options: Any) -> RendezvousParameters:
    return RendezvousParameters("etcd-v2", endpoint, run_id, 1, 2, **options)


# The contract


def test_the_register(backend: EtcdRendezvousBackend) -> None:
    assert backend.name == "etcd-v2"
    assert backend.get_state() is None
    one = written(backend.set_state(b"one"), b"one")
    assert backend.get_state() == (b"one", one)
    assert backend.set_state(b"two") == (b"one", one, False)
    two = written(backend.set_state(b"two", one), b"two")
    assert two > one
    assert backend.set_state(b"three", one) == (b"two", two, False)
    assert backend.get_state() == (b"two", two)


@pytest.mark.parametrize("state", [b"", b"\x00\xff" * 500, b"x" * 1_000_000])
def test_states_of_any_size(backend: EtcdRendezvousBackend, state: bytes) -> None:
    token = written(backend.set_state(state), state)
    assert backend.get_state() == (state, token)


def test_a_state_too_large_for_etcd_is_a_state_error(backend: EtcdRendezvousBackend) -> None:
    with pytest.raises(RendezvousStateError, match="too large"):
        backend.set_state(b"x" * 12_000_000)


@pytest.mark.parametrize("spelling", ["{}", "{}/", "/{}"])
def test_the_wire_is_upstreams(etcd_server: EtcdServer, prefix: str, spelling: str) -> None:
    client = etcd_server.get_client()
    ours = EtcdRendezvousBackend(client, "run", spelling.format(prefix[1:]), ttl=100)
    theirs = UpstreamBackend(client, "run", prefix)
    one = written(ours.set_state(b"one"), b"one")
    assert theirs.get_state() == (b"one", one)
    assert client.read(f"{prefix}/run").value == b64encode(b"one").decode()
    two = written(theirs.set_state(b"two", one), b"two")
    assert ours.get_state() == (b"two", two)
    assert ours.set_state(b"three", one) == (b"two", two, False)


def test_B_L_the_ttl_can_be_chosen(etcd_server: EtcdServer, prefix: str) -> None:
    client = etcd_server.get_client()
    for ttl, expected in ((None, 7200), (0, 7200), (-1, 7200), (30, 30)):
        backend = EtcdRendezvousBackend(client, f"run{ttl}", prefix, ttl)
        written(backend.set_state(b"x"), b"x")
        assert client.read(f"{prefix}/run{ttl}").ttl == expected
    token = written(EtcdRendezvousBackend(client, "short", prefix, 1).set_state(b"x"), b"x")
    client.read(f"{prefix}/short", wait=True, waitIndex=token + 1, timeout=5)  # it expires
    assert EtcdRendezvousBackend(client, "short", prefix).get_state() is None


# Lost replies


def test_B_A_a_lost_reply_of_the_own_write_is_success(
    backend: EtcdRendezvousBackend, lossy: EtcdRendezvousBackend, proxy: FaultProxy
) -> None:
    proxy.order(Fault.DROP_REPLY, is_write)
    one = written(lossy.set_state(b"one"), b"one")
    assert backend.get_state() == (b"one", one)
    proxy.order(Fault.DROP_REPLY, is_write)
    two = written(lossy.set_state(b"two", one), b"two")
    assert backend.get_state() == (b"two", two)
    assert [one.fault for one in proxy.seen() if one.fault] == [Fault.DROP_REPLY] * 2


FAULTS = [(fault, nth) for fault in (Fault.DROP_REPLY, Fault.DROP_REQUEST) for nth in (1, 2, 3)]


@pytest.mark.parametrize("create", [True, False], ids=["create", "update"])
@pytest.mark.parametrize("lose", FAULTS, ids=[f"{fault.name}-{nth}" for fault, nth in FAULTS])
def test_B_A_each_request_and_each_reply_lost_in_turn(
    backend: EtcdRendezvousBackend, proxy: FaultProxy, prefix: str, lose: tuple[Fault, int], create: bool
) -> None:
    lossy = EtcdRendezvousBackend(etcd.Client(proxy.host, proxy.port), "run", prefix)
    token = None if create else written(backend.set_state(b"one"), b"one")
    proxy.order(lose[0], lambda _: True, nth=lose[1])
    two = written(lossy.set_state(b"two", token), b"two")
    while not any(one.fault for one in proxy.seen()):
        lossy.get_state()
    assert lossy.get_state() == backend.get_state() == (b"two", two)
    assert token is None or two > token


def test_B_A_own_write_is_success_even_when_it_was_overwritten(
    backend: EtcdRendezvousBackend, lossy: EtcdRendezvousBackend, proxy: FaultProxy
) -> None:
    """The peer builds on the state that our lost write left: our write took effect, and the peer's follows it."""
    one = written(backend.set_state(b"one"), b"one")
    proxy.order(Fault.DROP_REPLY, is_write)
    gate = proxy.order(Fault.DELAY_REQUEST, lambda one: one.number > 0)
    with ThreadPoolExecutor() as pool:
        ours = pool.submit(lossy.set_state, b"two", one)
        proxy.await_seen(lambda one: one.fault is Fault.DROP_REPLY and one.status is not None)
        current = backend.get_state()
        assert current is not None
        assert current[0] == b"two"
        three = written(backend.set_state(b"three", current[1]), b"three")
        gate.set()
        assert written(ours.result(10), b"two") == current[1]
    assert lossy.get_state() == (b"three", three)


def test_B_A_a_lost_request_that_a_peer_outran_is_no_success(
    backend: EtcdRendezvousBackend, lossy: EtcdRendezvousBackend, proxy: FaultProxy
) -> None:
    one = written(backend.set_state(b"one"), b"one")
    proxy.order(Fault.DROP_REQUEST, is_write)
    gate = proxy.order(Fault.DELAY_REQUEST, lambda one: one.number > 0)
    with ThreadPoolExecutor() as pool:
        ours = pool.submit(lossy.set_state, b"two", one)
        proxy.await_seen(lambda one: one.fault is Fault.DROP_REQUEST)
        peer = written(backend.set_state(b"peer", one), b"peer")
        gate.set()
        assert ours.result(10) == (b"peer", peer, False)


def test_B_A_the_same_state_from_a_peer_later_on_is_no_success(
    backend: EtcdRendezvousBackend, lossy: EtcdRendezvousBackend, proxy: FaultProxy
) -> None:
    """Only the write that followed our token directly can have been ours."""
    one = written(backend.set_state(b"one"), b"one")
    proxy.order(Fault.DROP_REQUEST, is_write)
    gate = proxy.order(Fault.DELAY_REQUEST, lambda one: one.number > 0)
    with ThreadPoolExecutor() as pool:
        ours = pool.submit(lossy.set_state, b"two", one)
        proxy.await_seen(lambda one: one.fault is Fault.DROP_REQUEST)
        peer = written(backend.set_state(b"peer", one), b"peer")
        same = written(backend.set_state(b"two", peer), b"two")
        gate.set()
        assert ours.result(10) == (b"two", same, False)


# Tokens


@pytest.mark.parametrize("token", [0, "", b"", -1, "dummy", (0, ""), 1.5, True, [], object(), "0x1", 1 << 70])
def test_B_B_a_token_never_creates(backend: EtcdRendezvousBackend, token: object) -> None:
    assert backend.set_state(b"x", token) is None
    assert backend.get_state() is None
    one = written(backend.set_state(b"one"), b"one")
    assert backend.set_state(b"x", token) == (b"one", one, False)
    written(backend.set_state(b"two", str(one)), b"two")


def test_B_H_a_token_of_a_vanished_state_gives_none(backend: EtcdRendezvousBackend, etcd_server: EtcdServer) -> None:
    token = written(backend.set_state(b"one"), b"one")
    etcd_server.get_client().delete(backend._key)
    assert backend.set_state(b"two", token) is None
    assert backend.get_state() is None
    later = written(backend.set_state(b"two"), b"two")
    assert backend.set_state(b"three", token) == (b"two", later, False)


# What others may have left there


@pytest.mark.parametrize("text", ["@@@@", "", "YQ==\n", "YQ", "YR==", "Y Q==", "=", "YQ==YQ==", "é", "YQ-_"])
def test_B_D_only_what_we_could_have_written_is_read(
    backend: EtcdRendezvousBackend, etcd_server: EtcdServer, text: str
) -> None:
    etcd_server.get_client().write(backend._key, text)
    for call in (backend.get_state, lambda: backend.set_state(b"x"), lambda: backend.set_state(b"x", 1)):
        with pytest.raises(RendezvousStateError):
            call()


def test_a_directory_in_the_place_of_the_state(backend: EtcdRendezvousBackend, etcd_server: EtcdServer) -> None:
    etcd_server.get_client().write(f"{backend._key}/sub", "x")
    for call in (backend.get_state, lambda: backend.set_state(b"x"), lambda: backend.set_state(b"x", 1)):
        with pytest.raises(RendezvousStateError, match="directory"):
            call()


def test_B_E_B_G_each_run_id_is_a_key_of_its_own(etcd_server: EtcdServer, prefix: str) -> None:
    run_ids = ["job", "job?1", "job?2", "job#3", "../job", "..", ".", "a/b", "a//b", "a", "%61", "é", "a b", "\n"]
    client = etcd_server.get_client()
    backends = [EtcdRendezvousBackend(client, run_id, prefix) for run_id in run_ids]
    for number, backend in enumerate(backends):
        written(backend.set_state(b"%d" % number), b"%d" % number)
    for number, backend in enumerate(backends):
        state = backend.get_state()
        assert state is not None
        assert state[0] == b"%d" % number
    assert len(list(client.read(prefix).children)) == len(run_ids)


@pytest.mark.parametrize("run_id", ["", "\ud800"])
def test_unusable_run_ids_are_refused(http: EtcdHttp, run_id: str) -> None:
    with pytest.raises(ValueError, match=r"run id|surrogates"):
        EtcdRendezvousBackend(http, run_id)


# Trouble with etcd


def test_D_I_a_hung_etcd_costs_the_read_timeout_and_not_four(own_etcd: EtcdServer) -> None:
    client = etcd.Client("127.0.0.1", own_etcd.get_port(), read_timeout=1)
    backend = EtcdRendezvousBackend(client, "run")
    token = written(backend.set_state(b"one"), b"one")
    own_etcd.pause()
    for call in (backend.get_state, lambda: backend.set_state(b"two", token)):
        before = time.monotonic()
        with pytest.raises(RendezvousConnectionError):
            call()
        assert time.monotonic() - before < 1.6
    own_etcd.resume()
    state = backend.get_state()
    assert state is not None
    assert state[0] in {b"one", b"two"}


def test_R50_an_outage_shorter_than_the_read_timeout_is_ridden_out(own_etcd: EtcdServer) -> None:
    backend = EtcdRendezvousBackend(own_etcd.get_client(), "run")
    token = written(backend.set_state(b"one"), b"one")
    own_etcd.kill()
    with ThreadPoolExecutor() as pool:
        call = pool.submit(backend.set_state, b"two", token)
        own_etcd.start()
        written(call.result(10), b"two")


@pytest.mark.parametrize("options", [{}, {"protocol": "https"}], ids=["refused", "no-tls"])
def test_create_backend_where_nobody_is(options: dict[str, str]) -> None:
    with find_free_port() as sock:
        port = sock.getsockname()[1]
    words = r"^The connection to etcd has failed\. See inner exception for details\.$"  # upstream's
    with pytest.raises(RendezvousConnectionError, match=words) as caught:
        create_backend(parameters(f"127.0.0.1:{port}", **options))
    assert str(port) in str(caught.value.__cause__)


def test_B_K_R85_create_backend_without_v2_says_so() -> None:
    server = EtcdServer(enable_v2=False)
    server.start()
    try:
        with pytest.raises(RendezvousConnectionError, match="no v2 API"):
            create_backend(parameters(server.get_endpoint()))
    finally:
        server.stop()


def test_R79_an_address_that_etcd_advertises_no_more_is_no_trouble(own_etcd: EtcdServer) -> None:
    """python-etcd takes the address in use off the advertised list, and fails where it is not on it."""
    with FaultProxy(("127.0.0.1", own_etcd.get_port())) as front:
        client = etcd.Client(front.host, front.port, allow_reconnect=True)
        backend = EtcdRendezvousBackend(client, "run")
        token = written(backend.set_state(b"one"), b"one")
        own_etcd.kill()
        own_etcd._extra_args += ["--advertise-client-urls", f"http://localhost:{own_etcd.get_port()}"]
        own_etcd.start()
        front.cut()
        front.order(Fault.DROP_REQUEST, is_any, times=4)
        assert backend.get_state() == (b"one", token)


# create_backend


def test_R20_a_store_that_cannot_be_made_is_noticed_before_anybody_joins(
    etcd_server: EtcdServer, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also a torch that constructs no Python store. Nothing of the run is in etcd then."""

    def unconstructible(*_: object) -> None:
        raise TypeError("No constructor defined!")

    monkeypatch.setattr(EtcdStore, "__init__", unconstructible)
    run = RendezvousParameters("rallypoint-etcd-v2", etcd_server.get_endpoint(), prefix[6:], 1, 1)
    with pytest.raises(TypeError, match="No constructor"):
        get_rendezvous_handler(run)
    assert EtcdRendezvousBackend(etcd_server.get_client(), prefix[6:], STATE_PREFIX).get_state() is None


@pytest.mark.parametrize("protocol", ["http", "HTTP", " Http "])
def test_create_backend(etcd_server: EtcdServer, protocol: str, prefix: str) -> None:
    run_id = prefix[6:]
    backend, store = create_backend(parameters(etcd_server.get_endpoint(), run_id, protocol=protocol, read_timeout="9"))
    assert isinstance(store, EtcdStore)
    assert store.client.read_timeout == 9
    written(backend.set_state(b"state"), b"state")
    client = etcd_server.get_client()
    node = client.read(f"/torch/elastic/rendezvous/{run_id}")
    assert (b64decode(node.value), node.ttl) == (b"state", 7200)
    store.set(run_id, "value")
    assert b64decode(client.read(f"/torch/elastic/store/{b64encode(run_id.encode()).decode()}").value) == b"value"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"protocol": "ftp"}, r"^The protocol must be HTTP or HTTPS\.$"),
        ({"read_timeout": "0"}, r"^The read timeout must be a positive integer\.$"),
        ({"read_timeout": 10**400}, r"^The read timeout must be at most 1000000000 s\.$"),
        ({"read_timeout": "-10"}, r"^The read timeout must be a positive integer\.$"),
        ({"read_timeout": "x"}, "integer"),
        ({"ttl": "0"}, r"^The ttl must be a positive integer, and at most 1000000000 s\.$"),
        ({"ttl": 10**10}, r"^The ttl must be a positive integer, and at most 1000000000 s\.$"),
        ({"ttl": "x"}, "integer"),
        ({"ca_cert": "/some/file"}, "protocol=https"),
        ({"protocol": "https", "ssl_cert_key": "/some/file"}, "without its certificate"),
        ({"username": "somebody"}, "a user name and a password"),
    ],
)
def test_create_backend_refuses_bad_options(options: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        create_backend(parameters("localhost:1", **options))


def test_a_run_id_too_long_for_a_key_is_refused(http: EtcdHttp) -> None:
    with pytest.raises(ValueError, match="too long a name: 1001 bytes"):
        EtcdRendezvousBackend(http, "n" * 1001)


def test_several_endpoints(etcd_server: EtcdServer) -> None:
    with find_free_port() as sock:
        dead = sock.getsockname()[1]
    backend, store = create_backend(parameters(f"127.0.0.1:{dead},127.0.0.1:{etcd_server.get_port()}", "several"))
    assert backend.get_state() is None
    store.set("several", "1")
    assert store.get("several") == b"1"


@pytest.mark.parametrize("names", [("ca_cert", "ssl_cert", "ssl_cert_key"), ("cacert", "cert", "key")])
def test_R84_tls_options_under_both_names(tls_etcd: EtcdServer, tls_files: Path, names: tuple[str, ...]) -> None:
    files = dict(zip(names, (str(tls_files / name) for name in ("ca.pem", "cert.pem", "key.pem")), strict=True))
    backend, store = create_backend(parameters(tls_etcd.get_endpoint(), names[0], protocol="https", **files))
    written(backend.set_state(b"x"), b"x")
    store.set(names[0], "1")
    with pytest.raises(RendezvousConnectionError, match="TLS"):
        create_backend(parameters(tls_etcd.get_endpoint(), protocol="https"))
    with pytest.raises(RendezvousConnectionError, match="certificate file"):
        create_backend(parameters(tls_etcd.get_endpoint(), protocol="https", ca_cert="/no/such/file"))


def test_S_C_a_new_run_never_reads_an_old_runs_keys(etcd_server: EtcdServer) -> None:
    """Same id again after the state is gone: round 0 starts anew, and so must its store."""
    client = etcd_server.get_client()

    def open_run(run_id: str) -> tuple[EtcdRendezvousBackend, EtcdStore]:
        return create_backend(parameters(etcd_server.get_endpoint(), run_id))

    def round_of(store: EtcdStore, run_id: str, number: int) -> PrefixStore:
        return PrefixStore(f"torch.rendezvous.{run_id}.{number}", store)

    backend, store = open_run("again")
    written(backend.set_state(b"x"), b"x")
    for run_id, number in (("again", 0), ("again", 12), ("again.0", 3), ("other", 0), ("againx", 0)):
        round_of(store, run_id, number).set("MASTER_ADDR", "old")
    store.set("unrelated", "old")
    client.delete("/torch/elastic/rendezvous/again")

    backend, store = open_run("again")
    written(backend.set_state(b"x"), b"x")
    assert not round_of(store, "again", 0).check(["MASTER_ADDR"])
    assert not round_of(store, "again", 12).check(["MASTER_ADDR"])
    for run_id, number in (("again.0", 3), ("other", 0), ("againx", 0)):
        assert round_of(store, run_id, number).check(["MASTER_ADDR"])
    assert store.check(["unrelated"])
    round_of(store, "again", 0).set("MASTER_ADDR", "new")
    late, store = open_run("again")
    assert late.set_state(b"y") is not None  # refused: the state is there, so nothing is swept
    assert round_of(store, "again", 0).get("MASTER_ADDR") == b"new"


def test_S_C_what_a_peer_wrote_after_the_look_stays(etcd_server: EtcdServer, proxy: FaultProxy) -> None:
    """Between our look (no state) and our sweep a peer creates the state and publishes in the newer round 0."""
    backend, _ = create_backend(parameters(proxy.endpoint, "newer"))
    _, store = create_backend(parameters(etcd_server.get_endpoint(), "newer"))
    gate = proxy.order(Fault.DELAY_REQUEST, lambda one: one.form.get("recursive") == "true")
    with ThreadPoolExecutor() as pool:
        ours = pool.submit(backend.set_state, b"x")
        proxy.await_seen(lambda one: one.fault is not None)
        store.set("torch.rendezvous.newer.0/MASTER_ADDR", "peer")
        gate.set()
        written(ours.result(10), b"x")
    assert store.get("torch.rendezvous.newer.0/MASTER_ADDR") == b"peer"


def test_a_store_of_the_backend_honours_its_timeout(etcd_server: EtcdServer) -> None:
    _, store = create_backend(parameters(etcd_server.get_endpoint()))
    store.set_timeout(timedelta(seconds=0.2))
    with pytest.raises(dist.DistStoreError):
        store.get("never")
