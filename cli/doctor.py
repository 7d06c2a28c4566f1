"""``rallypoint doctor``: which outside conditions are met, and what to do about the others."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click
from rallypoint.cli.conditions import Condition, Verdict, examine
from rallypoint.cli.json_file import json_option, write_json
from rallypoint.cli.probes import ENVIRONMENT, endpoint_probes
from rallypoint.model.errors import UnusableError
from rich.console import Console
from rich.table import Table
from rich.text import Text

STYLES = {
    Verdict.OK: "green",
    Verdict.MISSING: "bold red",
    Verdict.BROKEN: "bold red",
    Verdict.ABSENT: "dim",
    Verdict.NOT_CHECKED: "yellow",
}


def _host_and_port(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[str, int] | None:
    if value is None:
        return None
    parts = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\s:/\[\]]+)):([0-9]{1,5})", value)
    if parts is None or not 0 < int(parts[3]) < 1 << 16:
        raise click.BadParameter(f"{value!r} is not HOST:PORT with a port from 1 to 65535", ctx, param)
    return parts[1] or parts[2], int(parts[3])


@click.command("doctor")
@click.option(
    "--endpoint",
    metavar="HOST:PORT",
    callback=_host_and_port,
    help="Look at this etcd server too; nothing is written to it.",
)
@click.option(
    "--patches",
    is_flag=True,
    help="Only compare torch.distributed before and after torch_npu's import. Looks at nothing else.",
)
@json_option
def command(endpoint: tuple[str, int] | None, patches: bool, json_file: Path | None) -> int:
    """Look at everything outside rallypoint that it depends on, one condition at a time.

    Ends with 0 if all that `rallypoint check` needs is there, with 1 if something is not, and with 2 and one line on
    stderr if the server named by --endpoint cannot be used, or torch_npu for --patches.
    """
    if patches and endpoint:
        raise UnusableError("two questions at once", "--endpoint, --patches", "ask one at a time")
    if patches:
        from rallypoint.cli.patches import show

        return show(Console(), json_file)
    probes = [*ENVIRONMENT, *(endpoint_probes(*endpoint) if endpoint else ())]
    console = Console()
    conditions = []
    with console.status("looking") as status:
        for condition in examine(probes):
            conditions.append(condition)
            if len(conditions) < len(probes):
                status.update(f"looking at {probes[len(conditions)].name}")
    console.print(_table(conditions))
    unmet = [condition.name for condition in conditions if not condition.met]
    summary = f"not met: {', '.join(unmet)}" if unmet else "everything that rallypoint check needs is there"
    console.print(summary, highlight=False, soft_wrap=True)
    if json_file:
        found = [{**asdict(condition), "met": condition.met} for condition in conditions]
        write_json(json_file, {"usable": not unmet, "conditions": found})
    for condition in conditions:
        if endpoint and condition.name.startswith("endpoint") and not condition.met:
            host, port = endpoint
            raise UnusableError(condition.found, f"--endpoint {host}:{port}", condition.todo)
    return 1 if unmet else 0


def _table(conditions: Sequence[Condition]) -> Table:
    table = Table(title="outside conditions", title_justify="left")
    table.add_column("condition", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("found, and what to do", overflow="fold")  # a path must stay whole, to be copied
    for condition in conditions:
        text = Text(condition.found)
        if condition.todo:
            text.append(f"\n→ {condition.todo}", style="bold")
        table.add_row(condition.name, Text(condition.verdict.value, STYLES[condition.verdict]), text)
    return table
