"""Extra data: one JSON object per version, that its members add to and wait on, as upstream's handler has it.

May live here: the object and its two operations. Must not live here: where it lies, or torch's way to say that etcd
cannot be used; the caller knows both.
"""

from __future__ import annotations

import json
import time
from typing import Any

from rallypoint.impl.driver import PAUSE, Driver
from rallypoint.impl.etcd_v2 import EtcdUnavailable
from rallypoint.model import etcd
from torch.distributed.elastic.rendezvous import RendezvousStateError, RendezvousTimeoutError


def publish(driver: Driver, node: str, key: str, value: str, deadline: float) -> None:
    """Put ``value`` under ``key``, by compare-and-swap; done once it is there, whoever wrote it.

    Raises RendezvousStateError if the node holds something else, EtcdUnavailable at the deadline.
    """
    while True:
        reply = driver.once(etcd.Get(node), deadline)
        if reply == etcd.Done(None):
            raise RendezvousStateError(f"extra data: {node} is a directory")
        text = reply.value if isinstance(reply, etcd.Done) else None
        data = _read(text)
        if data.get(key) == value:
            return
        new = json.dumps({**data, key: value})
        write = etcd.Create(node, new) if text is None else etcd.Cas(node, text, new)
        if isinstance(driver.once(write, deadline), etcd.Done):
            return


def await_key(driver: Driver, node: str, key: str, deadline: float) -> str:
    """The value under ``key`` once it is there (L-T). Raises as ``publish``, and RendezvousTimeoutError."""
    text = None
    while True:
        try:
            reply = driver.client.perform(etcd.Await(node, text), deadline)
        except EtcdUnavailable:
            if time.monotonic() + PAUSE >= deadline:
                raise
            time.sleep(PAUSE)
            continue
        if not isinstance(reply, etcd.Snapshot):
            raise RendezvousTimeoutError(f"extra data {key!r} was not published in time")
        text = reply.value
        if key in (data := _read(text)):
            value: str = data[key]
            return value


def _read(text: str | None) -> dict[str, Any]:
    """The object; None: nobody has written it."""
    try:
        data = {} if text is None else json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RendezvousStateError(f"extra data is no JSON that can be read: {error}") from error
    if not isinstance(data, dict):
        raise RendezvousStateError(f"extra data is {text!r:.40}: it must be a JSON object")
    return data
