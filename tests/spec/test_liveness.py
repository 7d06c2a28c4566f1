"""The search for fair runs that never arrive: on graphs drawn by hand, and on the configurations of the manifest."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rallypoint.model import fair, system
from rallypoint.model.explorer import Explorer
from rallypoint.model.rules import HARDENING, Rules
from rallypoint.model.system import Budget, Config
from rallypoint.spec import liveness
from rallypoint.spec.liveness import LIVENESS, components, fair_ends
from rallypoint.tla import manifest, twin

# --- graphs by hand -----------------------------------------------------------------------------------------------

Drawn = dict[str, list[tuple[int | None, str]]]
"""state -> (fairness class, next state)."""

GRAPHS: dict[str, tuple[Drawn, str, str]] = {
    "a run that ends may stay where it is": ({"a": [(0, "b")], "b": []}, "ab", "b"),
    "a step that is owed is taken some day": ({"a": [(0, "b")], "b": []}, "a", ""),
    "a fault is never owed": ({"a": [(None, "b")], "b": []}, "a", "a"),
    "a step that changes nothing is none": ({"a": [(0, "a"), (0, "b")], "b": []}, "a", ""),
    "a cycle of owed steps": ({"a": [(0, "b")], "b": [(0, "a")]}, "ab", "ab"),
    "another class leads out of the cycle, from everywhere": (
        {"a": [(0, "b"), (1, "c")], "b": [(0, "a"), (1, "c")], "c": []},
        "ab",
        "",
    ),
    "another class leads out, but somewhere cannot be taken": (
        {"a": [(0, "b"), (1, "c")], "b": [(0, "a")], "c": []},
        "ab",
        "ab",
    ),
    "another class is taken in the cycle": (
        {"a": [(0, "b"), (1, "c")], "b": [(1, "a")], "c": []},
        "ab",
        "ab",
    ),
    "the same class leads out, and is taken inside as well": (
        {"a": [(0, "b"), (0, "c")], "b": [(0, "a")], "c": []},
        "ab",
        "ab",
    ),
    "faults alone make a cycle, and no owed step can be put off": (
        {"a": [(None, "b"), (0, "c")], "b": [(None, "a"), (0, "c")], "c": []},
        "ab",
        "",
    ),
    "on the way to the end nothing stays": ({"a": [(0, "b")], "b": [(0, "c")], "c": [(0, "b")]}, "abc", "bc"),
    "two cycles are not one": (
        {"a": [(0, "b")], "b": [(1, "a"), (1, "c")], "c": [(0, "d"), (1, "e")], "d": [(0, "c"), (1, "e")], "e": []},
        "abcd",
        "ab",
    ),
}
"""what it shows -> graph, the region, and the states of the region in which a fair run can stay."""


@pytest.mark.parametrize("case", GRAPHS.values(), ids=GRAPHS)
def test_where_a_fair_run_can_stay(case: tuple[Drawn, str, str]) -> None:
    graph, region, ends = case
    assert fair_ends(graph, set(region)) == set(ends)


def test_components() -> None:
    graph = {1: [2], 2: [3], 3: [1, 4], 4: [5], 5: [6], 6: [5, 7], 7: [], 8: [1, 8]}
    found = sorted(map(sorted, components(graph)))
    assert found == [[1, 2, 3], [4], [5, 6], [7], [8]]
    long = {n: [n + 1] for n in range(50_000)} | {50_000: [0]}
    assert components(long) == [set(long)]  # deeper than any recursion


# --- the manifest -------------------------------------------------------------------------------------------------

ALL = tuple(
    config
    for config in manifest.load_manifest()
    if config.module == twin.MODULE and not config.name.startswith("reach-")
)
TEMPORAL = tuple(config for config in ALL if config.properties)


def check(config: manifest.Config, names: tuple[str, ...]) -> dict[str, liveness.Verdict]:
    return liveness.check(
        twin.model_config(config), [LIVENESS[name] for name in names], ttls=twin.TTLS_RUN_OUT[config.specification]
    )


def test_every_property_is_judged_both_ways() -> None:
    verdicts = {(name, config.expected.verdict) for config in TEMPORAL for name in config.properties}
    assert verdicts == {(name, verdict) for name in LIVENESS for verdict in ("holds", "violated")}


@pytest.mark.parametrize("config", TEMPORAL, ids=lambda config: config.name)
def test_the_search_gives_the_manifests_verdict(config: manifest.Config) -> None:
    verdicts = check(config, config.properties)
    broken = [name for name, verdict in verdicts.items() if verdict.violation]
    assert broken == ([config.expected.property] if config.expected.verdict == "violated" else [])
    assert config.counts.states in {verdict.states for verdict in verdicts.values()} | {None}
    immediate = {"untold"}  # under HARDENED, who is superseded is told in the same instant: nobody is ever untold
    assert config.name in immediate or all(verdict.obliged for verdict in verdicts.values())


@pytest.mark.parametrize(
    "config",
    [config for config in TEMPORAL if config.name.startswith("without-")],
    ids=lambda config: config.name,
)
def test_with_the_switch_on_the_property_holds(config: manifest.Config) -> None:
    on = replace(config, constants={**config.constants, "Rules": list(HARDENING)})
    assert [it.violation for it in check(on, config.properties).values()] == [None]


NOT_LIVE = {
    "mixed": "PyTorch's member is never told (L-W): the other waits for it in vain",
    "other-bounds": "who is left alone waits for its minimum, which is not the run's",
    "other-bounds-early-wake": "as other-bounds",
}
FITTING = tuple(
    pytest.param(config, id=config.name, marks=[pytest.mark.slow] if (config.counts.states or 0) > 1500 else [])
    for config in ALL
    if config.time != "long"
    and config.specification == "Spec"
    and config.expected.verdict == "holds"
    and "reread" not in config.constants["Rules"]  # type: ignore[operator]
    and config.name not in NOT_LIVE
)
IMMEDIATE = "EventuallyTold"
"""Under HARDENED a superseded member is told in the same instant: nobody is ever untold, and nothing is obliged."""


@pytest.mark.parametrize("config", FITTING)
def test_HARDENED_is_live_on_the_quick_configurations(config: manifest.Config) -> None:
    for name, verdict in liveness.check(twin.model_config(config), LIVENESS.values()).items():
        assert verdict.violation is None, (name, [step.action for step in verdict.violation.run])
        assert name != IMMEDIATE or verdict.obliged == 0
        assert name != "ClosedEnds" or bool(verdict.obliged) == (config.constants["Closes"] != 0)


@pytest.mark.parametrize("name", ["lost-reply", "outage", "early-wake", "three-workers"])
def test_where_nobody_is_lost_nobody_waits_for_a_TTL(name: str) -> None:
    (config,) = manifest.select(ALL, [name])
    verdict = liveness.check(twin.model_config(config), [liveness.EVENTUALLY_FINAL], ttls=False)["EventuallyFinal"]
    assert verdict.violation is None
    assert verdict.obliged


# --- fair steps ---------------------------------------------------------------------------------------------------


def test_time_passes_only_while_nobody_has_anything_to_do() -> None:
    config = Config(Rules(1, 2), 2, Budget(crashes=1, expiries=1))
    explorer = Explorer(config)
    seen: set[str] = set()
    for state in _every_state(config, explorer):
        plain = [step.action for step in system.steps(config, state)]
        busy = any(action in fair.PROGRESS for action in plain)
        actions = [it.step.action for it in fair.steps(config, state)]
        assert not busy or not {"LastCallEnds", "RunOut"} & set(actions)
        assert "RunOut" not in actions or "LastCallOver" not in plain
        assert "LastCallOver" not in actions
        seen.update(actions)
    assert {"LastCallEnds", "RunOut", "MeetAgain", "ExpireDocument"} <= seen


def _every_state(config: Config, explorer: Explorer) -> list[system.State]:
    states: list[system.State] = []

    def note(_: Config, state: system.State) -> bool:
        states.append(state)
        return True

    assert explorer.explore({"": note}).complete
    return states
