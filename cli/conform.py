"""``rallypoint conform``: PyTorch's own rendezvous tests, on PyTorch's modules and on ours, as a record."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path

import click
from rallypoint.cli.conform_child import OURS, UPSTREAM
from rallypoint.cli.conform_npu import find_npu
from rallypoint.cli.conform_record import markdown
from rallypoint.cli.conform_report import COLUMNS, Report, as_json, cell, conclusion, failures
from rallypoint.cli.conform_run import HARNESS_FAILED, HOLDS, VIOLATED, Run, differences, run
from rallypoint.cli.conform_tests import TestFile, find_tests
from rallypoint.cli.conform_words import LANGUAGES, Words
from rallypoint.cli.facts import facts
from rallypoint.cli.json_file import file_option, json_option, write_json, write_text
from rallypoint.cli.runs import wide_console
from rich.console import Console
from rich.table import Table
from rich.text import Text

STYLES = {HOLDS: "green", VIOLATED: "bold red", HARNESS_FAILED: "bold red"}


@click.command("conform")
@click.option(
    "--tests",
    required=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A checkout of PyTorch, or its folder test/distributed/elastic/rendezvous.",
)
@click.option("--lang", type=click.Choice(LANGUAGES), default="en", show_default=True, help="Of table and record.")
@file_option("--record", "record", "Write a Markdown record to this file too.")
@json_option
def command(tests: Path, lang: str, record: Path | None, json_file: Path | None) -> int:
    """Run PyTorch's own rendezvous tests on PyTorch's etcd modules and on rallypoint's.

    The test files are yours: those of the installed torch's version fit best. Each runs on both sides, without
    torch_npu and, where that is installed, with it. A failure is the API's, the test's own bug, or the environment's.
    Ends with 0 if everything that could be asked holds, with 1 if not.
    """
    console, words = wide_console(), Words(lang)
    report = _run(find_tests(tests), console)
    console.print(_table(report, words))
    for line in (*failures(report, words), *differences(report.runs)):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    console.print(report.npu.text, markup=False, highlight=False)
    for line in conclusion(report, words):
        console.print(Text(line, "bold green" if report.holds else "bold red"), soft_wrap=True)
    if json_file:
        write_json(json_file, as_json(report))
    if record:
        write_text(record, markdown(report, words), "the record")
    return 0 if report.holds else 1


def _run(files: list[TestFile], console: Console) -> Report:
    """Both sides of one file at a time, all files first without and then with torch_npu."""
    runs: list[Run] = []
    with (
        ThreadPoolExecutor(2) as pool,
        console.status("looking for torch_npu, and for CANN or its emulation") as status,
    ):
        npu = find_npu()
        for loaded in (None, npu):
            for file in files:
                status.update(f"{file.name}{', with torch_npu' if loaded else ''}")
                sides = [pool.submit(run, file, side, loaded) for side in (UPSTREAM, OURS)]
                runs += [side.result() for side in sides]
                for one in runs[-2:] if npu.installed or not loaded else ():
                    console.print(_line(one), markup=False, highlight=False)
    return Report(files, runs, npu, facts(), datetime.now(timezone.utc).strftime("%Y-%m-%d"))


def _line(one: Run) -> str:
    loaded = "with torch_npu" if one.with_npu else "without torch_npu"
    return f"{one.verdict}: {one.file.name}, {one.side}, {loaded}: {one.ok} of {one.ran} ok, {one.seconds:.0f} s"


def _table(report: Report, words: Words) -> Table:
    table = Table(title="rallypoint conform", title_justify="left")
    table.add_column(words["file"], no_wrap=True)
    for column in COLUMNS:
        table.add_column(words.column(*column))
    for file in report.files:
        runs = [report.run_of(file, *column) for column in COLUMNS]
        table.add_row(file.name, *(Text(cell(one, words), STYLES.get(one.verdict, "yellow")) for one in runs))
    return table
