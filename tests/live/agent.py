"""One worker process: an elastic agent in small. It meets, proves its group, listens, and meets again when told.

May live here: what a worker does and reports. Must not live here: judgement (``judge.py``, ``replay.py``).
Reports are JSON lines on the worker's socket; the only orders are "go" and "end".
"""

from __future__ import annotations

import functools
import json
import select
import socket
import time
from typing import Any
from unittest import mock

from rallypoint.impl import etcd_rendezvous, etcd_run
from rallypoint.impl.etcd_rendezvous import EtcdRendezvousHandler
from rallypoint.live import faults
from rallypoint.live.record import RecordedDriver, RecordedEtcd, Recorder, die
from rallypoint.npu.worker import prove
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousError,
    RendezvousInfo,
    RendezvousParameters,
)

POLL = 0.1  # seconds between two questions to the handler
GROUP = {"cpu": 2.0, "npu": 5.0}  # seconds for a group to form and gather, by device
FAREWELL = 60.0  # seconds that a worker waits for an order at most


class Agent:
    """The worker of one process. ``job``: see ``main``."""

    def __init__(self, job: dict[str, Any], sock: socket.socket) -> None:
        self.job = job
        self.sock = sock
        self.orders = b""
        moment, count = job["kill"] or (None, 0)
        self.fate = (moment, count)
        self.recorder = Recorder(self.tell, moment, count)
        self.meetings = 0
        self.groups = 0
        self.waiting: int | None = None

    def tell(self, report: dict[str, Any]) -> None:
        self.sock.sendall(json.dumps(report).encode() + b"\n")

    def ordered(self, order: bytes, seconds: float) -> bool:
        """The order has come, within so many seconds. An end of the controller is the order to end."""
        deadline = time.monotonic() + seconds
        while order not in self.orders:
            if not select.select([self.sock], [], [], max(0.0, deadline - time.monotonic()))[0]:
                return False
            data = self.sock.recv(64)
            self.orders += data or b"go end"
        return True

    def handler(self) -> EtcdRendezvousHandler:
        parameters = RendezvousParameters(
            backend="rallypoint-etcd",
            endpoint=self.job["endpoint"],
            run_id=self.job["run_id"],
            min_nodes=self.job["min"],
            max_nodes=self.job["max"],
            local_addr="127.0.0.1",
            **self.job["options"],
        )
        with mock.patch.multiple(
            etcd_run,
            EtcdV2=functools.partial(RecordedEtcd, self.recorder),
            Driver=functools.partial(RecordedDriver, self.recorder),
        ):
            return etcd_rendezvous.create_rdzv_handler(parameters)

    def run(self) -> None:
        """Until told to end, or until the run is closed."""
        if not self.ordered(b"go", FAREWELL):
            return
        handler = self.handler()
        try:
            while True:
                self.tell({"event": "meeting"})
                info = handler.next_rendezvous()
                if not self.stays(handler, info):
                    break
        except RendezvousClosedError:
            self.tell({"event": "closed"})
        finally:
            handler._rdzv_impl.leave()
        self.ordered(b"end", FAREWELL)

    def stays(self, handler: EtcdRendezvousHandler, info: RendezvousInfo) -> bool:
        """As a member, until it must meet again (True) or end (False)."""
        self.waiting = None
        self.meetings += 1
        version = int(handler._rdzv_impl._worker.version or 0)
        bootstrap = info.bootstrap_store_info
        assert bootstrap is not None
        address = f"{bootstrap.master_addr}:{bootstrap.master_port}"
        met = {"version": version, "rank": info.rank, "world": info.world_size, "address": address}
        self.tell({"event": "met", **met})
        if self.fate == ("member", self.meetings):
            die()
        formed = self.gathers(info, version)
        if formed and self.fate == ("grouped", self.groups):
            die()
        told_by = time.monotonic() + self.job["told"]
        while not self.ordered(b"end", POLL):
            if self.told(handler):
                return True
            if not formed and time.monotonic() > told_by:
                self.tell({"event": "not told", "version": version})
                return True
        return False

    def told(self, handler: EtcdRendezvousHandler) -> bool:
        """The handler asks this member to meet again."""
        waiting = handler.num_nodes_waiting()
        if waiting != self.waiting:
            self.waiting = waiting
            self.tell({"event": "waiting", "count": waiting})
        return waiting > 0

    def gathers(self, info: RendezvousInfo, version: int) -> bool:
        """Form a group with the returned store and all-gather (version, rank, world size)."""
        start = time.monotonic()
        try:
            device = self.job["device"]
            rows = prove(device, info.store, info.rank, info.world_size, version, GROUP[device])
        except (RuntimeError, LookupError, ValueError) as error:
            seconds = time.monotonic() - start
            self.tell({"event": "broken", "version": version, "reason": str(error)[:300], "seconds": seconds})
            return False
        self.groups += 1
        self.tell({"event": "gathered", "version": version, "rows": rows})
        return True


def main(job: dict[str, Any], sock: socket.socket) -> int:
    """Do one job; the exit code.

    ``job``: device ("cpu" or "npu"), endpoint, run_id, min, max, options (of ``RendezvousParameters``), kill ([moment,
    count] or None), fault (a name of ``faults.FAULTS`` or None), told (seconds within which a member whose group broke
    must be told).
    """
    agent = Agent(job, sock)
    with faults.planted(job["fault"]):
        try:
            agent.run()
        except Exception as error:
            documented = isinstance(error, RendezvousError)
            text = f"{type(error).__name__}: {error}"
            agent.tell({"event": "error", "documented": documented, "text": text[:500]})
            return 1
    agent.tell({"event": "ended"})
    return 0
