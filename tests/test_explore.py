"""``rallypoint explore``: drawings, graphs, random walks, and the bounds that it keeps."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rallypoint.cli import spaces
from rallypoint.cli.main import main

FAILING, HOLDING, REGISTER = "closing-upstream", "crash", "register-lost-reply-upstream"


def explore(capsys: pytest.CaptureFixture[str], *arguments: str | Path, code: int = 0) -> str:
    assert main(["explore", *map(str, arguments)]) == code
    captured = capsys.readouterr()
    return captured.out if code != 2 else captured.err


@pytest.mark.parametrize(("name", "lane"), [(FAILING, "worker 0"), (REGISTER, "client 0")])
def test_a_counterexample_is_drawn(name: str, lane: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report, picture = tmp_path / "report.json", tmp_path / "run.svg"
    explore(capsys, name, "--svg", picture, "--json", report)
    ((invariant, rows),) = json.loads(report.read_text())["configurations"][0]["violations"].items()
    texts = [element.text or "" for element in ElementTree.parse(picture).iter("{http://www.w3.org/2000/svg}text")]
    assert f"{name}: {invariant} is violated in {len(rows)} steps" in texts
    assert lane in texts
    told = [text.partition(": ")[2] or text for text in texts]
    assert [row["action"] for row in rows] == [text for text in told if text in {row["action"] for row in rows}]


def test_faults_are_marked_and_choices_are_not(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    marked = {}
    for name in (REGISTER, FAILING):
        explore(capsys, name, "--svg", tmp_path / "run.svg")
        marked[name] = re.findall(r'class="action fault"[^>]*>([^<]*)<', (tmp_path / "run.svg").read_text())
    assert marked == {REGISTER: ["client 0: LoseReply"], FAILING: []}


def test_the_graph_has_every_state_and_every_edge(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for name in (HOLDING, "register-vanished"):
        report, graph = tmp_path / "report.json", tmp_path / "graph.dot"
        explore(capsys, name, "--dot", graph, "--json", report)
        (found,) = json.loads(report.read_text())["configurations"]
        lines = graph.read_text().splitlines()
        assert lines[0] == f'digraph "{name}" {{'
        assert sum(" -> " in line for line in lines) == found["edges"]
        assert len({line.split()[0] for line in lines if re.match(r"  \d+ \[label=", line)}) == found["states"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([HOLDING, "--svg", "run.svg"], f"nothing to draw ({HOLDING} has no counterexample)"),
        ([HOLDING, FAILING, "--svg", "run.svg"], "--svg and --dot draw one configuration (2 are chosen)"),
        ([HOLDING, "--dot", "run.dot"], f"no graph is drawn ({HOLDING} has more than 50 states)"),
        (["closed-for-long-upstream", "--random", "5"], "random walks judge states, not runs"),
        (["dead-participant-upstream", "--all-invariants"], "--all-invariants judges states"),
        (["other-bounds", "--set", "OtherMin=5"], "OtherMin=5, OtherMax=2 (other-bounds)"),
        (["lost-counter", "--set", f"LostReplies={'9' * 5000}"], "a whole number"),
        ([REGISTER, "--random", "5"], f"no random walks in {REGISTER} (Register)"),
        ([HOLDING, "--dot", "/nowhere/at/all"], "the folder '/nowhere/at' does not exist"),
    ],
)
def test_what_cannot_be_drawn_is_one_line_and_no_file(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(spaces, "DRAWN_STATES", 50)
    error = explore(capsys, *arguments, code=2)
    assert said in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_random_walks_say_what_they_sampled(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    printed = explore(capsys, HOLDING, "--random", "30", "--depth", "25", "--seed", "7", "--json", report)
    assert "not seen to fail" in printed
    assert "other states were not checked" in printed
    written = json.loads(report.read_text())
    assert (written["walks"], written["depth"], written["seed"]) == (30, 25, 7)
    (found,) = written["configurations"]
    assert (found["verdict"], found["walks"]) == ("not seen to fail", 30)
    assert 0 < found["longest walk"] <= 25
    assert 0 < found["states"] <= found["steps"] + 1


def test_a_walk_that_breaks_what_nobody_expects_is_a_surprise(capsys: pytest.CaptureFixture[str]) -> None:
    assert "NoFatalRace" in explore(capsys, FAILING, "--random", "200")
    assert f"not as expected: {FAILING}" in explore(capsys, FAILING, "--random", "200", "--all-invariants", code=1)


def test_what_the_model_has_no_predicate_for_is_left_to_tlc(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {name: check for name, check in spaces.PREDICATES.items() if name != "NoFatalRace"}
    monkeypatch.setattr(spaces, "PREDICATES", known)
    said = explore(capsys, FAILING, code=2)
    assert f"{FAILING} is left to TLC (no predicate for NoFatalRace): run `rallypoint tlc {FAILING}`" in said


def test_the_register_is_bounded_too(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spaces, "REGISTER_STATES", 300)
    printed = explore(capsys, "register-stale", "--set", "Sets=30", code=1)
    assert "not checked: too many states" in printed
    assert "not as expected: register-stale" in printed


@pytest.mark.parametrize(
    ("name", "violated"), [("reach-final", "NeverFinal"), ("dead-participant-upstream", "EventuallyFree")]
)
def test_what_is_to_be_violated_is_shown_and_survives_other_numbers(
    name: str, violated: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    shown = explore(capsys, name, "--svg", tmp_path / "run.svg")
    assert f"{violated} says: " in shown
    assert (tmp_path / "run.svg").is_file()
    assert f"{violated} violated in" in explore(capsys, name, "--set", "N=2", code=1)


def test_a_fair_graph_is_drawn_with_fair_steps(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    report, graph = tmp_path / "report.json", tmp_path / "graph.dot"
    explore(capsys, "dead-participant", "--dot", graph, "--json", report)
    (found,) = json.loads(report.read_text())["configurations"]
    assert graph.read_text().count(" -> ") == found["edges"]
