"""``rallypoint explore``: search the model's state space, and show the shortest run that breaks a requirement."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from rallypoint.cli import spaces
from rallypoint.cli.json_file import json_option, write_json
from rallypoint.cli.runs import run_table, wide_console
from rallypoint.cli.spaces import Found, explore
from rallypoint.model.errors import UnusableError
from rallypoint.tla.manifest import Config, load_manifest, select
from rich.table import Table


@click.command("explore")
@click.argument("names", nargs=-1, metavar="[CONFIG]...")
@click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="NAME=NUMBER",
    help="Another number for a constant of the named configurations, such as LostReplies=2 or N=3.",
)
@click.option("--all-invariants", is_flag=True, help="Judge all invariants, not only those of the configuration.")
@json_option
def command(names: tuple[str, ...], changes: tuple[str, ...], all_invariants: bool, json_file: Path | None) -> int:
    """Visit every state that the model can reach, and judge the invariants on each.

    Without CONFIG, all configurations of the quick class (`rallypoint tlc --list` lists them). For each violated
    invariant the shortest run is printed. Ends with 0 if every configuration has the verdict that the manifest
    expects, else with 1; with --set there is nothing to expect, and 1 means that an invariant is violated, or that the
    search was cut off.
    """
    manifest = load_manifest()
    chosen = select(manifest, names) if names else [config for config in manifest if config.time == "quick"]
    chosen = [_changed(config, changes) for config in chosen]
    console = wide_console()
    table = Table(title="model", title_justify="left")
    for name in ("configuration", "states", "edges", "depth", "verdict", "seconds"):
        words = name in ("configuration", "verdict")
        table.add_column(name, justify="left" if words else "right", overflow="fold")
    records, surprising, runs = [], [], []
    for config in chosen:
        found = explore(config, everything=all_invariants or bool(changes))
        table.add_row(
            config.name,
            f"{found.states:,}",
            f"{found.edges:,}",
            str(found.depth),
            found.verdict,
            f"{found.seconds:.1f}",
        )
        if (found.runs or not found.complete) if changes or all_invariants else found.surprises(config):
            surprising.append(config.name)
        runs += [
            (run_table(f"{config.name}: {name} is violated", rows), f"{name} says: {spaces.meaning(name)}")
            for name, rows in found.runs.items()
        ]
        records.append(_record(config, found))
    console.print(table)
    if names:
        for run, meaning in runs:
            console.print(run)
            console.print(meaning, markup=False, highlight=False)
    console.print("holds = every reachable state at the stated size was checked", highlight=False)
    console.print(
        f"not as expected: {', '.join(surprising)}" if surprising else "every search as expected", highlight=False
    )
    if json_file:
        write_json(json_file, {"as_expected": not surprising, "configurations": records})
    return 1 if surprising else 0


def _changed(config: Config, changes: tuple[str, ...]) -> Config:
    constants = dict(config.constants)
    for change in changes:
        name, _, number = change.partition("=")
        if type(constants.get(name)) is not int or not number.isdecimal() or (name == "N" and int(number) < 1):
            known = ", ".join(sorted(name for name, value in constants.items() if type(value) is int))
            raise UnusableError(f"--set {change!r}", "NAME=NUMBER", f"a whole number (N: 1 or more) for one of {known}")
        constants[name] = int(number)
    lowest, highest = constants.get("Min", 1), constants.get("Max", 1)
    assert isinstance(lowest, int)
    assert isinstance(highest, int)
    if not 1 <= lowest <= highest:
        raise UnusableError(f"Min={lowest}, Max={highest}", "--set", "choose 1 <= Min <= Max")
    return replace(config, constants=constants)


def _record(config: Config, found: Found) -> dict[str, Any]:
    return {
        "name": config.name,
        "constants": dict(config.constants),
        "verdict": "violated" if found.runs else "holds" if found.complete else "not checked",
        "states": found.states,
        "edges": found.edges,
        "depth": found.depth,
        "seconds": round(found.seconds, 2),
        "actions": dict(found.actions),
        "violations": dict(found.runs),
    }
