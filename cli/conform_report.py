"""All runs of one ``rallypoint conform``, and what they come to.

May live here: counts, reasons and the conclusion, in a language's words. Must not live here: tables and files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rallypoint.cli.conform_child import OURS, UPSTREAM
from rallypoint.cli.conform_npu import Npu
from rallypoint.cli.conform_run import HARNESS_FAILED, HOLDS, Run, differences
from rallypoint.cli.conform_tests import TEST_BUG, TestFile
from rallypoint.cli.conform_words import Words

COLUMNS = ((UPSTREAM, False), (OURS, False), (UPSTREAM, True), (OURS, True))


@dataclass(frozen=True)
class Report:
    """``date``: UTC."""

    files: list[TestFile]
    runs: list[Run]
    npu: Npu
    environment: Mapping[str, str]
    date: str

    def run_of(self, file: TestFile, side: str, with_npu: bool) -> Run:
        return next(one for one in self.runs if (one.file, one.side, one.with_npu) == (file, side, with_npu))

    @property
    def asked(self) -> list[Run]:
        """The runs that count: those with torch_npu only where it is installed."""
        return [one for one in self.runs if self.npu.installed or not one.with_npu]

    @property
    def holds(self) -> bool:
        """Whether every run that counts holds."""
        return bool(self.asked) and all(one.verdict == HOLDS for one in self.asked)


def cell(run: Run, words: Words) -> str:
    """ "15/15 holds", or the verdict alone if nothing ran."""
    return f"{run.ok}/{run.ran} {words[run.verdict]}" if run.ran else words[run.verdict]


def failures(report: Report, words: Words) -> Iterator[str]:
    """A line for each reason of a run, with the tests that it explains."""
    for run in report.asked:
        where = f"{run.file.name}, {words.column(run.side, run.with_npu)}"
        if run.broken:
            yield f"{where}: {words[HARNESS_FAILED]}: {run.broken}"
        elif run.odd:
            yield f"{where}: {words[run.odd.kind]}: {words.reason(run.odd.text)}"
        by_reason: dict[tuple[str, str], list[str]] = {}
        for failure in run.failures:
            assert failure.reason is not None
            by_reason.setdefault((failure.reason.kind, failure.reason.text), []).append(failure.test.rpartition(".")[2])
        for (kind, reason), tests in by_reason.items():
            yield f"{where}: {words[kind]}: {words.reason(reason)} ({_some(tests, words)})"


def _some(tests: list[str], words: Words) -> str:
    more = [words["and more"].format(count=len(tests) - 3)] if len(tests) > 3 else []
    return ", ".join([*tests[:3], *more])


def conclusion(report: Report, words: Words) -> list[str]:
    """Whether it holds, what torch_npu changes, and what all this cannot show."""
    bad = sum(run.verdict != HOLDS for run in report.asked)
    bugs = sum(one.reason is not None and one.reason.kind == TEST_BUG for run in report.asked for one in run.outcomes)
    sizes = {
        "files": len(report.files),
        "ran": sum(run.ran for run in report.asked),
        "ok": sum(run.ok for run in report.asked),
        "bugs": bugs,
        "bad": bad,
        "all": len(report.asked),
    }
    told = [words["all hold" if report.holds else "not all hold"].format(**sizes)]
    if not report.npu.installed:
        told.append(words["without npu"])
    elif all(run.ran for run in report.asked):
        changed = any("with torch_npu" in line for line in differences(report.runs))
        told.append(words["npu differs" if changed else "npu same"])
    return [*told, words["limits"]]


def as_json(report: Report) -> dict[str, Any]:
    """The report with every test of every run; its words are English."""
    return {
        "holds": report.holds,
        "date": report.date,
        "environment": dict(report.environment),
        "cann": report.npu.text,
        "files": [{"name": file.name, "sha256": file.sha256, "repaired": file.repaired} for file in report.files],
        "runs": [_run_as_json(run) for run in report.runs],
        "differences": differences(report.runs),
    }


def _run_as_json(run: Run) -> dict[str, Any]:
    return {
        "file": run.file.name,
        "side": run.side,
        "torch_npu": run.with_npu,
        "verdict": run.verdict,
        "ran": run.ran,
        "ok": run.ok,
        "seconds": run.seconds,
        "command": run.command,
        "versions": run.versions,
        "modules": run.modules,
        "reason": asdict(run.odd) if run.odd else None,
        "broken": run.broken,
        "tests": [asdict(outcome) for outcome in run.outcomes],
    }
