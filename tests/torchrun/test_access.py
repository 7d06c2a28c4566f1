"""Getting in: https with a private CA and client certificates, users and passwords. One clear error, no secrets."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
import trustme
from rallypoint.impl.etcd_server import EtcdServer, ServerTls
from torch.distributed.elastic.rendezvous import RendezvousConnectionError, RendezvousHandler, RendezvousParameters
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

OURS = ["rallypoint", "rallypoint-etcd-v2"]
PASSWORD = "correct-horse-battery"
WRONG = "incorrect-horse-battery"


def handler(backend: str, endpoint: str, run_id: str, **options: Any) -> RendezvousHandler:
    options = {"last_call_timeout": 1, **options}
    if backend != "rallypoint":
        options["read_timeout"] = 10
    return get_rendezvous_handler(RendezvousParameters(backend, endpoint, run_id, 1, 1, "127.0.0.1", **options))


def meets(backend: str, endpoint: str, run_id: str, **options: Any) -> None:
    one = handler(backend, endpoint, run_id, **options)
    info = one.next_rendezvous()
    assert (info.rank, info.world_size) == (0, 1)
    assert info.store.get("MASTER_ADDR") == b"127.0.0.1"
    assert one.shutdown()


def refusal(backend: str, endpoint: str, run_id: str, **options: Any) -> str:
    """The one line that a person gets to see."""
    with pytest.raises(RendezvousConnectionError) as caught:
        handler(backend, endpoint, run_id, **options)
    text = str(caught.value)
    assert "\n" not in text
    assert f":{endpoint.rpartition(':')[2]}" in text
    return text


@pytest.fixture(scope="module")
def expired(tls_files: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the CA of a certificate, and the certificate, which is expired."""
    directory = tmp_path_factory.mktemp("expired")
    authority = trustme.CA()
    yesterday = datetime.now(timezone.utc) - timedelta(days=1)
    certificate = authority.issue_cert(
        "localhost", "127.0.0.1", not_before=yesterday - timedelta(days=9), not_after=yesterday
    )
    authority.cert_pem.write_to_path(str(directory / "ca.pem"))
    certificate.private_key_pem.write_to_path(str(directory / "key.pem"))
    certificate.cert_chain_pems[0].write_to_path(str(directory / "cert.pem"))
    return directory


def tls_options(files: Path) -> dict[str, Any]:
    """Under names that both backends know."""
    names = ("cacert", "ca.pem"), ("cert", "cert.pem"), ("key", "key.pem")
    return {"protocol": "https", **{option: str(files / name) for option, name in names}}


@pytest.mark.parametrize("backend", OURS)
def test_members_meet_over_https(backend: str, tls_etcd: EtcdServer, tls_files: Path, prefix: str) -> None:
    meets(backend, tls_etcd.get_endpoint(), prefix[6:], **tls_options(tls_files))


@pytest.mark.parametrize("backend", OURS)
def test_what_is_wrong_with_a_certificate_is_said(
    backend: str, tls_etcd: EtcdServer, tls_files: Path, expired: Path, prefix: str
) -> None:
    good = tls_options(tls_files)

    def said(**change: Any) -> str:
        return refusal(backend, tls_etcd.get_endpoint(), prefix[6:], **{**good, **change})

    assert "certificate verify failed" in said(cacert=str(tls_files / "other.pem"))
    assert "certificate" in said(cert=None, key=None)
    assert "certificate" in said(cert=str(expired / "cert.pem"), key=str(expired / "key.pem"))


@pytest.mark.parametrize("backend", OURS)
def test_an_expired_server_certificate_is_said(backend: str, expired: Path) -> None:
    cert, key, authority = (str(expired / name) for name in ("cert.pem", "key.pem", "ca.pem"))
    with EtcdServer(tls=ServerTls(cert, key, authority)) as etcd:
        text = refusal(backend, etcd.get_endpoint(), "run", protocol="https", cacert=authority)
    assert "certificate has expired" in text


@pytest.fixture(scope="module")
def guarded_etcd() -> Iterator[EtcdServer]:
    """An etcd that lets in root and the user ``worker`` (only below what PyTorch uses), and no guests."""
    with EtcdServer() as server:

        def ask(method: str, path: str, body: dict[str, Any] | None = None) -> None:
            token = base64.b64encode(f"root:{PASSWORD}".encode()).decode()
            headers = {"Authorization": f"Basic {token}", "Content-Type": "application/json"}
            data = None if body is None else json.dumps(body).encode()
            url = f"http://{server.get_endpoint()}/v2/auth/{path}"
            with urlopen(Request(url, data, headers, method=method), timeout=10):
                pass

        trees = ["/torchelastic/*", "/torch/*"]
        ask("PUT", "users/root", {"user": "root", "password": PASSWORD})
        permissions = {"kv": {"read": trees, "write": trees}}
        ask("PUT", "roles/agents", {"role": "agents", "permissions": permissions})
        ask("PUT", "users/worker", {"user": "worker", "password": PASSWORD, "roles": ["agents"]})
        ask("PUT", "enable")
        ask("DELETE", "roles/guest")
        yield server


@pytest.mark.parametrize("backend", OURS)
def test_R84_a_user_gets_in_by_password(
    backend: str, guarded_etcd: EtcdServer, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    meets(backend, guarded_etcd.get_endpoint(), prefix[6:], username="worker", password=PASSWORD)
    texts = [
        refusal(backend, guarded_etcd.get_endpoint(), prefix[6:]),
        refusal(backend, guarded_etcd.get_endpoint(), prefix[6:], username="worker", password=WRONG),
        refusal(backend, guarded_etcd.get_endpoint(), prefix[6:], username="nobody", password=PASSWORD),
    ]
    assert all("refused the user" in text for text in texts), texts
    assert secrets_in(caplog.text, *texts) == []


@pytest.mark.parametrize("backend", OURS)
def test_a_password_from_a_file(backend: str, guarded_etcd: EtcdServer, prefix: str, tmp_path: Path) -> None:
    """torchrun logs its options: the place for a secret is a file."""
    file = tmp_path / "password"
    file.write_text(PASSWORD + "\n")
    endpoint, options = guarded_etcd.get_endpoint(), {"username": "worker", "password_file": str(file)}
    meets(backend, endpoint, prefix[6:], **options)
    with pytest.raises(ValueError, match="not both"):
        handler(backend, endpoint, prefix[6:], **options, password=PASSWORD)
    file.unlink()
    with pytest.raises(ValueError, match=r"password_file=.*: cannot be read"):
        handler(backend, endpoint, prefix[6:], **options)


@pytest.mark.parametrize("backend", OURS)
def test_secrets_are_not_shown(backend: str, guarded_etcd: EtcdServer, prefix: str) -> None:
    one = handler(backend, guarded_etcd.get_endpoint(), prefix[6:], username="worker", password=PASSWORD)
    seen: list[str] = []
    parts: list[Any] = [one]
    for _ in range(4):  # what a handler holds, four levels deep
        parts = [value for part in parts for value in getattr(part, "__dict__", {}).values()]
        seen += [repr(part) for part in parts if type(part).__module__.startswith("rallypoint")]
    assert len(seen) > 3
    assert secrets_in(*seen) == []


def secrets_in(*texts: str) -> list[str]:
    """The texts that give a password away, plainly or as a header."""
    forms = [*(f"{name}:{word}" for name in ("worker", "nobody") for word in (PASSWORD, WRONG))]
    hidden = [PASSWORD, WRONG, *(base64.b64encode(form.encode()).decode() for form in forms)]
    return [text for text in texts if any(word in text for word in hidden)]
