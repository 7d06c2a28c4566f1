"""``rallypoint review``: every name of every clause leads somewhere, and what is missing is said."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from rallypoint.cli import review
from rallypoint.model.errors import UnusableError
from rallypoint.spec import clauses
from rallypoint.tla.manifest import load_manifest

APIS = {
    "EtcdRendezvousHandler": (
        "next_rendezvous",
        "get_backend",
        "get_run_id",
        "is_closed",
        "set_closed",
        "num_nodes_waiting",
        "shutdown",
        "use_agent_store",
    ),
    "EtcdRendezvousBackend": ("name", "get_state", "set_state"),
    "create_backend": ("create_backend",),
    "EtcdStore": ("add", "append", "compare_set", "get", "wait", "timeout"),
    "EtcdServer": ("start", "stop", "stop_etcd"),
}
RESULTS = """<testsuites><testsuite>
<testcase classname="tests.impl.test_handler" name="test_nothing_is_left_behind[one]"/>
<testcase classname="tests.impl.test_handler" name="test_nothing_is_left_behind[two]">{two}</testcase>
<testcase classname="tests.impl.test_handler" name="test_a_half_built_handler_leaves_nothing_behind">
<skipped/></testcase>
</testsuite></testsuites>"""


def run(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(review.command, arguments, standalone_mode=False)
    if done.exception:
        raise done.exception
    return done.return_value, done.output


def test_every_name_of_every_clause_leads_somewhere() -> None:
    code, shown = run("--fail-on-gaps")
    assert code == 0, shown
    assert "0 names lead nowhere, 0 gaps" in shown


@pytest.mark.parametrize("api", APIS)
def test_the_clauses_speak_of_the_whole_contract(api: str) -> None:
    texts = " ".join(
        f"{clause.statement} {' '.join(clause.code)} {' '.join(clause.sources)}"
        for clause in clauses.load_clauses()
        if clause.api == api
    )
    assert [name for name in APIS[api] if name not in texts] == []


def test_each_property_of_the_manifest_is_asked_for_by_a_clause() -> None:
    asked = {name for clause in clauses.load_clauses() for name in clause.properties}
    checked = {name for config in load_manifest() for name in (*config.invariants, *config.properties)}
    assert {name for name in checked - asked if not name.startswith("Never")} == {"TypeOK"}


def test_a_name_that_leads_nowhere_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "clauses.toml"
    text = clauses.CLAUSES.read_text(encoding="utf-8")
    for planted in (
        ("model/worker.py:_met", "model/worker.py:_nett"),
        ('"RankUnique"', '"RankUnik"'),
        ("::test_fixed_size", "::test_fixed_sice"),
        ('"L-W"', '"L-ZZ"'),
    ):
        assert planted[0] in text
        broken.write_text(text.replace(*planted), encoding="utf-8")
        monkeypatch.setattr(clauses.load_clauses, "__defaults__", (broken,))
        code, shown = run()
        assert code == 1
        assert "leads nowhere" in shown


def test_a_clause_that_nothing_shows_is_a_gap() -> None:
    clause = clauses.Clause("X", "api", "It holds.", "Because.", ("nobody",))
    assert review._review(clause, load_manifest(), None).evidence.gap == "nothing shows it"


@pytest.mark.parametrize(("two", "gap"), [("", 0), ("<failure/>", 1)])
def test_tests_of_the_last_run_count(tmp_path: Path, two: str, gap: int) -> None:
    results = tmp_path / "tests.xml"
    results.write_text(RESULTS.format(two=two))
    code, shown = run("H-CLEAN", "--tests", str(results), "--fail-on-gaps", "--json", str(tmp_path / "out.json"))
    assert code == gap, shown
    assert ("1 of its tests failed" in shown) == bool(gap)
    [told] = json.loads((tmp_path / "out.json").read_text())["clauses"]
    counts = {name: told["evidence"][name] for name in ("passed", "failed", "silent")}
    assert counts == {"passed": 1 - gap, "failed": gap, "silent": 1}


def test_from_the_code_back_to_its_clauses(tmp_path: Path) -> None:
    code, shown = run("--code", "impl/etcd_run.py:EtcdRendezvous.leave", "--markdown", str(tmp_path / "matrix.md"))
    assert code == 0
    assert "H-SHUTDOWN" in shown
    assert "H-RANKS" not in shown
    matrix = (tmp_path / "matrix.md").read_text()
    line = inspect.getsourcelines(__import__("rallypoint.impl.etcd_run", fromlist=["x"]).EtcdRendezvous.leave)[1]
    assert f"impl/etcd_run.py:EtcdRendezvous.leave  impl/etcd_run.py:{line}" in matrix


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("H-RANK",), "no clause 'H-RANK'.*did you mean H-RANKS"),
        (("--code", "no/such.py"), "no clause names 'no/such.py'"),
    ],
)
def test_unusable_arguments_are_one_line(arguments: tuple[str, ...], what: str) -> None:
    with pytest.raises(UnusableError, match=what):
        run(*arguments)


@pytest.mark.parametrize("text", ["", "<a", "<a/>"])
def test_results_that_are_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "tests.xml").write_text(text)
    with pytest.raises(UnusableError, match="no results of tests"):
        run("--tests", str(tmp_path / "tests.xml"))


@pytest.mark.parametrize(
    "text", ["", "clause = 1", '[[clause]]\nid = "X"', "[[clause]]\nid = 1", '[[clause]]\nid = "X"\nwhat = "?"', "\x00"]
)
def test_clauses_that_are_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "clauses.toml").write_text(text)
    with pytest.raises(UnusableError, match="no clauses"):
        clauses.load_clauses(tmp_path / "clauses.toml")
