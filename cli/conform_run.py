"""Runs one test file on one side in a child process, and judges what came of it.

May live here: the child's environment, bounds and end, and the verdict on its findings. Must not live here: what a
test file is (``conform_tests``), or how a report looks (``conform``, ``conform_record``).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rallypoint.cli.conform_child import OURS, PACKAGE, UPSTREAM
from rallypoint.cli.conform_npu import Npu
from rallypoint.cli.conform_tests import API, ENVIRONMENT, Failure, Reason, TestFile, reason_of
from rallypoint.impl.etcd_server import find_etcd
from rallypoint.model.errors import UnusableError

HOLDS, VIOLATED, NOT_CHECKED, HARNESS_FAILED = "holds", "violated", "not checked", "harness failed"
BOUND = 400.0  # seconds for one file: upstream's store alone may wait for 300 s
OK, FAILED, ERROR, SKIPPED, NOT_RUN = "ok", "failed", "error", "skipped", "not run"
COMMAND = "python -m rallypoint.cli.conform_child"


@dataclass(frozen=True, slots=True)
class Outcome:
    """One test. ``error`` and ``reason``: None and "" if it is ok."""

    test: str
    outcome: str
    seconds: float = 0.0
    error: str = ""
    reason: Reason | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """One file on one side, with or without torch_npu. ``versions``: of what the child imported.

    ``modules``: those of the etcd rendezvous that the file uses; a file that uses none is the same on both sides.
    ``odd``: why nothing ran. ``broken``: why what ran is no evidence.
    """

    file: TestFile
    side: str
    with_npu: bool
    outcomes: tuple[Outcome, ...] = ()
    versions: Mapping[str, Any] | None = None
    modules: tuple[str, ...] = ()
    odd: Reason | None = None
    broken: str = ""
    seconds: float = 0.0

    @property
    def ran(self) -> int:
        return sum(one.outcome not in (SKIPPED, NOT_RUN) for one in self.outcomes)

    @property
    def ok(self) -> int:
        return sum(one.outcome == OK for one in self.outcomes)

    @property
    def failures(self) -> list[Outcome]:
        return [one for one in self.outcomes if one.reason is not None]

    @property
    def verdict(self) -> str:
        """ "violated" if the API is the reason of a failure; a test's own bug is none."""
        kinds = {one.reason.kind for one in self.outcomes if one.reason} | ({self.odd.kind} if self.odd else set())
        if self.broken:
            return HARNESS_FAILED
        if API in kinds:
            return VIOLATED
        return NOT_CHECKED if ENVIRONMENT in kinds or not self.ran else HOLDS

    @property
    def command(self) -> str:
        return f"{COMMAND} {self.side} {self.file.path.name} {'with' if self.with_npu else 'without'} FINDINGS"


def run(file: TestFile, side: str, npu: Npu | None, bound: float = BOUND) -> Run:
    """Run the tests of a file; ``npu``: load torch_npu on it before. Nothing is left running.

    Raises OSError if there is no room for temporary files.
    """
    started = time.monotonic()
    with_npu = npu is not None
    empty = Run(file, side, with_npu)
    if npu and npu.environment is None:
        return replace(empty, odd=Reason(ENVIRONMENT, npu.text))
    place = Path(tempfile.mkdtemp(prefix="rallypoint_conform_"))
    try:
        tests = place / "tests"
        shutil.copytree(file.path.parent, tests, ignore=_not_python)
        (tests / file.path.name).write_text(file.text, encoding="utf-8")
        (place / "tmp").mkdir()
        findings, log = place / "findings", place / "log"
        mode = "with" if with_npu else "without"
        command = [sys.executable, "-m", "rallypoint.cli.conform_child", side, str(tests / file.path.name), mode]
        environment = {**((npu and npu.environment) or os.environ), **_environment(place / "tmp")}
        ended = _bounded([*command, str(findings)], place, environment, log, bound)
        result = judged(empty, list(_lines(findings)), ended or _tail(log))
        return replace(result, seconds=round(time.monotonic() - started, 1))
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _not_python(folder: str, names: list[str]) -> list[str]:
    """A folder of tests may have large neighbours: its Python files are enough."""
    return [name for name in names if not name.endswith(".py")]


def _environment(temporary: Path) -> dict[str, str]:
    more = {
        "TMPDIR": str(temporary),
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",  # torch_npu is imported by the child or not at all
        "TORCH_CPP_LOG_LEVEL": "FATAL",
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    with contextlib.suppress(UnusableError):  # without an etcd the tests tell what upstream says then
        more["TORCHELASTIC_ETCD_BINARY_PATH"] = find_etcd().path
    return more


def _bounded(command: list[str], place: Path, environment: Mapping[str, str], log: Path, bound: float) -> str:
    """Run the child; "" or why it did not end by itself. Its process group is ended with it."""
    with log.open("wb") as output:
        child = subprocess.Popen(
            command,
            cwd=place,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        child.wait(bound)
        return "" if child.returncode >= 0 else f"the process died of {signal.Signals(-child.returncode).name}"
    except subprocess.TimeoutExpired:
        return f"ended after {bound:g} s"
    finally:
        with contextlib.suppress(ProcessLookupError):  # an etcd that upstream's server left is of this group
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def _lines(findings: Path) -> Iterator[dict[str, Any]]:
    with contextlib.suppress(FileNotFoundError):
        for line in findings.read_text(encoding="utf-8").splitlines(keepends=True):
            if line.endswith("\n"):
                yield json.loads(line)


def _tail(log: Path) -> str:
    with contextlib.suppress(OSError):
        return log.read_text(encoding="utf-8", errors="replace").strip().rpartition("\n")[2][-300:]
    return ""


def judged(empty: Run, lines: list[dict[str, Any]], ended: str) -> Run:
    """The run as the child's findings tell it. ``ended``: what is known about its end, if they break off."""
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        by_kind.setdefault(line["kind"], []).append(line)
    for kind in ("no environment", "unloadable"):
        if kind in by_kind:
            (line,) = by_kind[kind]
            reason = reason_of(_failure(empty, line))
            text = f"{reason.text} ({line['error']})" if reason.kind == ENVIRONMENT else line["error"]
            return replace(empty, odd=Reason(reason.kind, text))
    if "loaded" not in by_kind:
        return replace(empty, broken=ended or "the child told nothing")
    (loaded,) = by_kind["loaded"]
    modules = tuple(sorted(set(loaded["sources"].values())))
    outcomes = _outcomes(empty, loaded["tests"], by_kind, "" if "done" in by_kind else ended)
    result = replace(empty, outcomes=outcomes, versions=loaded["versions"], modules=modules)
    wrong = [name for name in modules if name.startswith(PACKAGE) != (empty.side == UPSTREAM)]
    if wrong:
        return replace(result, broken=f"tested the wrong modules: {', '.join(wrong)}")
    if loaded["torch_npu_loaded"] != empty.with_npu:
        return replace(result, broken=f"torch_npu was {'' if loaded['torch_npu_loaded'] else 'not '}loaded")
    if not loaded["tests"]:
        return replace(result, broken="the file holds no test")
    return result


def _outcomes(
    empty: Run, tests: list[str], by_kind: Mapping[str, list[dict[str, Any]]], ended: str
) -> tuple[Outcome, ...]:
    """One for each test, and one for each preparation or clean-up that failed."""
    done = {line["test"]: line for line in by_kind.get("ended", ())}
    started = {line["test"] for line in by_kind.get("started", ())}
    unprepared = by_kind.get("unprepared", [])
    found = []
    for test in tests:
        of_class = next((line for line in unprepared if _concerns(line["test"], test)), None)
        if test in done:
            found.append(_outcome(empty, done[test]))
        elif test in started:
            found.append(Outcome(test, ERROR, error=ended, reason=Reason(API, ended)))
        elif of_class is not None:
            found.append(replace(_outcome(empty, {**of_class, "outcome": ERROR}), test=test))
        else:
            found.append(Outcome(test, NOT_RUN, error=ended, reason=Reason(API, ended)))
    for line in unprepared:
        if not line["test"].startswith("setUp"):
            found.append(_outcome(empty, {**line, "outcome": ERROR}))
    return tuple(found)


def _concerns(preparation: str, test: str) -> bool:
    """Whether "setUpClass (module.Class)" or "setUpModule (module)" is of the test "module.Class.name"."""
    name, _, rest = preparation.partition(" (")
    return name.startswith("setUp") and test.startswith(rest.rstrip(")") + ".")


def _outcome(empty: Run, line: Mapping[str, Any]) -> Outcome:
    seconds = float(line.get("seconds", 0.0))
    if line["outcome"] in (OK, SKIPPED):
        return Outcome(line["test"], line["outcome"], seconds, line.get("error", ""))
    reason = reason_of(_failure(empty, line))
    return Outcome(line["test"], line["outcome"], seconds, line.get("error", ""), reason)


def _failure(empty: Run, line: Mapping[str, Any]) -> Failure:
    return Failure(empty.side, empty.file, line.get("error", ""), line.get("causes", ""), line.get("trace", ""))


def differences(runs: list[Run]) -> list[str]:
    """The tests whose outcome is another on ours than on upstream's, or another with torch_npu than without."""
    told = []
    of = {(run.file.name, run.side, run.with_npu): run for run in runs if run.ran}
    for (name, side, with_npu), run_ in of.items():
        for other, what in (
            (of.get((name, UPSTREAM, with_npu)) if side == OURS else None, "ours, not as upstream"),
            (of.get((name, side, False)) if with_npu else None, f"{side}, with torch_npu not as without"),
        ):
            before = {one.test: one.outcome for one in other.outcomes} if other else {}
            told += [
                f"{one.test} ({what}): {one.outcome} instead of {before[one.test]}"
                for one in run_.outcomes
                if before.get(one.test, one.outcome) != one.outcome
            ]
    return list(dict.fromkeys(told))
