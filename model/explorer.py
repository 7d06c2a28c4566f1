"""Breadth-first search over a system: counts, invariants, shortest counterexamples, the labelled graph.

May live here: searching. Must not live here: what a step is (``system.py``) or what must hold (``spec/``).

A state is held as one integer, and a step is the addition of another. What a worker can do depends on itself and on
the world around it (store, budget, history), so it is computed once for each such pair, as numbers to add; likewise
for the environment, which depends on the world and on the keys that are held. The plain relation ``system.steps`` is
the definition; a test compares both.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from rallypoint.model import system
from rallypoint.model.etcd import Store
from rallypoint.model.system import Budget, Config, History, State, Step
from rallypoint.model.worker import Worker

Check: TypeAlias = Callable[[Config, State], bool]

Code: TypeAlias = int
"""A state: fields of ``WIDTH`` bits, the number of the world lowest, then one field for each worker.

A worker's field holds the number of its value and, from ``HELD_AT`` on, the number of the tuple of keys it holds.
"""

WIDTH = 37
"""Python hashes an integer modulo 2**61 - 1. Fields at multiples of 37 bits come to lie side by side there, so that
states with small numbers hardly ever share a hash."""
HELD_AT = 24

FIELD = (1 << WIDTH) - 1
WORKER = (1 << HELD_AT) - 1
HELD = FIELD >> HELD_AT

PROGRESS_EVERY = 4096  # visited states

T = TypeVar("T")


@contextmanager
def collector_off() -> Iterator[None]:
    """A search makes no reference cycles, and the collector would walk through all states again and again."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class Interner(Generic[T]):
    """Numbers for values: equal values get the same number, in the order of their first appearance."""

    def __init__(self, highest: int = FIELD) -> None:
        self.values: list[T] = []
        self._numbers: dict[T, int] = {}
        self._highest = highest

    def number(self, value: T) -> int:
        """The value's number. MemoryError if it does not fit into its field."""
        found = self._numbers.get(value)
        if found is None:
            found = len(self.values)
            if found > self._highest:
                raise MemoryError(f"more than {self._highest} different {type(value).__name__} values")
            self._numbers[value] = found
            self.values.append(value)
        return found


@dataclass(frozen=True)
class Violation:
    """An invariant that does not hold, and a run that shows it: the steps after the initial state."""

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


class _World(NamedTuple):
    """What surrounds the workers, as the numbers of interned values."""

    store: int
    budget: int
    history: int


class _Effect(NamedTuple):
    """What one step does, whatever the budget: its name, its cost, the store and the worker's field after it."""

    action: str
    cost: str | None
    store: int
    worker: int = 0


class _Moves:
    """The steps of one worker, or of the environment, in one world: their names, and the numbers to add.

    ``taken``: how many visited states have them.
    """

    __slots__ = ("actions", "deltas", "taken")

    def __init__(self, actions: tuple[str, ...], deltas: tuple[int, ...]) -> None:
        self.actions = actions
        self.deltas = deltas
        self.taken = 0


class _Part(NamedTuple):
    """A worker or the environment: the bits of a state on which its steps depend, and the steps by these bits."""

    mask: int
    compute: Callable[[Code], _Moves]
    known: dict[int, _Moves]

    def moves(self, code: Code) -> _Moves:
        found = self.known.get(code & self.mask)
        if found is None:
            found = self.known[code & self.mask] = self.compute(code)
        return found


class Explorer:
    """The state space of one configuration."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self._stores: Interner[Store] = Interner()
        self._budgets: Interner[Budget] = Interner()
        self._histories: Interner[History] = Interner()
        self._worlds: Interner[_World] = Interner()
        self._workers: Interner[Worker] = Interner(WORKER)
        self._held: Interner[tuple[str, ...]] = Interner(HELD)
        self._fields: dict[Worker, int] = {}
        self._worlds_after: dict[tuple[int, int, str | None], int] = {}
        self._worker_effects: dict[tuple[int, int], tuple[_Effect, ...]] = {}
        self._event_effects: dict[tuple[int, frozenset[str]], tuple[_Effect, ...]] = {}
        self._shifts = tuple(WIDTH * (slot + 1) for slot in range(config.workers))
        held = sum(HELD << shift + HELD_AT for shift in self._shifts)
        self._parts = (
            *(_Part(FIELD | FIELD << shift, self._mover(shift), {}) for shift in self._shifts),
            _Part(FIELD | held, self._events, {}),
        )

    # --- states ---------------------------------------------------------------------------------------------------

    def encode(self, state: State) -> Code:
        world = _World(
            self._stores.number(state.store),
            self._budgets.number(state.left),
            self._histories.number(state.history),
        )
        workers = zip(self._shifts, state.workers, strict=True)
        return self._worlds.number(world) + sum(self._field(worker) << shift for shift, worker in workers)

    def decode(self, code: Code) -> State:
        world = self._worlds.values[code & FIELD]
        return State(
            self._stores.values[world.store],
            tuple([self._workers.values[code >> shift & WORKER] for shift in self._shifts]),
            self._budgets.values[world.budget],
            self._histories.values[world.history],
        )

    def _field(self, worker: Worker) -> int:
        found = self._fields.get(worker)
        if found is None:
            held = self._held.number(system.leased(self.config, worker))
            found = self._fields[worker] = held << HELD_AT | self._workers.number(worker)
        return found

    # --- steps ----------------------------------------------------------------------------------------------------

    def _mover(self, shift: int) -> Callable[[Code], _Moves]:
        """The function that computes the steps of the worker whose field is at ``shift``."""

        def moves(code: Code) -> _Moves:
            world, worker = code & FIELD, code >> shift & FIELD
            effects = self._effects_of_worker(self._worlds.values[world].store, worker & WORKER)
            return self._payable(world, effects, worker, shift)

        return moves

    def _events(self, code: Code) -> _Moves:
        """The steps of the environment."""
        world = code & FIELD
        held = (self._held.values[code >> shift + HELD_AT & HELD] for shift in self._shifts)
        effects = self._effects_of_events(self._worlds.values[world].store, frozenset().union(*held))
        return self._payable(world, effects)

    def _payable(self, world: int, effects: Sequence[_Effect], worker: int = 0, shift: int = 0) -> _Moves:
        """Those steps for which the budget of this world is enough; ``worker``: the field before them, at ``shift``."""
        actions, deltas = [], []
        for action, cost, store, field_after in effects:
            after = self._world_after(world, store, cost)
            if after >= 0:
                actions.append(action)
                deltas.append(after - world + (field_after - worker << shift))
        return _Moves(tuple(actions), tuple(deltas))

    def _effects_of_worker(self, store: int, worker: int) -> tuple[_Effect, ...]:
        found = self._worker_effects.get((store, worker))
        if found is None:
            before = self._stores.values[store]
            found = self._worker_effects[store, worker] = tuple(
                _Effect(
                    move.action,
                    move.cost,
                    store if move.store is before else self._stores.number(move.store),  # a store's hash takes long
                    self._field(move.worker),
                )
                for move in system.moves(self.config, before, self._workers.values[worker])
            )
        return found

    def _effects_of_events(self, store: int, held: frozenset[str]) -> tuple[_Effect, ...]:
        found = self._event_effects.get((store, held))
        if found is None:
            events = system.environment(self.config.rules, self._stores.values[store], held)
            found = self._event_effects[store, held] = tuple(
                _Effect(event.action, event.cost, self._stores.number(event.store)) for event in events
            )
        return found

    def _world_after(self, world: int, store: int, cost: str | None) -> int:
        """The number of the world after a step, -1 if the budget for it is used up."""
        found = self._worlds_after.get((world, store, cost))
        if found is None:
            before = self._worlds.values[world]
            left = system.pay(self._budgets.values[before.budget], cost)
            if left is None:
                found = -1
            else:
                history = self._history_after(before, store)
                found = self._worlds.number(_World(store, self._budgets.number(left), history))
            self._worlds_after[world, store, cost] = found
        return found

    def _history_after(self, before: _World, store: int) -> int:
        if store == before.store:
            return before.history
        old, new = self._stores.values[before.store], self._stores.values[store]
        history = system.remember(self.config.rules, self._histories.values[before.history], old, new)
        return self._histories.number(history)

    def successors(self, code: Code) -> Iterator[tuple[str, Code]]:
        """(action, state) for every transition, in the order of ``system.steps``."""
        for part in self._parts:
            moves = part.moves(code)
            for action, delta in zip(moves.actions, moves.deltas, strict=True):
                yield action, code + delta

    # --- search ---------------------------------------------------------------------------------------------------

    @collector_off()
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
        More than ``max_states`` states, or more than fit into memory, end the search with ``complete`` False.
        """
        started = time.perf_counter()
        found = Exploration(complete=True)
        unbroken = dict(invariants or {})
        for moves in self._known_moves():
            moves.taken = 0
        parents: dict[Code, Code | None] = {self.encode(system.initial(self.config)): None}
        try:
            for visited, (depth, code) in enumerate(self._breadth_first(parents)):
                if len(parents) > max_states:
                    found.complete = False
                    break
                found.depth = depth
                if unbroken:
                    broken = broken_by(self.config, self.decode(code), unbroken)
                    for name in broken:
                        found.violations[name] = Violation(name, self.run(_path(code, parents)))
                    if broken and stop_at_first:
                        found.complete = False
                        break
                if on_edge is not None:
                    for action, target in self.successors(code):
                        on_edge(code, action, target)
                if on_progress is not None and visited % PROGRESS_EVERY == 0:
                    on_progress(len(parents))
        except MemoryError:
            found.complete = False
        found.states = len(parents)
        for moves in self._known_moves():
            found.edges += moves.taken * len(moves.deltas)
            for action in moves.actions if moves.taken else ():
                found.actions[action] = found.actions.get(action, 0) + moves.taken
        found.seconds = time.perf_counter() - started
        return found

    def _breadth_first(self, parents: dict[Code, Code | None]) -> Iterator[tuple[int, Code]]:
        """Every state that can be reached from those in ``parents``, with its level; its steps are taken after it."""
        depth, level = 1, list(parents)
        while level:
            below: list[Code] = []
            for code in level:
                yield depth, code
                for mask, compute, known in self._parts:  # part.moves(code), written out: this is the inner loop
                    moves = known.get(code & mask)
                    if moves is None:
                        moves = known[code & mask] = compute(code)
                    moves.taken += 1
                    for delta in moves.deltas:
                        target = code + delta
                        if target not in parents:
                            parents[target] = code
                            below.append(target)
            depth, level = depth + 1, below

    def _known_moves(self) -> Iterator[_Moves]:
        return (moves for part in self._parts for moves in part.known.values())

    def run(self, path: Sequence[Code]) -> tuple[Step, ...]:
        """The steps along a path of states, with their requests and replies."""
        states = map(self.decode, path)
        return tuple(
            next(step for step in system.steps(self.config, before) if step.state == after)
            for before, after in pairwise(states)
        )


def broken_by(config: Config, state: State, unbroken: dict[str, Check]) -> list[str]:
    """The invariants that do not hold in this state; they are removed from ``unbroken``."""
    broken = [name for name, check in unbroken.items() if not check(config, state)]
    for name in broken:
        del unbroken[name]
    return broken


def _path(code: Code, parents: Mapping[Code, Code | None]) -> list[Code]:
    path = []
    here: Code | None = code
    while here is not None:
        path.append(here)
        here = parents[here]
    return path[::-1]
