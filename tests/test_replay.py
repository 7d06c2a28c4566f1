"""``rallypoint replay``: a schedule file is played again with the same verdict, and a bad one is told in one line."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest
from rallypoint.cli import replay
from rallypoint.cli.main import main
from rallypoint.live import schedule as plans
from rallypoint.live.run import replay_schedule
from rallypoint.live.schedule import Entry, Kill, Schedule

JOB = Schedule(2, 3, (Entry(), Entry(3), Entry(8, Kill("grouped", 1))), 1)


def _file(folder: Path, text: str) -> str:
    file = folder / "schedule.json"
    file.write_text(text, encoding="utf-8")
    return str(file)


def test_a_job_with_a_kill_holds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "report.json"
    assert main(["replay", _file(tmp_path, plans.dumps(JOB)), "--json", str(report)]) == 0
    assert "holds: 3 processes, 1 kills" in capsys.readouterr().out
    found = json.loads(report.read_text(encoding="utf-8"))
    assert (found["verdict"], found["processes"], found["kills"]) == ("holds", 3, 1)
    assert plans.loads(json.dumps(found["schedule"])) == JOB


@pytest.mark.slow
def test_a_planted_wrong_rank_is_violated_every_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "replay_schedule", functools.partial(replay_schedule, bound=8.0))
    file = _file(tmp_path, plans.dumps(Schedule(2, 2, (Entry(), Entry()), fault="rank_always_zero")))
    for _ in range(2):
        assert main(["replay", file]) == 1
        assert "RankUnique: worker" in capsys.readouterr().out


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[" * 100_000,
        " " * (1 << 20) + "{}",
        plans.dumps(JOB).replace('"min_workers": 2', '"min_workers": 1.5'),
        plans.dumps(JOB).replace('"gap": 3', '"gap": true'),
        plans.dumps(JOB).replace('"fault": null', '"fault": "unheard of"'),
    ],
)
def test_a_bad_file_is_one_line(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", _file(tmp_path, text)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
