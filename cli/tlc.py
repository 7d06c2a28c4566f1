"""``rallypoint tlc``: run TLC on the configurations of the manifest and hold the results against it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rallypoint.cli.json_file import json_option, write_json
from rallypoint.cli.runs import wide_console
from rallypoint.tla.manifest import Config, load_manifest, select
from rallypoint.tla.tlc import Progress, TlcResult, find_jar, find_java, run_all
from rallypoint.tla.values import State, changes, in_order, show
from rich.console import Console
from rich.progress import Progress as Bars
from rich.progress import SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

STYLES = {"holds": "green", "violated": "yellow", "harness failed": "bold red", "not checked": "dim"}
NO_STATE = State({})


@dataclass(frozen=True, slots=True)
class Outcome:
    """One configuration, what TLC found (None: not checked), and how that differs from the manifest."""

    config: Config
    result: TlcResult | None
    surprises: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        return self.result.verdict if self.result else "not checked"


def _cores() -> int:
    return min(8, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


@click.command("tlc")
@click.argument("names", nargs=-1, metavar="[CONFIG]...")
@click.option("--long", "with_long", is_flag=True, help="The configurations of the long class too.")
@click.option("--list", "only_list", is_flag=True, help="List the configurations and stop.")
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    metavar="N",
    help="Quick runs side by side, or TLC threads of a long run; default: the processors, at most 8.",
)
@json_option
def command(
    names: tuple[str, ...], with_long: bool, only_list: bool, workers: int | None, json_file: Path | None
) -> int:
    """Check the TLA+ specification with TLC, exhaustively at the sizes that the manifest states.

    Without CONFIG, all configurations of the quick class. Counterexamples are printed for the configurations that are
    named, and for those whose result is not the expected one.

    Ends with 0 if every run had the verdict and the counts that the manifest expects, else with 1.
    """
    manifest = load_manifest()
    console = wide_console()
    if only_list:
        console.print(_listing(manifest))
        return 0
    chosen = select(manifest, names) if names else [config for config in manifest if with_long or _is_quick(config)]
    java, jar = find_java(), find_jar()
    outcomes = {it.config.name: it for it in _run(chosen, workers or _cores(), console)}
    shown = [outcomes.get(config.name, Outcome(config, None)) for config in manifest if config in chosen or not names]
    console.print(_table(shown))
    for outcome in shown:
        _explain(outcome, console, named=outcome.config.name in names)
    console.print(_boundary(shown), highlight=False)
    surprising = [outcome.config.name for outcome in shown if outcome.surprises]
    verdict = f"not as expected: {', '.join(surprising)}" if surprising else "every run as expected"
    console.print(verdict, markup=False, highlight=False)
    if json_file:
        tools = {"java": java.version, "java found by": java.rule, "jar": jar.sha256, "jar found by": jar.rule}
        write_json(
            json_file,
            {"as_expected": not surprising, "tools": tools, "configurations": [_record(it) for it in shown]},
        )
    return 1 if surprising else 0


def _is_quick(config: Config) -> bool:
    return config.time == "quick"


def _run(configs: Sequence[Config], workers: int, console: Console) -> Iterator[Outcome]:
    """Quick ones side by side with one worker each, then the long ones one by one with all workers."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        TextColumn("{task.fields[size]}"),
        TimeElapsedColumn(),
    )
    with Bars(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        quick = [config for config in configs if _is_quick(config)]
        yield from _run_class(quick, 1, workers, bars)
        yield from _run_class([config for config in configs if config not in quick], workers, 1, bars)


def _run_class(configs: Sequence[Config], workers: int, parallel: int, bars: Bars) -> Iterator[Outcome]:
    tasks: dict[int, TaskID] = {}

    def start(index: int) -> None:
        tasks[index] = bars.add_task(configs[index].name, total=None, size="")

    def progress(index: int, now: Progress) -> None:
        bars.update(tasks[index], size=f"{now.states:,} states, {now.queued:,} queued")

    jobs = [config.job(workers=workers) for config in configs]
    for index, result in run_all(jobs, parallel, on_progress=progress, on_start=start):
        bars.remove_task(tasks[index])
        yield Outcome(configs[index], result, tuple(configs[index].surprises(result, workers=workers)))


def _listing(manifest: Sequence[Config]) -> Table:
    table = Table(title="configurations", title_justify="left")
    table.add_column("configuration", no_wrap=True)
    table.add_column("class")
    table.add_column("expected")
    table.add_column("about")
    for config in manifest:
        want = config.expected
        steps = f" in {want.steps} steps" if want.steps is not None else ""
        table.add_row(config.name, config.time, f"{want.property or ''} {want.verdict}{steps}".strip(), config.about)
    return table


def _table(outcomes: Sequence[Outcome]) -> Table:
    table = Table(title="TLC", title_justify="left")
    table.add_column("configuration", overflow="fold")
    for name in ("states", "edges", "depth"):
        table.add_column(name, justify="right")
    table.add_column("verdict", overflow="fold")
    table.add_column("as expected")
    table.add_column("seconds", justify="right")
    for outcome in outcomes:
        result = outcome.result
        verdict = Text(_verdict(outcome), STYLES[outcome.verdict])
        if result is None:
            table.add_row(outcome.config.name, "", "", "", verdict, Text("long class", "dim"), "")
            continue
        sizes = [f"{number:,}" for number in (result.states, result.edges, result.depth)]
        expected = Text("no", "bold red") if outcome.surprises else Text("yes", "green")
        table.add_row(outcome.config.name, *sizes, verdict, expected, f"{result.seconds:.1f}")
    return table


def _verdict(outcome: Outcome) -> str:
    if outcome.result is None or outcome.result.verdict != "violated":
        return outcome.verdict
    return f"{outcome.config.violated(outcome.result)} violated in {outcome.result.steps} steps"


def _explain(outcome: Outcome, console: Console, *, named: bool) -> None:
    result = outcome.result
    if result is None or not (named or outcome.surprises):
        return
    for surprise in outcome.surprises:
        console.print(f"{outcome.config.name}: {surprise}", style="bold red", markup=False, highlight=False)
    if result.verdict == "violated":
        console.print(_trace(outcome.config, result))
    if result.verdict == "harness failed":
        console.print(f"{outcome.config.name}: the last lines of TLC", style="bold", markup=False, highlight=False)
        console.print("\n".join(result.tail), markup=False, highlight=False)
    unused = [action for action, (_, taken) in result.coverage.items() if not taken]
    if result.verdict == "holds" and unused:
        console.print(
            f"{outcome.config.name}: these actions never happen: {', '.join(unused)}", markup=False, highlight=False
        )


def _trace(config: Config, result: TlcResult) -> Table:
    table = Table(title=f"{config.name}: {config.violated(result)} is violated", title_justify="left", show_lines=True)
    table.add_column("step", justify="right")
    table.add_column("action")
    table.add_column("what changes", overflow="fold")
    before = NO_STATE
    for number, step in enumerate(result.trace):
        table.add_row(str(number), Text(step.action), Text("\n".join(changes(before, step.state)) or "nothing"))
        before = step.state
    if result.ending:
        table.add_row("", Text(result.ending), "")
    return table


def _boundary(outcomes: Sequence[Outcome]) -> str:
    """What "holds" means here, in one sentence."""
    holding = [it.result for it in outcomes if it.result is not None and it.result.verdict == "holds"]
    if not holding:
        return ""
    worst = max(result.collisions for result in holding)
    return (
        "holds = every reachable state at the stated size was checked; "
        f"TLC puts the chance that it missed one (fingerprint collision) at {worst:.0e} or less"
    )


def _record(outcome: Outcome) -> dict[str, Any]:
    config, result = outcome.config, outcome.result
    record: dict[str, Any] = {"name": config.name, "about": config.about, "verdict": outcome.verdict}
    if result is None:
        return record
    return record | {
        "property": config.violated(result),
        "steps": result.steps if result.verdict == "violated" else None,
        "states": result.states,
        "edges": result.edges,
        "depth": result.depth,
        "seconds": round(result.seconds, 2),
        "as_expected": not outcome.surprises,
        "surprises": list(outcome.surprises),
        "coverage": {action: {"found": found, "taken": taken} for action, (found, taken) in result.coverage.items()},
        "trace": [{"action": step.action, "state": _shown(step.state)} for step in result.trace],
        "ending": result.ending,
        "reason": result.reason,
        "output": list(result.tail),
    }


def _shown(state: State) -> dict[str, str]:
    return {str(name): show(state[name]) for name in in_order(state)}
