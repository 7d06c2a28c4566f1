"""Generated walks on a real etcd: every labelled transition of the 2-worker configurations, played and compared.

``python -m rallypoint.live.walks --profile ci|nightly|deep`` plays as many walks as the profile's time allows, those
first that promise the most new transitions for their length; ``--only NAME`` plays one configuration,
``--only NAME/NUMBER`` one walk (as a difference names it).

May live here: which walks are played, and the account of a run. Must not live here: playing (``walks_player.py``).
"""

from __future__ import annotations

import argparse
import heapq
import logging
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from rallypoint.impl.etcd_server import EtcdServer
from rallypoint.live.coverage import Coverage, Row, possible_kinds
from rallypoint.live.run import HARNESS_FAILED, HOLDS, NOT_CHECKED, VIOLATED
from rallypoint.live.walks_player import UNPLAYABLE, DifferenceError, Player, plan, timed
from rallypoint.live.walks_seat import obedient
from rallypoint.model.errors import UnusableError
from rallypoint.model.system import Config
from rallypoint.model.walks import Graph, Transition, covering
from rallypoint.tla.manifest import load_manifest
from rallypoint.tla.twin import MODULE, model_config

WORKERS = 2
LARGE = 20_000  # transitions; a configuration with more is for the deep profile


@dataclass(frozen=True, slots=True)
class Profile:
    """``seconds`` at most for playing; ``large``: large configurations, too; ``transitions``, ``kinds``: the shares of
    all transitions and of all kinds of steps at which a run ends, and below which it did too little."""

    seconds: float
    large: bool
    transitions: float
    kinds: float


PROFILES = {
    "ci": Profile(300, False, 0.15, 0.9),
    "nightly": Profile(3600, False, 0.99, 1.0),
    "deep": Profile(6 * 3600, True, 0.99, 1.0),
}


@dataclass(slots=True)
class WalksResult:
    """Verdict and size of a run. ``coverage``: what was seen; ``failure``: the difference, or what did not work.

    ``broken_off``: walks that ended before a step that cannot be taken live.
    """

    verdict: str = HOLDS
    walks: int = 0
    steps: int = 0
    broken_off: int = 0
    seconds: float = 0.0
    coverage: Coverage = field(default_factory=Coverage)
    failure: str | None = None


class _Tour:
    """The walks of one configuration, the next one ready. ``left``: what has not been taken yet."""

    def __init__(self, name: str, config: Config, seed: int) -> None:
        self.name = name
        self.graph = Graph(config)
        self.size = len(self.graph)
        self.taken: set[Transition] = set()
        self._walks: Iterator[tuple[Transition, ...]] = covering(self.graph, avoid=UNPLAYABLE, seed=seed)
        self.number = -1
        self.walk: tuple[Transition, ...] = ()
        self.advance()

    def advance(self) -> None:
        """On to the next walk; () after the last."""
        self.walk = next(self._walks, ())
        self.number += 1

    def price(self) -> float:
        """Steps (and three more for a beginning) for each transition that is new."""
        return (len(self.walk) + 3) / max(1, len({*self.walk} - self.taken))

    def row(self) -> Row:
        avoided = Counter(step.action for steps in self.graph.transitions.values() for step in steps)
        within = self.graph.reachable(UNPLAYABLE)
        reachable = sum(
            step.action not in UNPLAYABLE for code in within for step in self.graph.transitions.get(code, ())
        )
        unplayable = {action: avoided[action] for action in UNPLAYABLE if avoided[action]}
        behind = len(self.graph) - reachable - sum(unplayable.values())
        return Row(len(self.graph), len(self.taken), unplayable, behind)


def configurations(large: bool = True) -> dict[str, Config]:
    """The manifest's configurations of two workers of ours that hold, each space once, with the TTLs of live walks.

    Not among them: what has a worker of PyTorch's (its requests are its own) and what agrees on an address (the
    model's one key stands for two of torch's own).
    """
    found: dict[str, Config] = {}
    for entry in load_manifest():
        if entry.module != MODULE or entry.constants["N"] != WORKERS or entry.expected.verdict != "holds":
            continue
        config = model_config(entry)
        if config.theirs or config.rules.bootstrap or config.rules.reread:
            continue
        config = replace(config, rules=timed(config.rules))
        size = entry.counts.edges or 0
        if config not in found.values() and (large or size <= LARGE):
            found[entry.name] = config
    return found


def run_walks(
    configs: dict[str, Config],
    seconds: float,
    *,
    seed: int = 1,
    only: int | None = None,
    goal: tuple[float, float] = (1.0, 1.0),
) -> WalksResult:
    """Play walks until all are played, one differs, or ``seconds`` are over. The same seed plays the same walks.

    ``only``: the one walk of each configuration that has this number. ``goal``: the shares of transitions and of kinds
    of steps that are enough. Nothing is left running. Never raises: what went wrong is in the result.
    """
    result = WalksResult()
    tours = [_Tour(name, config, seed) for name, config in configs.items()]
    result.coverage.possible = possible_kinds((tour.graph for tour in tours), UNPLAYABLE)
    started = time.monotonic()
    logs = logging.getLogger("etcd"), logging.getLogger("rallypoint")
    levels = [log.level for log in logs]
    for log in logs:
        log.setLevel(logging.CRITICAL)  # lost requests are what is played
    try:
        with EtcdServer(extra_args=["--unsafe-no-fsync"]) as server, obedient():
            player = Player("127.0.0.1", server.get_port(), WORKERS)
            try:
                _play_all(result, player, tours, started + seconds, only, goal)
            finally:
                player.close()
    except DifferenceError as error:
        result.verdict, result.failure = VIOLATED, str(error)
    except UnusableError as error:
        result.verdict, result.failure = NOT_CHECKED, str(error)
    except Exception as error:
        result.verdict, result.failure = HARNESS_FAILED, f"{type(error).__name__}: {error}"
    finally:
        for log, level in zip(logs, levels, strict=True):
            log.setLevel(level)
    result.seconds = time.monotonic() - started
    for tour in tours:
        result.coverage.rows[tour.name] = tour.row()
    return result


def _play_all(
    result: WalksResult,
    player: Player,
    tours: Sequence[_Tour],
    deadline: float,
    only: int | None,
    goal: tuple[float, float],
) -> None:
    def enough() -> bool:
        transitions = sum(len(tour.taken) for tour in tours) >= goal[0] * sum(tour.size for tour in tours)
        return transitions and len(result.coverage.never()) <= (1 - goal[1]) * len(result.coverage.possible)

    queue = [(tour.price(), number, tour) for number, tour in enumerate(tours) if tour.walk]
    heapq.heapify(queue)
    while queue and time.monotonic() < deadline and not enough():
        _, number, tour = heapq.heappop(queue)
        if only is None or tour.number == only:
            _play(result, player, tour)
        tour.advance()
        if tour.walk:
            heapq.heappush(queue, (tour.price(), number, tour))


def _play(result: WalksResult, player: Player, tour: _Tour) -> None:
    walk = plan(f"{tour.name}/{tour.number}", tour.graph, tour.walk)
    parked = tour.number % 2 == 1
    taken = player.play(walk, f"{tour.name}-{tour.number}", parked=parked)
    result.walks += 1
    result.steps += len(taken)
    result.broken_off += len(taken) < len(walk.steps)
    tour.taken.update(tour.walk[: len(taken)])
    result.coverage.add_steps(walk.points_of_workers(), taken)


def judged(result: WalksResult, profile: Profile) -> WalksResult:
    """The result, with the verdict "harness failed" if it did too little to say that it holds."""
    missing = result.coverage.shortfall(profile.transitions, profile.kinds)
    if result.verdict == HOLDS and missing is not None:
        result.verdict, result.failure = HARNESS_FAILED, f"too little was played: {missing}"
    return result


def report(result: WalksResult) -> str:
    """The account of a run, for a terminal."""
    rate = result.steps / max(result.seconds, 0.001)
    lines = [
        f"walks: {result.verdict}",
        f"{result.walks} walks, {result.steps} steps in {result.seconds:.0f} s ({rate:.0f} steps/s), "
        f"{result.broken_off} broken off before a step that cannot be taken live",
        *result.coverage.report(UNPLAYABLE),
    ]
    if result.failure is not None:
        lines.append(result.failure)
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """0: holds, 1: a difference, 2: not checked or the harness failed."""
    parser = argparse.ArgumentParser(prog="python -m rallypoint.live.walks", description="Play generated walks.")
    parser.add_argument("--profile", choices=PROFILES, default="ci")
    parser.add_argument("--seconds", type=float, help="instead of the profile's; then nothing is too little")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", metavar="NAME[/NUMBER]", help="one configuration, or one walk of it")
    parser.add_argument("--coverage", type=Path, metavar="FILE", help="add what was seen to this table")
    options = parser.parse_args(arguments)
    profile = PROFILES[options.profile]
    try:
        name, _, number = (options.only or "").partition("/")
        configs = configurations(profile.large or bool(name))
        if name:
            configs = {name: configs[name]}
        only = int(number) if number else None
        table = Coverage.load(options.coverage) if options.coverage else Coverage()
    except (KeyError, ValueError, OSError) as error:
        print(f"cannot play that: {error}", file=sys.stderr)
        return 2
    seconds = profile.seconds if options.seconds is None else options.seconds
    whole = not name and options.seconds is None
    goal = (profile.transitions, profile.kinds) if whole else (1.0, 1.0)
    result = run_walks(configs, seconds, seed=options.seed, only=only, goal=goal)
    if whole:
        judged(result, profile)
    print(report(result))
    if options.coverage:
        table.merge(result.coverage)
        table.save(options.coverage)
    return {HOLDS: 0, VIOLATED: 1}.get(result.verdict, 2)


if __name__ == "__main__":
    sys.exit(main())
