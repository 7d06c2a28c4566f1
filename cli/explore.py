"""``rallypoint explore``: search the model's state space, and show the shortest run that breaks a requirement."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from rallypoint.cli import spaces
from rallypoint.cli.json_file import file_option, json_option, write_json, write_text
from rallypoint.cli.runs import run_table, wide_console
from rallypoint.cli.spaces import Found, Sampled
from rallypoint.model.errors import UnusableError
from rallypoint.spec.sequence import svg
from rallypoint.tla.manifest import Config, load_manifest, select
from rich.console import Console
from rich.table import Table

Results = Sequence[tuple[Config, Found | Sampled]]


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
@click.option(
    "--random",
    "walks",
    type=click.IntRange(min=1),
    metavar="WALKS",
    help="Walk at random so many times instead, where a search would not end.",
)
@click.option("--depth", type=click.IntRange(min=1), default=200, show_default=True, help="Steps of a walk at most.")
@click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True, help="The same seed, the same walks.")
@file_option("--svg", "svg_file", "Draw the counterexample of the one CONFIG as a sequence diagram into this file.")
@file_option(
    "--dot", "dot_file", f"Write the state graph of the one CONFIG for Graphviz, up to {spaces.DRAWN_STATES:,} states."
)
@json_option
def command(
    names: tuple[str, ...],
    changes: tuple[str, ...],
    all_invariants: bool,
    walks: int | None,
    depth: int,
    seed: int,
    svg_file: Path | None,
    dot_file: Path | None,
    json_file: Path | None,
) -> int:
    """Visit every state that the model can reach, and judge the invariants on each.

    Without CONFIG, all configurations but those of the long class (`rallypoint tlc --list` lists them). For each
    violated property the shortest run is printed.

    Ends with 0 if every configuration has the verdict that the manifest expects, else with 1; with --set there is
    nothing to expect, and 1 means that an invariant is violated, or that the search was cut off. With --random, 1 means
    that an invariant is violated where the manifest does not expect it.
    """
    manifest = load_manifest()
    quick = [config for config in manifest if config.time != "long"]
    left = [] if names else [config.name for config in quick if spaces.left_to_tlc(config)]
    chosen = select(manifest, names) if names else [config for config in quick if config.name not in left]
    if all_invariants:
        about_runs = [config for config in chosen if config.properties]
        if names and about_runs:
            where = ", ".join(config.name for config in about_runs)
            raise UnusableError("--all-invariants judges states", f"about runs: {where}", "leave one of the two out")
        left += [config.name for config in about_runs]
        chosen = [config for config in chosen if config not in about_runs]
    chosen = [_changed(config, changes) for config in chosen]
    if (svg_file or dot_file) and len(chosen) != 1:
        raise UnusableError("--svg and --dot draw one configuration", f"{len(chosen)} are chosen", "name one CONFIG")
    console = wide_console()
    graph = spaces.dot(chosen[0]) if dot_file else ""
    free = all_invariants or bool(changes)
    if walks:
        search: Callable[..., Found | Sampled] = spaces.sample
        options: dict[str, Any] = {"walks": walks, "length": depth, "seed": seed}
    else:
        search, options = spaces.explore, {}
    results: Results = [(config, _watched(console, config, search, everything=free, **options)) for config in chosen]
    differences = {config.name: _surprises(config, found, free=free) for config, found in results}
    surprising = [f"{name} ({'; '.join(how)})" for name, how in differences.items() if how]
    console.print(_sampled_table(results, seed) if walks else _table(results))
    if names:
        _print_runs(console, results)
    console.print(_boundary(walks), highlight=False)
    if left:
        console.print(f"left out: {', '.join(left)}", highlight=False)
    console.print(
        f"not as expected: {', '.join(surprising)}" if surprising else "every search as expected", highlight=False
    )
    if json_file:
        records = [_record(config, found) for config, found in results]
        mode = {"walks": walks, "depth": depth, "seed": seed} if walks else {}
        write_json(json_file, {"as_expected": not surprising, **mode, "configurations": records})
    if dot_file:
        write_text(dot_file, graph, "the graph")
    if svg_file:
        _draw(svg_file, *results[0])
    return 1 if surprising else 0


def _watched(
    console: Console, config: Config, search: Callable[..., Found | Sampled], **options: Any
) -> Found | Sampled:
    """Search, with a line of progress for somebody who watches."""
    if not console.is_terminal:
        return search(config, **options)
    with console.status(config.name) as status:

        def tell(*counts: int) -> None:
            status.update(f"{config.name}: {counts[-1]:,} states")

        return search(config, on_progress=tell, **options)


def _surprises(config: Config, found: Found | Sampled, *, free: bool) -> list[str]:
    """How a result is another than the manifest's; ``free``: the manifest says nothing about it."""
    if isinstance(found, Sampled):
        return [found.verdict] if found.runs and (free or config.expected.verdict == "holds") else []
    return ([found.verdict] if found.runs or not found.complete else []) if free else found.surprises(config)


def _table(results: Results) -> Table:
    table = Table(title="model", title_justify="left")
    for name in ("configuration", "states", "edges", "depth", "verdict", "seconds"):
        words = name in ("configuration", "verdict")
        table.add_column(name, justify="left" if words else "right", overflow="fold")
    for config, found in results:
        assert isinstance(found, Found)
        sizes = f"{found.states:,}", f"{found.edges:,}", str(found.depth)
        table.add_row(config.name, *sizes, found.verdict, f"{found.seconds:.1f}")
    return table


def _sampled_table(results: Results, seed: int) -> Table:
    table = Table(title=f"model, random walks, seed {seed}", title_justify="left")
    for name in ("configuration", "walks", "steps", "states judged", "longest walk", "verdict", "seconds"):
        words = name in ("configuration", "verdict")
        table.add_column(name, justify="left" if words else "right", overflow="fold")
    for config, found in results:
        assert isinstance(found, Sampled)
        sizes = [f"{number:,}" for number in (found.walks, found.steps, found.states, found.longest)]
        table.add_row(config.name, *sizes, found.verdict, f"{found.seconds:.1f}")
    return table


def _boundary(walks: int | None) -> str:
    """What a good verdict means here, in one sentence."""
    if walks:
        return "not seen to fail = no state on these walks broke it; other states were not checked"
    return "holds = every reachable state at the stated size was checked"


def _print_runs(console: Console, results: Results) -> None:
    for config, found in results:
        for name, rows in found.runs.items():
            console.print(run_table(f"{config.name}: {name} is violated", rows))
            console.print(f"{name} says: {spaces.meaning(config, name)}", markup=False, highlight=False)


def _draw(file: Path, config: Config, found: Found | Sampled) -> None:
    """The first counterexample as a sequence diagram. UnusableError if there is none."""
    if not found.events:
        raise UnusableError("nothing to draw", f"{config.name} has no counterexample", "leave --svg out")
    name, events = next(iter(found.events.items()))
    write_text(file, svg(f"{config.name}: {name} is violated in {len(events)} steps", events), "the drawing")


def _changed(config: Config, changes: tuple[str, ...]) -> Config:
    constants = dict(config.constants)
    for change in changes:
        name, _, number = change.partition("=")
        number_fits = number.isdecimal() and len(number) <= 9 and not (name == "N" and int(number) < 1)
        if type(constants.get(name)) is not int or not number_fits:
            known = ", ".join(sorted(name for name, value in constants.items() if type(value) is int))
            raise UnusableError(f"--set {change!r}", "NAME=NUMBER", f"a whole number (N: 1 or more) for one of {known}")
        constants[name] = int(number)
    for low, high in (("Min", "Max"), ("OtherMin", "OtherMax")):
        lowest, highest = constants.get(low, 1), constants.get(high, 1)
        assert isinstance(lowest, int)
        assert isinstance(highest, int)
        if not 1 <= lowest <= highest:
            raise UnusableError(f"{low}={lowest}, {high}={highest}", config.name, f"choose 1 <= {low} <= {high}")
    return replace(config, constants=constants)


def _record(config: Config, found: Found | Sampled) -> dict[str, Any]:
    record = {"name": config.name, "constants": dict(config.constants), "states": found.states}
    if isinstance(found, Sampled):
        verdict = "violated" if found.runs else "not seen to fail"
        sizes = {"walks": found.walks, "steps": found.steps, "longest walk": found.longest}
    else:
        verdict = "violated" if found.runs else "holds" if found.complete else "not checked"
        sizes = {"edges": found.edges, "depth": found.depth}
        record["actions"] = dict(found.actions)
    return {**record, **sizes, "verdict": verdict, "seconds": round(found.seconds, 2), "violations": dict(found.runs)}
