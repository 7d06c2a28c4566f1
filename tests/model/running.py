"""Run a contract: one verdict, whatever the backend.

May live here: hypothesis' settings. Must not live here: what is promised (``*_contracts``).
"""

from __future__ import annotations

from dataclasses import dataclass

from contract import Contract
from hypothesis import HealthCheck, Phase, given, settings


@dataclass(frozen=True)
class Verdict:
    """``tried``: how often the property was called. ``failure``: what it said, None if it held every time."""

    tried: int
    failure: BaseException | None


def judge(contract: Contract, *, examples: int, backend: str = "hypothesis", shrink: bool = False) -> Verdict:
    """Call the property on at most ``examples`` arguments, the same ones in every run."""
    tried = 0

    def counted(**arguments: object) -> None:
        nonlocal tried
        tried += 1
        contract.check(**arguments)

    phases = (Phase.explicit, Phase.generate, *((Phase.shrink,) if shrink else ()))
    run = settings(
        max_examples=examples,
        backend=backend,
        derandomize=backend == "hypothesis",
        database=None,
        deadline=None,
        phases=phases,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )(given(**contract.arguments)(counted))
    try:
        run()
    except Exception as failure:
        return Verdict(tried, failure)
    return Verdict(tried, None)
