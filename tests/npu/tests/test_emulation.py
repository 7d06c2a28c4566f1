"""The emulation computes what a CPU computes, or refuses; it is said which of real and emulated it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import collectives
import operations
import pytest
import refusals
from rallypoint.npu.cann import Cann

Script = Callable[..., Any]

DOCS = Path(__file__).parents[3] / "docs" / "npu.md"


@pytest.fixture(scope="module")
def computed(script: Script) -> Any:
    return script("operations.py")


@pytest.fixture(scope="module")
def beyond(script: Script) -> Any:
    return script("refusals.py")


@pytest.fixture(scope="module")
def collected(script: Script) -> Any:
    return script("collectives.py")


@pytest.mark.parametrize("name", operations.OPERATIONS)
def test_an_operation_gives_what_it_gives_on_a_cpu(name: str, computed: Any) -> None:
    expected = operations.results(name, "cpu")
    assert expected
    assert computed[name] == expected


@pytest.mark.parametrize("name", refusals.OPERATIONS)
def test_no_operation_gives_made_up_data(name: str, beyond: Any, cann: Cann) -> None:
    """Beyond the emulated operations: an error, or what a CPU gives."""
    assert beyond[name] in {"refused", "same"} if cann.emulated else {"same"}


def test_what_is_not_emulated_is_refused(beyond: Any, cann: Cann) -> None:
    if cann.emulated:
        for name in ("matmul", "exp", "sort", "after a refusal", "behind a refusal"):
            assert beyond[name] == "refused"


@pytest.mark.parametrize("name", collectives.COLLECTIVES)
def test_a_collective_gives_what_gloo_gives(name: str, collected: Any) -> None:
    expected = [rank[name] for rank in collected["gloo"]]
    assert any(expected)
    assert [rank[name] for rank in collected["hccl"]] == expected


@pytest.mark.parametrize("name", collectives.TROUBLE)
def test_no_rank_gets_data_from_a_collective_that_failed(name: str, collected: Any) -> None:
    ranks = collected["trouble"][name]
    assert len(ranks) == collectives.RANKS
    assert all(rank is None or "error" in rank for rank in ranks)
    lost = {"a rank is killed", "a rank stands still"}
    assert ranks.count(None) == (1 if name in lost else 0)


def test_a_death_is_noticed_long_before_the_time_limit(collected: Any, cann: Cann) -> None:
    if cann.emulated:
        assert max(rank["seconds"] for rank in collected["trouble"]["a rank is killed"] if rank) < 2


def test_it_is_said_what_it_runs_on(cann: Cann) -> None:
    assert cann.text == "CANN: emulated (4 devices)" if cann.emulated else cann.text.startswith("CANN ")


def test_the_documentation_lists_what_is_emulated() -> None:
    text = DOCS.read_text()
    for name in (*operations.OPERATIONS, *collectives.COLLECTIVES):
        assert f"`{name}`" in text
