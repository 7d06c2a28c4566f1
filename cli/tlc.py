"""``rallypoint tlc``: run TLC on the configurations of the manifest and hold the results against it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click
from rallypoint.cli.json_file import json_option, write_json
from rallypoint.cli.runs import wide_console
from rallypoint.model.errors import UnusableError
from rallypoint.tla.manifest import Config, load_manifest, select
from rallypoint.tla.tlc import UNNAMED, Progress, Simulation, TlcResult, find_jar, find_java, run_all
from rallypoint.tla.values import State, changes, in_order, show
from rich.console import Console
from rich.progress import Progress as Bars
from rich.progress import SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

STYLES = {"holds": "green", "violated": "yellow", "harness failed": "bold red", "not checked": "dim"}
NO_STATE = State({})


@dataclass(frozen=True, slots=True)
class Mode:
    """How the configurations are run: by threads of one JVM, by distributed processes, or as a simulation."""

    workers: int
    processes: int = 0
    simulation: Simulation | None = None


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
@click.option("--long", "with_long", is_flag=True, help="The configurations of the other classes too.")
@click.option("--list", "only_list", is_flag=True, help="List the configurations and stop.")
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    metavar="N",
    help="Quick runs side by side, or TLC threads of a long run; default: the processors, at most 8.",
)
@click.option(
    "--simulate",
    type=click.IntRange(min=1),
    metavar="BEHAVIOURS",
    help="Sample so many random behaviours of each configuration, where to search all of them would not end.",
)
@click.option("--depth", type=click.IntRange(min=2), default=100, show_default=True, help="Their states at most.")
@click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True, help="The same seed, the same run.")
@click.option(
    "--distributed",
    type=click.IntRange(min=1),
    metavar="N",
    help="TLC's distributed server with N worker processes on this machine; for invariants only.",
)
@json_option
def command(
    names: tuple[str, ...],
    with_long: bool,
    only_list: bool,
    workers: int | None,
    simulate: int | None,
    depth: int,
    seed: int,
    distributed: int | None,
    json_file: Path | None,
) -> int:
    """Check the TLA+ specification with TLC, exhaustively at the sizes that the manifest states.

    Without CONFIG, all configurations of the quick class. Counterexamples are printed for the configurations that are
    named, and for those whose result is not the expected one.

    Ends with 0 if every run had the verdict and the counts that the manifest expects, else with 1. A simulation has no
    counts, and may miss an expected violation.
    """
    manifest = load_manifest()
    console = wide_console()
    if only_list:
        console.print(_listing(manifest))
        if json_file:
            write_json(json_file, {"configurations": [_entry(config) for config in manifest]})
        return 0
    chosen = (
        select(manifest, names) if names else [config for config in manifest if with_long or config.time == "quick"]
    )
    simulation = Simulation(simulate, depth, seed) if simulate else None
    mode = Mode(workers or _cores(), distributed or 0, simulation)
    _refuse_nonsense(chosen, mode)
    java, jar = find_java(), find_jar()
    outcomes = {it.config.name: it for it in _run(chosen, mode, names, console)}
    shown = [outcomes.get(config.name, Outcome(config, None)) for config in manifest if config in chosen or not names]
    console.print(_simulated(shown, simulation) if simulation else _table(shown))
    for outcome in shown:
        _explain(outcome, console, named=outcome.config.name in names)
    console.print(_boundary(shown, simulation), highlight=False)
    surprising = [outcome.config.name for outcome in shown if outcome.surprises]
    verdict = f"not as expected: {', '.join(surprising)}" if surprising else "every run as expected"
    console.print(verdict, markup=False, highlight=False)
    if json_file:
        tools = {"java": java.version, "java found by": java.rule, "jar": jar.sha256, "jar found by": jar.rule}
        report = {"as_expected": not surprising, "tools": tools, "mode": asdict(mode)}
        write_json(json_file, {**report, "configurations": [_record(it) for it in shown]})
    return 1 if surprising else 0


def _refuse_nonsense(configs: Sequence[Config], mode: Mode) -> None:
    if not mode.processes:
        return
    if mode.simulation:
        raise UnusableError(
            "--distributed with --simulate", "TLC's server searches all states", "choose one of the two"
        )
    temporal = [config.name for config in configs if config.properties]
    if temporal:
        where = f"temporal properties of {', '.join(temporal)}"
        raise UnusableError("TLC's distributed server judges invariants only", where, "run them without --distributed")


def _is_small(config: Config) -> bool:
    return config.time != "long"


def _run(configs: Sequence[Config], mode: Mode, names: Sequence[str], console: Console) -> Iterator[Outcome]:
    """Quick ones side by side with one worker each, then the long ones one by one with all workers.

    Simulations all go side by side: one thread gives the same behaviours for the same seed, several do not.
    """
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        TextColumn("{task.fields[size]}"),
        TimeElapsedColumn(),
    )
    with Bars(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        if mode.processes:
            yield from _run_class(configs, mode, 1, names, bars)
            return
        small = [config for config in configs if mode.simulation or _is_small(config)]
        yield from _run_class(small, replace(mode, workers=1), mode.workers, names, bars)
        yield from _run_class([config for config in configs if config not in small], mode, 1, names, bars)


def _run_class(
    configs: Sequence[Config], mode: Mode, parallel: int, names: Sequence[str], bars: Bars
) -> Iterator[Outcome]:
    tasks: dict[int, TaskID] = {}

    def start(index: int) -> None:
        tasks[index] = bars.add_task(configs[index].name, total=None, size="")

    def progress(index: int, now: Progress) -> None:
        bars.update(tasks[index], size=f"{now.states:,} states, {now.queued:,} queued")

    jobs = [
        replace(
            config.job(workers=mode.workers),
            coverage=config.name in names,  # it takes time, and is printed for these only
            processes=mode.processes,
            simulation=mode.simulation,
        )
        for config in configs
    ]
    for index, result in run_all(jobs, parallel, on_progress=progress, on_start=start):
        bars.remove_task(tasks[index])
        yield _outcome(configs[index], result, mode)


def _outcome(config: Config, result: TlcResult, mode: Mode) -> Outcome:
    if result.violates == UNNAMED and len(config.invariants) == 1:
        result = replace(result, violates=config.invariants[0])
    if mode.simulation and result.verdict == "holds":
        return Outcome(config, result)  # it sampled: no counts to compare, and a violation may have been missed
    if mode.simulation and result.verdict == "violated":
        # What an exhaustive search stops at first, and its length, say nothing about what a random walk meets.
        expected = config.expected.verdict == "violated"
        return Outcome(config, result, () if expected else (f"{config.violated(result)} violated",))
    one_by_one = mode.workers == 1 and not mode.processes
    return Outcome(config, result, tuple(config.surprises(result, workers=1 if one_by_one else 2)))


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


def _entry(config: Config) -> dict[str, Any]:
    want = config.expected
    return {
        "name": config.name,
        "about": config.about,
        "module": config.module,
        "class": config.time,
        "constants": dict(config.constants),
        "invariants": list(config.invariants),
        "properties": list(config.properties),
        "expected": {"verdict": want.verdict, "property": want.property, "steps": want.steps, **asdict(config.counts)},
    }


def _simulated(outcomes: Sequence[Outcome], simulation: Simulation) -> Table:
    title = f"TLC, simulation: {simulation.behaviours:,} behaviours of up to {simulation.depth} states each"
    table = Table(title=f"{title}, seed {simulation.seed}", title_justify="left")
    table.add_column("configuration", overflow="fold")
    table.add_column("states judged", justify="right")
    table.add_column("verdict", overflow="fold")
    table.add_column("seconds", justify="right")
    for outcome in outcomes:
        result = outcome.result
        if result is None:
            table.add_row(outcome.config.name, "", Text("not checked", "dim"), "")
            continue
        style = "bold red" if outcome.surprises else STYLES[result.verdict]
        table.add_row(
            outcome.config.name, f"{result.generated:,}", Text(_verdict(outcome), style), f"{result.seconds:.1f}"
        )
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
            table.add_row(outcome.config.name, "", "", "", verdict, Text(f"{outcome.config.time} class", "dim"), "")
            continue
        sizes = [f"{number:,}" for number in (result.states, result.edges, result.depth)]
        expected = Text("no", "bold red") if outcome.surprises else Text("yes", "green")
        table.add_row(outcome.config.name, *sizes, verdict, expected, f"{result.seconds:.1f}")
    return table


def _verdict(outcome: Outcome) -> str:
    result = outcome.result
    if result is not None and result.sampled and result.verdict == "holds":
        return "not seen to fail"
    if result is None or result.verdict != "violated":
        return outcome.verdict
    if result.partial:
        return f"{outcome.config.violated(result)} violated"
    return f"{outcome.config.violated(result)} violated in {result.steps} steps"


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
        action = "(earlier)" if result.partial and number == 0 else step.action
        table.add_row(str(number), Text(action), Text("\n".join(changes(before, step.state)) or "nothing"))
        before = step.state
    if result.ending or result.partial:
        table.add_row("", Text(result.ending or "the end only: run it without --distributed for the way there"), "")
    return table


def _boundary(outcomes: Sequence[Outcome], simulation: Simulation | None) -> str:
    """What "holds" means here, in one sentence."""
    if simulation:
        return "not seen to fail = none of the sampled behaviours broke it; other behaviours were not checked"
    holding = [it.result for it in outcomes if it.result is not None and it.result.verdict == "holds"]
    if not holding:
        return ""
    worst = max(result.collisions for result in holding)
    return (
        "holds = every reachable state at the stated size was checked; "
        f"TLC puts the chance that it missed one (fingerprint collision) at {worst:.0e}"
    )


def _record(outcome: Outcome) -> dict[str, Any]:
    config, result = outcome.config, outcome.result
    record: dict[str, Any] = {"name": config.name, "about": config.about, "verdict": outcome.verdict}
    if result is not None and result.sampled and result.verdict == "holds":
        record["verdict"] = "not seen to fail"
    if result is None:
        return record
    return record | {
        "property": config.violated(result),
        "steps": result.steps if result.verdict == "violated" else None,
        "states": result.states,
        "edges": result.edges,
        "depth": result.depth,
        "generated": result.generated,
        "sampled": result.sampled,
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
