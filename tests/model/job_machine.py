"""A job under hypothesis: it draws the workers, their bounds and the faults, and then each step; invariants judge.

May live here: what is drawn. Must not live here: what must hold (``spec/invariants.py``). Where the explorer searches
one small space to its end, this draws from all of them: more workers, more faults at once, groups of all kinds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from types import ModuleType
from typing import Any

import rallypoint.spec.invariants
from hypothesis import HealthCheck, Phase, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from rallypoint.model import rules, system

MODULES: Mapping[str, ModuleType] = {
    "rules": rules,
    "system": system,
    "invariants": rallypoint.spec.invariants,
}
FAULTS = tuple(field.name for field in fields(system.Budget))
STEPS = 60


def job_machine(modules: Mapping[str, ModuleType], off: tuple[str, ...] = ()) -> type[RuleBasedStateMachine]:
    """A machine over these modules (a mutant brings its own), with the hardenings in ``off`` switched off."""
    rules, system = modules["rules"], modules["system"]
    invariants = modules["invariants"].INVARIANTS

    @st.composite
    def configs(draw: st.DrawFn) -> Any:
        workers = draw(st.sampled_from((2, 2, 3, 4)))
        lowest = draw(st.integers(1, workers))
        highest = draw(st.integers(lowest, workers))
        some = draw(st.dictionaries(st.sampled_from(FAULTS), st.just(1), min_size=1, max_size=3))
        bounds = rules.Rules(lowest, highest, bootstrap=draw(st.booleans()))
        return system.Config(rules.without(bounds, *off), workers, system.Budget(**some))

    class Job(RuleBasedStateMachine):
        @initialize(config=configs())
        def begin(self, config: Any) -> None:
            note(f"{config}")
            self.config = config
            self.reach(system.initial(config))

        @precondition(lambda self: self.steps)
        @rule(data=st.data())
        def step(self, data: Any) -> None:
            number = data.draw(st.integers(0, len(self.steps) - 1))
            taken = self.steps[number]
            note(f"{taken.action} of {'etcd' if taken.slot is None else taken.slot}")
            self.reach(taken.state)

        @precondition(lambda self: not self.steps)
        @rule()
        def rest(self) -> None:
            """Nothing can happen any more."""

        def reach(self, state: Any) -> None:
            self.steps = list(system.steps(self.config, state))
            broken = [name for name, holds in invariants.items() if not holds(self.config, state)]
            assert not broken, f"{', '.join(broken)} violated in {state}"

    return Job


def play(job: type[RuleBasedStateMachine], examples: int, *, shrink: bool = False) -> None:
    """Play ``examples`` jobs, the same ones in every run. Raises what a job raised, AssertionError for a violation."""
    run: Any = run_state_machine_as_test  # untyped in some versions
    run(
        job,
        settings=settings(
            max_examples=examples,
            stateful_step_count=STEPS,
            derandomize=True,
            database=None,
            deadline=None,
            phases=(Phase.generate, *((Phase.shrink,) if shrink else ())),
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )
