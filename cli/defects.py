"""``rallypoint defects``: the same scenarios on PyTorch's own classes and on ours, side by side."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import click
from rallypoint.cli.json_file import json_option, write_json
from rallypoint.cli.runs import wide_console
from rallypoint.defects.record import AREAS, Defect
from rallypoint.defects.runner import Outcome, Runner
from rallypoint.defects.scenarios import DEFECTS
from rallypoint.defects.stage import OURS, UPSTREAM
from rallypoint.model.errors import UnusableError
from rich.table import Table
from rich.text import Text

HOLDS, VIOLATED, HARNESS_FAILED = "holds", "violated", "harness failed"
NOT_REPRODUCED = "not reproduced here"
STYLES = {HOLDS: "green", VIOLATED: "bold red", HARNESS_FAILED: "bold red"}


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the track record: the verdicts on both sides, and what was seen."""

    defect: Defect
    upstream: Outcome
    ours: Outcome

    @property
    def on_upstream(self) -> str:
        """ "violated" is what the row claims."""
        return {True: NOT_REPRODUCED, False: VIOLATED, None: HARNESS_FAILED}[self.upstream.ok]

    @property
    def on_ours(self) -> str:
        return {True: HOLDS, False: VIOLATED, None: HARNESS_FAILED}[self.ours.ok]

    @property
    def good(self) -> bool:
        shown = self.on_upstream == VIOLATED
        return shown and self.on_ours == HOLDS

    @property
    def seconds(self) -> float:
        return max(self.upstream.seconds, self.ours.seconds)


@click.command("defects")
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("--list", "only_list", is_flag=True, help="List the defects; run nothing.")
@click.option("--area", type=click.Choice(AREAS), help="Only the defects of one area.")
@json_option
def command(ids: tuple[str, ...], only_list: bool, area: str | None, json_file: Path | None) -> int:
    """Show the defects of PyTorch's etcd modules, and the same scenarios on rallypoint's.

    Each scenario plays twice, on a real etcd with real faults: on the unmodified class of the installed torch, and on
    ours. An ID is a defect's, or that of a public report. All of them take about ten minutes. Ends with 0 if each
    defect shows on upstream's side and none on ours.
    """
    chosen = _chosen(ids, area)
    console = wide_console()
    if only_list:
        console.print(_list(chosen))
        if json_file:
            write_json(json_file, {"defects": [_described(defect) for defect in chosen]})
        return 0
    started = time.monotonic()
    rows = []
    for row in _run(chosen):
        rows.append(row)
        console.print(f"{row.defect.id}: {row.on_ours}, upstream {row.on_upstream}", markup=False, highlight=False)
    console.print(_table(rows))
    good = bool(rows) and all(row.good for row in rows)
    summary = (
        f"rallypoint holds {sum(row.on_ours == HOLDS for row in rows)} of {len(rows)}, upstream fails "
        f"{sum(row.on_upstream == VIOLATED for row in rows)}, {time.monotonic() - started:.0f} s"
    )
    console.print(Text(summary, "bold green" if good else "bold red"))
    if json_file:
        write_json(json_file, {"holds": good, "defects": [_reported(row) for row in rows]})
    return 0 if good else 1


def _chosen(ids: tuple[str, ...], area: str | None) -> list[Defect]:
    named = {one: [it for it in DEFECTS.values() if one == it.id or one in it.reports] for one in ids}
    unknown = [one for one, found in named.items() if not found]
    if unknown:
        raise UnusableError(
            f"unknown defect {', '.join(unknown)}", f"there are {', '.join(DEFECTS)}", "see `rallypoint defects --list`"
        )
    meant = [defect for found in named.values() for defect in found]
    chosen = [defect for defect in DEFECTS.values() if (not ids or defect in meant) and area in (None, defect.area)]
    if not chosen:
        raise UnusableError("no defect to run", f"{', '.join(ids)} in area {area}", "leave out --area")
    return chosen


def _run(chosen: list[Defect]) -> Iterator[Row]:
    """Both sides of one defect at a time."""
    # The pool is left last: it waits for what only the end of the runners ends.
    with ThreadPoolExecutor(2) as pool, Runner() as theirs, Runner() as mine:
        for defect in chosen:
            upstream = pool.submit(theirs.run, defect.id, UPSTREAM, defect.bound)
            ours = pool.submit(mine.run, defect.id, OURS, defect.bound)
            yield Row(defect, upstream.result(), ours.result())


def _described(defect: Defect) -> dict[str, object]:
    described = asdict(defect)
    del described["run"]
    return described


def _reported(row: Row) -> dict[str, object]:
    sides = {
        UPSTREAM: {"verdict": row.on_upstream, **asdict(row.upstream)},
        OURS: {"verdict": row.on_ours, **asdict(row.ours)},
    }
    return {**_described(row.defect), **sides}


def _list(chosen: list[Defect]) -> Table:
    table = Table(title="defects", title_justify="left")
    table.add_column("id", no_wrap=True)
    table.add_column("reports")
    table.add_column("area", no_wrap=True)
    table.add_column("upstream")
    table.add_column("required")
    for defect in chosen:
        table.add_row(defect.id, " ".join(defect.reports), defect.area, defect.title, defect.required)
    return table


def _table(rows: list[Row]) -> Table:
    table = Table(title="track record", title_justify="left", show_lines=True)
    table.add_column("id", no_wrap=True)
    table.add_column("what")
    table.add_column("upstream")
    table.add_column("rallypoint")
    table.add_column("s", justify="right", no_wrap=True)
    for row in rows:
        theirs = Text.assemble((row.on_upstream, "" if row.on_upstream == VIOLATED else "bold yellow"))
        theirs.append(f": {row.upstream.seen}")
        mine = Text.assemble((row.on_ours, STYLES[row.on_ours]), f": {row.ours.seen}")
        table.add_row(row.defect.id, row.defect.title, theirs, mine, f"{row.seconds:.0f}")
    return table
