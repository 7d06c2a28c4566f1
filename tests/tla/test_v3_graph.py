"""The v3 rendezvous: TLA+ and the model are the same labelled graph, each switch is needed, every run ends."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from graphlib import TopologicalSorter

import pytest
from rallypoint.model.system3 import Budget, Check, State, explore
from rallypoint.model.system3 import Config as ModelConfig
from rallypoint.model.worker3 import SWITCHES, Rules
from rallypoint.spec.v3 import EVENTUALLY, INVARIANTS
from rallypoint.tla import v3_twin
from rallypoint.tla.graph import Graph, compare
from rallypoint.tla.manifest import SPEC_DIR, Config, load_manifest
from rallypoint.tla.tlc import TlcResult, run_all, state_graph

CONFIGS = {config.name: config for config in load_manifest(SPEC_DIR / "manifest3.toml")}
HOLDING = [config for config in CONFIGS.values() if config.expected.verdict == "holds"]
VIOLATED = [config for config in CONFIGS.values() if config.expected.verdict == "violated"]
PROPERTIES = {**INVARIANTS, **EVENTUALLY}

REACHABLE: dict[str, Check] = {
    "NeverMember": lambda _, state: all(worker.pc != "member" for worker in state.workers),
    "NeverVoid": lambda _, state: state.store.doc.status != "void",
    "NeverTold": lambda _, state: not any(worker.told for worker in state.workers),
    "NeverSecond": lambda _, state: len(state.history.versions) < 2,
}

NEEDED = {
    "compare_state": ("ClosedIsFinal", 2, Rules(1, 2), Budget(closes=1)),
    "check_alive": ("FinalAllConfirmed", 2, Rules(2, 2), Budget(crashes=1)),
    "wait_old_gone": ("OneLiveVersion", 2, Rules(1, 1), Budget()),
    "revision_versions": ("VersionNeverReused", 1, Rules(1, 1), Budget(lost_runs=1, reenters=1)),
    "join_once": ("CountMatchesWaiters", 2, Rules(2, 2), Budget(lost_replies=1)),
    "reread": ("NoFatalRace", 2, Rules(2, 2), Budget(compactions=1)),
    "watch_leader": ("EventuallyFinal", 2, Rules(1, 2), Budget(crashes=1)),
    "watch_lease": ("EventuallyFinal", 2, Rules(2, 2), Budget(early_losses=1)),
}
"""Switch -> what is violated without it, by how many workers, and with how much freedom."""


def marked(config: Config) -> object:
    """The largest spaces are not for every day."""
    marks = [pytest.mark.slow] if (config.counts.states or 0) > 5_000 else []
    return pytest.param(config, id=config.name, marks=marks)


@cache
def tlc_graph(name: str) -> tuple[TlcResult, Graph]:
    """What TLC made of a configuration; once for all tests."""
    result, graph = state_graph(CONFIGS[name].job(checking=False))
    assert graph is not None, result
    return result, graph


@pytest.mark.parametrize("config", map(marked, HOLDING))
def test_tlc_and_the_model_have_the_same_graph(config: Config) -> None:
    result, left = tlc_graph(config.name)
    right = v3_twin.model_graph(v3_twin.model_config(config))
    difference = compare(left, right, "TLC", "model")
    assert difference is None, difference.text()
    counts = config.counts
    assert (counts.states, counts.edges, counts.depth) == (len(left.states), left.edges.total(), result.depth)


def test_a_planted_difference_is_found() -> None:
    _, left = tlc_graph("v3-meet")
    config = v3_twin.model_config(CONFIGS["v3-meet"])
    planted = replace(config, rules=replace(config.rules, wait_old_gone=False))
    assert compare(left, v3_twin.model_graph(planted), "TLC", "model") is not None


def test_tlc_has_the_verdicts_of_the_manifest() -> None:
    configs = [config for config in VIOLATED if "-without-" in config.name]
    jobs = [config.job() for config in configs]
    odd = {
        configs[index].name: surprises
        for index, result in run_all(jobs, parallel=2)
        if (surprises := configs[index].surprises(result))
    }
    assert odd == {}


@pytest.mark.slow
def test_tlc_has_all_verdicts_of_the_manifest() -> None:
    configs = list(CONFIGS.values())
    odd = {
        configs[index].name: surprises
        for index, result in run_all([config.job() for config in configs], parallel=2)
        if (surprises := configs[index].surprises(result))
    }
    assert odd == {}


@pytest.mark.parametrize("config", map(marked, HOLDING))
def test_everything_holds_and_every_run_ends(config: Config) -> None:
    """Without a cycle, what holds at the end of each run holds eventually."""
    before: dict[State, set[State]] = {}

    def note(source: State, _: str, target: State) -> None:
        before.setdefault(target, set()).add(source)

    found = explore(v3_twin.model_config(config), PROPERTIES, on_edge=note)
    assert found.complete
    assert found.violations == {}
    TopologicalSorter(before).prepare()  # raises CycleError


@pytest.mark.parametrize("config", VIOLATED, ids=lambda config: config.name)
def test_the_model_has_the_verdicts_of_the_manifest(config: Config) -> None:
    checks = {name: {**INVARIANTS, **REACHABLE}[name] for name in config.invariants}
    found = explore(v3_twin.model_config(config), checks)
    assert {name: len(run) for name, run in found.violations.items()} == {
        config.expected.property: config.expected.steps
    }


@pytest.mark.parametrize("switch", SWITCHES)
def test_each_switch_is_needed(switch: str) -> None:
    violated, workers, rules, budget = NEEDED[switch]
    config = ModelConfig(rules, workers, budget)
    assert explore(config, PROPERTIES).violations == {}
    without = replace(config, rules=replace(rules, **{switch: False}))
    assert set(explore(without, PROPERTIES).violations) == {violated}
