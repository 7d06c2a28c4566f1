"""Store, workers and faults as one labelled transition relation.

May live here: which steps exist and what each costs. Must not live here: what a worker decides (``worker.py``), what
etcd answers (``etcd.py``), or how states are searched (``explorer.py``).

A worker's step is atomic at its request: etcd applies it and the worker sees the reply. A lost reply is the same
request applied with the worker left where it is, so that it repeats the request: that is what an HTTP layer does.
Every fault has a budget, so the relation is finite.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from rallypoint.model import document as docs
from rallypoint.model import etcd
from rallypoint.model import worker as machine
from rallypoint.model.etcd import Reply, Request, Store
from rallypoint.model.worker import Rules, Worker


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


@dataclass(frozen=True, slots=True)
class Config:
    """One bounded system: its rules, how many workers, and the faults that may happen."""

    rules: Rules
    workers: int
    budget: Budget


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


class Step(NamedTuple):
    """A labelled transition: who (slot number, None for the clock), what, and the state after it."""

    action: str
    slot: int | None
    state: State
    request: Request | None = None
    reply: Reply | None = None
    key: str | None = None


def initial(config: Config) -> State:
    """An empty run: only the version counter, as every handler's constructor leaves it."""
    store, _ = etcd.apply(Store(), etcd.Create(machine.counter(config.rules), "0"))
    workers = tuple(Worker(f"{slot}.0") for slot in range(config.workers))
    return State(etcd.forget_indices(store), workers, config.budget, History())


def next_id(worker: Worker) -> str:
    """The id of the next incarnation in the same slot."""
    slot, incarnation = worker.id.split(".")
    return f"{slot}.{int(incarnation) + 1}"


BETWEEN = ("leave", "withdraw", "close_read", "close", "close_create")


def moves(rules: Rules, store: Store, worker: Worker) -> tuple[Move, ...]:
    """All steps of one worker on this store, whatever the budget."""
    if worker.pc == "crashed":
        return (Move("Restart", store, Worker(next_id(worker)), "restarts"),)
    found: list[Move] = []
    if worker.pc == machine.MEMBER:
        found.append(Move("Rejoin", store, machine.reenter(rules, worker, next_id(worker)), "rejoins"))
    elif worker.pc in machine.ENDED:
        return ()
    else:
        found.extend(_requests(rules, store, worker))
        if machine.owns_last_call(rules, worker):
            found.append(Move("LastCallOver", store, machine.last_call_over(worker)))
        if worker.pc not in BETWEEN:
            found.append(Move("Deadline", store, machine.deadline(rules, worker), "deadlines"))
    if worker.pc in (machine.MEMBER, "create"):
        found.append(Move("StartClosing", store, machine.start_closing(worker), "closes"))
    found.append(Move("Crash", store, machine.crash(worker), "crashes"))
    return tuple(found)


def _requests(rules: Rules, store: Store, worker: Worker) -> Iterator[Move]:
    request = machine.want(rules, worker)
    if not etcd.enabled(store, request):
        return
    after, reply = etcd.apply(store, request)
    after = etcd.forget_indices(after)
    action = machine.TABLE[worker.pc].action
    yield Move(action, after, machine.step(rules, worker, reply), None, request, reply)
    if isinstance(request, etcd.WRITES) and after != store:
        yield Move("LoseReply", after, worker, "lost_replies", request, reply)


def leased(rules: Rules, worker: Worker) -> tuple[str, ...]:
    """The keys that do not expire unless a lease is lost early: leased ones, and one that was written just now."""
    if worker.pc == "confirm" and worker.lease is None:
        return (machine.keep_alive(rules, worker),)
    return tuple(lease.key for lease in machine.leases(rules, worker) if lease.guard is None)


def expirable(store: Store) -> tuple[str, ...]:
    return tuple(key for key, node in store.nodes if node.ttl)


def expiry(rules: Rules, key: str, held: bool) -> tuple[str, str | None]:
    """Action and cost of the expiry of ``key``; ``held``: a live worker keeps it alive."""
    if key == machine.active(rules):
        return "ExpireDocument", "expiries"
    return ("LoseLease", "lost_leases") if held else ("ExpireKey", None)


def document(rules: Rules, store: Store) -> docs.Document | None:
    text = store.value(machine.active(rules))
    return None if text is None else docs.parse(text)


def remember(rules: Rules, history: History, before: Store, after: Store) -> History:
    """The history after the document changed."""
    new = document(rules, after)
    if new is None or new == document(rules, before):
        return history
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
        for move in moves(rules, state.store, worker):
            left = pay(state.left, move.cost)
            if left is not None:
                workers = (*state.workers[:slot], move.worker, *state.workers[slot + 1 :])
                history = remember(rules, state.history, state.store, move.store)
                after = State(move.store, workers, left, history)
                yield Step(move.action, slot, after, move.request, move.reply)
    held = {key for worker in state.workers for key in leased(rules, worker)}
    for key in expirable(state.store):
        action, cost = expiry(rules, key, key in held)
        left = pay(state.left, cost)
        if left is not None:
            store = etcd.forget_indices(etcd.expire(state.store, key))
            yield Step(action, None, state._replace(store=store, left=left), key=key)
