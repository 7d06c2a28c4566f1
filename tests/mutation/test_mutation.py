"""Do the project's checks tell a model that is wrong in one place? A sample always, the whole matrix when slow.

``python benchmarks/mutation.py`` prints the matrix.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "model"))

from layers import Right, configs, judge_model, right_graphs
from matrix import matrix
from mutate import TLA_MUTANTS, Mutant, chosen, every_mutant, mutated
from survivors import REASONS

SAMPLE = (
    "document.join comparison 1",
    "document.confirm and-or 2",
    "etcd.enabled comparison 1",
    "worker._dispatch comparison 8",
    "system.pay constant 1",
)
"""Mutants of the model for the default run; one of the TLA+ is the sixth."""

SPACES = ("hardened {'Min': 1, 'LostReplies': 1}", "'Min': 1, 'Closes': 1}")


@pytest.fixture(scope="module")
def rights() -> list[Right]:
    """One configuration with faults for each rule set."""
    return right_graphs([config for config in configs() if config.name.endswith(SPACES)])


def _named(name: str) -> Mutant:
    return next(mutant for mutant in every_mutant() if mutant.name == name)


def test_there_are_enough_mutants_and_each_changes_its_module() -> None:
    mutants = chosen()
    assert len(mutants) >= 30
    assert len(TLA_MUTANTS) >= 10
    assert len({mutant.name for mutant in every_mutant()}) == len(every_mutant())
    for mutant in mutants:
        compile(mutated(mutant), mutant.name, "exec")
    assert all(mutant.text() for mutant in TLA_MUTANTS)


def test_the_right_model_passes_every_layer(rights: list[Right]) -> None:
    assert judge_model(None, rights) == {}


def test_a_sample_is_killed(rights: list[Right]) -> None:
    lines = matrix([*map(_named, SAMPLE), TLA_MUTANTS[0]], rights)
    assert [line.mutant.name for line in lines if not line.outcome] == []


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_every_survivor_has_a_reason() -> None:
    rights = right_graphs(configs())
    lines = matrix([*chosen(), *TLA_MUTANTS], rights)
    assert {line.mutant.name for line in lines if not line.outcome} == set(REASONS)
