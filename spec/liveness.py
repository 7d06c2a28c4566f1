"""Liveness: what must come to pass, under the names that TLA+, tests and reports use, and the search for runs in which
it does not.

May live here: the properties, and the search for fair cycles. Must not live here: rules of the protocol, or which steps
are fair (``model/fair.py``).

A property says: whenever ``due`` holds, there comes a state in which it does not, or in which ``goal`` holds. It is
violated by a fair run that stays in states that are due and no goal: such a run ends in a strongly connected set of
them in which every fairness class is either taken, or somewhere cannot be taken.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from rallypoint.model import document as docs
from rallypoint.model import fair, system
from rallypoint.model import worker as machine
from rallypoint.model.explorer import Violation
from rallypoint.model.fair import told
from rallypoint.model.system import Config, State, Step
from rallypoint.model.worker import Worker

Predicate: TypeAlias = Callable[[Config, State], bool]
Node = TypeVar("Node", bound=Hashable)
Graph: TypeAlias = Mapping[Node, Sequence[tuple["int | None", Node]]]
"""Every state with its steps: the fairness class of each, and the state after it."""
Parents: TypeAlias = "dict[State, tuple[State, Step] | None]"


@dataclass(frozen=True, slots=True)
class Liveness:
    """``due`` leads to ``goal`` or to the end of ``due``."""

    name: str
    due: Predicate
    goal: Predicate = lambda config, state: False


@dataclass(frozen=True, slots=True)
class Verdict:
    """``obliged``: in how many of ``states`` the property is due (none: it says nothing); ``edges``, ``depth``: as for
    ``Exploration``. ``violation``: a shortest run into states that a fair run need not leave, None if there are none.
    """

    states: int
    edges: int
    depth: int
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


# -------------------------------------------------------------------------------------------------------- properties


def enough_try(config: Config, state: State) -> bool:
    """Somebody tries to meet, and with those that do or are members there are enough."""
    return (
        not _closed(config, state)
        and any(map(trying, state.workers))
        and sum(map(live, state.workers)) >= config.rules.min_workers
    )


def min_are_members(config: Config, state: State) -> bool:
    """Min workers or more are members of the version that the document names."""
    document = system.document(config.rules, state.store)
    if document is None or document.status != docs.FINAL:
        return False
    members = [worker for worker in state.workers if worker.pc == machine.MEMBER]
    return sum(worker.version == document.version for worker in members) >= config.rules.min_workers


def somebody_untold(config: Config, state: State) -> bool:
    """A member of an older version than the document's is not told."""
    document = system.document(config.rules, state.store)
    now = None if document is None else document.version
    return not _closed(config, state) and any(
        worker.pc == machine.MEMBER
        and (worker.version or 0) < state.history.published
        and worker.version != now
        and not told(config, state, worker)
        for worker in state.workers
    )


def dead_entry(config: Config, state: State) -> bool:
    """Somebody is alive, and a participant, a waiter that members count, or a leased key belongs to nobody."""
    if _closed(config, state) or not any(map(live, state.workers)):
        return False
    rules = config.rules
    held = system.held_keys(config, state.workers)
    if any(node.ttl and key != machine.active(rules) and key not in held for key, node in state.store.nodes):
        return True
    document = system.document(rules, state.store)
    if document is None or document.status == docs.SETUP:
        return False
    alive = [worker for worker in state.workers if live(worker)]
    owners, ids = dict(document.owners or ()), {worker.id for worker in alive}
    ranks = {worker.rank for worker in alive if worker.version == document.version}
    if any(owners[rank] not in ids if rank in owners else rank not in ranks for rank in document.participants or ()):
        return True
    if document.status != docs.FINAL:
        return False
    below = machine.directory(rules, document.version) + "/"
    keys = tuple(key for key, _ in state.store.nodes if key.startswith(below))
    waiting = sum(trying(worker) and worker.version == document.version and worker.rank is None for worker in alive)
    return machine.waiting(rules, document, keys) > waiting


EVENTUALLY_FINAL = Liveness("EventuallyFinal", enough_try, min_are_members)
"""Min workers that keep trying become members."""

EVENTUALLY_TOLD = Liveness("EventuallyTold", somebody_untold)
"""A superseded member learns it."""

EVENTUALLY_FREE = Liveness("EventuallyFree", dead_entry)
"""No dead entry stays for ever, while anybody is alive."""

CLOSED_ENDS = Liveness("ClosedEnds", _closed)
"""A closed run can be used again one day."""

LIVENESS = {it.name: it for it in (EVENTUALLY_FINAL, EVENTUALLY_TOLD, EVENTUALLY_FREE, CLOSED_ENDS)}


# ------------------------------------------------------------------------------------------------------------ search


def check(
    config: Config, properties: Iterable[Liveness], *, ttls: bool = True, max_states: int = 200_000
) -> dict[str, Verdict]:
    """Judge properties on the fair steps of ``config``, by name. Raises MemoryError beyond ``max_states``.

    Without ``ttls`` no TTL runs out: what comes to pass even so, nobody has to wait for one. Meant for runs in which
    nobody crashes.
    """
    parents: Parents = {system.initial(config): None}
    graph: dict[State, list[tuple[int | None, State]]] = {}
    queue = list(parents)
    for state in queue:
        graph[state] = []
        for owed, step in fair.steps(config, state, ttls=ttls):
            graph[state].append((owed, step.state))
            if step.state not in parents:
                parents[step.state] = (state, step)
                queue.append(step.state)
        if len(parents) > max_states:
            raise MemoryError(f"more than {max_states} states")
    return {liveness.name: _judge(config, liveness, graph, parents) for liveness in properties}


def _judge(config: Config, liveness: Liveness, graph: Graph[State], parents: Parents) -> Verdict:
    due = {state for state in graph if liveness.due(config, state)}
    stuck = fair_ends(graph, {state for state in due if not liveness.goal(config, state)})
    nearest = next((state for state in graph if state in stuck), None)
    edges = sum(map(len, graph.values()))
    violation = nearest and Violation(liveness.name, _run(nearest, parents))
    return Verdict(len(graph), edges, _depth(parents), len(due), violation)


def _depth(parents: Parents) -> int:
    """The levels of the search, whose order is that of ``parents``."""
    levels: dict[State, int] = {}
    for state, parent in parents.items():
        levels[state] = 1 if parent is None else levels[parent[0]] + 1
    return max(levels.values())


def fair_ends(graph: Graph[Node], region: set[Node]) -> set[Node]:
    """Those states of the region among which a fair run can stay for ever; one that ends stays where it is."""
    steps = {state: [step for step in graph[state] if step[1] != state] for state in region}  # else it is none
    inside = {state: [target for _, target in steps[state] if target in region] for state in region}
    return set().union(*(it for it in components(inside) if _is_fair(it, steps)))


def _is_fair(component: set[Node], graph: Graph[Node]) -> bool:
    """Each class of steps is taken inside the component, or is impossible in one of its states."""
    owed = {kind for state in component for kind, _ in graph[state]} - {None}
    taken = {kind for state in component for kind, target in graph[state] if target in component}
    return all(
        kind in taken or any(kind not in {other for other, _ in graph[state]} for state in component) for kind in owed
    )


def _run(state: State, parents: Parents) -> tuple[Step, ...]:
    run: list[Step] = []
    while (parent := parents[state]) is not None:
        state, step = parent
        run.append(step)
    return tuple(reversed(run))


def components(graph: Mapping[Node, Iterable[Node]]) -> list[set[Node]]:
    """The strongly connected sets (Tarjan's algorithm, without recursion)."""
    number: dict[Node, int] = {}
    low: dict[Node, int] = {}
    stack: list[Node] = []
    on_stack: set[Node] = set()
    found: list[set[Node]] = []
    for root in graph:
        if root in number:
            continue
        work = [(root, iter(graph[root]))]
        number[root] = low[root] = len(number)
        stack.append(root)
        on_stack.add(root)
        while work:
            node, targets = work[-1]
            target = next(targets, None)
            if target is None:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == number[node]:
                    at = stack.index(node)
                    found.append(set(stack[at:]))
                    on_stack.difference_update(stack[at:])
                    del stack[at:]
            elif target not in number:
                number[target] = low[target] = len(number)
                stack.append(target)
                on_stack.add(target)
                work.append((target, iter(graph[target])))
            elif target in on_stack:
                low[node] = min(low[node], number[target])
    return found
