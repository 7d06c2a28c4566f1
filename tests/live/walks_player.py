"""Plays walks: makes a real etcd and live workers take exactly the model's steps, and compares after each.

What is compared: all keys of the run with their values and whether they have a TTL; what the worker that moved wants
next, as it stands at its gate (or how its call ended); that no other worker has moved.

An Await is a look, a look at the leases, and a long poll. It is played in one of two ways. Held: the worker stays
before its first look until the step at which the condition holds. Parked: while the condition does not hold, it is let
through to its long poll, and the event that makes the condition true must bring it back to the gate. A wake without
cause is no step of ours: the client looks again and goes on waiting (``UNPLAYABLE``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from rallypoint.live.gate import Held
from rallypoint.live.walks_seat import LAST_CALL, PREFIX, START, TTLS, Arrival, Outcome, Seat
from rallypoint.live.walks_wire import COUNTER, Keys, Numbers, Reader, Wire, expected, keys_of, looks, watch
from rallypoint.model import etcd, system
from rallypoint.model import worker as machine
from rallypoint.model.system import Config, Step
from rallypoint.model.walks import Graph, Transition
from rallypoint.model.worker import Rules, Worker
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousStateError,
    RendezvousTimeoutError,
)

UNPLAYABLE = {
    "WakeEarly": "our client answers a wake without cause itself: it looks again and waits on",
    "Outage": "an outage changes nothing for our workers: there is no such step under the hardened rules",
}
"""Actions that no live system of ours takes, and why."""

REPEATED_NUMBER = "a counter read before the run was lost: the model's index may repeat a number, a real one does not"

ENDS: dict[str, type[Exception]] = {
    "closed": RendezvousClosedError,
    "timed_out": RendezvousTimeoutError,
    "mismatch": RendezvousStateError,
    "fatal": RendezvousStateError,
}
TIMES = {"LastCallOver", "OthersStay", "Deadline"}


class DifferenceError(Exception):
    """The live system is not where the model is."""

    def __init__(self, what: str, wanted: object, seen: object) -> None:
        super().__init__(f"{what}: expected {wanted}, seen {seen}")


class UnplayableError(Exception):
    """A step of the model that this live run cannot take; the message says why."""


@dataclass(frozen=True, slots=True)
class Want:
    """One worker in one state of the model. ``wire``: its request, None if it has ended. ``ready``: it is answered."""

    worker: Worker
    request: etcd.Request | None
    wire: Wire | None
    ready: bool


@dataclass(frozen=True, slots=True)
class Point:
    """What must be seen live in one state of the model."""

    keys: Keys
    wants: tuple[Want, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """One walk: ``points`` has one more than ``steps``. ``name``: the configuration and the walk's number."""

    name: str
    config: Config
    steps: tuple[Step, ...]
    points: tuple[Point, ...]

    def points_of_workers(self) -> list[list[Worker]]:
        """The workers at each point."""
        return [[want.worker for want in point.wants] for point in self.points]


def timed(rules: Rules) -> Rules:
    """The rules with the TTLs of live walks, which change nothing in the graph."""
    return Rules(**{**{name: getattr(rules, name) for name in rules.__slots__}, **TTLS})


def plan(name: str, graph: Graph, walk: Sequence[Transition]) -> Plan:
    """All that is needed to play a walk, so that nothing of the model runs while it is played."""
    config = graph.explorer.config
    codes = [graph.start, *(transition.target for transition in walk)]
    states = [graph.explorer.decode(code) for code in codes]
    steps = tuple(
        next(step for step in system.steps(config, before) if (step.action, step.state) == (taken.action, after))
        for taken, (before, after) in zip(walk, pairwise(states), strict=True)
    )
    points = tuple(
        Point(keys_of(state.store), tuple(_want(config, state.store, worker) for worker in state.workers))
        for state in states
    )
    return Plan(name, config, steps, points)


def _want(config: Config, store: etcd.Store, worker: Worker) -> Want:
    if worker.pc in machine.ENDED:
        return Want(worker, None, None, True)
    request = machine.want(system.rules_of(config, worker), worker)
    return Want(worker, request, expected(request), etcd.enabled(store, request))


@dataclass(slots=True)
class _Live:
    """One worker in one walk. ``at``: its request at the gate, or how its call ended. ``base``: etcd's index when it
    found no counter."""

    seat: Seat
    at: Arrival | None = None
    parked: bool = False
    closing: bool = False
    base: int = 0


@dataclass(slots=True)
class Player:
    """Plays walks of ``workers`` workers on the etcd at HOST, PORT, one after the other."""

    host: str
    port: int
    workers: int
    steps: int = 0
    _seats: list[Seat] = field(init=False)
    _reader: Reader = field(init=False)
    _lives: list[_Live] = field(default_factory=list)
    _numbers: Numbers = field(default_factory=lambda: Numbers(""))

    def __post_init__(self) -> None:
        self._seats = [Seat(slot, (self.host, self.port)) for slot in range(self.workers)]
        self._reader = Reader(self.host, self.port)

    def close(self) -> None:
        """End all threads."""
        for seat in self._seats:
            seat.close()
        self._reader.close()

    def play(self, walk: Plan, run_id: str, *, parked: bool) -> list[Step]:
        """The steps that were taken: all, or those before one that cannot be taken live.

        Raises DifferenceError, which names the walk and the step. To be called within ``walks_seat.obedient()``.
        """
        taken: list[Step] = []
        self._numbers = Numbers(f"{PREFIX}/run_{run_id}/rdzv")
        where = "before the first step"
        try:
            self._begin(walk, run_id)
            self._compare(walk.points[0], None)
            for number, step in enumerate(walk.steps):
                self._park(walk.points[number], parked)
                who = "etcd" if step.slot is None else f"worker {step.slot}"
                where = f"step {number + 1} of {len(walk.steps)}, {step.action} of {step.key or who}"
                self._take(walk.config, step, walk.points[number], walk.points[number + 1])
                self._compare(walk.points[number + 1], step.slot)
                taken.append(step)
        except UnplayableError:
            return taken
        except (DifferenceError, TimeoutError) as error:
            trail = " ".join(f"{step.action}:{step.slot}" for step in taken)
            raise DifferenceError(f"walk {walk.name}, {where}, after [{trail}]", *_parts(error)) from error
        finally:
            self.steps += len(taken)
            self._end()
        return taken

    def _begin(self, walk: Plan, run_id: str) -> None:
        self._lives = [_Live(seat) for seat in self._seats]
        for live, want in zip(self._lives, walk.points[0].wants, strict=True):
            live.seat.sit_down(system.rules_of(walk.config, want.worker), run_id)
            live.seat.meet(want.worker.id)
        for live in self._lives:
            live.at = live.seat.await_arrival()

    def _end(self) -> None:
        for seat in self._seats:
            seat.abandon()
        self._reader.ask("DELETE", self._numbers.root, recursive="true")

    # --- steps ------------------------------------------------------------------------------------------------------

    def _take(self, config: Config, step: Step, before: Point, after: Point) -> None:
        if step.slot is None:
            key = self._numbers.root if step.key is None else self._reader.live[step.key][0]
            self._reader.ask("DELETE", key, recursive="true" if step.key is None else "false")
            return
        live, was, now = self._lives[step.slot], before.wants[step.slot], after.wants[step.slot]
        if step.action == "Crash":
            live.seat.abandon()
            live.at, live.parked = None, False
            return
        if step.action == "SeeClosed":
            live.seat.look()
            live.at = Outcome(error=RendezvousClosedError(live.seat.run._worker.pc))
            return
        if step.action in ("Restart", "Rejoin", "StartClosing"):
            self._start(config, step.action, live, was, now)
        elif step.action in TIMES:
            _let_time_pass(live, step.action)
            return
        else:
            self._answer(live, step, was)
        live.at = live.seat.await_arrival()
        if live.closing and now.wire is None and isinstance(live.at, Held):
            live.at.release()  # who has closed the run looks whether its own version is the one that it closed
            live.at = live.seat.await_arrival()

    def _start(self, config: Config, action: str, live: _Live, was: Want, now: Want) -> None:
        if was.worker.pc != machine.MEMBER:
            live.seat.abandon()
            live.seat.sit_down(system.rules_of(config, now.worker), live.seat.run_id)
        live.closing = action == "StartClosing"
        if live.closing:
            live.seat.close_run(now.worker.id)
        else:
            live.seat.meet(now.worker.id)

    def _answer(self, live: _Live, step: Step, was: Want) -> None:
        """Let the request go to etcd, with all looks that belong to it."""
        assert step.request is not None
        if isinstance(step.request, etcd.Await):
            self._answer_await(live, step.request, step.reply, was)
            return
        held = _held(live.at)
        made = (
            isinstance(step.request, etcd.Create) and step.request.key == COUNTER and isinstance(step.reply, etcd.Done)
        )
        if made and isinstance(step.request, etcd.Create):
            self._numbers.known[live.base] = int(step.request.value)
        if isinstance(step.request, etcd.Cas) and step.request.key == COUNTER and isinstance(step.reply, etcd.Done):
            there = self._reader.live.get(COUNTER, ("", ""))[1]
            if held.form.get("prevValue", there) != there:
                raise UnplayableError(REPEATED_NUMBER)
        held.release(drop_reply=step.action == "LoseReply")

    def _answer_await(self, live: _Live, request: etcd.Await, reply: etcd.Reply | None, was: Want) -> None:
        assert isinstance(reply, etcd.Snapshot)
        if live.parked:
            live.at = live.seat.await_arrival()
            while isinstance(live.at, Held) and live.at.step == "watch":  # the event was about some other key
                self._check_wire(live, watch(request))
                live.at.release()
                live.at = live.seat.await_arrival()
            live.parked = False
            self._check_wire(live, was.wire)
        _held(live.at).release()
        if reply.value == request.seen:
            for wire in (*looks(request), expected(request)):
                live.at = live.seat.await_arrival()
                self._check_wire(live, wire)
                _held(live.at).release()

    def _park(self, point: Point, parked: bool) -> None:
        """Let those who wait in vain through to their long polls."""
        for live, want in zip(self._lives, point.wants, strict=True):
            if not parked or live.parked or want.ready or not isinstance(want.request, etcd.Await):
                continue
            for wire in (*looks(want.request), watch(want.request)):
                _held(live.at).release()
                live.at = live.seat.await_arrival()
                self._check_wire(live, wire)
            _held(live.at).release()
            live.parked = True

    # --- comparing --------------------------------------------------------------------------------------------------

    def _compare(self, point: Point, slot: int | None) -> None:
        keys = self._reader.keys(self._numbers)
        if keys != point.keys:
            names = sorted(name for name in {*keys, *point.keys} if keys.get(name) != point.keys.get(name))
            wanted = {name: point.keys.get(name, "no key") for name in names}
            raise DifferenceError("the keys of the run", wanted, {name: keys.get(name, "no key") for name in names})
        for number, (live, want) in enumerate(zip(self._lives, point.wants, strict=True)):
            if number == slot or slot is None:
                self._compare_worker(live, want)
            elif not live.parked and not live.seat.arrivals.empty():
                raise DifferenceError(f"worker {number}", "no step", live.seat.arrivals.get())

    def _compare_worker(self, live: _Live, want: Want) -> None:
        if want.worker.pc == "recount":
            live.base = live.base or self._reader.index
            self._check_recount(live, want)
        else:
            live.base = 0
            if want.wire is not None and not live.parked:
                self._check_wire(live, want.wire)
        if want.wire is None:
            _check_end(live, want.worker, self._numbers)

    def _check_recount(self, live: _Live, want: Want) -> None:
        held = _held(live.at)
        seen = self._numbers.seen(held)
        if held.form.get("value") == str(live.base):
            form = {**dict(seen.form), "value": str(want.worker.version)}
            seen = Wire(seen.method, seen.key, tuple(sorted(form.items())))
        if seen != want.wire:
            raise DifferenceError("the worker's next request", want.wire, seen)

    def _check_wire(self, live: _Live, wire: Wire | None) -> None:
        if not isinstance(live.at, Held):
            raise DifferenceError("the worker's next request", wire, live.at)
        seen = self._numbers.seen(live.at)
        if seen != wire:
            raise DifferenceError("the worker's next request", wire, seen)


def _parts(error: Exception) -> tuple[object, object]:
    wanted, _, seen = str(error).removeprefix("expected ").partition(", seen ")
    return wanted, seen or "nothing"


def _held(arrival: Arrival | None) -> Held:
    if not isinstance(arrival, Held):
        raise DifferenceError("the worker", "a request", arrival)
    return arrival


def _let_time_pass(live: _Live, action: str) -> None:
    """The worker's clock jumps for as long as it takes to notice; what it was about to ask, it asks no more."""
    clock, run = live.seat.clock, live.seat.run
    clock.now = {
        "LastCallOver": START + LAST_CALL,
        "OthersStay": START + run.rules.keep_alive_ttl + 2,
        "Deadline": run._deadline,
    }[action]
    if live.parked:
        live.seat.gate.cut()
    else:
        _held(live.at).refuse()
    live.parked = False
    live.at = live.seat.await_arrival()
    while isinstance(live.at, Held) and live.at.method == "GET":
        live.at.refuse()
        live.at = live.seat.await_arrival()
    clock.now = START


def _check_end(live: _Live, worker: Worker, numbers: Numbers) -> None:
    """The call ended as the model's worker did."""
    if worker.pc == "crashed":
        return
    outcome = live.at
    if not isinstance(outcome, Outcome):
        raise DifferenceError("the worker", f"the end of its call ({worker.pc})", outcome)
    if worker.pc == machine.MEMBER:
        wanted = (worker.version, worker.rank, worker.world)
        if outcome.error is not None:
            raise DifferenceError("what rendezvous_barrier returns", wanted, outcome)
        version, rank, world = outcome.value
        if (seen := (numbers.model(int(version)), rank, world)) != wanted:
            raise DifferenceError("(version, rank, world size) of rendezvous_barrier", wanted, seen)
    elif live.closing:
        if outcome.error is not None:
            raise DifferenceError("set_closed", "its return", outcome)
    elif not isinstance(outcome.error, ENDS[worker.pc]):
        raise DifferenceError("the call", ENDS[worker.pc].__name__, outcome)
