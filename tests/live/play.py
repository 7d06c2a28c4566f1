"""Plays one schedule with real processes on a real etcd, until the job is quiet, and brings back what happened.

May live here: when a worker starts, when the job is quiet, when time is up. Must not live here: judgement.

Quiet means that nothing more is to come: the live workers, up to max, are members of one version and have proved it,
the others wait; or fewer than min live and all of them wait. Then the run is closed, so that all workers come home.
"""

from __future__ import annotations

import json
import select
import signal
import socket
import time
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from rallypoint.impl.etcd_http import EtcdHttp
from rallypoint.live.nursery import Nursery
from rallypoint.live.record import LEASE, Attempt, Record, RecordedDriver, RecordedEtcd, Recorder, decoded
from rallypoint.live.schedule import Entry, Schedule
from rallypoint.model import etcd
from rallypoint.model import worker as machine
from rallypoint.model.worker import Rules, Worker

TTLS: dict[str, Any] = {"setup_ttl": 2, "joinable_ttl": 2, "frozen_ttl": 2, "keep_alive_ttl": 1}  # seconds
TOLD = 6.0  # seconds: the keep-alive TTL, etcd's clock of half a second, and a busy machine
BOUND = 30.0  # seconds until the job must be quiet
HOMECOMING = 15.0  # seconds until all processes must have ended then
TIMEOUT = 90  # seconds, the handlers' own: longer than all of the above


@dataclass(frozen=True, slots=True)
class Met:
    """next_rendezvous returned, before record ``number``."""

    number: int
    version: int
    rank: int
    world: int
    address: str


@dataclass(frozen=True, slots=True)
class Killed:
    """The process was killed, after record ``number`` - 1."""

    number: int


History: TypeAlias = "list[Attempt | Record | Met | Killed]"


@dataclass(slots=True)
class Seat:
    """One worker as the controller sees it. ``history``: what it recorded; ``groups``: what it gathered, by version.

    ``untold``: versions whose group broke and that it was not told to leave within ``TOLD`` seconds.
    ``state``: "before" its start, "meeting", "member", "ended"; a dead worker keeps the state in which it died.
    """

    number: int
    entry: Entry
    pid: int = 0
    sock: socket.socket | None = None
    state: str = "before"
    history: History = field(default_factory=list)
    groups: dict[int, list[list[int]]] = field(default_factory=dict)
    met: Met | None = None
    complaints: list[str] = field(default_factory=list)
    untold: list[int] = field(default_factory=list)
    exit_code: int | None = None
    asks: int = 0
    waits: bool = False
    renewed: bool = False
    waiting: int | None = None
    unread: bytes = b""

    @property
    def records(self) -> int:
        return sum(isinstance(item, Record) for item in self.history)

    @property
    def killed(self) -> bool:
        return self.exit_code == -signal.SIGKILL

    def describe(self) -> str:
        """One clause for messages."""
        fate = "killed" if self.killed else f"ended ({self.exit_code})" if self.exit_code is not None else self.state
        if self.state == "member" and self.met is not None:
            proof = "gathered" if self.met.version in self.groups else "not gathered"
            renewed = "renewed" if self.renewed else "not renewed"
            fate += f" of version {self.met.version}, rank {self.met.rank} of {self.met.world}, {proof}, "
            fate += f"lease {renewed}, {self.waiting} waiting"
        return f"worker {self.number} {fate}"


@dataclass(frozen=True, slots=True)
class Played:
    """What happened. ``histories``: of the workers, and of the closer last. ``trouble``: no quiet, or no homecoming."""

    schedule: Schedule
    rules: Rules
    seats: tuple[Seat, ...]
    histories: tuple[History, ...]
    trouble: str | None


class Play:
    """One run of one schedule, quiet within ``bound`` seconds. ``play`` may be called once."""

    def __init__(
        self, schedule: Schedule, run_id: str, endpoint: str, nursery: Nursery, http: EtcdHttp, bound: float = BOUND
    ) -> None:
        self.bound = bound
        self.schedule = schedule
        self.nursery = nursery
        self.http = http
        self.root = f"/torchelastic/p2p/run_{run_id}"
        self.rules = Rules(schedule.min_workers, schedule.max_workers, root=self.root + "/rdzv", **TTLS)
        self.seats = [Seat(number, entry) for number, entry in enumerate(schedule.entries)]
        self.closing = False
        self.job = {
            "device": nursery.device,
            "endpoint": endpoint,
            "run_id": run_id,
            "min": schedule.min_workers,
            "max": schedule.max_workers,
            "options": {**TTLS, "timeout": TIMEOUT, "last_call_timeout": schedule.last_call},
            "fault": schedule.fault,
            "told": TOLD,
        }

    def play(self) -> Played:
        """Raises UnusableError if the nursery fails; what the workers do wrong is in the result."""
        trouble = None
        closer: History = []
        try:
            for seat in self.seats:
                self._seat(seat)
            if not self._until(self._quiet, self.bound):
                trouble = f"not quiet within {self.bound} s: {self._describe()}"
            self.closing = True
            self._close(closer)
            for seat in self.seats:
                self._order(seat, b"go end")
            if not self._until(self._all_home, HOMECOMING):
                trouble = trouble or f"not home {HOMECOMING} s after the run was closed: {self._describe()}"
        finally:
            self._clear()
        histories = (*(seat.history for seat in self.seats), closer)
        return Played(self.schedule, self.rules, tuple(self.seats), histories, trouble)

    def _seat(self, seat: Seat) -> None:
        seat.sock, theirs = socket.socketpair()
        kill = seat.entry.kill
        with theirs:
            job = {**self.job, "kill": None if kill is None else [kill.moment, kill.count]}
            seat.pid = self.nursery.start(job, theirs)

    def _order(self, seat: Seat, order: bytes) -> None:
        if seat.sock is not None:
            try:
                seat.sock.sendall(order)
            except OSError:
                return

    def _until(self, there: Any, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while not there():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self._listen(left)
        return True

    def _listen(self, seconds: float) -> None:
        """Take in what workers and nursery have to say, and let workers start whose turn it is."""
        if not self.closing:
            self._let_start()
        speakers: dict[Any, Seat] = {seat.sock: seat for seat in self.seats if seat.sock is not None}
        readable = select.select([self.nursery, *speakers], [], [], seconds)[0]
        for sock in readable:
            if sock is self.nursery:
                self.nursery.look()
            else:
                self._hear(speakers[sock])
        for seat in self.seats:
            if seat.sock is None and seat.exit_code is None:
                seat.exit_code = self.nursery.exits.get(seat.pid)
                if seat.killed:
                    seat.history.append(Killed(seat.records))

    def _let_start(self) -> None:
        before: Seat | None = None
        for seat in self.seats:
            if seat.state == "before":
                held = before is not None and before.state == "meeting" and before.sock is not None
                if before is not None and held and not before.waits and before.asks < seat.entry.gap:
                    return
                seat.state = "meeting"
                self._order(seat, b"go")
            before = seat

    def _hear(self, seat: Seat) -> None:
        assert seat.sock is not None
        try:
            data = seat.sock.recv(1 << 20)
        except ConnectionError:
            data = b""
        if not data:
            seat.sock.close()
            seat.sock = None
            return
        *lines, seat.unread = (seat.unread + data).split(b"\n")
        for line in lines:
            _take(seat, json.loads(line), self.closing)

    def _live(self) -> list[Seat]:
        return [seat for seat in self.seats if seat.sock is not None and seat.state in ("meeting", "member")]

    def _quiet(self) -> bool:
        if any(seat.complaints for seat in self.seats):
            return True
        if any(seat.state == "before" or (seat.sock is None and seat.exit_code is None) for seat in self.seats):
            return False
        live = self._live()
        members = [seat for seat in live if seat.state == "member"]
        if len(live) < self.schedule.min_workers:
            return not members and all(seat.waits for seat in live)
        return len(members) == min(len(live), self.schedule.max_workers) and all(
            seat.met is not None
            and seat.met.version == (members[0].met or seat.met).version
            and seat.met.world == len(members)
            and seat.met.version in seat.groups
            and seat.renewed
            and seat.waiting == 0  # all are in, or there is no room
            for seat in members
        )

    def _all_home(self) -> bool:
        return all(seat.exit_code is not None for seat in self.seats)

    def _close(self, history: History) -> None:
        """Close the run, as one more participant whose requests are recorded, too."""
        recorder = Recorder(lambda report: _note(history, report))
        driver = RecordedDriver(recorder, RecordedEtcd(recorder, self.http, ""), self.rules)
        driver.run(machine.start_closing(Worker("closer")), time.monotonic() + HOMECOMING, 0, lambda _: None)

    def _clear(self) -> None:
        """No process and no key of this run stays."""
        for seat in self.seats:
            if seat.pid and seat.pid not in self.nursery.exits:
                self.nursery.kill(seat.pid)
        self._until(self._all_reaped, HOMECOMING)
        for seat in self.seats:
            if seat.sock is not None:
                seat.sock.close()
                seat.sock = None
        self.http.call("DELETE", self.root, {"recursive": "true"}, time.monotonic() + HOMECOMING)

    def _all_reaped(self) -> bool:
        return all(not seat.pid or seat.pid in self.nursery.exits for seat in self.seats)

    def _describe(self) -> str:
        return "; ".join(seat.describe() for seat in self.seats)


def _note(history: History, report: dict[str, Any]) -> None:
    """Add what belongs to the history of a worker."""
    if report["event"] == "record":
        request, reply = decoded(report["request"]), decoded(report["reply"])
        history.append(Record(report["number"], report["kind"], request, reply, report["index"]))
    elif report["event"] == "attempt":
        history.append(Attempt(report["number"], Worker(**report["worker"])))


def _take(seat: Seat, report: dict[str, Any], closing: bool) -> None:
    """One report of a worker."""
    _note(seat.history, report)
    match report["event"]:
        case "asks":
            seat.asks, seat.waits = report["count"], report["waits"]
        case "record" if report["kind"] == LEASE:
            renewal = decoded(report["request"])
            own = isinstance(renewal, etcd.Refresh) and "/alive_" in renewal.key
            seat.renewed = seat.renewed or (own and isinstance(decoded(report["reply"]), etcd.Done))
        case "meeting":
            seat.state, seat.waits, seat.waiting = "meeting", False, None
        case "met":
            seat.met = Met(seat.records, report["version"], report["rank"], report["world"], report["address"])
            seat.history.append(seat.met)
            seat.state, seat.renewed = "member", False
        case "gathered":
            seat.groups[report["version"]] = report["rows"]
        case "waiting":
            seat.waiting = report["count"]
        case "not told":
            seat.untold.append(report["version"])
        case "error":
            kind = "the documented" if report["documented"] else "an undocumented"
            seat.complaints.append(f"it ended with {kind} exception {report['text']}")
        case "closed":
            seat.state = "ended"
            if not closing:
                seat.complaints.append("it found the run closed before anybody had closed it")
        case "ended":
            seat.state = "ended"
