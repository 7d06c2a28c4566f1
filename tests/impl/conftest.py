"""Fixtures of the tests of impl."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from rallypoint.impl.etcd_http import EtcdHttp

if TYPE_CHECKING:
    from rallypoint.impl.etcd_store import EtcdStore


@pytest.fixture
def etcd_store(http: EtcdHttp, prefix: str) -> EtcdStore:
    """A store on the shared etcd, below a prefix of its own."""
    from rallypoint.impl.etcd_store import EtcdStore

    return EtcdStore(http, prefix, timedelta(seconds=20))
