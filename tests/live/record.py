"""What one worker asked etcd and what came back: recorded at the driver's own client, sent as JSON, read back.

May live here: the record, its JSON form, and the two classes that take it. Must not live here: judgement.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeAlias

from rallypoint.impl.driver import Driver
from rallypoint.impl.etcd_http import EtcdHttp
from rallypoint.impl.etcd_v2 import EtcdUnavailable, EtcdV2
from rallypoint.model import etcd
from rallypoint.model.etcd import Reply, Request
from rallypoint.model.worker import Rules, Worker

Send: TypeAlias = Callable[[dict[str, Any]], None]

MEET = "meet"  # the worker's machine
ASK = "ask"  # a question or a farewell outside the machine
LEASE = "lease"  # the keeper
_CLASSES: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (
        *(etcd.Get, etcd.Create, etcd.Put, etcd.Cas, etcd.Cad, etcd.Delete, etcd.Mkdir),
        *(etcd.Refresh, etcd.List, etcd.Await, etcd.Done, etcd.Failed, etcd.Listing, etcd.Snapshot),
    )
}


@dataclass(frozen=True, slots=True)
class Record:
    """One request and its reply (None: no reply came). ``index``: as ``EtcdV2.last_index`` has it.

    ``number`` counts the records of one worker, ``kind`` says on whose behalf it was.
    """

    number: int
    kind: str
    request: Request
    reply: Reply | None
    index: int


@dataclass(frozen=True, slots=True)
class Attempt:
    """The machine was started, as ``worker``, before record ``number``."""

    number: int
    worker: Worker


def encoded(value: Request | Reply | None) -> dict[str, Any] | None:
    """A request or reply as a JSON object."""
    return None if value is None else {"is": type(value).__name__, **asdict(value)}


def decoded(data: dict[str, Any] | None) -> Any:
    """The inverse of ``encoded``. Raises ValueError for anything else."""
    if data is None:
        return None
    kind = _CLASSES.get(str(data.get("is")))
    if kind is None or {field.name for field in fields(kind)} != set(data) - {"is"}:
        raise ValueError(f"not a request or reply: {data}")
    return kind(**{name: tuple(v) if isinstance(v, list) else v for name, v in data.items() if name != "is"})


def die() -> None:
    """SIGKILL to this process."""
    os.kill(os.getpid(), signal.SIGKILL)


class Recorder:
    """Numbers and sends the records of one worker; ends the process at the request that it is told to."""

    def __init__(self, send: Send, moment: str | None = None, count: int = 0) -> None:
        self._send = send
        self._fate = (moment, count)
        self._main = threading.get_ident()
        self._lock = threading.Lock()
        self._records = 0
        self._requests = 0
        self._meeting = False

    def start(self, worker: Worker) -> None:
        """The machine starts."""
        with self._lock:
            self._meeting = True
            self._send({"event": "attempt", "number": self._records, "worker": asdict(worker)})

    def stop(self) -> None:
        """The machine has ended."""
        self._meeting = False

    def kind(self) -> str:
        """On whose behalf the calling thread asks."""
        if threading.get_ident() != self._main:
            return LEASE
        return MEET if self._meeting else ASK

    def before(self, kind: str, request: Request) -> None:
        """The worker is about to ask."""
        if kind == MEET:
            self._requests += 1
            if self._fate == ("before", self._requests):
                die()
            waits = isinstance(request, etcd.Await)
            with self._lock:
                self._send({"event": "asks", "count": self._requests, "waits": waits})

    def after(self, kind: str, request: Request, reply: Reply | None, index: int) -> None:
        """The reply is there, or is lost."""
        fields_ = {"kind": kind, "request": encoded(request), "reply": encoded(reply), "index": index}
        with self._lock:
            self._send({"event": "record", "number": self._records, **fields_})
            self._records += 1
        if kind == MEET and self._fate == ("after", self._requests):
            die()


class RecordedEtcd(EtcdV2):
    """An ``EtcdV2`` that tells a recorder of every attempt."""

    def __init__(self, recorder: Recorder, http: EtcdHttp, root: str) -> None:
        super().__init__(http, root)
        self.recorder = recorder

    def perform(self, request: Request, deadline: float) -> Reply | None:
        kind = self.recorder.kind()
        self.recorder.before(kind, request)
        try:
            reply = super().perform(request, deadline)
        except EtcdUnavailable:
            self.recorder.after(kind, request, None, 0)
            raise
        if reply is not None:
            self.recorder.after(kind, request, reply, self.last_index)
        return reply


class RecordedDriver(Driver):
    """A ``Driver`` that tells a recorder when its machine starts and ends."""

    def __init__(self, recorder: Recorder, client: EtcdV2, rules: Rules) -> None:
        super().__init__(client, rules)
        self.recorder = recorder

    def run(self, worker: Worker, deadline: float, last_call: float, on_step: Callable[[Worker], None]) -> Worker:
        self.recorder.start(worker)
        try:
            return super().run(worker, deadline, last_call, on_step)
        finally:
            self.recorder.stop()
