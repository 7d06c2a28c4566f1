"""The track record as tests: ours holds, and PyTorch's own class does not."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from rallypoint.cli.main import main
from rallypoint.defects.record import AREAS, Defect
from rallypoint.defects.runner import Runner
from rallypoint.defects.scenarios import DEFECTS
from rallypoint.defects.stage import OURS, UPSTREAM

QUICK = 6  # seconds; what takes longer is for the slow run


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    with Runner() as one:
        yield one


def _by_duration() -> list[object]:
    return [
        pytest.param(defect, id=defect.id, marks=[pytest.mark.slow] if defect.seconds >= QUICK else [])
        for defect in DEFECTS.values()
    ]


@pytest.mark.parametrize("defect", _by_duration())
def test_ours_holds(defect: Defect, runner: Runner) -> None:
    outcome = runner.run(defect.id, OURS, defect.bound)
    assert outcome.ok is not None, outcome.seen
    assert outcome.ok, f"{defect.required}: {outcome.seen}"


@pytest.mark.slow
@pytest.mark.parametrize("defect", [pytest.param(defect, id=defect.id) for defect in DEFECTS.values()])
def test_upstream_does_not(defect: Defect, runner: Runner) -> None:
    outcome = runner.run(defect.id, UPSTREAM, defect.bound)
    assert outcome.ok is not None, outcome.seen
    assert not outcome.ok, f"upstream holds: {outcome.seen}"


def test_the_register_is_whole() -> None:
    assert len(DEFECTS) >= 25
    assert {defect.area for defect in DEFECTS.values()} == set(AREAS)
    assert all(defect.run.__doc__ and defect.run.__doc__.startswith(defect.id) for defect in DEFECTS.values())


REPORTS = {
    "R05": "R05",
    "R11": "P-A",
    "R14": "L-A",
    "R15": "S-G",
    "R16": "E-K",
    "R18": "L-A",
    "R20": "today's torch constructs Python stores, and its backend makes the store before anybody joins",
    "R21": "PyTorch's store sets none of torch's attributes any more",
    "R22": "PyTorch's EtcdStore has no port, and waits for nobody either",
    "R24": "D-F",
    "R25": "an etcd outlives the clients of PyTorch's store, too",
    "R26": "S-I",
    "R27": "S-I",
    "R28": "S-B",
    "R30": "PyTorch names a round's store after the round by now, no longer after the agent's restarts",
    "R31": "D-B",
    "R32": "D-B",
    "R74": "R74",
    "R75": "E-A",
    "R76": "R76",
    "R77": "PyTorch ends a failed attempt by now, and takes other ports for the next",
    "R78": "P-A",
    "R79": "R79",
    "R80": "on etcd 3.4 and 3.5 the value survives a renewal by python-etcd",
    "R81": "PyTorch's store reads again, too",
    "R82": "S-L",
    "R83": "with urllib3 2, PyTorch's client checks the certificate, too",
    "R84": "R84",
    "R85": "B-K",
    "R86": "R86",
}
"""The public reports about the backend, the store, the server, and etcd and its Python client -> the row that shows
it beside upstream, or why there is none: upstream holds by now, or it is not about code of PyTorch that runs."""


def test_each_report_and_each_row_has_a_test_that_bears_its_id() -> None:
    texts = [path.read_text(encoding="utf-8") for path in Path(__file__).parent.rglob("test_*.py")]
    names = [f"_{name}_" for text in texts for name in re.findall(r"def test_(\w+)", text)]
    rows = [defect.id for defect in DEFECTS.values() if defect.area in {"etcd-v2", "store", "server"}]
    assert [one for one in (*REPORTS, *rows) if not any(f"_{one.replace('-', '_')}_" in name for name in names)] == []


def test_each_report_has_a_row_or_a_reason() -> None:
    assert [where for where in REPORTS.values() if where not in DEFECTS and " " not in where] == []
    for defect in DEFECTS.values():
        assert [one for one in defect.reports if REPORTS.get(one, defect.id) not in DEFECTS] == []


def test_a_scenario_that_overstays_is_ended(runner: Runner) -> None:
    outcome = runner.run("L-A", OURS, 0.5)
    assert outcome.ok is None
    assert outcome.seconds < 7


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "report.json"
    assert main(["defects", "B-B", "--json", str(report)]) == 0
    assert "holds: no token created the state" in " ".join(capsys.readouterr().out.split())
    [row] = json.loads(report.read_text())["defects"]
    assert (row["id"], row["upstream"]["verdict"], row["ours"]["verdict"]) == ("B-B", "violated", "holds")


def test_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["defects", "--list", "--area", "server"]) == 0
    out = capsys.readouterr().out
    assert "E-A" in out
    assert "L-K" not in out


def test_an_unknown_id_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["defects", "L-K", "Z-Z"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "unknown defect Z-Z" in error
    assert all(one in error for one in DEFECTS)


def test_an_id_outside_the_area_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["defects", "L-K", "--area", "server"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
