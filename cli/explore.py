"""``rallypoint explore``: search the model's state space, and show the shortest run that breaks a requirement."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from rallypoint.cli.json_file import json_option, write_json
from rallypoint.cli.runs import run_rows, run_table, wide_console
from rallypoint.model.errors import UnusableError
from rallypoint.model.explorer import Exploration, Explorer
from rallypoint.spec.invariants import INVARIANTS
from rallypoint.tla import twin
from rallypoint.tla.manifest import Config, load_manifest, select
from rich.table import Table

MAX_STATES = 1_000_000


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
    expects, else with 1; with --set there is nothing to expect, and 1 means that an invariant is violated.
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
        verdict = verdict_text(found)
        table.add_row(
            config.name,
            f"{found.states:,}",
            f"{found.edges:,}",
            str(found.depth),
            verdict,
            f"{found.seconds:.1f}",
        )
        if found.violations if changes or all_invariants else surprises(config, found):
            surprising.append(config.name)
        rules = twin.model_config(config).rules
        runs += [
            run_table(f"{config.name}: {name} is violated", rules, violation.run)
            for name, violation in found.violations.items()
        ]
        records.append(_record(config, found))
    console.print(table)
    if names:
        for run in runs:
            console.print(run)
    console.print("holds = every reachable state at the stated size was checked", highlight=False)
    if json_file:
        write_json(json_file, {"as_expected": not surprising, "configurations": records})
    return 1 if surprising else 0


def _changed(config: Config, changes: tuple[str, ...]) -> Config:
    constants = dict(config.constants)
    for change in changes:
        name, _, number = change.partition("=")
        if type(constants.get(name)) is not int or not number.isdecimal():
            known = ", ".join(sorted(name for name, value in constants.items() if type(value) is int))
            raise UnusableError(f"--set {change!r}", "NAME=NUMBER", f"name one of {known}")
        constants[name] = int(number)
    lowest, highest = constants["Min"], constants["Max"]
    assert isinstance(lowest, int)
    assert isinstance(highest, int)
    if not 1 <= lowest <= highest:
        raise UnusableError(f"Min={lowest}, Max={highest}", "--set", "choose 1 <= Min <= Max")
    return replace(config, constants=constants)


def explore(config: Config, *, everything: bool = False) -> Exploration:
    """Search one configuration of the manifest with its invariants (or all).

    Where the manifest expects a violation, the search ends with it: some of these spaces have no end.
    """
    names = INVARIANTS if everything else config.invariants
    return Explorer(twin.model_config(config)).explore(
        {name: INVARIANTS[name] for name in names},
        stop_at_first=config.expected.verdict == "violated" and not everything,
        max_states=MAX_STATES,
    )


def verdict_text(found: Exploration) -> str:
    """The verdict in words; a search that was cut off is "not checked"."""
    if found.violations:
        return ", ".join(f"{name} violated in {len(it.run)} steps" for name, it in found.violations.items())
    return "holds" if found.complete else "not checked: too many states"


def surprises(config: Config, found: Exploration) -> list[str]:
    """How an exploration differs from the manifest, one phrase each."""
    want = config.expected
    if want.verdict == "violated":
        violation = found.violations.get(want.property or "")
        if violation is None:
            return [f"{want.property} is not violated"]
        steps = len(violation.run)
        return [] if want.steps in (None, steps) else [f"{steps} steps where {want.steps} are expected"]
    if found.violations or not found.complete:
        return [verdict_text(found)]
    pairs = {
        "states": (found.states, config.counts.states),
        "edges": (found.edges, config.counts.edges),
        "depth": (found.depth, config.counts.depth),
    }
    return [f"{what} {have} where {pin} is expected" for what, (have, pin) in pairs.items() if pin not in (None, have)]


def _record(config: Config, found: Exploration) -> dict[str, Any]:
    rules = twin.model_config(config).rules
    return {
        "name": config.name,
        "constants": dict(config.constants),
        "verdict": "violated" if found.violations else "holds" if found.complete else "not checked",
        "states": found.states,
        "edges": found.edges,
        "depth": found.depth,
        "seconds": round(found.seconds, 2),
        "actions": found.actions,
        "violations": {name: run_rows(rules, violation.run) for name, violation in found.violations.items()},
    }
