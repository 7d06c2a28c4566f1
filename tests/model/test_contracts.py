"""The contracts of document and store, with hypothesis' backend and with crosshair, and what they are worth.

Crosshair is a finder, not a proof: its budget is small, and what it did is counted and printed (``pytest -s``).
"""

from __future__ import annotations

import importlib.util
import time

import document_contracts
import etcd_contracts
import pytest
from contract import Contract
from plants import PLANTS, Plant
from rallypoint.model import document, etcd
from running import judge

CONTRACTS = (*document_contracts.CONTRACTS, *etcd_contracts.CONTRACTS)
BY_NAME = {contract.name: contract for contract in CONTRACTS}
SYMBOLIC = tuple(contract for contract in CONTRACTS if contract.symbolic)
CROSSHAIR_BUDGET_S = 20.0

needs_crosshair = pytest.mark.skipif(
    importlib.util.find_spec("crosshair") is None,
    reason="not checked: crosshair has no wheel for this machine",
)


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract.name)
def test_the_contract_holds(contract: Contract) -> None:
    verdict = judge(contract, examples=150, shrink=True)
    assert verdict.failure is None, verdict.failure
    assert verdict.tried > 1


@needs_crosshair
def test_crosshair_finds_nothing_within_its_budget() -> None:
    """Every contract on numbers and lists gets a few symbolic examples; text and JSON are beyond the solver."""
    deadline = time.monotonic() + CROSSHAIR_BUDGET_S
    tried: dict[str, int] = {}
    for contract in sorted(SYMBOLIC, key=lambda contract: len(contract.arguments)):
        if time.monotonic() > deadline:
            break
        verdict = judge(contract, examples=4, backend="crosshair")
        assert verdict.failure is None, f"{contract.name}: {verdict.failure}"
        tried[contract.name] = verdict.tried
    left_out = [contract.name for contract in SYMBOLIC if contract.name not in tried]
    print(f"crosshair: {sum(tried.values())} calls of {len(tried)} properties; no time for: {left_out or 'none'}")
    assert len(tried) >= 5
    assert all(tried.values())


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.id)
def test_a_planted_bug_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    assert judge(BY_NAME[plant.found_by], examples=150).failure is None
    monkeypatch.setattr(plant.owner, plant.name, plant.make(getattr(plant.owner, plant.name)))
    assert isinstance(judge(BY_NAME[plant.found_by], examples=150).failure, AssertionError), plant.about


@needs_crosshair
@pytest.mark.slow
@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.id)
def test_crosshair_finds_the_planted_bug(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plant.owner, plant.name, plant.make(getattr(plant.owner, plant.name)))
    verdict = judge(BY_NAME[plant.found_by], examples=20, backend="crosshair")
    assert isinstance(verdict.failure, AssertionError), f"{plant.about}: not found in {verdict.tried} calls"


def test_every_function_has_a_contract_and_a_plant() -> None:
    """No function of the two modules is left without."""
    promised = {name for contract in CONTRACTS for name in contract.about}
    planted = {plant.name for plant in PLANTS}
    for module in (document, etcd):
        public = {
            name
            for name, value in vars(module).items()
            if callable(value) and getattr(value, "__module__", "") == module.__name__ and name[0].islower()
        }
        assert public
        assert public <= promised, public - promised
        assert public <= planted, public - planted
