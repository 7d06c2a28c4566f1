"""``rallypoint replay``: play one job of the live property run again, from the schedule that a failure printed."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click
from rallypoint.cli.json_file import json_option, write_json
from rallypoint.live import schedule as plans
from rallypoint.live.faults import FAULTS
from rallypoint.live.run import HOLDS, replay_schedule
from rallypoint.live.schedule import Schedule
from rallypoint.model.errors import UnusableError

LONGEST = 1 << 20  # bytes of a schedule; one that was drawn has less than a thousand


@click.command("replay")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@json_option
def command(file: Path, json_file: Path | None) -> int:
    """Play the schedule in FILE on a real etcd with real processes, and judge it.

    FILE holds one line of JSON: what follows "schedule:" where a live run has failed. Exit code 0: it holds, 1: it is
    violated, 2: FILE is no schedule, or it cannot be played here.
    """
    schedule = read(file)
    result = replay_schedule(schedule)
    click.echo(
        f"{result.verdict}: {result.processes} processes, {result.kills} kills, {result.groups_formed} groups, "
        f"{result.requests_replayed} requests replayed, {result.expiries} expiries, {result.seconds:.1f} s"
    )
    if result.failure is not None:
        click.echo(result.failure)
    if json_file is not None:
        write_json(json_file, {"schedule": asdict(schedule), **asdict(result)})
    return int(result.verdict != HOLDS)


def read(file: Path) -> Schedule:
    """The schedule in a file. Raises UnusableError for anything else."""
    todo = "name a file with one line of JSON, as a failed live run prints it"
    try:
        with file.open("rb") as stream:
            data = stream.read(LONGEST + 1)
        if len(data) > LONGEST:
            raise ValueError(f"not a schedule: more than {LONGEST} bytes")
        schedule = plans.loads(data.decode())
    except (OSError, ValueError, RecursionError) as error:
        raise UnusableError("cannot read the schedule", f"{file}: {error}", todo) from error
    if schedule.fault is not None and schedule.fault not in FAULTS:
        raise UnusableError("unknown fault", f"{file}: {schedule.fault!r}", f"there are {', '.join(FAULTS)}")
    return schedule
