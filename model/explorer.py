"""Breadth-first search over a system: counts, invariants, shortest counterexamples, the labelled graph.

May live here: searching. Must not live here: what a step is (``system.py``) or what must hold (``spec/``).

States are held as tuples of small integers: stores, workers, budgets and histories are interned, and what one worker
can do on one store is computed once. The plain relation ``system.steps`` is the definition; a test compares both.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Generic, TypeAlias, TypeVar

from rallypoint.model import etcd, system
from rallypoint.model.etcd import Store
from rallypoint.model.system import Budget, Config, History, State, Step
from rallypoint.model.worker import Worker

Check: TypeAlias = Callable[[Config, State], bool]
Code: TypeAlias = tuple[int, ...]
"""A state: (store, budget, history, worker, worker, ...), each the number of an interned value."""

T = TypeVar("T")


class Interner(Generic[T]):
    """Numbers for values: equal values get the same number, in the order of their first appearance."""

    def __init__(self) -> None:
        self.values: list[T] = []
        self._numbers: dict[T, int] = {}

    def number(self, value: T) -> int:
        found = self._numbers.get(value)
        if found is None:
            found = self._numbers[value] = len(self.values)
            self.values.append(value)
        return found


@dataclass(frozen=True)
class Violation:
    """An invariant that does not hold, and a shortest run that shows it: the steps after the initial state."""

    invariant: str
    run: tuple[Step, ...]


@dataclass
class Exploration:
    """What a search found. ``depth``: levels of the breadth-first search, the initial state being level 1.

    ``violations``: per violated invariant, the shortest run. ``complete``: every reachable state was visited.
    """

    states: int = 0
    edges: int = 0
    depth: int = 0
    complete: bool = False
    seconds: float = 0.0
    violations: dict[str, Violation] = field(default_factory=dict)
    actions: dict[str, int] = field(default_factory=dict)


class Explorer:
    """The state space of one configuration."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self._stores: Interner[Store] = Interner()
        self._workers: Interner[Worker] = Interner()
        self._budgets: Interner[Budget] = Interner()
        self._histories: Interner[History] = Interner()
        self._moves: dict[tuple[int, int], tuple[tuple[str, int, int, str | None], ...]] = {}
        self._payments: dict[tuple[int, str], int] = {}
        self._memories: dict[tuple[int, int, int], int] = {}
        self._leases: dict[int, frozenset[str]] = {}
        self._expiries: dict[int, tuple[tuple[str, int], ...]] = {}

    def encode(self, state: State) -> Code:
        return (
            self._stores.number(state.store),
            self._budgets.number(state.left),
            self._histories.number(state.history),
            *map(self._workers.number, state.workers),
        )

    def decode(self, code: Code) -> State:
        return State(
            self._stores.values[code[0]],
            tuple(self._workers.values[number] for number in code[3:]),
            self._budgets.values[code[1]],
            self._histories.values[code[2]],
        )

    def _moves_of(self, store: int, worker: int) -> tuple[tuple[str, int, int, str | None], ...]:
        found = self._moves.get((store, worker))
        if found is None:
            moves = system.moves(self.config.rules, self._stores.values[store], self._workers.values[worker])
            found = self._moves[store, worker] = tuple(
                (move.action, self._stores.number(move.store), self._workers.number(move.worker), move.cost)
                for move in moves
            )
        return found

    def _pay(self, budget: int, cost: str) -> int:
        """The number of the budget after paying, -1 if it is used up."""
        found = self._payments.get((budget, cost))
        if found is None:
            left = system.pay(self._budgets.values[budget], cost)
            found = self._payments[budget, cost] = -1 if left is None else self._budgets.number(left)
        return found

    def _remember(self, history: int, before: int, after: int) -> int:
        found = self._memories.get((history, before, after))
        if found is None:
            new = system.remember(
                self.config.rules,
                self._histories.values[history],
                self._stores.values[before],
                self._stores.values[after],
            )
            found = self._memories[history, before, after] = self._histories.number(new)
        return found

    def _leased(self, worker: int) -> frozenset[str]:
        found = self._leases.get(worker)
        if found is None:
            keys = frozenset(system.leased(self.config.rules, self._workers.values[worker]))
            found = self._leases[worker] = keys
        return found

    def _expire(self, store: int) -> tuple[tuple[str, int], ...]:
        found = self._expiries.get(store)
        if found is None:
            value = self._stores.values[store]
            found = self._expiries[store] = tuple(
                (key, self._stores.number(etcd.forget_indices(etcd.expire(value, key))))
                for key in system.expirable(value)
            )
        return found

    def successors(self, code: Code) -> Iterator[tuple[str, Code]]:
        """(action, state) for every transition, in the order of ``system.steps``."""
        store, budget, history = code[0], code[1], code[2]
        for at in range(3, len(code)):
            for action, after, worker, cost in self._moves_of(store, code[at]):
                left = budget if cost is None else self._pay(budget, cost)
                if left < 0:
                    continue
                memory = history if after == store else self._remember(history, store, after)
                yield action, (after, left, memory, *code[3:at], worker, *code[at + 1 :])
        for key, after in self._expire(store):
            held = any(key in self._leased(worker) for worker in code[3:])
            action, cost = system.expiry(self.config.rules, key, held)
            left = budget if cost is None else self._pay(budget, cost)
            if left >= 0:
                yield action, (after, left, history, *code[3:])

    def explore(
        self,
        invariants: Mapping[str, Check] | None = None,
        *,
        stop_at_first: bool = False,
        max_states: int = 5_000_000,
        on_edge: Callable[[Code, str, Code], None] | None = None,
        on_progress: Callable[[int], None] | None = None,
    ) -> Exploration:
        """Visit every reachable state, breadth first.

        ``on_edge(source, action, target)`` sees every transition; ``on_progress(states)`` is called now and then.
        More than ``max_states`` states end the search with ``complete`` False.
        """
        started = time.perf_counter()
        found = Exploration()
        start = self.encode(system.initial(self.config))
        parents: dict[Code, tuple[Code, str] | None] = {start: None}
        queue = deque([(start, 1)])
        open_checks = dict(invariants or {})
        while queue:
            code, level = queue.popleft()
            found.depth = level
            if open_checks and not self._check(code, open_checks, parents, found) and stop_at_first:
                break
            for action, target in self.successors(code):
                found.edges += 1
                found.actions[action] = found.actions.get(action, 0) + 1
                if on_edge is not None:
                    on_edge(code, action, target)
                if target not in parents:
                    parents[target] = (code, action)
                    queue.append((target, level + 1))
            if len(parents) > max_states:
                break
            if on_progress is not None and len(parents) % 1024 == 0:
                on_progress(len(parents))
        else:
            found.complete = True
        found.states = len(parents)
        found.seconds = time.perf_counter() - started
        return found

    def _check(
        self,
        code: Code,
        open_checks: dict[str, Check],
        parents: dict[Code, tuple[Code, str] | None],
        found: Exploration,
    ) -> bool:
        state = self.decode(code)
        broken = [name for name, check in open_checks.items() if not check(self.config, state)]
        for name in broken:
            del open_checks[name]
            found.violations[name] = Violation(name, self._run(code, parents))
        return not broken

    def _run(self, code: Code, parents: Mapping[Code, tuple[Code, str] | None]) -> tuple[Step, ...]:
        """The steps from the initial state to ``code``, with their requests and replies."""
        codes = [code]
        while (parent := parents[codes[-1]]) is not None:
            codes.append(parent[0])
        codes.reverse()
        run = []
        for before, after in pairwise(codes):
            target = self.decode(after)
            run.append(next(step for step in system.steps(self.config, self.decode(before)) if step.state == target))
        return tuple(run)
