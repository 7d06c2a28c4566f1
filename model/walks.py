"""Random walks through a system, for where no search ends: what they judge is sampled, not proved.

May live here: walking. Must not live here: what a step is (``system.py``) or how states are held (``explorer.py``).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

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
