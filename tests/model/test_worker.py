"""The worker's machine: every line alive, the explorer equal to the definition, and each hardening needed."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache

import pytest
from rallypoint.model import document as docs
from rallypoint.model import system
from rallypoint.model import worker as machine
from rallypoint.model.etcd import Done
from rallypoint.model.explorer import Code, Exploration, Explorer
from rallypoint.model.rules import HARDENING, Rules, upstream
from rallypoint.model.system import Budget, Config
from rallypoint.model.worker import Worker
from rallypoint.spec.invariants import INVARIANTS
from rallypoint.tla import manifest, twin

ONE_OR_TWO, BOTH = Rules(1, 2), Rules(2, 2)
SMALL = {
    "lost reply": Config(ONE_OR_TWO, 2, Budget(lost_replies=1)),
    "crash": Config(ONE_OR_TWO, 2, Budget(crashes=1)),
    "closing": Config(ONE_OR_TWO, 2, Budget(closes=1)),
    "lost lease": Config(ONE_OR_TWO, 2, Budget(lost_leases=1)),
    "lost run": Config(ONE_OR_TWO, 2, Budget(lost_runs=1)),
    "outage": Config(Rules(1, 2, tireless_leases=False), 2, Budget(outages=1)),
    "address": Config(Rules(2, 2, bootstrap=True), 2, Budget(crashes=1, deadlines=1)),
    "other bounds": Config(ONE_OR_TWO, 2, Budget(), others=(1,), other_bounds=(2, 2)),
    "mixed": Config(BOTH, 2, Budget(), theirs=(1,)),
    # with min 1, spaces under PyTorch's rules have no end
    "lost reply, UPSTREAM": Config(upstream(BOTH), 2, Budget(lost_replies=1)),
    "crash, UPSTREAM": Config(upstream(BOTH), 2, Budget(crashes=1)),
    "outage, UPSTREAM": Config(upstream(BOTH), 2, Budget(outages=1)),
    "early wake, UPSTREAM": Config(upstream(BOTH), 2, Budget(early_wakes=1)),
}


def lines_reached(config: Config) -> set[str]:
    """The lines of the table, and the endings, at which some worker stands somewhere in the space."""
    seen: set[str] = set()

    def note(_: Config, state: system.State) -> bool:
        seen.update(worker.pc for worker in state.workers)
        return True

    assert Explorer(config).explore({"": note}).complete
    return seen


def test_every_line_of_the_table_is_reached_and_every_ending() -> None:
    # Under PyTorch's rules and with a world of one, two workers can take turns for ever: that space has no end.
    more = (
        Config(upstream(ONE_OR_TWO), 2, Budget(deadlines=1)),
        Config(upstream(ONE_OR_TWO), 2, Budget(closes=1)),
        Config(upstream(BOTH), 2, Budget(rejoins=1)),
    )
    reached = set().union(*map(lines_reached, (*SMALL.values(), *more)))
    assert reached == {*machine.TABLE, *machine.ENDED}


@pytest.mark.parametrize("config", SMALL.values(), ids=SMALL)
def test_the_explorer_takes_exactly_the_steps_of_the_definition(config: Config) -> None:
    explorer = Explorer(config)
    edges: dict[Code, Counter[tuple[str, Code]]] = {}

    def note(source: Code, action: str, target: Code) -> None:
        edges.setdefault(source, Counter())[action, target] += 1

    found = explorer.explore(on_edge=note)
    assert found.complete
    visited = set(edges) | {target for moves in edges.values() for _, target in moves}
    assert len(visited) == found.states
    for code in visited:
        steps = system.steps(config, explorer.decode(code))
        assert edges.get(code, Counter()) == Counter((step.action, explorer.encode(step.state)) for step in steps)


# --- the manifest -------------------------------------------------------------------------------------------------

ALL = tuple(
    config
    for config in manifest.load_manifest()
    if config.module == twin.MODULE and not config.name.startswith("reach-")  # which speak of formulas of TLA+ only
)
SPACES = tuple(
    pytest.param(config, id=config.name, marks=[pytest.mark.slow] if (config.counts.states or 0) > 50_000 else [])
    for config in ALL
    if config.time != "long" and config.specification == "Spec"
)


@cache
def explored(config: system.Config, names: tuple[str, ...], stop_at_first: bool) -> Exploration:
    return Explorer(config).explore({name: INVARIANTS[name] for name in names}, stop_at_first=stop_at_first)


@pytest.mark.parametrize("config", SPACES)
def test_the_explorer_gives_the_manifests_verdict_and_counts(config: manifest.Config) -> None:
    want, counts = config.expected, config.counts
    found = explored(twin.model_config(config), config.invariants, want.verdict == "violated")
    lengths = {name: len(violation.run) for name, violation in found.violations.items()}
    if want.verdict == "violated":
        assert lengths == {want.property: want.steps}
        return
    assert found.complete
    assert not lengths
    assert (counts.states, counts.edges, counts.depth) == (found.states, found.edges, found.depth)


def test_every_invariant_is_judged_and_every_one_but_TypeOK_is_violated_somewhere() -> None:
    judged = {name for config in ALL for name in config.invariants if config.expected.verdict == "holds"}
    assert judged == set(INVARIANTS)
    violated = {config.expected.property for config in ALL}
    assert set(INVARIANTS) - violated == {"TypeOK", "RanksDense", "WorldAgree", "WorldBounds", "ClosedIsFinal"}


# --- each hardening is needed, and each defect of PyTorch's class is gone -----------------------------------------


def switched_off(config: manifest.Config) -> set[str]:
    rules = config.constants["Rules"]
    assert isinstance(rules, list)
    return set(HARDENING) - set(rules)


def hardened(config: manifest.Config) -> manifest.Config:
    """The same configuration under HARDENED."""
    return replace(config, constants={**config.constants, "Rules": list(HARDENING)})


KILLS = {config.name: config for config in ALL if config.name.startswith("without-")}
"""The kill table: each hardening off alone, and what fails then."""

DEFECTS = [
    config
    for config in ALL
    if config.constants["Rules"] == ["reread"]
    and config.expected.verdict == "violated"
    and config.name.endswith("-upstream")
]


def test_the_kill_table_has_a_line_for_every_hardening() -> None:
    off = {name: switched_off(config) for name, config in KILLS.items()}
    # early_lease cannot be on without owned_slots
    alone = {switch: {switch, "early_lease"} if switch == "owned_slots" else {switch} for switch in HARDENING}
    assert off == {"without-" + switch.replace("_", "-"): switches for switch, switches in alone.items()}
    assert {config.expected.verdict for config in KILLS.values()} == {"violated"}


@pytest.mark.parametrize(
    "config", [config for config in KILLS.values() if config.specification == "Spec"], ids=lambda config: config.name
)
def test_with_the_switch_on_the_property_holds(config: manifest.Config) -> None:
    """That it fails without is in the manifest, and judged above; liveness: tests/spec."""
    found = explored(twin.model_config(hardened(config)), tuple(INVARIANTS), False)
    assert found.complete
    assert not found.violations


@pytest.mark.parametrize("config", DEFECTS, ids=lambda config: config.name)
def test_each_defect_of_PyTorchs_class_has_a_twin_that_holds(config: manifest.Config) -> None:
    same = [
        other
        for other in ALL
        if other.constants == hardened(config).constants and other.specification == config.specification
    ]
    assert same, "no configuration with the same constants under HARDENED"
    assert {other.expected.verdict for other in same} == {"holds"}
    assert any(config.expected.property in (*other.invariants, *other.properties) for other in same)
    assert config.name.removesuffix("-upstream") in {other.name for other in same} | {"outage-lease"}


@pytest.mark.parametrize("text", ["", "-1", "1.0", "one", None])
def test_a_counter_that_no_worker_wrote_is_an_error(text: str | None) -> None:
    with pytest.raises(docs.BrokenDocumentError, match="version counter holds"):
        machine.step(BOTH, Worker("0.0", "counter"), Done(text))


def test_members_count_the_waiters_whose_lease_stands() -> None:
    document = docs.Document("final", 1, (0,), ("k",), 3, waiters=("1.0", "2.0"))
    dead, both = ("/v_1/waiter_2.0",), ("/v_1/waiter_1.0", "/v_1/waiter_2.0")
    assert machine.waiting(ONE_OR_TWO, document, both) == 3  # one of PyTorch's workers waits, too
    assert machine.waiting(ONE_OR_TWO, document, dead) == 2
    assert machine.waiting(ONE_OR_TWO, document, ()) == 1
    assert machine.waiting(upstream(ONE_OR_TWO), document, ()) == 3
