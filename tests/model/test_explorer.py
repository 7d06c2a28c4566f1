"""The search itself: states held as numbers lose nothing, its bounds are kept, and walks are runs."""

from __future__ import annotations

import gc
from collections import Counter
from itertools import pairwise

import pytest
from rallypoint.model import system
from rallypoint.model.explorer import Code, Explorer, Interner
from rallypoint.model.rules import Rules, upstream
from rallypoint.model.system import Budget, Config, State
from rallypoint.model.walks import wander
from rallypoint.spec.invariants import INVARIANTS

THREE = Config(Rules(3, 3), 3, Budget())
CRASHING = Config(Rules(1, 2), 2, Budget(crashes=1, lost_leases=1))
FAILING = Config(upstream(Rules(2, 2)), 2, Budget(lost_replies=1))
FAILS = {"FinalAllConfirmed": INVARIANTS["FinalAllConfirmed"]}


def never_final(config: Config, state: State) -> bool:
    document = system.document(config.rules, state.store)
    return document is None or document.status != "final"


@pytest.mark.parametrize("config", [THREE, CRASHING], ids=["three workers", "crash and lost lease"])
def test_the_steps_are_those_of_the_definition_in_its_order(config: Config) -> None:
    explorer = Explorer(config)
    codes: list[Code] = []
    edges: Counter[str] = Counter()

    def note(source: Code, action: str, target: Code) -> None:
        if not codes or codes[-1] != source:
            codes.append(source)
        edges[action] += 1

    found = explorer.explore(on_edge=note)
    assert found.complete
    assert len(set(codes)) == len(codes), "a state was visited twice"
    for code in codes[::7]:
        state = explorer.decode(code)
        assert explorer.encode(state) == code
        steps = [(step.action, explorer.encode(step.state)) for step in system.steps(config, state)]
        assert list(explorer.successors(code)) == steps
    assert (found.edges, found.actions) == (edges.total(), dict(edges))
    assert len({explorer.decode(code) for code in codes}) == len(codes), "two numbers for one state"


def test_a_second_search_counts_afresh() -> None:
    explorer = Explorer(FAILING)
    first, second = explorer.explore(), explorer.explore()
    assert (first.states, first.edges, first.depth, first.actions) == (
        second.states,
        second.edges,
        second.depth,
        second.actions,
    )


def test_a_bound_on_states_ends_the_search_and_says_so() -> None:
    told: list[int] = []
    found = Explorer(THREE).explore(max_states=500, on_progress=told.append)
    assert not found.complete
    assert 500 < found.states < 600
    assert told


def test_the_search_ends_at_the_first_violation_if_asked_to() -> None:
    checks = {**FAILS, "never final": never_final}
    first = Explorer(FAILING).explore(checks, stop_at_first=True)
    assert not first.complete
    every = Explorer(FAILING).explore(checks)
    assert every.complete
    assert set(every.violations) == set(checks)
    (name,) = first.violations
    assert first.violations[name].run == every.violations[name].run


def test_more_values_than_fit_end_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rallypoint.model.explorer.WORKER", 15)  # a mask of four bits
    found = Explorer(THREE).explore()
    assert not found.complete
    assert found.states > 1


def test_more_values_than_fit_are_an_error() -> None:
    numbers: Interner[str] = Interner(highest=1)
    assert [numbers.number(text) for text in ("a", "b", "a")] == [0, 1, 0]
    with pytest.raises(MemoryError, match="more than 1 different str values"):
        numbers.number("c")


@pytest.mark.parametrize("was_on", [True, False])
def test_the_collector_is_as_it_was(was_on: bool) -> None:
    def broken(config: Config, state: State) -> bool:
        assert not gc.isenabled()
        raise RuntimeError("a check that fails")

    before = gc.isenabled()
    (gc.enable if was_on else gc.disable)()
    try:
        with pytest.raises(RuntimeError, match="a check that fails"):
            Explorer(FAILING).explore({"": broken})
        assert gc.isenabled() == was_on
    finally:
        (gc.enable if before else gc.disable)()


def test_a_walk_is_a_run_from_the_start_to_the_violation() -> None:
    found = wander(FAILING, FAILS, walks=2000, length=60, seed=3)
    run = found.violations["FinalAllConfirmed"].run
    states = [system.initial(FAILING), *(step.state for step in run)]
    for before, after in pairwise(states):
        assert after in [step.state for step in system.steps(FAILING, before)]
    assert [FAILS["FinalAllConfirmed"](FAILING, state) for state in states] == [True] * len(run) + [False]
    assert found.walks < 2000, "nothing was left to judge"


def test_walks_repeat_with_their_seed_and_keep_their_bounds() -> None:
    def counts(seed: int) -> tuple[int, int, int]:
        found = wander(THREE, INVARIANTS, walks=20, length=15, seed=seed)
        assert (found.walks, found.violations) == (20, {})
        assert found.longest <= 15
        assert 1 < found.states <= found.steps + 1
        return found.steps, found.states, found.longest

    assert counts(1) == counts(1)
    assert counts(1) != counts(2)
