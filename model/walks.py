"""Walks through a system: at random, for where no search ends (what they judge is sampled, not proved), and walks that
together take every transition of a space, to be played on the real thing.

May live here: walking. Must not live here: what a step is (``system.py``) or how states are held (``explorer.py``).
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from rallypoint.model import system
from rallypoint.model.explorer import Check, Code, Explorer, Violation, broken_by, collector_off
from rallypoint.model.system import Config


@dataclass
class Wandering:
    """What random walks found. ``states``: distinct states judged; ``steps``: of all walks; ``longest``: of one walk.

    ``violations``: per violated invariant, the first run that showed it, seldom the shortest.
    """

    walks: int = 0
    steps: int = 0
    states: int = 0
    longest: int = 0
    seconds: float = 0.0
    violations: dict[str, Violation] = field(default_factory=dict)


@collector_off()
def wander(
    config: Config,
    invariants: Mapping[str, Check],
    *,
    walks: int,
    length: int,
    seed: int,
    on_progress: Callable[[int, int], None] | None = None,
) -> Wandering:
    """Walk at random, each time from the initial state, and judge each state that is new.

    A walk ends after ``length`` steps, or where there is none; all end when every invariant is violated.
    The same seed gives the same walks. ``on_progress(walks, states)`` is called before each walk.
    """
    started = time.perf_counter()
    found, explorer, choice = Wandering(), Explorer(config), random.Random(seed).choice
    start = explorer.encode(system.initial(config))
    unbroken, seen = dict(invariants), set[Code]()
    while found.walks < walks and unbroken:
        if on_progress is not None:
            on_progress(found.walks, len(seen))
        walk = [start]
        while True:
            if walk[-1] not in seen:
                seen.add(walk[-1])
                for name in broken_by(config, explorer.decode(walk[-1]), unbroken):
                    found.violations[name] = Violation(name, explorer.run(walk))
            targets = [target for _, target in explorer.successors(walk[-1])]
            if not targets or len(walk) > length:
                break
            walk.append(choice(targets))
        found.walks += 1
        found.steps += len(walk) - 1
        found.longest = max(found.longest, len(walk) - 1)
    found.states = len(seen)
    found.seconds = time.perf_counter() - started
    return found


class Transition(NamedTuple):
    """A labelled transition between two states of one graph."""

    source: Code
    action: str
    target: Code


class Graph:
    """The whole labelled graph of a configuration. Raises ValueError if it has more than ``max_states`` states."""

    def __init__(self, config: Config, max_states: int = 100_000) -> None:
        self.explorer = Explorer(config)
        self.start = self.explorer.encode(system.initial(config))
        self.transitions: dict[Code, list[Transition]] = {}
        found = self.explorer.explore(max_states=max_states, on_edge=self._note)
        if not found.complete:
            raise ValueError(f"more than {max_states} states")

    def _note(self, source: Code, action: str, target: Code) -> None:
        self.transitions.setdefault(source, []).append(Transition(source, action, target))

    def __len__(self) -> int:
        """How many transitions there are."""
        return sum(map(len, self.transitions.values()))

    def reachable(self, avoid: Collection[str] = ()) -> dict[Code, Transition | None]:
        """Each state that is reached without the actions in ``avoid``, with the last transition of a shortest way."""
        ways: dict[Code, Transition | None] = {self.start: None}
        queue = deque([self.start])
        while queue:
            for step in self.transitions.get(queue.popleft(), ()):
                if step.action not in avoid and step.target not in ways:
                    ways[step.target] = step
                    queue.append(step.target)
        return ways


def covering(graph: Graph, *, avoid: Collection[str] = (), seed: int = 0) -> Iterator[tuple[Transition, ...]]:
    """Walks from the initial state that together take every transition that can be reached without ``avoid``.

    Each walk goes on while something new is ahead, and begins on a shortest way to something new. The same seed gives
    the same walks; early ones cover the most.
    """
    choice = random.Random(seed)
    ways = graph.reachable(avoid)
    todo = {code: [step for step in graph.transitions.get(code, ()) if step.action not in avoid] for code in ways}
    todo = {code: steps for code, steps in todo.items() if steps}
    for steps in todo.values():
        choice.shuffle(steps)
    goals = list(todo)
    choice.shuffle(goals)
    while goals:
        if goals[-1] not in todo:
            goals.pop()
            continue
        walk = _way_to(goals[-1], ways)
        for step in walk:
            _done(todo, step)
        here = goals[-1]
        while (onward := _to_news(graph, here, todo, avoid)) is not None:
            for step in onward:
                _done(todo, step)
            walk.extend(onward)
            here = walk[-1].target
        yield tuple(walk)


def _done(todo: dict[Code, list[Transition]], step: Transition) -> None:
    left = todo.get(step.source, [])
    if step in left:
        left.remove(step)
        if not left:
            del todo[step.source]


def _way_to(code: Code, ways: Mapping[Code, Transition | None]) -> list[Transition]:
    way: list[Transition] = []
    while (step := ways[code]) is not None:
        way.append(step)
        code = step.source
    return way[::-1]


def _to_news(
    graph: Graph, here: Code, todo: Mapping[Code, list[Transition]], avoid: Collection[str]
) -> list[Transition] | None:
    """The shortest way on from ``here`` that ends with a transition that is still to do."""
    ways: dict[Code, Transition | None] = {here: None}
    queue = deque([here])
    while queue:
        code = queue.popleft()
        if code in todo:
            return [*_way_to(code, ways), todo[code][-1]]
        for step in graph.transitions.get(code, ()):
            if step.action not in avoid and step.target not in ways:
                ways[step.target] = step
                queue.append(step.target)
    return None
