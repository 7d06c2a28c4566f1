"""What of the model has been seen live: a table to which every run adds, and the list of what was never seen.

Two measures. Labelled transitions (state, action, state) of named configurations: exact, and only generated walks can
tell in which state the whole system is. Kinds of steps (an action and where it leads its worker, "Join > read"): any
recorded run adds to them, whatever its size and its faults. May live here: counting. Must not live here: playing.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path

from rallypoint.live.play import History
from rallypoint.live.record import MEET, Attempt, Record
from rallypoint.live.replay import asking
from rallypoint.model import system
from rallypoint.model import worker as machine
from rallypoint.model.errors import UnusableError
from rallypoint.model.explorer import Code
from rallypoint.model.system import Step
from rallypoint.model.walks import Graph
from rallypoint.model.worker import Rules, Worker


@dataclass(slots=True)
class Row:
    """One configuration. ``behind``: transitions that only follow others that cannot be taken live."""

    transitions: int
    seen: int
    unplayable: dict[str, int] = field(default_factory=dict)
    behind: int = 0


def kind(action: str, before: Worker | None, after: Worker | None) -> str:
    """The kind of a step of one worker (None: of the environment)."""
    if before is None or after is None:
        return action
    if action == "LoseReply":
        return f"{action} of {machine.TABLE[before.pc].action}"
    return f"{action} > {after.pc}"


@dataclass(slots=True)
class Coverage:
    """``rows``: by configuration; ``kinds``: how often each kind of step was seen; ``possible``: all kinds."""

    rows: dict[str, Row] = field(default_factory=dict)
    kinds: Counter[str] = field(default_factory=Counter)
    possible: set[str] = field(default_factory=set)

    def share(self) -> float:
        """Of the transitions of all configurations, those seen; 0 without any."""
        whole = sum(row.transitions for row in self.rows.values())
        return sum(row.seen for row in self.rows.values()) / whole if whole else 0.0

    def add_steps(self, workers: Sequence[Sequence[Worker]], steps: Sequence[Step]) -> None:
        """A walk: the workers before the first step and after each of ``steps``."""
        for (before, after), step in zip(pairwise(workers), steps, strict=False):
            slot = step.slot
            moved = (None, None) if slot is None else (before[slot], after[slot])
            self.kinds[kind(step.action, *moved)] += 1

    def add_histories(self, rules: Rules, histories: Iterable[History]) -> None:
        """A recorded run of the live property run, which the replay has accepted."""
        for history in histories:
            self.kinds.update(_kinds_of(rules, history))

    def never(self) -> list[str]:
        """Which of the possible kinds were never seen."""
        return sorted(self.possible - set(self.kinds))

    def shortfall(self, transitions: float, kinds: float) -> str | None:
        """What is missing if less than these shares of transitions and of possible kinds was seen."""
        if self.share() < transitions:
            return f"{self.share():.1%} of all transitions were seen, the floor is {transitions:.0%}"
        never = self.never()
        if not self.possible or 1 - len(never) / len(self.possible) < kinds:
            return f"{len(never)} of {len(self.possible)} kinds of steps were never seen, the floor is {kinds:.0%}"
        return None

    def merge(self, other: Coverage) -> None:
        """Add another run's. Of two counts of one configuration the higher one stays."""
        self.kinds.update(other.kinds)
        self.possible |= other.possible
        for name, row in other.rows.items():
            mine = self.rows.get(name)
            if mine is None or (mine.transitions, mine.seen) < (row.transitions, row.seen):
                self.rows[name] = row

    def save(self, path: Path) -> None:
        """As JSON."""
        rows = {name: asdict(row) for name, row in self.rows.items()}
        table = {"rows": rows, "kinds": dict(self.kinds), "possible": sorted(self.possible)}
        path.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Coverage:
        """The table in a file; an empty one if there is none. Raises UnusableError for what is no such table."""
        if not path.exists():
            return cls()
        try:
            table = json.loads(path.read_text(encoding="utf-8"))
            rows = {name: Row(**row) for name, row in table["rows"].items()}
            return cls(rows, Counter(table["kinds"]), set(table["possible"]))
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise UnusableError(f"not a coverage table ({error})", str(path), "delete it, or name another") from error

    def report(self, reasons: Mapping[str, str]) -> Iterator[str]:
        """Lines: per configuration, in all, and what is left with its reason."""
        left: Counter[str] = Counter()
        for name, row in sorted(self.rows.items()):
            yield f"  {name:24} {row.seen:6} of {row.transitions:6} transitions ({row.seen / row.transitions:6.1%})"
            left.update(row.unplayable)
            left["behind"] += row.behind
        seen = len(self.possible & set(self.kinds))
        yield f"  in all {self.share():.1%} of the transitions, {seen} of {len(self.possible)} kinds of steps"
        if never := self.never():
            yield "  never seen: " + ", ".join(never)
        for action, reason in reasons.items():
            if left[action]:
                yield f"  {action}: {left[action]} transitions cannot be taken live: {reason}"
        if left["behind"]:
            yield f"  {left['behind']} transitions are only behind those"


def possible_kinds(graphs: Iterable[Graph], avoid: Iterable[str] = ()) -> set[str]:
    """The kinds of all steps in these graphs, but for the actions in ``avoid``."""
    avoided = set(avoid)
    found: set[str] = set()
    for graph in graphs:
        for code in graph.reachable(avoided):
            before = graph.explorer.decode(code).workers
            for step in graph.transitions.get(code, ()):
                if step.action == "LoseReply":
                    found.update(_lost_replies(graph, code))
                elif step.action not in avoided:
                    after = graph.explorer.decode(step.target).workers
                    moved = next((pair for pair in zip(before, after, strict=True) if pair[0] != pair[1]), (None, None))
                    found.add(kind(step.action, *moved))
    return found


def _lost_replies(graph: Graph, code: Code) -> Iterator[str]:
    """A lost reply leaves its worker as it is, so the states alone do not tell whose it was."""
    state = graph.explorer.decode(code)
    for step in system.steps(graph.explorer.config, state):
        if step.action == "LoseReply" and step.slot is not None:
            yield kind(step.action, state.workers[step.slot], state.workers[step.slot])


def _kinds_of(rules: Rules, history: History) -> Iterator[str]:
    """The kinds of steps that one worker's record shows; a request without a reply shows none."""
    worker: Worker | None = None
    for item in history:
        if isinstance(item, Attempt):
            worker = item.worker
        elif isinstance(item, Record) and item.kind == MEET and worker is not None and worker.pc in machine.TABLE:
            event, ready = asking(rules, worker, item.request) or (None, worker)
            if event is not None:
                yield kind(event, worker, ready)
            worker = ready
            if item.reply is not None:
                worker = machine.step(rules, ready, item.reply)
                yield kind(machine.TABLE[ready.pc].action, ready, worker)
