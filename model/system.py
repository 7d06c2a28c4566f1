"""Store, workers and faults as one labelled transition relation.

May live here: which steps exist and what each costs. Must not live here: what a worker decides (``worker.py``), what
etcd answers (``etcd.py``), or how states are searched (``explorer.py``).

A worker's step is atomic at its request: etcd applies it and the worker sees the reply. A lost reply is the same
request applied with the worker left where it is, so that it repeats the request: that is what an HTTP layer does.
Every fault has a budget, so the relation is finite.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from rallypoint.model import document as docs
from rallypoint.model import etcd
from rallypoint.model import worker as machine
from rallypoint.model.etcd import Reply, Request, Store
from rallypoint.model.rules import Rules
from rallypoint.model.worker import Worker


@dataclass(frozen=True, slots=True)
class Budget:
    """How many of each fault or free choice a run may contain."""

    crashes: int = 0
    restarts: int = 0
    lost_replies: int = 0
    expiries: int = 0
    lost_leases: int = 0
    rejoins: int = 0
    closes: int = 0
    deadlines: int = 0
    early_wakes: int = 0
    outages: int = 0
    lost_runs: int = 0


@dataclass(frozen=True, slots=True)
class Config:
    """One bounded system: its rules, how many workers, and the faults that may happen.

    ``theirs``: the slots of workers that follow PyTorch's rules whatever ``rules`` says (a mixed group). ``others``:
    the slots of workers that were started with ``other_bounds`` (min, max).
    """

    rules: Rules
    workers: int
    budget: Budget
    theirs: tuple[int, ...] = ()
    others: tuple[int, ...] = ()
    other_bounds: tuple[int, int] = (1, 1)


def slot_of(worker: Worker) -> int:
    return int(worker.id.partition(".")[0])


def rules_of(config: Config, worker: Worker) -> Rules:
    """The rules that this worker follows."""
    if not config.theirs and not config.others:
        return config.rules
    rules, slot = config.rules, slot_of(worker)
    if slot in config.others:
        lowest, highest = config.other_bounds
        rules = replace(rules, min_workers=lowest, max_workers=highest)
    return machine.upstream(rules) if slot in config.theirs else rules


@dataclass(frozen=True, slots=True)
class History:
    """What must be remembered to state the requirements: the highest version published, and two things that must
    not have happened before they may be said of the present."""

    published: int = 0
    reused: bool = False
    closed: bool = False


class State(NamedTuple):
    store: Store
    workers: tuple[Worker, ...]
    left: Budget
    history: History


class Move(NamedTuple):
    """A step of one worker. ``cost`` names the budget that it draws on. ``request`` None: an event, no request."""

    action: str
    store: Store
    worker: Worker
    cost: str | None = None
    request: Request | None = None
    reply: Reply | None = None


class Event(NamedTuple):
    """A step of the environment, which no worker takes. ``cost`` as for ``Move``; ``key``: what it happens to."""

    action: str
    store: Store
    cost: str | None
    key: str | None


class Step(NamedTuple):
    """A labelled transition: who (slot number, None for the clock), what, and the state after it."""

    action: str
    slot: int | None
    state: State
    request: Request | None = None
    reply: Reply | None = None
    key: str | None = None


def initial(config: Config) -> State:
    """An empty etcd."""
    names = (Worker(f"{slot}.0") for slot in range(config.workers))
    workers = tuple(machine.fresh(rules_of(config, worker), worker.id) for worker in names)
    return State(Store(), workers, config.budget, History())


def next_id(worker: Worker) -> str:
    """The id of the next incarnation in the same slot."""
    slot, incarnation = worker.id.split(".")
    return f"{slot}.{int(incarnation) + 1}"


BETWEEN = ("init", "leave", "withdraw", "close_read", "close", "close_create")
"""Lines that are not part of the wait for a rendezvous."""


def moves(config: Config, store: Store, worker: Worker) -> tuple[Move, ...]:
    """All steps of one worker on this store, whatever the budget."""
    rules = rules_of(config, worker)
    if worker.pc == "crashed":
        return (Move("Restart", store, machine.fresh(rules, next_id(worker)), "restarts"),)
    found: list[Move] = []
    if worker.pc == machine.MEMBER:
        found.append(Move("Rejoin", store, machine.reenter(rules, worker, next_id(worker)), "rejoins"))
        noticed = machine.notice(rules, worker, store.value(machine.active(rules)))
        if noticed != worker:
            found.append(Move("SeeClosed", store, noticed))
    elif worker.pc in machine.ENDED:
        return ()
    else:
        found.extend(_requests(rules, store, worker))
        if machine.owns_last_call(rules, worker):
            found.append(Move("LastCallOver", store, machine.last_call_over(worker)))
        if machine.awaits_others(worker):
            found.append(Move("OthersStay", store, machine.others_stay(worker)))
        if worker.pc not in BETWEEN:
            found.append(Move("Deadline", store, machine.deadline(rules, worker), "deadlines"))
    if worker.pc in (machine.MEMBER, "create"):
        found.append(Move("StartClosing", store, machine.start_closing(worker), "closes"))
    if worker.pc not in BETWEEN:
        alone = machine.cut_off(rules, worker)
        if alone != worker:
            found.append(Move("Outage", store, alone, "outages"))
    found.append(Move("Crash", store, machine.crash(worker), "crashes"))
    return tuple(found)


def _requests(rules: Rules, store: Store, worker: Worker) -> Iterator[Move]:
    request = machine.want(rules, worker)
    after, reply = etcd.apply(store, request)
    if not etcd.enabled(store, request):
        woken = machine.step(rules, worker, reply)
        if woken != worker:
            yield Move("WakeEarly", store, woken, "early_wakes", request, reply)
        return
    after = _forget(rules, store, after)
    action = machine.TABLE[worker.pc].action
    yield Move(action, after, machine.step(rules, worker, reply), None, request, reply)
    if isinstance(request, etcd.WRITES) and after != store:
        yield Move("LoseReply", after, worker, "lost_replies", request, reply)


def _forget(rules: Rules, before: Store, after: Store) -> Store:
    """The store without indices, but for one thing that is known of etcd's: it is never below a version number."""
    count = int(after.value(machine.counter(rules)) or 0)
    return etcd.forget_indices(after, max(before.index, count))


def leased(config: Config, worker: Worker) -> tuple[str, ...]:
    """The keys that do not expire unless a lease is lost early: leased ones, and one that was written just now."""
    rules = rules_of(config, worker)
    if worker.pc == "confirm" and worker.lease is None:
        return (machine.keep_alive(rules, worker),)
    return tuple(lease.key for lease in machine.leases(rules, worker) if lease.guard is None)


def held_keys(config: Config, workers: Iterable[Worker]) -> frozenset[str]:
    """The keys that some worker keeps alive."""
    return frozenset(key for worker in workers for key in leased(config, worker))


def environment(rules: Rules, store: Store, held: frozenset[str]) -> tuple[Event, ...]:
    """All steps that no worker takes on this store, whatever the budget. ``held``: what ``held_keys`` says."""
    found = []
    for key, node in store.nodes:
        if not node.ttl:
            continue
        after = _forget(rules, store, etcd.expire(store, key))
        if key == machine.active(rules):
            found.append(Event("ExpireDocument", after, "expiries", key))
        elif key in held:
            found.append(Event("LoseLease", after, "lost_leases", key))
        else:
            found.append(Event("ExpireKey", after, None, key))
    if store.nodes:
        found.append(Event("LoseRun", Store((), store.index), "lost_runs", None))
    return tuple(found)


def document(rules: Rules, store: Store) -> docs.Document | None:
    text = store.value(machine.active(rules))
    return None if text is None else docs.parse(text)


def remember(rules: Rules, history: History, before: Store, after: Store) -> History:
    """The history after the document changed."""
    old, new = document(rules, before), document(rules, after)
    if new == old:
        return history
    if new is None:
        mark = before.get(machine.active(rules))
        ran_out = mark is not None and mark.ttl and old is not None and old.status == docs.CLOSED
        return replace(history, closed=False) if ran_out else history
    if new.status == docs.CLOSED:
        return replace(history, closed=True)
    if new.status == docs.JOINABLE and not new.participants:
        assert new.version is not None
        return replace(
            history,
            published=max(history.published, new.version),
            reused=history.reused or new.version <= history.published,
        )
    return history


def pay(left: Budget, cost: str | None) -> Budget | None:
    """The budget after a step, None if it is used up."""
    if cost is None:
        return left
    have: int = getattr(left, cost)
    return replace(left, **{cost: have - 1}) if have else None


def steps(config: Config, state: State) -> Iterator[Step]:
    """All transitions from ``state``: the definition, in plain values. The explorer computes the same faster."""
    rules = config.rules
    for slot, worker in enumerate(state.workers):
        for move in moves(config, state.store, worker):
            left = pay(state.left, move.cost)
            if left is not None:
                workers = (*state.workers[:slot], move.worker, *state.workers[slot + 1 :])
                history = remember(rules, state.history, state.store, move.store)
                after = State(move.store, workers, left, history)
                yield Step(move.action, slot, after, move.request, move.reply)
    for event in environment(rules, state.store, held_keys(config, state.workers)):
        left = pay(state.left, event.cost)
        if left is not None:
            history = remember(rules, state.history, state.store, event.store)
            after = State(event.store, state.workers, left, history)
            yield Step(event.action, None, after, key=event.key)
