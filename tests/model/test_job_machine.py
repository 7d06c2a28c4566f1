"""Jobs drawn by hypothesis keep every invariant; with a hardening off, it finds a job that does not."""

from __future__ import annotations

import pytest
from job_machine import MODULES, job_machine, play

EXAMPLES = 40


def test_every_job_keeps_the_invariants() -> None:
    play(job_machine(MODULES), EXAMPLES)


@pytest.mark.parametrize(
    ("switch", "violated"),
    [
        ("counted_once", "CountMatchesWaiters"),
        ("told_when_stale", "OneLiveVersion"),
        ("spares_parked", "ToldIfRoom"),
        ("tireless_leases", "OneSlotEach"),
        ("counter_restored", "NoFatalRace"),
    ],
)
def test_a_hardening_that_is_missed(switch: str, violated: str) -> None:
    with pytest.raises(AssertionError, match=rf"\b{violated}\b.* violated"):
        play(job_machine(MODULES, (switch,)), 10 * EXAMPLES)
