"""TLC's distributed server with several worker processes is really run here, on the loopback interface."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from rallypoint.tla.output import Output, computed, with_transitions
from rallypoint.tla.tlc import UNNAMED, TlcResult, run, run_all
from test_output import DEPTH, FINISHED, INITIAL, SUCCESS, TOTALS, TRACE, message
from test_tlc import processes_in
from toys import job

WORKERS = 2
HOLDS = replace(job(checked="INVARIANTS InRange NamedRight"), processes=WORKERS)
VIOLATED = replace(job(checked="INVARIANTS InRange BelowTwo"), processes=WORKERS)
ENDLESS = replace(job("EndlessSpec"), processes=WORKERS, timeout_s=15.0)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_several_workers_find_what_one_process_finds_and_leave_nothing(place: Path) -> None:
    results = dict(run_all([HOLDS, VIOLATED], parallel=2))  # side by side: each server needs a port of its own
    holds, violated = results[0], results[1]
    assert (holds.verdict, holds.reason) == ("holds", "")
    assert (holds.states, holds.edges, holds.initial, holds.depth) == (9, 27, 1, 5)
    assert (violated.verdict, violated.violates, violated.partial) == ("violated", UNNAMED, True)
    assert violated.trace[-1].state["count"] == 2
    assert processes_in(place) == []
    assert list(place.iterdir()) == []


@pytest.mark.slow
def test_a_timeout_ends_the_server_and_all_its_workers(place: Path) -> None:
    result = run(ENDLESS)
    assert (result.verdict, result.reason) == ("harness failed", "not finished after 15 s, ended")
    assert result.registered == WORKERS
    assert processes_in(place) == []
    assert list(place.iterdir()) == []


def judged(text: str, exit_code: int = 0) -> TlcResult:
    output = Output(distributed=True)
    for line in text.splitlines():
        output.feed(line)
    return output.result(exit_code, 1.0)


REGISTERED = message(7001, "Registration for worker at rmi://localhost:0/0 completed")
SERVED = INITIAL.replace("1 distinct state ", "1 distinct state(s) ") + message(7000, "TLC server at vm is ready")
BEHAVIOUR = message(2121, "The behavior up to this point is:", 1)


def test_the_server_says_when_it_is_ready_for_workers() -> None:
    output = Output(distributed=True)
    served = []
    for line in SERVED.splitlines():
        output.feed(line)
        served.append(output.serving)
    assert served == [False] * 5 + [True]
    assert output.registered == 0
    for line in (REGISTERED + REGISTERED).splitlines():
        output.feed(line)
    assert output.registered == 2


def test_a_behaviour_without_a_name_is_a_violation_of_something() -> None:
    result = judged(SERVED + BEHAVIOUR + TRACE + TOTALS + FINISHED)
    assert (result.verdict, result.violates, result.partial) == ("violated", UNNAMED, True)
    assert judged(SERVED + BEHAVIOUR + TOTALS + FINISHED).verdict == "harness failed"
    assert judged(SERVED + BEHAVIOUR + TRACE + TOTALS + FINISHED, 1).verdict == "harness failed"


def test_nothing_holds_without_the_count_of_every_worker() -> None:
    holds = judged(SERVED + SUCCESS + TOTALS + DEPTH + FINISHED)
    assert holds.verdict == "holds"
    said = "h, work completed at: now Computed: {} and a cache hit ratio of 0.3, Thank you!\n"
    assert computed([said.format(5) + said.format(6), said.format(7), "came too late"], registered=3) == 18
    assert with_transitions(holds, 18).edges == 18
    for missing, registered in (([said.format(5), "Killed"], 2), ([], 0)):
        doubted = with_transitions(holds, computed(missing, registered))
        assert (doubted.verdict, doubted.reason) == (
            "harness failed",
            "a worker ended without saying what it computed",
        )
