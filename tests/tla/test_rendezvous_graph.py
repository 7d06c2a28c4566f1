"""The rendezvous: TLA+ and the model are the same labelled graph, under each of the spec's formulas."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from rallypoint.model.rules import without
from rallypoint.model.system import Config as ModelConfig
from rallypoint.tla import twin
from rallypoint.tla.graph import Graph, compare
from rallypoint.tla.manifest import Config, load_manifest
from rallypoint.tla.tlc import TlcResult, run_all, state_graph, state_graphs

CONFIGS = {config.name: config for config in load_manifest() if config.module == twin.MODULE}
SAMPLE = ("lost-reply", "early-wake-upstream", "dead-participant", "meeting-again")
"""Both rule sets, and all three formulas."""

LARGEST = 50_000  # states; beyond, counts and depth are compared
ENDLESS = {"lost-announcement-upstream", "outage-upstream", "outage-lease-upstream", "closing-upstream"}
"""Two of PyTorch's workers that take turns for ever, or are counted once more for ever: spaces without an end."""

QUICK = [config for config in CONFIGS.values() if config.time != "long" and config.name not in ENDLESS]
WHOLE = {(config.specification, repr(config.constants)): config for config in reversed(QUICK)}.values()
"""Every space once, under the name of its first configuration."""
LARGE = [config for config in WHOLE if (config.counts.states or 0) > LARGEST]


@pytest.fixture(scope="module")
def sampled() -> Mapping[str, tuple[TlcResult, Graph]]:
    """TLC's graphs of the sample."""
    found = {}
    for index, result, graph in state_graphs([CONFIGS[name].job(checking=False) for name in SAMPLE], parallel=2):
        assert graph is not None, result
        found[SAMPLE[index]] = result, graph
    return found


def judge(config: Config, result: TlcResult, graph: Graph) -> None:
    difference = compare(graph, twin.model_graph(twin.model_config(config), config.specification), "TLC", "model")
    assert difference is None, difference.text()
    assert graph.edges.total() == result.edges
    if config.expected.verdict == "holds":
        pinned = config.counts
        assert (pinned.states, pinned.edges, pinned.depth) == (result.states, result.edges, result.depth)


@pytest.mark.parametrize("name", SAMPLE)
def test_tlc_and_the_model_have_the_same_graph(name: str, sampled: Mapping[str, tuple[TlcResult, Graph]]) -> None:
    judge(CONFIGS[name], *sampled[name])


@pytest.mark.parametrize(
    ("name", "planted", "specification"),
    [
        ("lost-reply", {"switch": "idempotent_confirm"}, "Spec"),
        ("lost-reply", {}, "FairWithoutTtl"),
        ("meeting-again", {"switch": "leave_at_once"}, "FairWithoutTtl"),
        ("dead-participant", {}, "FairWithoutTtl"),
    ],
)
def test_a_planted_difference_is_found(
    name: str, planted: dict[str, str], specification: str, sampled: Mapping[str, tuple[TlcResult, Graph]]
) -> None:
    """Another rule, or another formula, on the model's side alone."""
    right = twin.model_config(CONFIGS[name])
    wrong = ModelConfig(without(right.rules, *planted.values()), right.workers, right.budget)
    difference = compare(sampled[name][1], twin.model_graph(wrong, specification), "TLC", "model")
    assert difference is not None
    assert difference.path


@pytest.mark.slow
@pytest.mark.parametrize(
    "config",
    [config for config in WHOLE if config not in LARGE and config.name not in SAMPLE],
    ids=lambda config: config.name,
)
def test_tlc_and_the_model_have_the_same_graph_everywhere(config: Config) -> None:
    result, graph = state_graph(config.job(checking=False))
    assert graph is not None, result
    judge(config, result, graph)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("config", LARGE, ids=lambda config: config.name)
def test_beyond_that_the_counts_are_those_of_the_manifest(config: Config) -> None:
    """As the explorer's are: tests/model."""
    ((_, result),) = run_all([config.job()], parallel=1)
    assert config.surprises(result) == []
    assert None not in (config.counts.states, config.counts.edges, config.counts.depth)
