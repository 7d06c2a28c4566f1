"""The transport: the model's requests on a real etcd, one attempt each, and honest about what it does not know."""

from __future__ import annotations

import logging
import random
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import etcd
import pytest
from rallypoint.impl.etcd_cluster import EtcdCluster
from rallypoint.impl.etcd_http import (
    Access,
    EtcdHttp,
    EtcdUnavailable,
    checked_key,
    endpoints_of,
    joined_key,
    key_segment,
)
from rallypoint.impl.etcd_server import EtcdServer, find_etcd, find_free_port
from rallypoint.impl.etcd_v2 import EtcdV2
from rallypoint.live.proxy import Fault, FaultProxy
from rallypoint.model import etcd as model
from rallypoint.model.errors import UnusableError
from rallypoint.model.etcd import (
    Await,
    Cad,
    Cas,
    Create,
    Delete,
    Done,
    Failed,
    Get,
    List,
    Mkdir,
    Put,
    Refresh,
    Request,
    Snapshot,
    Store,
)


def soon(seconds: float = 10.0) -> float:
    return time.monotonic() + seconds


@pytest.fixture
def v2(http: EtcdHttp, prefix: str) -> EtcdV2:
    return EtcdV2(http, prefix)


@pytest.fixture
def through(proxy: FaultProxy, prefix: str) -> Iterator[EtcdV2]:
    """The same root, by way of the proxy."""
    http = EtcdHttp(Access(((proxy.host, proxy.port),)))
    yield EtcdV2(http, prefix)
    http.close()


# Each request does what the model says


KEYS = ("/a", "/b", "/d", "/d/x", "/d/y", "/d/x/z")
TEXTS = ("", "1", "2", 'é {"a b": "%&=+"}')


def draw_request(dice: random.Random) -> Request:
    # Etcd refuses an empty prevValue (error 201): a comparison with "" cannot be asked for.
    key, value, other = dice.choice(KEYS), dice.choice(TEXTS), dice.choice(TEXTS[1:])
    ttl = dice.choice((None, 1000.0))
    choices: tuple[Request, ...] = (
        Get(key),
        Create(key, value, ttl),
        Put(key, value, ttl),
        Cas(key, other, value, ttl),
        Cad(key, other),
        Delete(key),
        Mkdir(key),
        Refresh(key, 1000.0),
        List(key),
        Await(key, other, tuple(dice.sample(KEYS, dice.randrange(3)))),
    )
    return dice.choice(choices)


@pytest.mark.parametrize("seed", range(6))
def test_replies_are_the_models(v2: EtcdV2, seed: int) -> None:
    dice, store = random.Random(seed), Store()
    v2.perform(Mkdir("/root-exists"), soon())
    start, done = v2.last_index, 0
    for _ in range(150):
        request = draw_request(dice)
        node = store.get(request.key)
        renews_directory = isinstance(request, Refresh) and node is not None and node.is_dir  # see the test below
        if model.enabled(store, request) and not renews_directory:
            before = store
            store, expected = model.apply(store, request)
            if expected == Failed(model.NOT_FOUND) and model._blocked(before, request.key):
                expected = Failed(model.NOT_A_DIRECTORY)
            assert v2.perform(request, soon()) == expected, (seed, request, before)
            if store.index != before.index:
                assert v2.last_index - start == store.index, (seed, request)
            done += 1
    assert done >= 100
    assert store.index >= 5


def test_L_A_renewing_a_directory_depends_on_the_version(v2: EtcdV2) -> None:
    """Etcd 3.5 refuses what 3.4 does: the model, and the rendezvous, count on no directory lease at all."""
    v2.perform(Mkdir("/d"), soon())
    reply = v2.perform(Refresh("/d", 100), soon())
    assert reply == (Done(None) if find_etcd().version.startswith("3.4") else Failed(model.NOT_A_FILE))


def test_keys_lie_below_the_root(http: EtcdHttp, etcd_server: EtcdServer, prefix: str) -> None:
    v2 = EtcdV2(http, f"{prefix[1:]}//run/")
    v2.perform(Put("/v_1/rank_0", "x"), soon())
    assert etcd_server.get_client().read(f"{prefix}/run/v_1/rank_0").value == "x"
    assert v2.perform(List("/v_1"), soon()) == model.Listing(("/v_1/rank_0",))


def test_a_ttl_is_rounded_up_and_ends(v2: EtcdV2, etcd_server: EtcdServer) -> None:
    v2.perform(Create("/k", "v", 0.1), soon())
    assert etcd_server.get_client().read(f"{v2.root}/k").ttl == 1
    assert v2.perform(Await("/k", "v"), soon()) == Snapshot(None, ())
    v2.perform(Put("/k", "v", 5), soon())
    v2.perform(Cas("/k", "v", "w"), soon())
    assert etcd_server.get_client().read(f"{v2.root}/k").ttl is None
    with pytest.raises(ValueError, match="positive"):
        v2.perform(Put("/k", "v", 0), soon())


def test_the_observer_sees_each_reply_with_its_index(http: EtcdHttp, prefix: str) -> None:
    seen: list[tuple[Request, model.Reply, int]] = []
    v2 = EtcdV2(http, prefix, observer=lambda *what: seen.append(what))
    requests = (Put("/k", "1"), Cas("/k", "0", "2"), Get("/k"), Delete("/k"), Await("/k", "1"))
    for request in requests:
        v2.perform(request, soon())
    assert [what[0] for what in seen] == list(requests)
    assert [what[1] for what in seen] == [Done("1"), Failed(101), Done("1"), Done(None), Snapshot(None, ())]
    first = seen[0][2]
    assert [what[2] - first for what in seen] == [0, 0, 0, 1, 1]
    assert v2.last_index == first + 1


# Waiting


@pytest.mark.parametrize(
    ("cause", "expected"),
    [
        (Put("/k", "2"), Snapshot("2", ())),
        (Delete("/k"), Snapshot(None, ())),
        (Delete("/v_1/rank_1"), Snapshot("1", ("/v_1/rank_1",))),
        (Put("/v_1/rank_1", "x", 1), Snapshot("1", ("/v_1/rank_1",))),
    ],
    ids=["changed", "deleted", "alive-deleted", "alive-expired"],
)
def test_await_wakes_up_for_each_cause(v2: EtcdV2, cause: Request, expected: Snapshot) -> None:
    for request in (Put("/k", "1"), Put("/v_1/rank_0", "x"), Put("/v_1/rank_1", "x")):
        v2.perform(request, soon())
    with ThreadPoolExecutor() as pool:
        wait = pool.submit(v2.perform, Await("/k", "1", ("/v_1/rank_0", "/v_1/rank_1")), soon())
        v2.perform(Put("/v_1/kv/noise", "x"), soon())
        v2.perform(cause, soon())
        assert wait.result(4) == expected


def test_await_wakes_up_when_the_directory_goes(v2: EtcdV2, etcd_server: EtcdServer) -> None:
    for request in (Put("/k", "1"), Put("/v_1/rank_0", "x")):
        v2.perform(request, soon())
    client = etcd_server.get_client()
    with ThreadPoolExecutor() as pool:
        wait = pool.submit(v2.perform, Await("/k", "1", ("/v_1/rank_0",)), soon())
        client.delete(f"{v2.root}/v_1", recursive=True)
        assert wait.result(4) == Snapshot("1", ("/v_1/rank_0",))
        wait = pool.submit(v2.perform, Await("/k", "1"), soon())
        client.delete(v2.root, recursive=True)
        assert wait.result(4) == Snapshot(None, ())


def test_await_ends_at_its_deadline_with_no_reply(v2: EtcdV2) -> None:
    v2.perform(Put("/k", "1"), soon())
    before = time.monotonic()
    assert v2.perform(Await("/k", "1"), before + 0.3) is None
    assert 0.3 <= time.monotonic() - before < 1.3
    assert v2.perform(Await("/k", "1"), time.monotonic() - 1) is None


def test_S_G_an_event_between_read_and_watch_is_not_lost(through: EtcdV2, v2: EtcdV2, proxy: FaultProxy) -> None:
    v2.perform(Put("/k", "1"), soon())
    gate = proxy.order(Fault.DELAY_REQUEST, lambda one: "wait" in one.form)
    with ThreadPoolExecutor() as pool:
        wait = pool.submit(through.perform, Await("/k", "1"), soon(30))
        proxy.await_seen(lambda one: "wait" in one.form)
        v2.perform(Put("/k", "2"), soon())
        v2.perform(Put("/k", "1"), soon())
        v2.perform(Put("/k", "3"), soon())
        gate.set()
        assert wait.result(4) == Snapshot("3", ())


def test_R81_a_cleared_history_is_read_again(through: EtcdV2, v2: EtcdV2, proxy: FaultProxy) -> None:
    v2.perform(Put("/k", "1"), soon())
    gate = proxy.order(Fault.DELAY_REQUEST, lambda one: "wait" in one.form)
    with ThreadPoolExecutor() as pool:
        wait = pool.submit(through.perform, Await("/k", "1"), soon(30))
        proxy.await_seen(lambda one: "wait" in one.form)
        v2.perform(Put("/k", "2"), soon())
        list(pool.map(lambda number: v2.perform(Put("/noise", str(number)), soon()), range(1005)))
        gate.set()
        assert wait.result(4) == Snapshot("2", ())


def test_other_keys_do_not_make_a_waiter_read(through: EtcdV2, v2: EtcdV2, proxy: FaultProxy) -> None:
    for request in (Put("/k", "1"), Put("/v_1/rank_0", "x")):
        v2.perform(request, soon())
    with ThreadPoolExecutor() as pool:
        wait = pool.submit(through.perform, Await("/k", "1", ("/v_1/rank_0",)), soon())
        proxy.await_seen(lambda one: "wait" in one.form)
        for number in range(10):
            v2.perform(Put(f"/v_1/kv/{number}", "x"), soon())
        v2.perform(Put("/k", "2"), soon())
        assert wait.result(4) == Snapshot("2", ())
    reads = [one for one in proxy.seen() if "wait" not in one.form]
    assert len(reads) == 6  # key, directory, key: once before and once after


def test_R82_a_watch_that_is_cut_is_followed_by_a_read(through: EtcdV2, v2: EtcdV2, proxy: FaultProxy) -> None:
    v2.perform(Put("/k", "1"), soon())
    proxy.order(Fault.DROP_REQUEST, lambda one: "wait" in one.form)
    with pytest.raises(EtcdUnavailable):
        through.perform(Await("/k", "1"), soon())
    with ThreadPoolExecutor() as pool:
        wait = pool.submit(through.perform, Await("/k", "1"), soon())
        v2.perform(Put("/k", "2"), soon())
        assert wait.result(4) == Snapshot("2", ())


def test_a_quiet_watch_is_renewed_within_the_bound_of_an_attempt(proxy: FaultProxy, v2: EtcdV2) -> None:
    v2.perform(Put("/k", "1"), soon())
    short = EtcdV2(EtcdHttp(Access(((proxy.host, proxy.port),)), attempt_timeout=0.2), v2.root)
    assert short.perform(Await("/k", "1"), soon(0.7)) is None
    assert sum("wait" in one.form for one in proxy.seen()) >= 3


# One attempt, and nothing behind the caller's back


WRITES: tuple[Request, ...] = (
    Create("/new", "v"),
    Put("/k", "v"),
    Cas("/k", "1", "2"),
    Cad("/k", "1"),
    Delete("/k"),
    Mkdir("/dir"),
    Refresh("/k", 100),
)


@pytest.mark.parametrize("request_", [*WRITES, Get("/k"), List("/")], ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("fault", [Fault.DROP_REPLY, Fault.DROP_REQUEST], ids=lambda one: one.name)
def test_S_B_a_lost_reply_is_told_and_nothing_is_repeated(
    through: EtcdV2, v2: EtcdV2, proxy: FaultProxy, request_: Request, fault: Fault
) -> None:
    v2.perform(Put("/k", "1"), soon())
    before = v2.last_index
    proxy.order(fault, lambda one: True)
    with pytest.raises(EtcdUnavailable) as caught:
        through.perform(request_, soon())
    assert caught.value.maybe_applied
    assert len(proxy.seen()) == 1
    v2.perform(Get("/k"), soon())
    applied = fault is Fault.DROP_REPLY and isinstance(request_, WRITES_OF_MODEL)
    assert v2.last_index - before == int(applied)


WRITES_OF_MODEL = tuple(type(one) for one in WRITES)


def test_a_refused_connection_is_known_not_to_have_been_carried_out(through: EtcdV2, proxy: FaultProxy) -> None:
    proxy.refuse()
    with pytest.raises(EtcdUnavailable, match="cannot be reached") as caught:
        through.perform(Put("/k", "v"), soon())
    assert not caught.value.maybe_applied
    proxy.admit()
    assert through.perform(Put("/k", "v"), soon()) == Done("v")


@pytest.mark.parametrize("request_", [Get("/k"), Put("/k", "v"), Await("/k", "v")], ids=lambda one: type(one).__name__)
def test_D_I_a_hung_etcd_costs_one_attempt(own_etcd: EtcdServer, request_: Request) -> None:
    v2 = EtcdV2(EtcdHttp.of_client(own_etcd.get_client(), attempt_timeout=0.5), "/r")
    own_etcd.pause()
    before = time.monotonic()
    with pytest.raises(EtcdUnavailable) as caught:
        v2.perform(request_, soon())
    assert 0.4 < time.monotonic() - before < 1.2
    assert caught.value.maybe_applied
    patient = EtcdV2(EtcdHttp.of_client(own_etcd.get_client(), attempt_timeout=5), "/r")
    before = time.monotonic()
    if isinstance(request_, Await):
        assert patient.perform(request_, before + 0.2) is None
    else:
        with pytest.raises(EtcdUnavailable):
            patient.perform(request_, before + 0.2)
    assert time.monotonic() - before < 0.9


def test_after_the_deadline_nothing_is_sent(through: EtcdV2, proxy: FaultProxy) -> None:
    with pytest.raises(EtcdUnavailable, match="deadline") as caught:
        through.perform(Put("/k", "v"), time.monotonic() - 1)
    assert not caught.value.maybe_applied
    assert proxy.seen() == []


# Endpoints


def test_P_A_the_configured_endpoint_is_never_forgotten() -> None:
    """Etcd advertises an address where nobody is (a pod's, say); after an outage the configured one still works."""
    server = EtcdServer(extra_args=["--advertise-client-urls", "http://127.0.0.1:1"])
    server.start()
    try:
        v2 = EtcdV2(EtcdHttp.of_client(server.get_client()), "/r")
        v2.perform(Put("/k", "v"), soon())
        server.kill()
        for _ in range(3):
            with pytest.raises(EtcdUnavailable):
                v2.perform(Get("/k"), soon())
        server.start()
        assert v2.perform(Get("/k"), soon()) == Done("v")
    finally:
        server.stop()


def test_R78_endpoints_are_tried_in_a_circle(etcd_server: EtcdServer, prefix: str) -> None:
    with find_free_port() as one, find_free_port() as two:
        dead = [sock.getsockname()[1] for sock in (one, two)]
    endpoints = (("127.0.0.1", dead[0]), ("127.0.0.1", etcd_server.get_port()), ("127.0.0.1", dead[1]))
    v2 = EtcdV2(EtcdHttp(Access(endpoints)), prefix)
    with pytest.raises(EtcdUnavailable, match=str(dead[0])):
        v2.perform(Put("/k", "v"), soon())
    for _ in range(3):
        assert v2.perform(Put("/k", "v"), soon()) == Done("v")
    EtcdV2(EtcdHttp(Access(endpoints)), prefix).check(soon())
    with pytest.raises(EtcdUnavailable, match=str(dead[1])):
        EtcdV2(EtcdHttp(Access((endpoints[0], endpoints[2]))), prefix).check(soon())


def test_R78_the_first_endpoint_is_tried_again_after_the_last(proxy: FaultProxy, prefix: str) -> None:
    with find_free_port() as sock:
        dead = sock.getsockname()[1]
    v2 = EtcdV2(EtcdHttp(Access(((proxy.host, proxy.port), ("127.0.0.1", dead)))), prefix)
    assert v2.perform(Put("/k", "v"), soon()) == Done("v")
    proxy.refuse()
    for port in (proxy.port, dead):
        with pytest.raises(EtcdUnavailable, match=str(port)):
            v2.perform(Get("/k"), soon())
    proxy.admit()
    assert v2.perform(Get("/k"), soon()) == Done("v")


def test_a_cluster_that_loses_its_leader_answers_again() -> None:
    with EtcdCluster() as cluster:
        v2 = EtcdV2(EtcdHttp(Access(cluster.endpoints), attempt_timeout=1), "/r")
        assert v2.perform(Create("/k", "0"), soon()) == Done("0")
        cluster.kill(cluster.leader())
        value, end = 0, soon(20)
        while value < 3:
            assert time.monotonic() < end
            try:
                reply = v2.perform(Cas("/k", str(value), str(value + 1)), soon(2))
            except EtcdUnavailable as error:
                if not error.maybe_applied:
                    continue
                reply = None
            if reply != Done(str(value + 1)):
                reply = read_until_answered(v2, end)
            assert isinstance(reply, Done)
            value = int(reply.value or "")
        assert read_until_answered(v2, end) == Done("3")


def read_until_answered(v2: EtcdV2, end: float) -> model.Reply | None:
    while True:
        try:
            return v2.perform(Get("/k"), end)
        except EtcdUnavailable:
            assert time.monotonic() < end


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("h", (("h", 2379),)),
        ("h:1", (("h", 1),)),
        ("a:1, b ,[::1]:3", (("a", 1), ("b", 2379), ("::1", 3))),
        ("::1", (("::1", 2379),)),
        ("[::1]", (("::1", 2379),)),
        ("", ()),
    ],
)
def test_endpoints_of(text: str, expected: tuple[tuple[str, int], ...]) -> None:
    assert endpoints_of(text) == expected


@pytest.mark.parametrize("text", ["h:x", "h:70000", ":1", "u@h:1", "h/p", "[::1", "http://h:1"])
def test_endpoints_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="not HOST:PORT"):
        endpoints_of(text)


def test_ipv6_endpoints(etcd_server: EtcdServer) -> None:
    """The address is written as URLs want it; whether IPv6 is there is the machine's affair."""
    http = EtcdHttp(Access((("::1", etcd_server.get_port()),)))
    assert http._clients[0].base_uri == f"http://[::1]:{etcd_server.get_port()}"


# Servers that cannot be used


def test_B_K_no_v2_api_says_so() -> None:
    server = EtcdServer(enable_v2=False)
    server.start()
    try:
        with pytest.raises(UnusableError, match=r"no v2 API.*--enable-v2"):
            EtcdV2(EtcdHttp.of_client(server.get_client()), "/r").check(soon())
    finally:
        server.stop()


def test_R86_without_python_etcd_or_with_a_foreign_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (None, socket):  # absent; a module without Client
        monkeypatch.setitem(__import__("sys").modules, "etcd", module)
        with pytest.raises(UnusableError, match="python-etcd is missing"):
            EtcdHttp(Access((("127.0.0.1", 1),)))


def test_a_server_that_is_no_etcd() -> None:
    with socket.socket() as listener, ThreadPoolExecutor() as pool:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        head = b"HTTP/1.1 %d x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s"
        replies = [head % (200, 5, b"hello"), head % (500, 1, b"\xff")]

        def serve() -> None:
            for reply in replies:
                connection, _ = listener.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(reply)

        serving = pool.submit(serve)
        v2 = EtcdV2(EtcdHttp(Access((listener.getsockname(),))), "/r")
        for text in ("cut off", "not text"):
            with pytest.raises(EtcdUnavailable, match=text):
                v2.perform(Get("/k"), soon())
        serving.result(5)


@pytest.mark.parametrize(
    "make",
    [
        lambda: EtcdHttp(Access(())),
        lambda: EtcdHttp(Access((("h", 1),), protocol="ftp")),
        lambda: EtcdHttp(Access((("h", 1),)), attempt_timeout=0),
        lambda: checked_key("no/slash"),
        lambda: checked_key("/a/../b"),
        lambda: checked_key("/a//b"),
        lambda: key_segment(""),
        lambda: key_segment("\ud800"),
    ],
)
def test_bad_arguments_are_value_errors(make: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=r"."):
        make()


def test_only_a_client_can_be_copied() -> None:
    with pytest.raises(TypeError, match=r"not an etcd\.Client"):
        EtcdHttp.of_client("http://h")


# TLS and users


def test_R84_tls_with_client_certificates(tls_etcd: EtcdServer) -> None:
    client = tls_etcd.get_client()
    assert client.write("/a", "1").value == "1"
    v2 = EtcdV2(EtcdHttp.of_client(client), "/r")
    v2.check(soon())
    assert v2.perform(Put("/k", "v"), soon()) == Done("v")


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"cert": "cert.pem", "key": "key.pem"},
        {"ca_cert": "other.pem", "cert": "cert.pem", "key": "key.pem"},
        {"ca_cert": "ca.pem"},
    ],
    ids=["nothing", "no-ca", "wrong-ca", "no-certificate"],
)
def test_R83_nothing_is_trusted_unverified(tls_etcd: EtcdServer, tls_files: Path, files: dict[str, str]) -> None:
    paths = {name: str(tls_files / file) for name, file in files.items()}
    v2 = EtcdV2(EtcdHttp(Access((("127.0.0.1", tls_etcd.get_port()),), "https", **paths)), "/r")
    with pytest.raises((UnusableError, EtcdUnavailable)) as caught:
        v2.check(soon())
    assert isinstance(caught.value, UnusableError), caught.value
    assert "TLS" in str(caught.value)


def test_http_to_a_tls_port_and_https_to_a_plain_one(tls_etcd: EtcdServer, etcd_server: EtcdServer) -> None:
    with pytest.raises((UnusableError, EtcdUnavailable)):
        EtcdV2(EtcdHttp(Access((("127.0.0.1", tls_etcd.get_port()),))), "/r").check(soon())
    with pytest.raises(UnusableError, match="TLS"):
        EtcdV2(EtcdHttp(Access((("127.0.0.1", etcd_server.get_port()),), "https")), "/r").check(soon())


def test_certificate_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(UnusableError, match=r"cannot read a certificate file.*nothing\.pem"):
        EtcdHttp(Access((("h", 1),), "https", ca_cert=str(tmp_path / "nothing.pem")))


def test_R84_users_and_passwords(own_etcd: EtcdServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    client, secret = own_etcd.get_client(), "hunter2-hunter2"
    client.api_execute_json("/v2/auth/users/root", "PUT", params={"user": "root", "password": secret})
    client.api_execute_json("/v2/auth/enable", "PUT", params={})
    no_guest = {"role": "guest", "revoke": {"kv": {"read": ["/*"], "write": ["/*"]}}}
    address = (("127.0.0.1", own_etcd.get_port()),)
    root = EtcdHttp(Access(address, username="root", password=secret))
    root._clients[0].api_execute_json("/v2/auth/roles/guest", "PUT", params=no_guest)
    assert EtcdV2(root, "/r").perform(Put("/k", "v"), soon()) == Done("v")
    assert EtcdV2(EtcdHttp.of_client(root._clients[0]), "/r").perform(Get("/k"), soon()) == Done("v")
    for user, password in ((None, None), ("root", secret + "?")):
        access = Access(address, username=user, password=password)
        assert secret not in repr(access)
        with pytest.raises(UnusableError, match="etcd refused the user") as caught:
            EtcdV2(EtcdHttp(access), "/r").check(soon())
        assert secret not in str(caught.value)
    assert secret not in caplog.text


# Names


@pytest.mark.parametrize("name", ["job", "job-1.2_3", "a b", "é", "a+b", "..a"])
def test_plain_names_stand_for_themselves(name: str) -> None:
    assert key_segment(name) == name


def test_B_E_B_G_names_are_one_segment_each_and_all_different(
    etcd_server: EtcdServer, http: EtcdHttp, prefix: str
) -> None:
    names = [
        "job?1",
        "job?2",
        "job#3",
        "job",
        "..",
        ".",
        "../other",
        "a/b",
        "a//b",
        "a",
        "/a",
        "a/",
        "%2E%2E",
        "%",
        "\n",
    ]
    keys = [joined_key(prefix, key_segment(name)) for name in names]
    assert len(set(keys)) == len(names)
    for number, key in enumerate(keys):
        http.call("PUT", key, {"value": str(number)}, soon())
    children = sorted(etcd_server.get_client().read(prefix).children, key=lambda node: int(node.value))
    assert [child.key for child in children] == keys


def test_L_H_S_A_slashes_at_the_ends_do_not_matter() -> None:
    assert joined_key("a", "/b/", "//c") == joined_key("/a/b", "c") == "/a/b/c"


def test_the_given_client_is_left_alone(etcd_server: EtcdServer, prefix: str) -> None:
    client = etcd.Client("127.0.0.1", etcd_server.get_port(), allow_reconnect=True, read_timeout=3)
    EtcdV2(EtcdHttp.of_client(client), prefix).perform(Put("/k", "v"), soon())
    assert client.http.connection_pool_kw.get("retries") is None
    assert client.read(f"{prefix}/k").value == "v"
