"""What must be violated: predicates that say of a state which the checks are about that it is never reached.

Each is TLA+'s of the same name; where it holds, the invariants around that state say nothing. Judged on one state.
"""

from __future__ import annotations

from collections.abc import Callable

from rallypoint.model import document as docs
from rallypoint.model import system
from rallypoint.model import worker as machine
from rallypoint.model.document import Document
from rallypoint.model.system import Config, State
from rallypoint.spec.invariants import Invariant

CLOSING = ("close_read", "close", "close_create")


def _never_at(pc: str) -> Invariant:
    return lambda config, state: all(worker.pc != pc for worker in state.workers)


def _never_document(reached: Callable[[Config, State, Document], bool]) -> Invariant:
    def holds(config: Config, state: State) -> bool:
        document = system.document(config.rules, state.store)
        return document is None or not reached(config, state, document)

    return holds


def _counted(config: Config, state: State, document: Document) -> bool:
    below = machine.directory(config.rules, document.version) + "/"
    keys = tuple(key for key, _ in state.store.nodes if key.startswith(below))
    return document.status == docs.FINAL and machine.waiting(config.rules, document, keys) > 0


def _found_own_slot(config: Config, state: State, document: Document) -> bool:
    reading = [worker for worker in state.workers if worker.pc == "read"]
    return any(docs.rank_of(document, worker.id) is not None for worker in reading)


def _reopened(config: Config, state: State, document: Document) -> bool:
    over = state.left.closes < config.budget.closes and all(worker.pc not in CLOSING for worker in state.workers)
    return over and not state.history.closed and document.status == docs.JOINABLE


def _never_two_versions(config: Config, state: State) -> bool:
    return len({worker.version for worker in state.workers if worker.pc == machine.MEMBER}) < 2


def _never_overtaken(config: Config, state: State) -> bool:
    count = state.store.value(machine.counter(config.rules))
    return all(worker.pc != "publish" or count == str(worker.version) for worker in state.workers)


def _never_addressed(config: Config, state: State) -> bool:
    return not any(key.endswith("/address") for key, _ in state.store.nodes)


NEVER: dict[str, Invariant] = {
    "NeverFinal": _never_document(lambda config, state, document: document.status == docs.FINAL),
    "NeverLastCall": _never_at("freeze"),
    "NeverWaiting": _never_at("monitor"),
    "NeverCounted": _never_document(_counted),
    "NeverVoid": _never_at("destroy"),
    "NeverTwoVersions": _never_two_versions,
    "NeverOvertaken": _never_overtaken,
    "NeverFoundOwnSlot": _never_document(_found_own_slot),
    "NeverWithdrawing": _never_at("withdraw"),
    "NeverMismatch": _never_at("mismatch"),
    "NeverMixed": lambda config, state: not any(worker.mixed for worker in state.workers),
    "NeverReopened": _never_document(_reopened),
    "NeverAddressed": _never_addressed,
}
