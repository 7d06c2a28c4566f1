"""The Markdown record of ``rallypoint conform``: environment, files, commands, results, conclusion."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rallypoint.cli.conform_report import COLUMNS, Report, cell, conclusion, failures
from rallypoint.cli.conform_run import differences
from rallypoint.cli.conform_words import Words


def markdown(report: Report, words: Words) -> str:
    """The record as text that ends in a newline."""
    return "\n".join(_lines(report, words)) + "\n"


def _lines(report: Report, words: Words) -> Iterator[str]:
    yield f"# {words['title']}"
    yield from _section(words["environment of the run"])
    rows = [(words["date"], report.date), *report.environment.items(), ("CANN", report.npu.text)]
    yield from _table([words["item"], words["value"]], rows)
    yield from _section(words["test files"], words["files told"])
    yield from _table([words["file"], "SHA-256"], [(file.name, f"`{file.sha256[:16]}`") for file in report.files])
    if any(file.repaired for file in report.files):
        yield from ("", words["repaired told"])
    yield from _section(words["commands"], words["commands told"])
    commands = dict.fromkeys(run.command for run in report.asked)
    yield from ("```", "rallypoint conform --tests PATH --record RECORD", *commands, "```")
    yield from _section(words["summary"], words["cells told"])
    heads = [words["file"], *(words.column(*column) for column in COLUMNS)]
    cells = [[file.name, *(cell(report.run_of(file, *it), words) for it in COLUMNS)] for file in report.files]
    yield from _table(heads, cells)
    for title, lines in (
        ("failures", list(failures(report, words))),
        ("differences", differences(report.runs)),
        ("conclusion", conclusion(report, words)),
    ):
        yield from _section(words[title])
        yield from [f"* {_plain(line)}" for line in lines] or [words["none"]]
    yield from _section(words["each test"])
    yield from _table([words["test"], *heads[1:]], _each_test(report, words))


def _section(title: str, *text: str) -> Iterator[str]:
    yield from ("", f"## {title}", "")
    for line in text:
        yield from (line, "")


def _table(heads: list[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    yield f"| {' | '.join(heads)} |"
    yield "|---" * len(heads) + "|"
    for row in rows:
        yield f"| {' | '.join(_plain(one) for one in row)} |"


def _plain(text: str) -> str:
    """On one line, and no cell's end within it."""
    return " ".join(text.split()).replace("|", r"\|")


def _each_test(report: Report, words: Words) -> Iterator[list[str]]:
    for file in report.files:
        runs = [report.run_of(file, *column) for column in COLUMNS]
        outcomes = [{one.test: one for one in run.outcomes} for run in runs]
        for test in dict.fromkeys(test for of_run in outcomes for test in of_run):
            found = [of_run.get(test) for of_run in outcomes]
            cells = [f"{words[one.outcome]}, {one.seconds:.2f} s" if one else "" for one in found]
            yield [f"{file.name}: {test.partition('.')[2] or test}", *cells]
