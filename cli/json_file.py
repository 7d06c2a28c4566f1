"""The ``--json FILE`` option that the commands share, and how any file that they write is written."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
from rallypoint.model.errors import UnusableError


def writable(ctx: click.Context, param: click.Parameter, value: Path | None) -> Path | None:
    """For options that name a file to write: refuses what cannot be one."""
    # Told before any work is done, and without opening it: a pipe can be opened only once.
    if value is not None and value.is_dir():
        raise click.BadParameter(f"{str(value)!r} is a folder", ctx, param)
    if value is not None and not os.access(value.parent, os.W_OK | os.X_OK):
        raise click.BadParameter(f"the folder {str(value.parent)!r} does not exist or is not writable", ctx, param)
    return value


json_option = click.option(
    "--json",
    "json_file",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    callback=writable,
    help="Write the findings to this file too.",
)


def write_json(file: Path, report: Mapping[str, Any]) -> None:
    """Write the report with the version of rallypoint in front. Raises UnusableError if the file cannot be written."""
    text = json.dumps({"rallypoint": version("rallypoint"), **report}, indent=2, ensure_ascii=False)
    write_text(file, text + "\n", "the report")


def write_text(file: Path, text: str, what: str) -> None:
    """Write a file. Raises UnusableError that names ``what`` could not be written."""
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UnusableError(f"cannot write {what}", f"{file}: {error.strerror}", "name another file") from error
