"""The register: TLA+ and the model are the same labelled graph, with the counts and verdicts of the manifest."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache

import pytest
from rallypoint.model.register import HARDENED, UPSTREAM, Rules
from rallypoint.model.register_system import Budget, explore
from rallypoint.model.register_system import Config as ModelConfig
from rallypoint.spec.register import INVARIANTS, REACHABLE
from rallypoint.tla import register_twin
from rallypoint.tla.graph import Graph, compare
from rallypoint.tla.manifest import Config, load_manifest
from rallypoint.tla.tlc import TlcResult, run_all, state_graph

CONFIGS = {config.name: config for config in load_manifest() if config.module == register_twin.MODULE}
HOLDING = [config for config in CONFIGS.values() if config.expected.verdict == "holds"]
VIOLATED = [config for config in CONFIGS.values() if config.expected.verdict == "violated"]

NEEDED = {
    "read_back": ("OwnWriteIsSuccess", Budget(sets=2, lost_replies=1), False),
    "settle_first": ("NoLostUpdate", Budget(sets=1, lost_replies=1, vanishings=1), True),
    "strict_tokens": ("TokenNeverCreates", Budget(sets=1), False),
    "vanished_is_absent": ("VanishedIsTold", Budget(sets=2, vanishings=1), False),
}
"""Switch -> what is violated without it, and with how much freedom."""


@cache
def tlc_graph(name: str) -> tuple[TlcResult, Graph]:
    """What TLC made of a configuration; once for all tests."""
    result, graph = state_graph(CONFIGS[name].job(checking=False))
    assert graph is not None, result
    return result, graph


@pytest.mark.parametrize("config", HOLDING, ids=lambda config: config.name)
def test_tlc_and_the_model_have_the_same_graph(config: Config) -> None:
    result, left = tlc_graph(config.name)
    right = register_twin.model_graph(register_twin.model_config(config))
    difference = compare(left, right, "TLC", "model")
    assert difference is None, difference.text()
    counts = config.counts
    assert (counts.states, counts.edges, counts.depth) == (len(left.states), left.edges.total(), result.depth)


def test_a_planted_difference_is_found() -> None:
    config = CONFIGS["register-vanished"]
    _, left = tlc_graph(config.name)
    planted = replace(register_twin.model_config(config), rules=replace(HARDENED, read_back=False))
    difference = compare(left, register_twin.model_graph(planted), "TLC", "model")
    assert difference is not None
    assert "c[" in difference.headline


@pytest.mark.parametrize(
    "configs",
    [
        pytest.param([config for config in VIOLATED if "-reach-" not in config.name], id="defects"),
        pytest.param(list(CONFIGS.values()), id="all", marks=pytest.mark.slow),
    ],
)
def test_tlc_has_the_verdicts_of_the_manifest(configs: list[Config]) -> None:
    odd = {
        configs[index].name: surprises
        for index, result in run_all([config.job() for config in configs], parallel=2)
        if (surprises := configs[index].surprises(result))
    }
    assert odd == {}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=lambda config: config.name)
def test_the_model_has_the_verdicts_of_the_manifest(config: Config) -> None:
    checks = {name: {**INVARIANTS, **REACHABLE}[name] for name in config.invariants}
    found = explore(register_twin.model_config(config), checks)
    want = config.expected
    assert {name: len(run) for name, run in found.violations.items()} == (
        {want.property: want.steps} if want.verdict == "violated" else {}
    )


@pytest.mark.parametrize("switch", [field.name for field in fields(Rules)])
def test_each_hardening_is_needed(switch: str) -> None:
    violated, budget, late_creates = NEEDED[switch]
    config = ModelConfig(HARDENED, 2, budget, late_creates)
    assert explore(config, INVARIANTS).violations == {}
    without = replace(config, rules=replace(HARDENED, **{switch: False}))
    assert violated in explore(without, INVARIANTS).violations


def test_the_defects_of_upstream_have_shortest_runs() -> None:
    config = ModelConfig(UPSTREAM, 1, Budget(sets=2, lost_replies=1, vanishings=1), late_creates=True)
    runs = explore(config, INVARIANTS).violations
    actions = {name: [step.action for step in run] for name, run in runs.items()}
    assert actions == {
        "TokenNeverCreates": ["StartSet", "Create"],  # B-B
        "OwnWriteIsSuccess": ["StartSet", "LoseReply", "Create", "Current"],  # B-A
        "NoLostUpdate": ["StartSet", "LoseReply", "Vanish", "Create"],
        "VanishedIsTold": ["StartSet", "Create", "StartSet", "Vanish", "Swap"],  # B-H
    }


def test_every_action_happens() -> None:
    config = ModelConfig(HARDENED, 2, Budget(sets=2, gets=1, lost_replies=1, delays=1, vanishings=1, give_ups=1))
    assert set(explore(config).actions) == {
        *("StartGet", "StartSet", "Get", "Look", "Create", "Swap", "Settle", "Find", "Current"),
        *("LoseReply", "Delay", "GiveUp", "Arrive", "Vanish"),
    }


def test_upstream_and_hardened_are_told_apart_by_the_manifest() -> None:
    shown = {config.expected.property for config in VIOLATED if config.constants["Rules"] == []}
    assert shown == INVARIANTS.keys() - {"TypeOK"}
