"""``rallypoint review``: from each requirement to the code and back, with the evidence of the last run."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from xml.etree import ElementTree

import click
from rallypoint.cli.json_file import file_option, json_option, write_json, write_text
from rallypoint.cli.runs import wide_console
from rallypoint.defects.scenarios import DEFECTS
from rallypoint.model.errors import UnusableError
from rallypoint.spec import clauses
from rallypoint.spec.clauses import Clause, Place
from rallypoint.tla.manifest import Config, load_manifest
from rich.console import Console
from rich.markup import escape
from rich.table import Table

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
Outcomes = Mapping[str, Counter[str]]
"""FILE::TEST -> how often it passed, failed, was skipped."""


@dataclass(frozen=True)
class Evidence:
    """Of one clause. ``holds``, ``states``: configurations of the manifest in which its properties hold, and their
    states in all; ``violated``: those, and defects of the track record, that violate it on purpose. ``passed`` and
    ``failed``: tests of the last run; ``silent``: tests that it did not contain, or skipped."""

    holds: int
    states: int
    violated: int
    passed: int
    failed: int
    silent: int

    @property
    def gap(self) -> str | None:
        """What is missing, None if nothing is."""
        if self.failed:
            return f"{self.failed} of its tests failed"
        if not self.holds and not self.passed and not self.silent:
            return "nothing shows it"
        if not self.violated and not self.passed and not self.silent:
            return "nothing shows that its check bites"
        return None


@dataclass(frozen=True)
class Reviewed:
    """A clause, where each of its names leads (None: nowhere), and its evidence."""

    clause: Clause
    places: Mapping[str, Place | None]
    evidence: Evidence

    @property
    def unresolved(self) -> list[str]:
        return [name for name, place in self.places.items() if place is None]


@click.command("review")
@click.argument("ids", metavar="[CLAUSE]...", nargs=-1)
@click.option("--code", "code", metavar="TEXT", help="Only clauses that name code or tests with this text.")
@click.option(
    "--tests",
    "results",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="What the tests said: the file of `pytest --junitxml FILE`.",
)
@click.option(
    "--fail-on-gaps", is_flag=True, help="End with 1 also if a clause has no evidence, or a test of it failed."
)
@file_option("--markdown", "markdown", "Write the matrix to this file as Markdown.")
@json_option
def command(
    ids: tuple[str, ...],
    code: str | None,
    results: Path | None,
    fail_on_gaps: bool,
    markdown: Path | None,
    json_file: Path | None,
) -> int:
    """Show each requirement: its TLA+ property, its predicate, the code that keeps it, the tests, the evidence.

    A CLAUSE is an id of spec/clauses.toml; with one, all of it is shown. Every name is looked up: ends with 1 if one
    leads nowhere.
    """
    chosen = _chosen(clauses.load_clauses(), ids, code)
    console = wide_console()
    manifest, outcomes = load_manifest(), _outcomes(results) if results else None
    reviewed = [_review(clause, manifest, outcomes) for clause in chosen]
    if ids:
        for one in reviewed:
            _show(console, one)
    else:
        console.print(_table(reviewed))
    lost = [f"{one.clause.id}: {name} leads nowhere" for one in reviewed for name in one.unresolved]
    gaps = [f"{one.clause.id}: {one.evidence.gap}" for one in reviewed if one.evidence.gap]
    for line in [*lost, *gaps]:
        console.print(line, style="bold red", markup=False, highlight=False)
    tests = "" if results else "; tests: not checked (give --tests FILE)"
    console.print(f"{len(reviewed)} clauses, {len(lost)} names lead nowhere, {len(gaps)} gaps{tests}", highlight=False)
    if markdown:
        write_text(markdown, _markdown(reviewed), "the matrix")
    if json_file:
        write_json(json_file, {"clauses": [_described(one) for one in reviewed], "unresolved": lost, "gaps": gaps})
    return int(bool(lost) or (fail_on_gaps and bool(gaps)))


def _chosen(known: Sequence[Clause], ids: tuple[str, ...], code: str | None) -> list[Clause]:
    by_id = {clause.id: clause for clause in known}
    for name in ids:
        if name not in by_id:
            near = difflib.get_close_matches(name, by_id, n=1)
            todo = f"did you mean {near[0]}?" if near else "`rallypoint review` lists them"
            raise UnusableError(f"no clause {name!r}", f"there are {len(by_id)}", todo)
    chosen = [by_id[name] for name in dict.fromkeys(ids)] or list(known)
    if code is not None:
        chosen = [clause for clause in chosen if any(code in name for name in (*clause.code, *clause.tests))]
        if not chosen:
            raise UnusableError(
                f"no clause names {code!r}", "spec/clauses.toml", "give a part of FILE:NAME or FILE::TEST"
            )
    return chosen


def _outcomes(file: Path) -> Outcomes:
    try:
        cases = ElementTree.parse(file).getroot().iter("testcase")
        found: dict[str, Counter[str]] = {}
        for case in cases:
            test = case.get("name", "").partition("[")[0]
            name = f"{case.get('classname', '').replace('.', '/')}.py::{test}"
            kinds = {child.tag for child in case}
            outcome = FAILED if kinds & {"failure", "error"} else SKIPPED if "skipped" in kinds else PASSED
            found.setdefault(name, Counter())[outcome] += 1
    except (ElementTree.ParseError, OSError) as error:
        raise UnusableError(
            "no results of tests", f"{file}: {error}", "write them with `pytest --junitxml FILE`"
        ) from error
    if not found:
        raise UnusableError("no results of tests", f"{file} names no test", "write it with `pytest --junitxml FILE`")
    return found


def _review(clause: Clause, manifest: Iterable[Config], outcomes: Outcomes | None) -> Reviewed:
    places: dict[str, Place | None] = {}
    for name in clause.properties:
        places[f"TLA+ {name}"] = clauses.in_tla(name)
        places[f"predicate {name}"] = clauses.predicate(name)
    places.update({name: clauses.code(name) for name in (*clause.code, *clause.tests)})
    places.update({f"defect {name}": None for name in clause.defects if name not in DEFECTS})
    return Reviewed(clause, places, _evidence(clause, manifest, outcomes))


def _evidence(clause: Clause, manifest: Iterable[Config], outcomes: Outcomes | None) -> Evidence:
    about = [(config, set(clause.properties) & {*config.invariants, *config.properties}) for config in manifest]
    held = [config for config, names in about if names and config.expected.verdict == "holds"]
    broken = [config for config, names in about if names and config.expected.property in names]
    states: list[int] = [config.counts.states for config in held if config.counts and config.counts.states]
    counts = [Counter[str]() if outcomes is None else outcomes.get(test, Counter[str]()) for test in clause.tests]
    return Evidence(
        holds=len(held),
        states=sum(states),
        violated=len(broken) + len(clause.defects),
        passed=sum(1 for count in counts if count[PASSED] and not count[FAILED]),
        failed=sum(1 for count in counts if count[FAILED]),
        silent=sum(1 for count in counts if not count[PASSED] and not count[FAILED]),
    )


def _cells(one: Reviewed) -> tuple[str, ...]:
    seen, clause = one.evidence, one.clause
    explored = f"{seen.holds} spaces, {seen.states:,} states" if seen.holds else "-"
    ran = f"{seen.passed} of {len(clause.tests)}" + (f", {seen.failed} failed" if seen.failed else "")
    return (
        clause.id,
        clause.statement,
        ", ".join(clause.properties) or "-",
        ", ".join(clause.code),
        explored,
        str(seen.violated),
        ran,
    )


HEADERS = ("clause", "statement", "property", "code", "explored", "violated on purpose", "tests passed")


def _table(reviewed: Iterable[Reviewed]) -> Table:
    table = Table(title="From each requirement to the code and back", title_justify="left", show_lines=True)
    for header in HEADERS:
        table.add_column(header, no_wrap=header == "clause", overflow="fold")
    for one in reviewed:
        table.add_row(*map(escape, _cells(one)))
    return table


def _show(console: Console, one: Reviewed) -> None:
    """Everything about one clause, a line for each name."""
    for line in _lines(one):
        console.print(line, markup=False, highlight=False)


def _lines(one: Reviewed) -> Iterator[str]:
    clause, seen = one.clause, one.evidence
    yield f"{clause.id}  {clause.api}"
    yield f"  {clause.statement}"
    yield f"  why: {clause.why}"
    yield f"  from: {'; '.join(clause.sources)}"
    for name, place in one.places.items():
        yield f"  {name.partition('::')[2] or name}  {place or 'leads nowhere'}"
    for name in clause.defects:
        yield f"  defect {name}  rallypoint defects {name}"
    yield f"  explored: holds in {seen.holds} spaces with {seen.states:,} states"
    yield f"  violated on purpose: {seen.violated} times"
    yield f"  tests of the last run: {seen.passed} passed, {seen.failed} failed, {seen.silent} not in it"


def _markdown(reviewed: Sequence[Reviewed]) -> str:
    def line(cells: Iterable[str]) -> str:
        return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"

    rows = [line(HEADERS), line("---" for _ in HEADERS), *(line(_cells(one)) for one in reviewed)]
    details = ["\n".join(["", *_lines(one)]) for one in reviewed]
    return "\n".join(["# Requirements", "", *rows, "", "```", *details, "```", ""])


def _described(one: Reviewed) -> dict[str, object]:
    places = {name: place and str(place) for name, place in one.places.items()}
    return {**asdict(one.clause), "places": places, "evidence": {**asdict(one.evidence), "gap": one.evidence.gap}}
