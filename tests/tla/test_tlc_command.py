"""``rallypoint tlc`` on the toy manifest: what is printed, what is written, and the exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rallypoint.cli import tlc as command
from rallypoint.cli.main import main
from rallypoint.tla.manifest import load_manifest
from toys import SPECS


@pytest.fixture
def manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A manifest of the test's own, beside the toy modules."""
    for module in SPECS.glob("*.tla"):
        (tmp_path / module.name).write_text(module.read_text())
    path = tmp_path / "manifest.toml"
    path.write_text((SPECS / "manifest.toml").read_text())
    monkeypatch.setattr(command, "load_manifest", lambda: load_manifest(path))
    monkeypatch.setenv("COLUMNS", "120")
    return path


def test_all_as_expected(manifest: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = manifest.with_name("report.json")
    assert main(["tlc", "--workers", "2", "--json", str(report)]) == 0
    printed = capsys.readouterr().out
    assert "every run as expected" in printed
    assert "every reachable state at the stated size was checked" in printed
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in printed.splitlines() if "│" in line]
    assert [row[:6] for row in rows] == [
        ["holds", "9", "27", "5", "holds", "yes"],
        ["two-is-reached", "4", "4", "3", "BelowTwo violated in 2 steps", "yes"],
        ["leaves-max", "9", "27", "0", "StaysAtMax violated in 4 steps", "yes"],
        ["bigger", "", "", "", "not checked", "long class"],
    ]
    written = json.loads(report.read_text())
    assert written["as_expected"] is True
    assert [it["verdict"] for it in written["configurations"]] == ["holds", "violated", "violated", "not checked"]
    violated = written["configurations"][1]
    assert (violated["property"], violated["steps"], violated["as_expected"]) == ("BelowTwo", 2, True)
    assert [step["state"]["count"] for step in violated["trace"]] == ["0", "1", "2"]
    assert written["configurations"][2]["ending"] == "Up, back to step 1"


def test_surprises_and_failures_are_explained(manifest: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = manifest.read_text().replace("edges = 27", "edges = 26").replace("steps = 2", "steps = 1")
    manifest.write_text(text.replace('["StaysAtMax"]', '["StaysAtMax", "Elsewhere"]'))
    assert main(["tlc"]) == 1
    printed = capsys.readouterr().out
    assert "not as expected: holds, two-is-reached, leaves-max" in printed
    assert "holds: edges 27 where 26 is expected" in printed
    assert "two-is-reached: steps 2 where 1 is expected" in printed
    assert "leaves-max: The property Elsewhere specified in the configuration file" in printed
    assert "harness failed" in printed


def test_a_named_configuration_shows_its_counterexample(manifest: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tlc", "two-is-reached", "bigger"]) == 0
    printed = capsys.readouterr().out
    assert "two-is-reached: BelowTwo is violated" in printed
    assert "last.by = 1" in printed
    assert "bigger: these actions never happen: Never" in printed
    assert "not checked" not in printed


def test_the_list(manifest: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tlc", "--list"]) == 0
    printed = capsys.readouterr().out
    assert "BelowTwo violated in 2 steps" in printed
    assert "The counter wraps, and stays in range." in printed


def test_the_list_as_json(manifest: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = manifest.with_name("list.json")
    assert main(["tlc", "--list", "--json", str(report)]) == 0
    listed = json.loads(report.read_text())["configurations"]
    assert [it["name"] for it in listed] == ["holds", "two-is-reached", "leaves-max", "bigger"]
    assert listed[0]["expected"] == {
        "verdict": "holds",
        "property": None,
        "steps": None,
        "states": 9,
        "edges": 27,
        "depth": 5,
    }
    assert (listed[3]["class"], listed[3]["constants"]["Max"]) == ("long", 50)


def test_a_simulation_says_what_it_sampled(manifest: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = manifest.with_name("report.json")
    arguments = ["holds", "two-is-reached", "--simulate", "20", "--depth", "12", "--seed", "5", "--json", str(report)]
    assert main(["tlc", *arguments]) == 0
    printed = capsys.readouterr().out
    assert "20 behaviours of up to 12 states each, seed 5" in printed
    assert "not seen to fail" in printed
    assert "other behaviours were not checked" in printed
    written = json.loads(report.read_text())
    assert written["mode"]["simulation"] == {"behaviours": 20, "depth": 12, "seed": 5}
    holds, reached = written["configurations"]
    assert (holds["verdict"], holds["sampled"], reached["verdict"]) == ("not seen to fail", True, "violated")
    assert holds["generated"] > 20


def test_a_simulation_that_breaks_what_should_hold_is_a_surprise(
    manifest: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest.write_text(manifest.read_text().replace('["InRange", "NamedRight"]', '["BelowTwo"]'))
    assert main(["tlc", "holds", "--simulate", "20"]) == 1
    assert "BelowTwo violated" in capsys.readouterr().out


def test_distributed_names_a_lone_invariant(manifest: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tlc", "two-is-reached", "--distributed", "1"]) == 0
    printed = capsys.readouterr().out
    assert "two-is-reached: BelowTwo is violated" in printed
    assert "run it without --distributed for the way there" in printed


@pytest.mark.parametrize(
    ("arguments", "setting", "line"),
    [
        (["holds", "--distributed", "2", "--simulate", "9"], (), "--distributed with --simulate"),
        (["leaves-max", "--distributed", "2"], (), "temporal properties of leaves-max"),
        (["nothing"], (), "no configuration 'nothing' (tla/manifest.toml): name one of holds, two-is-reached"),
        (["--workers", "0"], (), "--workers"),
        (["--json", "/nowhere/at/all"], (), "the folder '/nowhere/at' does not exist"),
        ([], ("TLA2TOOLS_JAR", __file__), "jar has sha256"),
        ([], ("JAVA", __file__), "not a java executable"),
    ],
)
@pytest.mark.usefixtures("manifest")
def test_bad_input_is_one_line_and_exit_code_2(
    arguments: list[str],
    setting: tuple[str, ...],
    line: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if setting:
        monkeypatch.setenv(*setting)
    assert main(["tlc", *arguments]) == 2
    captured = capsys.readouterr()
    assert line in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""
