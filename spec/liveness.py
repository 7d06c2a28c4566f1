"""Liveness as predicates over the explored graph, under the names that TLA+, tests and reports use.

May live here: what must be able to happen once faults stop, and the search for it. Must not live here: rules of the
protocol, or the search for reachable states (``model/explorer.py``).

**The form that is checked is reachability, AG EF**: from every reachable state, if no further fault happens, some
run of ordinary steps leads to the goal. Under fairness of the kind "what can happen again and again does happen" this
is the property itself; that *every* weakly fair run gets there is a stronger claim, and left to TLC.

Ordinary steps are those that no budget pays for, and two that happen by themselves once faults stop: the document's
TTL runs out if no live worker renews it, and a member that is told of waiting workers (``standing``) starts over, as
its agent does. Each may happen a few times (``Recovery``), which bounds the search: "holds" has a witness for every
state; "violated" means none within these bounds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from rallypoint.model import document as docs
from rallypoint.model import system
from rallypoint.model import worker as machine
from rallypoint.model.explorer import Code, Explorer, Violation
from rallypoint.model.system import Budget, Config, History, State
from rallypoint.model.worker import Worker

Predicate: TypeAlias = Callable[[Config, State], bool]

HELPED = ("ExpireDocument", "Rejoin")
WAITED_OUT = ("ExpireDocument", "ExpireKey")


@dataclass(frozen=True, slots=True)
class Recovery:
    """What may happen by itself on the way to a goal: document expiries, members that start over, TTLs at all."""

    expiries: int = 1
    rejoins: int = 3
    ttls_run_out: bool = True

    def budget(self) -> Budget:
        return Budget(expiries=self.expiries, rejoins=self.rejoins)


@dataclass(frozen=True, slots=True)
class Liveness:
    """``name``: every reachable state in which ``due`` holds can get to one in which ``goal`` holds."""

    name: str
    due: Predicate
    goal: Predicate
    recovery: Recovery = Recovery()


@dataclass(frozen=True, slots=True)
class Verdict:
    """``obliged``: in how many of ``states`` the property is due (none: it says nothing). ``violation``: the
    shortest run into a state without a way to the goal, None if there is no such state."""

    states: int
    obliged: int
    violation: Violation | None


# ------------------------------------------------------------------------------------------------------------- words


def trying(worker: Worker) -> bool:
    """The worker is on its way into a version: neither member nor ended, nor about to leave or to close."""
    closing = ("withdraw", "close_read", "close", "close_create")
    return worker.pc not in machine.ENDED and worker.pc not in closing


def live(worker: Worker) -> bool:
    return trying(worker) or worker.pc == machine.MEMBER


def _closed(config: Config, state: State) -> bool:
    document = system.document(config.rules, state.store)
    return document is not None and document.status == docs.CLOSED


def told(config: Config, state: State, worker: Worker) -> bool:
    """What ``num_nodes_waiting() > 0`` says to a member."""
    below = machine.directory(config.rules, worker.version) + "/"
    keys = tuple(key for key, _ in state.store.nodes if key.startswith(below))
    text = state.store.value(machine.active(config.rules))
    return machine.standing(config.rules, worker, text, keys).waiting > 0


# -------------------------------------------------------------------------------------------------------- properties


def enough_try(config: Config, state: State) -> bool:
    """Somebody tries to meet, and there are min workers that do or are members already."""
    return (
        not _closed(config, state)
        and any(map(trying, state.workers))
        and sum(map(live, state.workers)) >= config.rules.min_workers
    )


def min_are_members(config: Config, state: State) -> bool:
    """Min workers or more are members of the version that the document names."""
    if _closed(config, state):
        return True
    document = system.document(config.rules, state.store)
    if document is None or document.status != docs.FINAL:
        return False
    members = [worker for worker in state.workers if worker.pc == machine.MEMBER]
    return sum(worker.version == document.version for worker in members) >= config.rules.min_workers


def somebody_is_superseded(config: Config, state: State) -> bool:
    return not _closed(config, state) and any(
        worker.pc == machine.MEMBER and (worker.version or 0) < state.history.published for worker in state.workers
    )


def superseded_are_told(config: Config, state: State) -> bool:
    """Every member of another version than the document's has been told, or the run is closed."""
    document = system.document(config.rules, state.store)
    return _closed(config, state) or all(
        told(config, state, worker)
        for worker in state.workers
        if worker.pc == machine.MEMBER and (document is None or worker.version != document.version)
    )


def somebody_is_alive(config: Config, state: State) -> bool:
    return not _closed(config, state) and any(map(live, state.workers))


def no_dead_entry(config: Config, state: State) -> bool:
    """Every participant and every waiter that members count, and every leased key, belongs to a live worker."""
    rules = config.rules
    if any(_is_lease(key) and not _is_held(config, state, key) for key, _ in state.store.nodes):
        return False
    document = system.document(rules, state.store)
    if document is None or document.status in (docs.SETUP, docs.CLOSED):
        return True
    alive = [worker for worker in state.workers if live(worker)]
    if document.owners:
        ids = {worker.id for worker in alive}
        claimed = {rank for rank, owner in document.owners if owner in ids}
    else:
        claimed = {worker.rank for worker in alive if worker.version == document.version and worker.rank is not None}
    waiters = sum(trying(worker) and worker.version == document.version and worker.rank is None for worker in alive)
    below = machine.directory(rules, document.version) + "/"
    keys = tuple(key for key, _ in state.store.nodes if key.startswith(below))
    return len(claimed) == docs.size(document) and machine.waiting(rules, document, keys) <= waiters


def _is_lease(key: str) -> bool:
    return key.rpartition("/")[2].startswith(("rank_", "alive_", "waiter_"))


def _is_held(config: Config, state: State, key: str) -> bool:
    return any(key in system.leased(config.rules, worker) for worker in state.workers)


EVENTUALLY_FINAL = Liveness("EventuallyFinal", enough_try, min_are_members)
"""Min workers that keep trying become members."""

EVENTUALLY_TOLD = Liveness("EventuallyTold", somebody_is_superseded, superseded_are_told)
"""A superseded member learns it."""

EVENTUALLY_FREE = Liveness("EventuallyFree", somebody_is_alive, no_dead_entry)
"""No dead entry stays for ever, while anybody is alive."""

FINAL_WITHOUT_TTL = Liveness("FinalWithoutTtl", enough_try, min_are_members, Recovery(expiries=0, ttls_run_out=False))
"""EventuallyFinal although no TTL runs out: nobody has to wait for one. Meant for runs in which nobody crashes."""

LIVENESS = (EVENTUALLY_FINAL, EVENTUALLY_TOLD, EVENTUALLY_FREE, FINAL_WITHOUT_TTL)


# ------------------------------------------------------------------------------------------------------------ search


class _Recovering:
    """The graph of ordinary steps: an Explorer whose faults are spent, restricted to what happens by itself."""

    def __init__(self, config: Config, recovery: Recovery) -> None:
        self._config = config
        self._recovery = recovery
        self._explorer = Explorer(config)
        self._guarded: dict[Code, bool] = {}

    def start(self, state: State) -> Code:
        """The state as recovery sees it: without the past, and with no fault left but what helps."""
        return self._explorer.encode(state._replace(left=self._recovery.budget(), history=History()))

    def state(self, code: Code) -> State:
        return self._explorer.decode(code)

    def steps(self, code: Code) -> Iterator[Code]:
        for action, target in self._explorer.successors(code):
            if action in WAITED_OUT and not self._recovery.ttls_run_out:
                continue
            if action in HELPED and not self._by_itself(code, action, target):
                continue
            # The past is not part of the question, and forgetting it keeps the graph small.
            yield (*target[:2], code[2], *target[3:])

    def _by_itself(self, code: Code, action: str, target: Code) -> bool:
        state = self.state(code)
        if action == "Rejoin":
            slot = next(at for at in range(3, len(code)) if code[at] != target[at]) - 3
            return told(self._config, state, state.workers[slot])
        text = state.store.value(machine.active(self._config.rules))
        leases = (lease for worker in state.workers for lease in machine.leases(self._config.rules, worker))
        return not any(lease.guard is not None and lease.guard == text for lease in leases)


class _Search:
    """Which states of a recovery graph can reach a goal. Every answer is kept: a state on the way to a goal can
    reach it, and nothing that a state without a way leads to has one."""

    def __init__(self, graph: _Recovering, goal: Callable[[State], bool], max_states: int) -> None:
        self._graph = graph
        self._goal = goal
        self._max_states = max_states
        self._answers: dict[Code, bool] = {}

    def reaches(self, start: Code) -> bool:
        before: dict[Code, Code | None] = {start: None}
        queue = deque([start])
        while queue:
            code = queue.popleft()
            answer = self._answers.get(code)
            if answer or (answer is None and self._goal(self._graph.state(code))):
                return self._keep(code, before)
            if answer is not None:
                continue
            if len(before) > self._max_states:
                raise MemoryError(f"recovery has more than {self._max_states} states")
            for target in self._graph.steps(code):
                if target not in before:
                    before[target] = code
                    queue.append(target)
        self._answers.update(dict.fromkeys(before, False))
        return False

    def _keep(self, code: Code, before: dict[Code, Code | None]) -> bool:
        here: Code | None = code
        while here is not None:
            self._answers[here] = True
            here = before[here]
        return True


def check(config: Config, liveness: Liveness, *, max_states: int = 2_000_000) -> Verdict:
    """Judge one property on every reachable state of ``config``. MemoryError beyond ``max_states`` of recovery."""
    explorer, graph = Explorer(config), _Recovering(config, liveness.recovery)
    obliged: dict[Code, Code] = {}

    def note(_: Config, state: State) -> bool:
        if liveness.due(config, state):
            obliged[explorer.encode(state)] = graph.start(state)
        return True

    found = explorer.explore({"due": note})
    if not found.complete:
        raise MemoryError("not every reachable state was visited")
    search = _Search(graph, lambda state: liveness.goal(config, state), max_states)
    # The last states found are the nearest to the goals, and what is known of them answers for the earlier ones.
    lost = {code for code, start in reversed(obliged.items()) if not search.reaches(start)}
    if not lost:
        return Verdict(found.states, len(obliged), None)
    again = Explorer(config).explore(
        {liveness.name: lambda _, state: explorer.encode(state) not in lost}, stop_at_first=True
    )
    return Verdict(found.states, len(obliged), again.violations[liveness.name])
