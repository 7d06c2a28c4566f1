"""Judge a mutant layer by layer: which of the project's checks tells it from the right thing.

Layers: ``graph`` (the model's graph against TLC's), ``counts`` (states, edges, depth), ``invariants`` (and liveness, on
fair steps), ``contracts`` (each function by itself), ``hypothesis`` (jobs that it draws, judged by the invariants).
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from mutate import Mutant, TlaMutant, planted
from rallypoint.spec.liveness import LIVENESS
from rallypoint.tla import SPEC_DIR, manifest, tlc
from rallypoint.tla.graph import Graph

LAYERS = ("graph", "counts", "invariants", "contracts", "hypothesis")
CONTRACT_EXAMPLES = 30
JOBS = 60
UPSTREAM_RULES = ["reread"]
UPSTREAM_HOLDS = ("TypeOK", "RankUnique", "RanksDense", "WorldAgree", "WorldBounds")

Constants = Mapping[str, manifest.Constant]
Outcome = dict[str, str]
"""layer -> why it told the mutant; a layer that did not is missing."""


@dataclass(frozen=True)
class Right:
    """One small configuration and what TLC says of it."""

    config: manifest.Config
    graph: Graph
    depth: int


HARDENED: tuple[Constants, ...] = (
    {"Min": 1, "LostReplies": 1},
    {"Expiries": 1},
    {"Min": 1, "Deadlines": 1},
    {"Min": 1, "Max": 1, "LostLeases": 1, "Closes": 1},
    {"N": 1, "Min": 1, "Max": 1, "LostRuns": 1},
    {"N": 1, "Min": 1, "Max": 1, "Closes": 1, "Expiries": 1},
    {"Min": 1, "Others": [1], "OtherMin": 2, "OtherMax": 2, "Crashes": 1},
    {"Theirs": [1], "Rejoins": 1},
    {"Bootstrap": True, "Crashes": 1},
)
UPSTREAM: tuple[Constants, ...] = (
    {"Min": 1, "Closes": 1},
    {"Crashes": 1},
    {"EarlyWakes": 1},
    {"N": 1, "Min": 1, "Max": 1, "LostRuns": 1},
    {"N": 1, "Min": 1, "Max": 1, "Outages": 1},
    {"Bootstrap": True, "Deadlines": 1},
    {"N": 1, "Min": 1, "Max": 1, "Rules": ["counter_restored"]},  # no slots with owners, and no second reading
)
FAIR: tuple[tuple[str, Constants], ...] = (
    ("Fair", {"Crashes": 1}),
    ("FairWithoutTtl", {"Rejoins": 1}),
    ("FairWithoutTtl", {"Min": 1}),
    ("FairWithoutTtl", {"Max": 3, "Others": [1], "OtherMin": 1, "OtherMax": 3}),
)


def configs() -> list[manifest.Config]:
    """Small spaces that between them lead through every line of the worker's table, under both rule sets."""
    base = next(config for config in manifest.load_manifest() if config.name == "lost-reply")
    quiet = {**base.constants, "LostReplies": 0}

    def small(rules: str, constants: Constants) -> manifest.Config:
        return replace(base, name=f"{rules} {constants}", constants={**quiet, **constants})

    upstream = [small("upstream", {"Rules": UPSTREAM_RULES, **constants}) for constants in UPSTREAM]
    return [
        *(small("hardened", constants) for constants in HARDENED),
        *(replace(config, invariants=UPSTREAM_HOLDS) for config in upstream),
        *(
            replace(small(formula, constants), specification=formula, properties=tuple(LIVENESS))
            for formula, constants in FAIR
        ),
    ]


def right_graphs(some: list[manifest.Config]) -> list[Right]:
    """TLC's graphs, computed once for all mutants of the model."""
    found = []
    for index, result, graph in tlc.state_graphs([config.job() for config in some], parallel=2):
        assert graph is not None, (some[index].name, result)
        assert result.depth is not None
        found.append((index, Right(some[index], graph, result.depth)))
    return [right for _, right in sorted(found, key=lambda it: it[0])]


def judge_model(mutant: Mutant | None, rights: list[Right]) -> Outcome:
    """Every layer's verdict on a mutated model (None: on the right one, which no layer may reject)."""
    outcome: Outcome = {}
    try:
        with planted(mutant) as modules:
            for right in rights:
                (_explore if right.config.specification == "Spec" else _fair)(modules, right, outcome)
            for verdict in _contracts(modules):
                outcome.setdefault("contracts", verdict)
                break
            _jobs(modules, outcome)
    except Exception as error:  # a mutant may fail anywhere, at import too
        for layer in LAYERS:
            outcome.setdefault(layer, f"{type(error).__name__} on the way")
    return outcome


def _explore(modules: dict[str, ModuleType], right: Right, outcome: Outcome) -> None:
    """One exploration serves three layers."""
    twin, invariants = modules["twin"], modules["invariants"].INVARIANTS
    checks = {name: invariants[name] for name in right.config.invariants}
    raw: Counter[Any] = Counter()
    limit = 2 * len(right.graph.states)
    try:
        config = twin.model_config(right.config)
        explorer = modules["explorer"].Explorer(config)
        found = explorer.explore(
            checks, max_states=limit, on_edge=lambda source, action, target: raw.update([(source, action, target)])
        )
    except Exception as error:
        for layer in ("graph", "counts", "invariants"):
            outcome.setdefault(layer, f"{type(error).__name__} in '{right.config.name}'")
        return
    have = (found.states, found.edges, found.depth) if found.complete else ("more than", limit, "states")
    want = (len(right.graph.states), right.graph.edges.total(), right.depth)
    if have != want:
        outcome.setdefault("counts", f"{have} for {want} in '{right.config.name}'")
    for name, violation in found.violations.items():
        outcome.setdefault("invariants", f"{name} after {len(violation.run)} steps in '{right.config.name}'")
    if "graph" not in outcome and (not found.complete or _graph(twin, config, explorer, raw) != right.graph):
        outcome["graph"] = f"'{right.config.name}'"


def _fair(modules: dict[str, ModuleType], right: Right, outcome: Outcome) -> None:
    """The same for fair steps; what must come to pass counts among the invariants. The search knows no depth."""
    config, formula = modules["twin"].model_config(right.config), right.config.specification
    liveness = modules["liveness"]
    try:
        verdicts = liveness.check(
            config,
            liveness.LIVENESS.values(),
            ttls=modules["twin"].TTLS_RUN_OUT[formula],
            max_states=2 * len(right.graph.states),
        )
        graph = modules["twin"].model_graph(config, formula)
    except Exception as error:
        for layer in ("graph", "counts", "invariants"):
            outcome.setdefault(layer, f"{type(error).__name__} in '{right.config.name}'")
        return
    have = (len(graph.states), graph.edges.total())
    want = (len(right.graph.states), right.graph.edges.total())
    if have != want:
        outcome.setdefault("counts", f"{have} for {want} in '{right.config.name}'")
    for name, verdict in verdicts.items():
        if verdict.violation:
            outcome.setdefault("invariants", f"{name} in '{right.config.name}'")
    if graph != right.graph:
        outcome.setdefault("graph", f"'{right.config.name}'")


def _graph(twin: ModuleType, config: Any, explorer: Any, raw: Counter[Any]) -> Graph | None:
    """The model's graph in TLC's values; None if a state has no such form."""
    known: dict[Any, Any] = {}

    def state(code: Any) -> Any:
        if code not in known:
            known[code] = twin.tla_state(config, explorer.decode(code))
        return known[code]

    try:
        edges: Counter[Any] = Counter()
        for (source, action, target), count in raw.items():
            edges[state(source), action, state(target)] += count
        return Graph.from_edges([state(explorer.encode(twin.system.initial(config)))], edges)
    except Exception:  # a mutant's state may have no counterpart at all
        return None


def _contracts(modules: dict[str, ModuleType]) -> Iterator[str]:
    for module in ("document_contracts", "etcd_contracts"):
        for contract in modules[module].CONTRACTS:
            verdict = modules["running"].judge(contract, examples=CONTRACT_EXAMPLES)
            if verdict.failure is not None:
                yield contract.name


def _jobs(modules: dict[str, ModuleType], outcome: Outcome) -> None:
    try:
        modules["job_machine"].play(modules["job_machine"].job_machine(modules), JOBS)
    except Exception as error:
        outcome.setdefault("hypothesis", str(error).partition(" violated")[0] or type(error).__name__)


def judge_tla(mutant: TlaMutant | None, rights: list[Right]) -> Outcome:
    """TLC on the mutated specification against the right graph: its verdict, its counts, its edges."""
    outcome: Outcome = {}
    with tempfile.TemporaryDirectory(prefix="rallypoint-mutant-") as place:
        text = mutant.text() if mutant else (SPEC_DIR / "Rendezvous.tla").read_text(encoding="utf-8")
        Path(place, "Rendezvous.tla").write_text(text, encoding="utf-8")
        for right in rights:
            job = replace(right.config.job(), spec_dir=Path(place), timeout_s=30.0)
            result, graph = tlc.state_graph(job)
            if result.verdict != "holds":
                outcome.setdefault("invariants", f"{result.violates or result.reason} in '{right.config.name}'")
            counts = (result.states, result.edges, result.depth)
            if counts != (len(right.graph.states), right.graph.edges.total(), right.depth):
                outcome.setdefault("counts", f"{counts} in '{right.config.name}'")
            if graph != right.graph:
                outcome.setdefault("graph", f"'{right.config.name}'")
                break
    return outcome
