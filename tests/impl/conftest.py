"""Fixtures of the tests of impl."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from rallypoint.impl.etcd_http import EtcdHttp
from rallypoint.impl.etcd_server import EtcdServer

if TYPE_CHECKING:
    from rallypoint.impl.etcd_rendezvous import EtcdRendezvousHandler
    from rallypoint.impl.etcd_store import EtcdStore


@pytest.fixture
def etcd_store(http: EtcdHttp, prefix: str) -> EtcdStore:
    """A store on the shared etcd, below a prefix of its own."""
    from rallypoint.impl.etcd_store import EtcdStore

    return EtcdStore(http, prefix, timedelta(seconds=20))


@pytest.fixture
def make(etcd_server: EtcdServer, prefix: str) -> Iterator[Callable[..., EtcdRendezvousHandler]]:
    """Makes handlers of one run; all leave at the end, whatever happened."""
    from rallypoint.impl.etcd_rendezvous import create_rdzv_handler
    from torch.distributed.elastic.rendezvous import RendezvousParameters

    made: list[EtcdRendezvousHandler] = []

    def one(lowest: int = 1, highest: int = 2, run_id: str = "job", *, endpoint: str = "", **config: Any) -> Any:
        config = {"timeout": 20, "last_call_timeout": 0, "etcd_prefix": prefix, "keep_alive_ttl": 2, **config}
        endpoint = endpoint or etcd_server.get_endpoint()
        parameters = RendezvousParameters("etcd", endpoint, run_id, lowest, highest, "127.0.0.1", **config)
        made.append(create_rdzv_handler(parameters))
        return made[-1]

    yield one
    for handler in made:
        handler._rdzv_impl.leave()
