"""The model's side of a manifest entry, of whichever module: its search, its graph, its counterexamples as rows."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from rallypoint.cli.runs import document_text, reply_text, request_text, run_rows
from rallypoint.model import register_system, system
from rallypoint.model import worker as machine
from rallypoint.model.errors import UnusableError
from rallypoint.model.explorer import Check, Explorer, Violation
from rallypoint.model.register import KEY as REGISTER
from rallypoint.model.register import Find
from rallypoint.model.walks import wander
from rallypoint.spec import liveness
from rallypoint.spec import register as register_spec
from rallypoint.spec.invariants import INVARIANTS
from rallypoint.spec.reach import NEVER
from rallypoint.spec.sequence import Event
from rallypoint.tla import register_twin, twin
from rallypoint.tla.graph import Graph
from rallypoint.tla.manifest import Config

MAX_STATES = 1_000_000
REGISTER_STATES = 200_000  # held as they are, so they take ten times the memory and the time
DRAWN_STATES = 2_000
DRAWN_EDGES = 3 * DRAWN_STATES

CHOICES = {"rejoins", "closes", "restarts", "sets", "gets"}
"""Budgets that pay for what somebody chose to do; all others pay for faults."""

Rows = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Found:
    """What a search found. Depth: levels, from 1.

    ``runs``: for each violated invariant, a shortest run as rows; ``events``: the same to be drawn.
    """

    states: int
    edges: int
    depth: int
    seconds: float
    complete: bool
    actions: Mapping[str, int]
    runs: Mapping[str, Rows]
    events: Mapping[str, Sequence[Event]] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        """The verdict in words; a search that was cut off is "not checked"."""
        if self.runs:
            return ", ".join(f"{name} violated in {len(rows)} steps" for name, rows in self.runs.items())
        return "holds" if self.complete else "not checked: too many states"

    def surprises(self, config: Config) -> list[str]:
        """How it differs from the manifest, one phrase each."""
        want = config.expected
        if want.verdict == "violated":
            rows = self.runs.get(want.property or "")
            if rows is None:
                return [f"{want.property} is not violated"]
            return [] if want.steps in (None, len(rows)) else [f"{len(rows)} steps where {want.steps} are expected"]
        if self.runs or not self.complete:
            return [self.verdict]
        pairs = {
            "states": (self.states, config.counts.states),
            "edges": (self.edges, config.counts.edges),
            "depth": (self.depth, config.counts.depth),
        }
        return [
            f"{what} {have} where {pin} is expected" for what, (have, pin) in pairs.items() if pin not in (None, have)
        ]


@dataclass(frozen=True, slots=True)
class Sampled:
    """What random walks found: nothing but their violations is proved. ``runs`` and ``events`` as for ``Found``."""

    walks: int
    steps: int
    states: int
    longest: int
    seconds: float
    runs: Mapping[str, Rows]
    events: Mapping[str, Sequence[Event]]

    @property
    def verdict(self) -> str:
        if self.runs:
            return ", ".join(f"{name} violated in {len(rows)} steps" for name, rows in self.runs.items())
        return "not seen to fail"


PREDICATES = {**INVARIANTS, **NEVER}


def left_to_tlc(config: Config) -> str:
    """Why only TLC can judge this configuration, "" if the model can, too."""
    if config.module != twin.MODULE:
        return f"temporal properties: {', '.join(config.properties)}" if config.properties else ""
    unknown = [name for name in config.invariants if name not in PREDICATES]
    unknown += [name for name in config.properties if name not in liveness.LIVENESS]
    if unknown:
        return f"no predicate for {', '.join(unknown)}"
    if config.specification not in ("Spec", *twin.TTLS_RUN_OUT) or (
        config.properties and config.specification == "Spec"
    ):
        return f"specification {config.specification}"
    others = [name for name in (config.symmetry, config.view, config.constraint) if name]
    return f"the model knows no {', '.join(others)}" if others else ""


def _refuse_if_left(config: Config) -> None:
    reason = left_to_tlc(config)
    if reason:
        raise UnusableError(f"{config.name} is left to TLC", reason, f"run `rallypoint tlc {config.name}`")


def _checks(config: Config, everything: bool) -> dict[str, Check]:
    """The predicates of module Rendezvous to judge. UnusableError if there is one that the model does not have."""
    _refuse_if_left(config)
    return {name: PREDICATES[name] for name in dict.fromkeys([*(INVARIANTS if everything else ()), *config.invariants])}


def _fair(config: Config) -> Found:
    """The search for fair runs that violate the temporal properties of a configuration."""
    _refuse_if_left(config)
    started = time.monotonic()
    space = twin.model_config(config)
    ttls = twin.TTLS_RUN_OUT[config.specification]
    judged = [liveness.LIVENESS[name] for name in config.properties]
    try:
        verdicts = liveness.check(space, judged, ttls=ttls)
    except MemoryError as error:
        raise UnusableError(f"{config.name} is too large for fair runs", str(error), "choose smaller numbers") from None
    violations = {name: verdict.violation for name, verdict in verdicts.items() if verdict.violation is not None}
    size = next(iter(verdicts.values()))
    seconds = time.monotonic() - started
    return Found(size.states, size.edges, size.depth, seconds, True, {}, *_shown(space, violations))


def explore(config: Config, *, everything: bool = False, on_progress: Callable[[int], None] | None = None) -> Found:
    """Search one configuration with what it checks, and with all invariants if it is not about fair runs and
    ``everything`` is asked for. ``on_progress(states)`` is called now and then.

    Where the manifest expects a violation, the search ends with it: some of these spaces have no end.
    """
    if config.module == register_twin.MODULE:
        return _register(config, everything)
    if config.properties:
        return _fair(config)
    space = twin.model_config(config)
    found = Explorer(space).explore(
        _checks(config, everything),
        stop_at_first=config.expected.verdict == "violated" and not everything,
        max_states=MAX_STATES,
        on_progress=on_progress,
    )
    runs, events = _shown(space, found.violations)
    return Found(found.states, found.edges, found.depth, found.seconds, found.complete, found.actions, runs, events)


def sample(
    config: Config,
    *,
    walks: int,
    length: int,
    seed: int,
    everything: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
) -> Sampled:
    """Walk through one configuration at random. UnusableError for another module than Rendezvous."""
    if config.module == register_twin.MODULE:
        raise UnusableError(f"no random walks in {config.name}", config.module, "search it without --random")
    if config.properties:
        where = f"{config.name} is about {', '.join(config.properties)}"
        raise UnusableError("random walks judge states, not runs", where, "search it without --random")
    space = twin.model_config(config)
    found = wander(space, _checks(config, everything), walks=walks, length=length, seed=seed, on_progress=on_progress)
    return Sampled(
        found.walks, found.steps, found.states, found.longest, found.seconds, *_shown(space, found.violations)
    )


def _shown(space: system.Config, violations: Mapping[str, Violation]) -> tuple[dict[str, Rows], dict[str, list[Event]]]:
    """The runs of the violations as rows and as events."""
    runs = {name: run_rows(space.rules, violation.run) for name, violation in violations.items()}
    events = {}
    for name, violation in violations.items():
        faults = _faults(space.budget, [step.state.left for step in violation.run])
        slots = ["" if step.slot is None else f"worker {step.slot}" for step in violation.run]
        events[name] = _events(runs[name], slots, "document after it", faults)
    return runs, events


def _faults(budget: object, left: Iterable[object]) -> list[bool]:
    """For each step, by the budget left after it, whether it was a fault."""
    faults = []
    for now in left:
        names: Iterable[str] = now.__dataclass_fields__  # type: ignore[attr-defined]
        faults.append(any(getattr(budget, name) != getattr(now, name) for name in set(names) - CHOICES))
        budget = now
    return faults


def _events(rows: Rows, lanes: Sequence[str], document: str, faults: Sequence[bool]) -> list[Event]:
    return [
        Event(
            lane,
            row["action"],
            row["request"],
            row["reply"],
            row[document],
            fault,
            "reply" if row["action"] == "LoseReply" else "",
        )
        for row, lane, fault in zip(rows, lanes, faults, strict=True)
    ]


def _register(config: Config, everything: bool) -> Found:
    started = time.perf_counter()
    known = {**register_spec.INVARIANTS, **register_spec.REACHABLE}
    names = register_spec.INVARIANTS if everything else config.invariants
    space = register_twin.model_config(config)
    found = register_system.explore(space, {name: known[name] for name in names}, max_states=REGISTER_STATES)
    runs = {name: [_row(number, step) for number, step in enumerate(run, 1)] for name, run in found.violations.items()}
    events = {}
    for name, run in found.violations.items():
        lanes = ["" if step.slot is None else f"client {step.slot}" for step in run]
        events[name] = _events(runs[name], lanes, "state", _faults(space.budget, [step.state.left for step in run]))
    seconds = time.perf_counter() - started
    return Found(found.states, found.edges, found.depth, seconds, found.complete, found.actions, runs, events)


def _row(number: int, step: register_system.Step) -> dict[str, Any]:
    request = f"find {step.request.value}" if isinstance(step.request, Find) else request_text(step.request)
    return {
        "step": number,
        "client": "etcd" if step.slot is None else str(step.slot),
        "action": step.action,
        "request": request,
        "reply": "" if step.answer is None else reply_text(step.answer.reply),
        "state": _register_text(step.state),
    }


def _register_text(state: register_system.State) -> str:
    node = state.store.get(REGISTER)
    return "(absent)" if node is None else f"{node.value} at index {node.modified}"


def meaning(config: Config, name: str) -> str:
    """The statement of a property, in words: an invariant's own, else what the configuration says of itself."""
    stated = {**INVARIANTS, **register_spec.INVARIANTS, **register_spec.REACHABLE}.get(name)
    return " ".join(((stated and stated.__doc__) or config.about).split())


def graph(config: Config) -> Graph:
    """The model's labelled graph, to be compared with TLC's."""
    if config.module == register_twin.MODULE:
        return register_twin.model_graph(register_twin.model_config(config))
    return twin.model_graph(twin.model_config(config), config.specification)


def dot(config: Config) -> str:
    """The model's graph for Graphviz. UnusableError if it has more than ``DRAWN_STATES`` states."""
    edges: list[tuple[Any, str, Any]] = []

    def note(source: Any, action: str, target: Any) -> None:
        edges.append((source, action, target))

    if config.module == register_twin.MODULE:
        space = register_twin.model_config(config)
        complete = register_system.explore(space, max_states=DRAWN_STATES, on_edge=note).complete
        names = _Names(register_system.initial(space), _register_words)
    elif config.specification in twin.TTLS_RUN_OUT:
        fair = twin.model_config(config)
        edges = list(islice(twin.fair_edges(fair, twin.TTLS_RUN_OUT[config.specification]), DRAWN_EDGES + 1))
        complete = len(edges) <= DRAWN_EDGES
        names = _Names(system.initial(fair), lambda state: _words(fair, state))
    else:
        explorer = Explorer(twin.model_config(config))
        complete = explorer.explore(max_states=DRAWN_STATES, on_edge=note).complete
        start = explorer.encode(system.initial(explorer.config))
        names = _Names(start, lambda code: _words(explorer.config, explorer.decode(code)))
    if not complete:
        where = f"{config.name} has more than {DRAWN_STATES:,} states"
        raise UnusableError("no graph is drawn", where, "choose a smaller configuration, or smaller numbers with --set")
    lines = [f"  {names.of(a)} -> {names.of(b)} [label={json.dumps(action)}];" for a, action, b in edges]
    style = "  node [shape=box, fontname=monospace, fontsize=9];\n  edge [fontname=monospace, fontsize=8];"
    return "\n".join([f"digraph {json.dumps(config.name)} {{", style, *names.lines, *lines, "}", ""])


class _Names:
    """Numbers for the states of a drawing, the first one bold, and the lines that declare them."""

    def __init__(self, start: Any, words: Callable[[Any], str]) -> None:
        self._words = words
        self._numbers: dict[Any, int] = {}
        self.lines: list[str] = []
        self.of(start)

    def of(self, state: Any) -> int:
        number = self._numbers.setdefault(state, len(self._numbers))
        if number == len(self.lines):
            style = ', style=bold, color="#cf222e"' if number == 0 else ""
            self.lines.append(f"  {number} [label={json.dumps(self._words(state), ensure_ascii=False)}{style}];")
        return number


def _words(config: system.Config, state: system.State) -> str:
    document = document_text(state.store.value(machine.active(config.rules)))
    return "\n".join([document, *(f"{worker.id} {worker.pc}" for worker in state.workers)])


def _register_words(state: register_system.State) -> str:
    clients = (f"{slot} {client.pc} {client.result}".rstrip() for slot, client in enumerate(state.clients))
    return "\n".join([_register_text(state), *clients])
