"""How to get into etcd, from torchrun's options, under the names of either of upstream's two etcd backends."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rallypoint.impl.etcd_http import Access, endpoints_of

if TYPE_CHECKING:
    from torch.distributed.elastic.rendezvous import RendezvousParameters


def access_of(params: RendezvousParameters, protocol: str) -> Access:
    """As ``access_to``, for torch's parameters."""
    return access_to(params.endpoint, protocol, params.config)


def access_to(endpoint: str, protocol: str, config: Mapping[str, Any]) -> Access:
    """``endpoint``: HOST[:PORT],...; "" is localhost.

    Raises ValueError for an endpoint that is none, and for a password that cannot be told.
    """
    endpoints = endpoints_of(endpoint or "localhost")
    for host, _ in endpoints:
        if not re.fullmatch(r"[\w.:-]+", host):
            raise ValueError(f"not a host: {host!r}")
    return Access(
        endpoints=endpoints,
        protocol=protocol,
        ca_cert=config.get("ca_cert") or config.get("cacert"),
        cert=config.get("ssl_cert") or config.get("cert"),
        key=config.get("ssl_cert_key") or config.get("key"),
        username=config.get("username"),
        password=_password(config),
    )


def _password(config: Mapping[str, Any]) -> str | None:
    """From the option or the file. torchrun logs its options, and everybody sees a command line."""
    given: str | None = config.get("password")
    path = config.get("password_file")
    if path is None:
        return given
    if given is not None:
        raise ValueError("give password or password_file, not both")
    try:
        return Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"password_file={path}: cannot be read ({error})") from error
