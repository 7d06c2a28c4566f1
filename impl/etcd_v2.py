"""The requests of ``rallypoint.model.etcd`` on a real etcd, over its v2 API.

May live here: how a model request is written as an etcd v2 request, and its reply read back.
Must not live here: retries, decisions, anything about rendezvous.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from posixpath import commonpath
from typing import TypeAlias

from rallypoint.impl.etcd_http import Answer, EtcdHttp, EtcdUnavailable, Node, Refusal, joined_key
from rallypoint.model import etcd as model

Observer: TypeAlias = Callable[[model.Request, model.Reply, int], None]

REST = 0.05  # seconds before a watch that was cut off is set up again


class EtcdV2:
    """Performs requests below ``root`` ("": none): the model's ``/active_version`` is ``root/active_version`` in etcd.

    ``observer(request, reply, index)`` is called after each reply; ``index`` is the modifiedIndex of a write that took
    effect, and otherwise etcd's index when it answered. Safe for several threads.
    """

    def __init__(self, http: EtcdHttp, root: str, *, observer: Observer | None = None) -> None:
        self.http = http
        self.root = joined_key(root).rstrip("/")
        self._observer = observer
        self._local = threading.local()

    @property
    def last_index(self) -> int:
        """The index that belongs to the calling thread's last reply; 0 before the first."""
        index: int = getattr(self._local, "index", 0)
        return index

    def check(self, deadline: float) -> None:
        """Ask each endpoint once until one answers. Raises UnusableError or EtcdUnavailable, with the reason."""
        self.http.check(self.root, deadline)

    def perform(self, request: model.Request, deadline: float) -> model.Reply | None:
        """One attempt, to be over by ``deadline`` (monotonic seconds). None: an Await whose condition never held.

        An Await reads and watches for as long as the deadline allows; everything else is one request.
        Raises EtcdUnavailable if there was no usable reply, UnusableError if there cannot be one.
        """
        if isinstance(request, model.Await):
            return self._await(request, deadline)
        answer = self._send(request, deadline)
        if isinstance(answer, Refusal):
            return self._seen(request, model.Failed(answer.code, answer.index), answer.index)
        if isinstance(request, model.List):
            children = answer.node.children if answer.node.is_dir else (answer.node,)
            keys = tuple(sorted(self._short(node.key) for node in children))
            return self._seen(request, model.Listing(keys), answer.index)
        if isinstance(request, model.Get):
            return self._seen(request, model.Done(answer.node.value), answer.index)
        return self._seen(request, model.Done(answer.node.value), answer.node.modified)

    def _seen(self, request: model.Request, reply: model.Reply, index: int) -> model.Reply:
        self._local.index = index
        if self._observer is not None:
            self._observer(request, reply, index)
        return reply

    def _send(self, request: model.Request, deadline: float) -> Answer | Refusal:
        key = self._long(request.key)
        match request:
            case model.Create(value=value, ttl=ttl):
                return self.http.call("PUT", key, {"value": value, "prevExist": "false", **_ttl(ttl)}, deadline)
            case model.Put(value=value, ttl=ttl):
                return self.http.call("PUT", key, {"value": value, **_ttl(ttl)}, deadline)
            case model.Cas(prev=prev, value=value, ttl=ttl) if prev == value and ttl is not None:
                # The same effect, and it wakes nobody who watches the key.
                refresh = {"refresh": "true", "prevExist": "true", "prevValue": prev, **_ttl(ttl)}
                return self.http.call("PUT", key, refresh, deadline)
            case model.Cas(prev=prev, value=value, ttl=ttl):
                return self.http.call("PUT", key, {"value": value, "prevValue": prev, **_ttl(ttl)}, deadline)
            case model.CasIndex(prev_index=index, value=value, ttl=ttl):
                return self.http.call("PUT", key, {"value": value, "prevIndex": str(index), **_ttl(ttl)}, deadline)
            case model.Refresh(ttl=ttl):
                return self.http.call("PUT", key, {"refresh": "true", "prevExist": "true", **_ttl(ttl)}, deadline)
            case model.Mkdir():
                return self.http.call("PUT", key, {"dir": "true", "prevExist": "false"}, deadline)
            case model.Cad(prev=prev):
                return self.http.call("DELETE", key, {"prevValue": prev}, deadline)
            case model.Delete():
                return self.http.call("DELETE", key, {}, deadline)
            case _:
                return self.http.call("GET", key, {}, deadline)

    def _await(self, request: model.Await, deadline: float) -> model.Reply | None:
        while time.monotonic() < deadline:
            try:
                value, index = self._read(request.key, deadline)
                missing, listed = self._missing(request.alive, deadline) if value == request.seen else ((), index)
                found = False
                if request.until is not None:
                    there, listed = self._read(request.until, deadline)
                    found = there is not None
                if value == request.seen and not missing and not found:
                    self._watch(request, index + 1, deadline)
                    continue
                if missing or found:
                    # All must be true of one instant: that of the last look, if the value is still the same after it.
                    again, now = self._read(request.key, deadline)
                    value, index = (again, listed) if again == value else (again, now)
                missing = missing if value == request.seen else ()
                return self._seen(request, model.Snapshot(value, missing, found), index)
            except EtcdUnavailable:
                if time.monotonic() < deadline:
                    raise
        return None

    def _missing(self, keys: tuple[str, ...], deadline: float) -> tuple[tuple[str, ...], int]:
        """Those of ``keys`` that are gone, and etcd's index then. A keep-alive that is gone never comes back."""
        present: set[str] = set()
        index = 0
        for directory in sorted({key.rpartition("/")[0] for key in keys}):
            answer = self.http.call("GET", self._long(directory), {}, deadline)
            index = answer.index
            if isinstance(answer, Answer):
                present.update(self._short(node.key) for node in answer.node.children)
        return tuple(key for key in keys if key not in present), index

    def _read(self, key: str, deadline: float) -> tuple[str | None, int]:
        """The key's value (None: absent), and etcd's index."""
        answer = self.http.call("GET", self._long(key), {}, deadline)
        return (None if isinstance(answer, Refusal) else answer.node.value), answer.index

    def _watch(self, request: model.Await, index: int, deadline: float) -> None:
        """Until something that matters may have changed: an event on our keys, a cut, a time-out, lost history."""
        names = [request.key, *request.alive, *([] if request.until is None else [request.until])]
        wanted = [self._long(name) for name in names]
        several = len(wanted) > 1
        place = commonpath([name.rpartition("/")[0] for name in wanted]) if several else wanted[0]
        slice_end = min(deadline, time.monotonic() + self.http.attempt_timeout)
        while time.monotonic() < slice_end:
            event = self.http.watch(place, index, slice_end, recursive=several)
            if event is None:
                time.sleep(max(0.0, min(REST, slice_end - time.monotonic())))
                return
            if isinstance(event, Refusal) or _concerns(event.node, wanted):
                return
            index = event.node.modified + 1

    def _long(self, key: str) -> str:
        return joined_key(self.root, key)

    def _short(self, key: str) -> str:
        return key[len(self.root) :]


def _concerns(node: Node, keys: list[str]) -> bool:
    """The event is about one of the keys, or about a directory above it (which is deleted with all that it holds)."""
    return any(key == node.key or key.startswith(node.key + "/") for key in keys)


def _ttl(seconds: float | None) -> dict[str, str]:
    """Etcd counts whole seconds; rounded up, so that a lease is never shorter than asked for."""
    if seconds is None:
        return {}
    if seconds <= 0:
        raise ValueError(f"a TTL must be positive, not {seconds}")
    return {"ttl": str(math.ceil(seconds))}


__all__ = ["EtcdUnavailable", "EtcdV2", "Observer"]
