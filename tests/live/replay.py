"""Judges a played schedule by the model: could its machine and its etcd have done this?

Each worker alone: its recorded replies, fed to ``model.worker``, must make exactly its recorded requests. All together:
the writes in the order of etcd's modifiedIndex, the reads and refusals where the index says that they looked, must get
from ``model.etcd`` exactly the recorded replies; and the invariants must hold after each.

Hidden steps are inferred only where a reply proves them: the expiry of a key with a TTL that is seen gone, a write
whose reply was lost. Time's events (last call over, deadline) are inferred from the request that follows them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rallypoint.live.play import History, Killed, Met
from rallypoint.live.record import LEASE, MEET, Attempt, Record
from rallypoint.model import etcd, system
from rallypoint.model import worker as machine
from rallypoint.model.etcd import Reply, Request, Store
from rallypoint.model.system import Budget, Config, State
from rallypoint.model.worker import Rules, Worker
from rallypoint.spec.invariants import INVARIANTS


class RejectedError(Exception):
    """The model does not allow this; the message names worker, record, what was expected and what was found."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """Size of what was accepted. ``expiries`` and ``lost``: hidden steps that were inferred."""

    requests: int
    expiries: int
    lost: int


@dataclass(frozen=True, slots=True)
class _Event:
    """A record in its place: worker ``slot``, which is ``worker`` after it."""

    slot: int
    record: Record
    worker: Worker

    @property
    def where(self) -> str:
        return f"worker {self.slot}, record {self.record.number}"

    @property
    def place(self) -> tuple[int, bool, int, int]:
        """Etcd's order: a write has an index of its own, what does not write comes after the write that it saw."""
        return self.record.index, not _writes(self.record), self.slot, self.record.number


def _writes(record: Record) -> bool:
    return isinstance(record.request, (*etcd.WRITES, etcd.Refresh)) and isinstance(record.reply, etcd.Done)


def replay(rules: Rules, histories: Sequence[History]) -> Replayed:
    """Both replays of a run. Raises RejectedError."""
    events = [event for slot, history in enumerate(histories) for event in replay_worker(rules, slot, history)]
    return replay_store(rules, len(histories), events)


# --- each worker alone --------------------------------------------------------------------------------------------


def replay_worker(rules: Rules, slot: int, history: History) -> list[_Event]:
    """The records of one worker with the worker after each. Raises RejectedError."""
    worker = Worker(f"{slot}")
    events: list[_Event] = []
    for item in history:
        where = f"worker {slot}, record {item.number}"
        if item.number != len(events):
            raise RejectedError(f"{where}: expected record {len(events)}; records are missing or out of order")
        if isinstance(item, Attempt):
            worker = _started(rules, where, worker, item.worker)
        elif isinstance(item, Met):
            _check_outcome(where, worker, item)
        elif isinstance(item, Killed):
            worker = machine.crash(worker)
            events[-1:] = [replace(event, worker=worker) for event in events[-1:]]
        else:
            if item.kind == MEET:
                worker = _stepped(rules, where, worker, item)
            events.append(_Event(slot, item, worker))
    _check_order(events)
    return events


def _started(rules: Rules, where: str, before: Worker, found: Worker) -> Worker:
    if found.pc == "close_read":
        expected = machine.start_closing(Worker(found.id))
    else:
        expected = machine.reenter(rules, before if before.pc == machine.MEMBER else Worker(""), found.id)
    if found != expected:
        raise RejectedError(f"{where}: expected the attempt to start as {expected}, found {found}")
    return found


def _check_outcome(where: str, worker: Worker, met: Met) -> None:
    expected = (worker.version, worker.rank, worker.world)
    found = (met.version, met.rank, met.world)
    if worker.pc != machine.MEMBER or expected != found:
        raise RejectedError(
            f"{where}: expected {worker.pc} with (version, rank, world size) {expected}, "
            f"found that next_rendezvous returned {found}"
        )


def asking(rules: Rules, worker: Worker, request: Request) -> tuple[str | None, Worker] | None:
    """The worker that wants this request, and the event of time that led it there, if one did; None: it never would."""
    options: list[tuple[str | None, Worker]] = [(None, worker)]
    if machine.owns_last_call(rules, worker):
        options.append(("LastCallOver", machine.last_call_over(worker)))
    late = machine.deadline(rules, worker)
    if late.pc not in machine.ENDED:
        options.append(("Deadline", late))
    return next((option for option in options if machine.want(rules, option[1]) == request), None)


def _stepped(rules: Rules, where: str, worker: Worker, record: Record) -> Worker:
    if worker.pc in machine.ENDED:
        raise RejectedError(f"{where}: expected no request, the worker is {worker.pc}; found {record.request}")
    found = asking(rules, worker, record.request)
    if found is None:
        wanted = machine.want(rules, worker)
        raise RejectedError(f"{where}: expected ({worker.pc}) {wanted}, found {record.request}")
    ready = found[1]
    if record.reply is None:
        return ready
    try:
        return machine.step(rules, ready, record.reply)
    except (AssertionError, ValueError) as error:
        raise RejectedError(
            f"{where}: expected a reply to {record.request}, found {record.reply} ({error or 'no possible reply'})"
        ) from error


def _check_order(events: list[_Event]) -> None:
    """One thread sees etcd move forward only; the keeper's renewals are another thread's."""
    before: _Event | None = None
    for event in events:
        if event.record.kind == LEASE or event.record.reply is None:
            continue
        if before is not None and event.place < before.place:
            raise RejectedError(
                f"{event.where}: expected an etcd index from {before.record.index} on, found {event.record.index}"
            )
        before = event


# --- all together -------------------------------------------------------------------------------------------------


def replay_store(rules: Rules, slots: int, events: list[_Event]) -> Replayed:
    """All workers' records on one model store. Raises RejectedError."""
    return _Replay(rules, slots).run(events)


class _Replay:
    def __init__(self, rules: Rules, slots: int) -> None:
        # A lease can be lost early: a machine under load is late now and then.
        self.config = Config(rules, slots, Budget(lost_leases=1))
        self.state = system.initial(self.config)._replace(left=Budget())
        self.lost: list[_Event] = []
        self.expiries = 0
        self.inferred = 0

    def run(self, events: list[_Event]) -> Replayed:
        self.lost = [e for e in events if e.record.reply is None and isinstance(e.record.request, etcd.WRITES)]
        answered = sorted((e for e in events if e.record.reply is not None), key=lambda event: event.place)
        written = 0
        for event in answered:
            if _writes(event.record):
                if event.record.index == written:
                    raise RejectedError(
                        f"{event.where}: expected a write with an index of its own, found index {written} again "
                        f"for {event.record.request}"
                    )
                written = event.record.index
            self._apply(event)
            self._judge(event)
        return Replayed(len(answered), self.expiries, self.inferred)

    def _apply(self, event: _Event) -> None:
        before = self.state
        request, found = event.record.request, event.record.reply
        assert found is not None
        store, reply = etcd.apply(self._seen_gone(before.store, request, found), request)
        if not _same(request, reply, found):
            store, reply = self._with_lost(before.store, request, found)
        if not _same(request, reply, found):
            raise RejectedError(
                f"{event.where}, etcd index {event.record.index}: expected {reply}, found {found} in reply to {request}"
            )
        workers = before.workers
        if event.record.kind == MEET or event.worker.pc == "crashed":
            workers = (*workers[: event.slot], event.worker, *workers[event.slot + 1 :])
        history = system.remember(self.config.rules, before.history, before.store, store)
        self.state = State(store, workers, before.left, history)

    def _seen_gone(self, store: Store, request: Request, found: Reply) -> Store:
        """The store after the expiries that the reply proves."""
        for key in _absent(store, request, found):
            node = store.get(key)
            if node is not None and node.ttl:
                store = etcd.expire(store, key)
                self.expiries += 1
        return store

    def _with_lost(self, store: Store, request: Request, found: Reply) -> tuple[Store, Reply]:
        """As if a write whose reply was lost had been carried out before; if no such write helps, without."""
        for event in self.lost:
            after, reply = etcd.apply(etcd.apply(store, event.record.request)[0], request)
            if _same(request, reply, found):
                self.lost.remove(event)
                self.inferred += 1
                return after, reply
        return etcd.apply(store, request)

    def _judge(self, event: _Event) -> None:
        for name, holds in INVARIANTS.items():
            if not holds(self.config, self.state):
                text = self.state.store.value(machine.active(self.config.rules))
                raise RejectedError(
                    f"{event.where}, etcd index {event.record.index}: expected {name} to hold, "
                    f"found {text} after {event.record.request}"
                )


def _absent(store: Store, request: Request, found: Reply) -> tuple[str, ...]:
    """The keys whose absence a reply proves."""
    match request, found:
        case etcd.Await(key=key), etcd.Snapshot(value=value, missing=missing):
            return (key, *missing) if value is None else missing
        case etcd.List(key=key), etcd.Listing(keys=keys):
            listed = etcd.apply(store, etcd.List(key))[1]
            return tuple(k for k in listed.keys if k not in keys) if isinstance(listed, etcd.Listing) else ()
        case etcd.Create(key=key), etcd.Done():
            return (key,)
        case (
            (etcd.Get() | etcd.Cas() | etcd.Cad() | etcd.Delete() | etcd.Refresh()),
            etcd.Failed(code=etcd.NOT_FOUND),
        ):
            return (request.key,)
    return ()


def _same(request: Request, reply: Reply, found: Reply) -> bool:
    """Equal replies, but for what is below a version's directory and is not the rendezvous's: store and extra data."""
    if isinstance(found, etcd.Listing):
        foreign = {f"{request.key}/kv", f"{request.key}/extra_data"}
        found = replace(found, keys=tuple(key for key in found.keys if key not in foreign))
    return reply == found
