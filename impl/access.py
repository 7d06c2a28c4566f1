"""How to get into etcd, from torchrun's options, under the names of either of upstream's two etcd backends."""

from __future__ import annotations

from pathlib import Path

from rallypoint.impl.etcd_http import Access, endpoints_of
from torch.distributed.elastic.rendezvous import RendezvousParameters


def access_of(params: RendezvousParameters, protocol: str) -> Access:
    """Raises ValueError for an endpoint that is not HOST[:PORT],... and for a password that cannot be told."""
    return Access(
        endpoints=endpoints_of(params.endpoint or "localhost"),
        protocol=protocol,
        ca_cert=params.get("ca_cert") or params.get("cacert"),
        cert=params.get("ssl_cert") or params.get("cert"),
        key=params.get("ssl_cert_key") or params.get("key"),
        username=params.get("username"),
        password=_password(params),
    )


def _password(params: RendezvousParameters) -> str | None:
    """From the option or the file. torchrun logs its options, and everybody sees a command line."""
    given: str | None = params.get("password")
    path = params.get("password_file")
    if path is None:
        return given
    if given is not None:
        raise ValueError("give password or password_file, not both")
    try:
        return Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"password_file={path}: cannot be read ({error})") from error
