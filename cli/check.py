"""``rallypoint check``: the model, the TLA+ specification, torchrun jobs and the live property run, in one table."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import click
from rallypoint.cli import spaces
from rallypoint.cli.json_file import json_option, write_json
from rallypoint.cli.runs import wide_console
from rallypoint.impl.etcd_server import EtcdServer, find_etcd
from rallypoint.live.run import run_live
from rallypoint.live.schedule import MEMBERS
from rallypoint.live.torchrun_job import run_job
from rallypoint.model.errors import UnusableError
from rallypoint.tla.graph import Graph, compare
from rallypoint.tla.manifest import Config, load_manifest
from rallypoint.tla.tlc import find_jar, find_java, state_graphs
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

HOLDS, VIOLATED, NOT_CHECKED, HARNESS_FAILED = "holds", "violated", "not checked", "harness failed"
STYLES = {HOLDS: "green", VIOLATED: "bold red", NOT_CHECKED: "bold yellow", HARNESS_FAILED: "bold red"}
TORCHRUN = {"cpu": 60.0, "npu": 180.0}  # seconds for one job; torch_npu is imported in each process
LARGEST_GRAPH = 50_000  # states; beyond, counts and depth are compared, not graphs

BOUNDARY = (
    ("proved", "the model and the TLA+ specification, at the sizes above: every reachable state, every labelled edge"),
    ("sampled", "the live runs: the jobs that were drawn, on this machine's processes and this etcd"),
    (
        "assumed",
        "etcd is linearizable for the requests we send; a TTL never fires early; a process that is not killed keeps "
        "renewing its leases unless it is paused for longer than a TTL; a creation of the backend's state that is "
        "delayed does not outlive the state that was created meanwhile",
    ),
)
NOT_CHECKED_EVER = "more workers or faults than stated; etcd clusters; other versions of torch"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the report. ``detail``: why a verdict is not "holds"."""

    part: str
    what: str
    size: str
    verdict: str
    seconds: float = 0.0
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Devices:
    """What workers compute on. ``text``: what the report says of it; ``environment``: of processes that use it;
    ``members``: of a live job at most."""

    kind: str
    members: int
    text: str
    not_checked: str
    environment: Mapping[str, str]

    @property
    def collectives(self) -> str:
        return {"cpu": "gloo", "npu": "hccl"}[self.kind]

    @property
    def backends(self) -> tuple[str, ...]:
        """Of torchrun: ours, and for NPUs upstream's, whose figures on them are a matter of record."""
        ours = ("rallypoint", "rallypoint-etcd-v2")
        return ours if self.kind == "cpu" else (*ours, "etcd", "etcd-v2")


Progressing = Callable[[str], None]


@click.command("check")
@click.option("--examples", type=click.IntRange(min=5), default=20, show_default=True, help="Live jobs to draw.")
@click.option("--seed", type=int, default=0, show_default=True, help="The same seed draws the same live jobs.")
@click.option("--device", type=click.Choice(["cpu", "npu"]), default="cpu", show_default=True, help="Of the workers.")
@click.option(
    "--nproc",
    type=click.IntRange(min=2, max=64),
    default=None,
    help=f"NPUs to use: live jobs have as many members at most.  [default: {MEMBERS}]",
)
@json_option
def command(examples: int, seed: int, device: str, nproc: int | None, json_file: Path | None) -> int:
    """Check the rendezvous for real.

    Explores the model, runs TLC and compares both graphs edge by edge, runs torchrun jobs, and plays drawn jobs with
    real processes on a real etcd. Ends with 0 only if every line says "holds". With --device npu the workers prove
    their groups by hccl: on real NPUs where there are any, else on an emulation of CANN; the report says which.
    """
    console = wide_console()
    etcd, java, jar = find_etcd(), find_java(), find_jar()
    devices = _devices(device, nproc)
    console.print(devices.text, markup=False, highlight=False)
    manifest = [config for config in load_manifest() if config.time == "quick"]
    parts: list[Callable[[Progressing], Iterator[Row]]] = [
        lambda tell: _model(manifest, tell),
        lambda tell: _tla(manifest, tell),
        lambda tell: _torchrun(devices, tell),
        lambda tell: _live(examples, seed, devices, tell),
    ]
    started = time.monotonic()
    rows = list(_run(parts, console))
    console.print(_table(rows))
    console.print(devices.text, markup=False, highlight=False)
    for row in rows:
        if row.detail:
            console.print(f"{row.part}, {row.what}: {row.detail}", markup=False, highlight=False)
    boundary = (*BOUNDARY, ("not checked", f"{devices.not_checked}; {NOT_CHECKED_EVER}"))
    for word, meaning in boundary:
        console.print(Text.assemble((f"{word}: ", "bold"), meaning))
    good = bool(rows) and all(row.verdict == HOLDS for row in rows)
    summary = f"{sum(row.verdict == HOLDS for row in rows)} of {len(rows)} hold, {time.monotonic() - started:.0f} s"
    console.print(Text(summary, "bold green" if good else "bold red"))
    if json_file:
        tools = {"etcd": etcd.version, "java": java.version, "jar": jar.sha256}
        lines = [asdict(row) for row in rows]
        write_json(
            json_file,
            {"holds": good, "tools": tools, "checks": lines, "boundary": dict(boundary), "devices": devices.text},
        )
    return 0 if good else 1


def _run(parts: list[Callable[[Progressing], Iterator[Row]]], console: Console) -> Iterator[Row]:
    """All rows of all parts. On a terminal with a live line, in a log with a line per row as it is done."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("starting")
        for part in parts:
            for row in part(lambda text: progress.update(task, description=text)):
                console.print(f"{row.verdict}: {row.part}, {row.what} ({row.size})", markup=False, highlight=False)
                yield row


def _timed(part: str, what: str, check: Callable[[], Row]) -> Row:
    """The row with its seconds; whatever goes wrong with the check itself is "harness failed"."""
    started = time.monotonic()
    try:
        row = check()
    except (click.ClickException, UnusableError):
        raise
    except Exception as error:
        row = Row(part, what, "", HARNESS_FAILED, detail=f"{type(error).__name__}: {error}")
    return replace(row, seconds=time.monotonic() - started)


def _claim(config: Config) -> str:
    """What the manifest says about a configuration, both ways."""
    want = config.expected
    if want.verdict == "violated":
        steps = "" if want.steps is None else f", in {want.steps} steps"
        return f"{config.name}: {want.property} is violated{steps}, as it must be"
    return f"{config.name}: {', '.join((f'{len(config.invariants)} invariants', *config.properties))}"


def _model(manifest: list[Config], tell: Progressing) -> Iterator[Row]:
    for config in manifest:
        tell(f"model: {config.name}")
        yield _timed("model", _claim(config), lambda config=config: _explored(config))  # type: ignore[misc]


def _explored(config: Config) -> Row:
    found = spaces.explore(config)
    odd = found.surprises(config)
    verdict = VIOLATED if odd else HOLDS
    size = f"{found.states:,} states, {found.edges:,} edges"
    return Row("model", _claim(config), size, verdict, detail="; ".join(odd))


def _tla(manifest: list[Config], tell: Progressing) -> Iterator[Row]:
    """TLC on every configuration, two at a time, and the comparison of the graphs where the whole graph is there."""
    tell("TLC: starting Java")
    for index, result, graph in state_graphs([config.job() for config in manifest], min(2, os.cpu_count() or 1)):
        config = manifest[index]
        tell(f"TLC: {config.name} is done")
        odd = config.surprises(result)
        verdict = HARNESS_FAILED if result.verdict == HARNESS_FAILED else VIOLATED if odd else HOLDS
        size = f"{result.states:,} states, {result.edges:,} edges"
        yield Row("TLC", _claim(config), size, verdict, result.seconds, "; ".join(odd))
        if config.expected.verdict == HOLDS and (config.counts.states or 0) <= LARGEST_GRAPH:
            what = f"{config.name}: the same graph as the model"
            yield _timed("TLC = model", what, lambda config=config, graph=graph: _compared(config, graph))  # type: ignore[misc]


def _compared(config: Config, graph: Graph | None) -> Row:
    what = f"{config.name}: the same graph as the model"
    if graph is None:
        return Row("TLC = model", what, "", NOT_CHECKED, detail="TLC gave no complete graph")
    difference = compare(graph, spaces.graph(config), "TLC", "model")
    found = f"{len(graph.states):,} states, {graph.edges.total():,} edges"
    return Row(
        "TLC = model", what, found, VIOLATED if difference else HOLDS, detail=difference.text() if difference else ""
    )


def _devices(kind: str, nproc: int | None) -> Devices:
    """Raises UnusableError where there are not so many, click.UsageError for a number without NPUs."""
    if kind == "cpu":
        if nproc is not None:
            raise click.UsageError("--nproc is the number of NPUs: add --device npu, or leave it out")
        return Devices(kind, MEMBERS, "devices: CPU, gloo", "NPU devices (see --device)", os.environ)
    from rallypoint.npu.cann import find_cann

    cann = find_cann(nproc or MEMBERS)
    left = "real NPUs: memory, streams, speed and HCCL's own network" if cann.emulated else "more NPUs than these"
    return Devices(kind, nproc or MEMBERS, cann.text, left, cann.environment)


def _torchrun(devices: Devices, tell: Progressing) -> Iterator[Row]:
    environment = {**devices.environment, **({"TORCH_DEVICE_BACKEND_AUTOLOAD": "1"} if devices.kind == "npu" else {})}
    with EtcdServer() as server:
        for backend in devices.backends:
            tell(f"torchrun: two agents, {backend}")
            what = f"two agents meet by --rdzv-backend={backend}, all-reduce by {devices.collectives}"

            def job(backend: str = backend, what: str = what) -> Row:
                result = run_job(
                    backend,
                    server.get_endpoint(),
                    f"check-{backend}",
                    timeout=TORCHRUN[devices.kind],
                    device=devices.kind,
                    environment=environment,
                )
                complaint = result.complaint(2)
                return Row("torchrun", what, "2 agents, 2 workers", VIOLATED if complaint else HOLDS, detail=complaint)

            yield _timed("torchrun", what, job)


def _live(examples: int, seed: int, devices: Devices, tell: Progressing) -> Iterator[Row]:
    what = "ranks unique, worlds consistent, each request as the model says"

    def played() -> Row:
        result = run_live(
            examples,
            seed,
            lambda done, of: tell(f"live: job {done} of {of}"),
            device=devices.kind,
            members=devices.members,
            environment=devices.environment,
        )
        size = (
            f"{result.examples} jobs, {result.processes} processes, {result.kills} killed, "
            f"{result.groups_formed} {devices.collectives} groups, {result.requests_replayed:,} requests"
        )
        return Row("live", what, size, result.verdict, detail=result.failure or "")

    tell("live: starting processes")
    yield _timed("live", what, played)


def _table(rows: list[Row]) -> Table:
    table = Table(title="rallypoint check", title_justify="left")
    table.add_column("part", no_wrap=True)
    table.add_column("what was checked", overflow="fold")
    table.add_column("size", overflow="fold")
    table.add_column("verdict", no_wrap=True)
    table.add_column("seconds", justify="right")
    for row in rows:
        verdict = Text(row.verdict, STYLES[row.verdict])
        table.add_row(row.part, row.what, row.size, verdict, f"{row.seconds:.1f}")
    return table
