"""The model's side of a manifest entry, of whichever module: its search, its graph, its counterexamples as rows."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rallypoint.cli.runs import reply_text, request_text, run_rows
from rallypoint.model import register_system
from rallypoint.model.explorer import Explorer
from rallypoint.model.register import KEY as REGISTER
from rallypoint.model.register import Find
from rallypoint.spec import register as register_spec
from rallypoint.spec.invariants import INVARIANTS
from rallypoint.tla import register_twin, twin
from rallypoint.tla.graph import Graph
from rallypoint.tla.manifest import Config

MAX_STATES = 1_000_000

Rows = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Found:
    """What a search found. ``runs``: for each violated invariant, a shortest run as rows. Depth: levels, from 1."""

    states: int
    edges: int
    depth: int
    seconds: float
    complete: bool
    actions: Mapping[str, int]
    runs: Mapping[str, Rows]

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


def explore(config: Config, *, everything: bool = False) -> Found:
    """Search one configuration with its invariants, or all.

    Where the manifest expects a violation, the search ends with it: some of these spaces have no end.
    """
    if config.module == register_twin.MODULE:
        return _register(config, everything)
    system = twin.model_config(config)
    names = INVARIANTS if everything else config.invariants
    found = Explorer(system).explore(
        {name: INVARIANTS[name] for name in names},
        stop_at_first=config.expected.verdict == "violated" and not everything,
        max_states=MAX_STATES,
    )
    runs = {name: run_rows(system.rules, violation.run) for name, violation in found.violations.items()}
    return Found(found.states, found.edges, found.depth, found.seconds, found.complete, found.actions, runs)


def _register(config: Config, everything: bool) -> Found:
    started = time.perf_counter()
    known = {**register_spec.INVARIANTS, **register_spec.REACHABLE}
    names = register_spec.INVARIANTS if everything else config.invariants
    found = register_system.explore(register_twin.model_config(config), {name: known[name] for name in names})
    runs = {name: [_row(number, step) for number, step in enumerate(run, 1)] for name, run in found.violations.items()}
    seconds = time.perf_counter() - started
    return Found(found.states, found.edges, found.depth, seconds, True, found.actions, runs)


def _row(number: int, step: register_system.Step) -> dict[str, Any]:
    request = f"find {step.request.value}" if isinstance(step.request, Find) else request_text(step.request)
    node = step.state.store.get(REGISTER)
    return {
        "step": number,
        "client": "etcd" if step.slot is None else str(step.slot),
        "action": step.action,
        "request": request,
        "reply": "" if step.answer is None else reply_text(step.answer.reply),
        "state": "(absent)" if node is None else f"{node.value} at index {node.modified}",
    }


def meaning(name: str) -> str:
    """The statement of an invariant, in words."""
    known = {**INVARIANTS, **register_spec.INVARIANTS, **register_spec.REACHABLE}
    return " ".join((known[name].__doc__ or "").split())


def graph(config: Config) -> Graph:
    """The model's labelled graph, to be compared with TLC's."""
    if config.module == register_twin.MODULE:
        return register_twin.model_graph(register_twin.model_config(config))
    return twin.model_graph(twin.model_config(config))
