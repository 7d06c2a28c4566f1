"""TLC is really run here, on the toy specifications of ``specs/``."""

from __future__ import annotations

import contextlib
import getpass
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from rallypoint.model.errors import UnusableError
from rallypoint.tla.tlc import DEADLOCK, TEMPORAL, Progress, TlcResult, run, run_all
from rallypoint.tla.values import parse
from toys import SPECS, job

Runs = Mapping[str, TlcResult]
ENDLESS = replace(job("EndlessSpec"), timeout_s=60.0)


def processes_in(place: Path) -> list[int]:
    """The processes whose command line names a file below the place."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if os.fsencode(place) in command and b"tla2tools" in command:
                found.append(int(entry.name))
    return found


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where temporary files go during the test; afterwards nothing of TLC may be left, on disk or running."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield tmp_path
    assert processes_in(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_holds_is_counted(runs: Runs) -> None:
    result = runs["holds"]
    assert (result.verdict, result.violates, result.reason) == ("holds", None, "")
    assert (result.states, result.edges, result.initial, result.depth) == (9, 27, 1, 5)
    assert result.coverage == {"Up": (6, 14), "Tick": (0, 7), "Wrap": (2, 2), "Idle": (0, 4), "Never": (0, 0)}
    assert 0 < result.collisions < 1e-9
    assert 0 < result.seconds < 60
    assert not result.sampled


def test_a_violated_invariant_has_its_name_and_the_shortest_trace(runs: Runs) -> None:
    result = runs["invariant"]
    assert (result.verdict, result.violates, result.steps) == ("violated", "BelowTwo", 2)
    assert [step.action for step in result.trace] == ["Initial predicate", "Up", "Up"]
    assert [step.state["count"] for step in result.trace] == [0, 1, 2]
    assert result.trace[0].state["last"] == parse(r'[by |-> 0, text |-> "say \"hi\"\\"]')
    assert result.coverage["Up"][1] > 0


@pytest.mark.parametrize("name", ["initial state", "initial property"])
def test_a_violated_initial_state_is_a_trace_of_no_step(runs: Runs, name: str) -> None:
    result = runs[name]
    assert (result.verdict, result.violates, result.steps) == ("violated", "StartsAtOne", 0)
    assert [step.state["count"] for step in result.trace] == [0]


def test_a_violated_action_property_has_its_name(runs: Runs) -> None:
    result = runs["action property"]
    assert (result.verdict, result.violates) == ("violated", "NeverDown")
    assert [step.state["count"] for step in result.trace] == [0, 1, 2, 3, 0]


def test_a_deadlock_counts_only_when_asked_for(runs: Runs) -> None:
    assert (runs["deadlock"].verdict, runs["deadlock"].violates, runs["deadlock"].steps) == ("violated", DEADLOCK, 3)
    assert runs["dead end"].verdict == "holds"


def test_a_violated_liveness_property_is_an_infinite_run(runs: Runs) -> None:
    lasso = runs["lasso"]
    assert (lasso.verdict, lasso.violates) == ("violated", TEMPORAL)
    assert [step.state["count"] for step in lasso.trace] == [0, 1, 2, 3, 0]
    assert lasso.ending == "Up, back to step 1"
    stuttering = runs["stuttering"]
    assert (stuttering.verdict, stuttering.violates, stuttering.ending) == ("violated", TEMPORAL, "stutters for ever")


def test_a_constraint_cuts_states_and_counts_the_cut_transitions(runs: Runs) -> None:
    assert (runs["cut"].verdict, runs["cut"].states, runs["cut"].edges) == ("holds", 3, 9)


def test_a_simulation_says_that_it_sampled(runs: Runs) -> None:
    result = runs["simulated"]
    assert (result.verdict, result.sampled, result.states, result.depth) == ("holds", True, 0, 0)
    assert result.generated >= 5
    violation = runs["simulated violation"]
    assert (violation.verdict, violation.violates, violation.sampled) == ("violated", "BelowTwo", True)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("assertion", "the counter reached two"),
        ("nobody", "no initial state"),
        ("warning", "EXCEPT was applied to non-existing fields"),
        ("unknown name", "Nowhere specified in the configuration file is not defined"),
        ("parse error", 'Parse Error*** Encountered "====" at line 4'),
    ],
)
def test_whatever_is_no_verdict_is_a_failed_harness(runs: Runs, name: str, reason: str) -> None:
    result = runs[name]
    assert (result.verdict, result.violates) == ("harness failed", None)
    assert reason in result.reason
    assert "\n" not in result.reason
    assert result.tail


def test_a_timeout_is_a_failed_harness_and_leaves_nothing(place: Path) -> None:
    result = run(replace(ENDLESS, timeout_s=2.0))
    assert (result.verdict, result.reason) == ("harness failed", "not finished after 2 s, ended")
    assert 2 <= result.seconds < 10
    assert place.exists()


def test_a_killed_jvm_is_a_failed_harness_and_leaves_nothing(place: Path) -> None:
    seen: list[Progress] = []
    killed: list[int] = []

    def kill(index: int, progress: Progress) -> None:
        seen.append(progress)
        if not killed:
            killed.extend(processes_in(place))
            os.kill(killed[0], signal.SIGKILL)

    result = run(ENDLESS, kill)
    assert (result.verdict, result.reason) == ("harness failed", "TLC ended with exit code -9 where 0 was due")
    assert result.states >= seen[0].states > 0
    assert len(killed) == 1
    assert not Path(f"/tmp/hsperfdata_{getpass.getuser()}/{killed[0]}").exists()


def test_ctrl_c_ends_every_jvm(place: Path) -> None:
    started: list[int] = []

    def interrupt(index: int) -> None:
        started.append(index)
        if len(started) == 2:
            deadline = time.monotonic() + 10  # the second one is started, but may not be Java yet
            while len(processes_in(place)) < 2:
                assert time.monotonic() < deadline, "the second JVM did not start"
                time.sleep(0.02)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(run_all([ENDLESS, ENDLESS, ENDLESS], parallel=2, on_start=interrupt))
    assert started == [0, 1]


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal is Linux's")
def test_a_killed_parent_takes_the_jvm_along(tmp_path: Path) -> None:
    program = (
        "from pathlib import Path; from rallypoint.tla.tlc import Job, run_all\n"
        f"job = Job(Path({str(SPECS)!r}), 'Counter', {ENDLESS.cfg!r})\n"
        "list(run_all([job], 1, on_start=lambda index: print('started', flush=True)))\n"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE) as parent:
        try:
            assert parent.stdout is not None
            assert parent.stdout.readline() == b"started\n"
            (jvm,) = [pid for pid in processes_in(tmp_path) if pid != parent.pid]
            end_of_jvm = os.pidfd_open(jvm)
        finally:
            parent.kill()
    try:
        assert select.select([end_of_jvm], [], [], 10)[0], "the JVM outlives its parent"
    finally:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(end_of_jvm, signal.SIGKILL)
        os.close(end_of_jvm)


def test_an_unknown_module_is_one_clear_line(place: Path) -> None:
    with pytest.raises(UnusableError, match="no module Elsewhere"):
        run(replace(ENDLESS, module="Elsewhere"))
    assert list(place.iterdir()) == []
