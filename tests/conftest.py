"""Fixtures for tests that need a real etcd, and the check that nothing is left behind."""

from __future__ import annotations

import glob
import os
import tempfile
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
os.environ.pop("COLUMNS", None)  # pytest-xdist's processes have one: what is printed is as in a log

from rallypoint.impl.etcd_http import EtcdHttp
from rallypoint.impl.etcd_server import EtcdServer, ServerTls
from rallypoint.live.proxy import FaultProxy


@pytest.fixture(scope="session", autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Set up first, so torn down last: no etcd, no directory, no thread of ours may remain."""
    threads = set(threading.enumerate())
    yield
    directories = glob.glob(os.path.join(tempfile.gettempdir(), f"rallypoint_etcd_{os.getpid()}_*"))
    assert directories == []
    left = [thread.name for thread in threading.enumerate() if thread not in threads and "proxy" in thread.name]
    assert left == []


@pytest.fixture(scope="session")
def etcd_server() -> Iterator[EtcdServer]:
    """One etcd for all tests that do not harm it."""
    with EtcdServer() as server:
        yield server


@pytest.fixture
def own_etcd() -> Iterator[EtcdServer]:
    """An etcd to kill, pause or fill, for one test."""
    with EtcdServer() as server:
        yield server


@pytest.fixture
def prefix() -> str:
    """An absolute key that no other test uses."""
    return f"/test/{uuid.uuid4().hex}"


@pytest.fixture
def http(etcd_server: EtcdServer) -> Iterator[EtcdHttp]:
    """A connection to the shared etcd."""
    connection = EtcdHttp.of_client(etcd_server.get_client())
    yield connection
    connection.close()


@pytest.fixture
def proxy(etcd_server: EtcdServer) -> Iterator[FaultProxy]:
    """A fault proxy in front of the shared etcd."""
    with FaultProxy(("127.0.0.1", etcd_server.get_port())) as one:
        yield one


@pytest.fixture(scope="session")
def tls_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with ca.pem, cert.pem and key.pem (for localhost, of that CA), and other.pem, another CA."""
    import trustme

    directory = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost", "127.0.0.1")
    authority.cert_pem.write_to_path(str(directory / "ca.pem"))
    trustme.CA().cert_pem.write_to_path(str(directory / "other.pem"))
    certificate.private_key_pem.write_to_path(str(directory / "key.pem"))
    certificate.cert_chain_pems[0].write_to_path(str(directory / "cert.pem"))
    return directory


@pytest.fixture(scope="session")
def tls_etcd(tls_files: Path) -> Iterator[EtcdServer]:
    """An etcd that is reached by https and asks for client certificates."""
    cert, key, authority = (str(tls_files / name) for name in ("cert.pem", "key.pem", "ca.pem"))
    with EtcdServer(tls=ServerTls(cert, key, authority, verify_clients=True)) as server:
        yield server
