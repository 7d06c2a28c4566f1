"""The etcd modules of PyTorch and ours under the same names, and how a documented difference is stated."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest

UPSTREAM, OURS = "upstream", "ours"
PACKAGES = {UPSTREAM: "torch.distributed.elastic.rendezvous", OURS: "rallypoint.impl"}


class Side(NamedTuple):
    """Four modules with the same public names on both sides."""

    name: str
    server: Any
    store: Any
    handler: Any
    backend: Any


def side_of(name: str) -> Side:
    modules = ("etcd_server", "etcd_store", "etcd_rendezvous", "etcd_rendezvous_backend")
    return Side(name, *(importlib.import_module(f"{PACKAGES[name]}.{module}") for module in modules))


@contextmanager
def documented(side: Side, defect: str, shows: str) -> Iterator[None]:
    """What follows holds on ours; upstream it fails by the defect of this id, and the failure says ``shows``."""
    if side.name == OURS:
        yield
        return
    try:
        yield
    except (Exception, pytest.fail.Exception) as error:
        if re.search(shows, f"{type(error).__name__}: {error}") is None:
            raise
        return
    pytest.fail(f"defect {defect} does not show any more: take it out of the list", pytrace=False)
