"""The invariants as predicates over model states, under the names that TLA+, tests and reports use.

Each is judged on one state. ``INVARIANTS`` maps name -> predicate(config, state); the statement is its docstring.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import TypeAlias

from rallypoint.model import document as docs
from rallypoint.model import system
from rallypoint.model import worker as machine
from rallypoint.model.system import Config, State
from rallypoint.model.worker import Worker

Invariant: TypeAlias = Callable[[Config, State], bool]


def _members(state: State) -> list[Worker]:
    return [worker for worker in state.workers if worker.pc == machine.MEMBER]


def _keys(config: Config, state: State, version: int | None) -> tuple[str, ...]:
    below = machine.directory(config.rules, version) + "/"
    return tuple(key for key, _ in state.store.nodes if key.startswith(below))


def type_ok(config: Config, state: State) -> bool:
    """The document is one that the wire format allows, and every worker is at a line of its table."""
    text = state.store.value(machine.active(config.rules))
    if text is not None:
        try:
            docs.parse(text)
        except docs.BrokenDocumentError:
            return False
    return all(worker.pc in machine.TABLE or worker.pc in machine.ENDED for worker in state.workers)


def rank_unique(config: Config, state: State) -> bool:
    """No two members of one version share a rank."""
    held = [(worker.version, worker.rank) for worker in _members(state)]
    return len(held) == len(set(held))


def ranks_dense(config: Config, state: State) -> bool:
    """Ranks are 0 .. world size - 1."""
    return all(
        worker.rank is not None and worker.world is not None and 0 <= worker.rank < worker.world
        for worker in _members(state)
    )


def world_agree(config: Config, state: State) -> bool:
    """All members of a version report the same world size."""
    return all(a.world == b.world for a, b in combinations(_members(state), 2) if a.version == b.version)


def world_bounds(config: Config, state: State) -> bool:
    """min <= world size <= max."""
    for worker in _members(state):
        rules = system.rules_of(config, worker)
        if not rules.min_workers <= (worker.world or 0) <= rules.max_workers:
            return False
    return True


def final_all_confirmed(config: Config, state: State) -> bool:
    """A final document means that every participant has confirmed, once."""
    document = system.document(config.rules, state.store)
    if document is None or document.status != docs.FINAL:
        return True
    return docs.covered(document) and len(document.keep_alives or ()) == docs.size(document)


def one_live_version(config: Config, state: State) -> bool:
    """At most one version has members that believe in it; a member of any other is told when it asks."""
    members = _members(state)
    if len({worker.version for worker in members}) < 2:
        return True
    newest = max(worker.version or 0 for worker in members)
    text = state.store.value(machine.active(config.rules))
    return all(
        machine.standing(system.rules_of(config, worker), worker, text, _keys(config, state, worker.version)).waiting
        > 0
        for worker in members
        if worker.version != newest
    )


def version_never_reused(config: Config, state: State) -> bool:
    """A published version number is higher than every one published before."""
    return not state.history.reused


def closed_is_final(config: Config, state: State) -> bool:
    """Once closed, always closed."""
    document = system.document(config.rules, state.store)
    return not state.history.closed or (document is not None and document.status == docs.CLOSED)


def count_matches_waiters(config: Config, state: State) -> bool:
    """A member is told of no more waiting workers than there are (a dead one counts until its lease ran out)."""
    rules = config.rules
    document = system.document(rules, state.store)
    if document is None or document.status != docs.FINAL:
        return True
    keys = _keys(config, state, document.version)
    waiting = sum(worker.pc in WAITING and worker.version == document.version for worker in state.workers)
    unexpired = sum("/waiter_" in key for key in keys)
    return machine.waiting(rules, document, keys) <= max(waiting, unexpired)


WAITING = ("announce_read", "announce", "queue", "monitor_read", "alive", "monitor", "destroy")
"""Where a worker stands while it waits behind a running version."""


def told_if_room(config: Config, state: State) -> bool:
    """A member of ours that is told of waiting workers has room for one, or its version is over anyway."""
    document = system.document(config.rules, state.store)
    text = state.store.value(machine.active(config.rules))
    for worker in _members(state):
        rules = system.rules_of(config, worker)
        if document is None or document.version != worker.version or document.status != docs.FINAL:
            continue
        if config.theirs and system.slot_of(worker) in config.theirs:
            continue
        keys = _keys(config, state, document.version)
        void = any(key not in keys for key in document.keep_alives or ())
        told = machine.standing(rules, worker, text, keys).waiting > 0
        if told and not void and docs.size(document) >= rules.max_workers:
            return False
    return True


def one_slot_each(config: Config, state: State) -> bool:
    """An attempt to meet takes one slot at most: no more participants than attempts, no owner twice."""
    document = system.document(config.rules, state.store)
    if document is None:
        return True
    attempts = sum(int(worker.id.partition(".")[2] or 0) + 1 for worker in state.workers)
    owners = [owner for _, owner in document.owners or ()]
    return docs.size(document) <= attempts and len(owners) == len(set(owners))


def lease_kept(config: Config, state: State) -> bool:
    """Unless a lease was lost early, or all keys, a member's keep-alive is there."""
    if state.left.lost_leases < config.budget.lost_leases or state.left.lost_runs < config.budget.lost_runs:
        return True
    return all(
        state.store.get(machine.keep_alive(system.rules_of(config, worker), worker)) is not None
        for worker in _members(state)
    )


def no_fatal_race(config: Config, state: State) -> bool:
    """No worker gives up for a reason that is nobody's fault."""
    return all(worker.pc != "fatal" for worker in state.workers)


INVARIANTS: dict[str, Invariant] = {
    "TypeOK": type_ok,
    "RankUnique": rank_unique,
    "RanksDense": ranks_dense,
    "WorldAgree": world_agree,
    "WorldBounds": world_bounds,
    "FinalAllConfirmed": final_all_confirmed,
    "OneLiveVersion": one_live_version,
    "VersionNeverReused": version_never_reused,
    "ClosedIsFinal": closed_is_final,
    "CountMatchesWaiters": count_matches_waiters,
    "ToldIfRoom": told_if_room,
    "OneSlotEach": one_slot_each,
    "LeaseKept": lease_kept,
    "NoFatalRace": no_fatal_race,
}
"""In the order of the design: types, safety of ranks and worlds, versions, closing, waiting, races."""
