"""The ``--json FILE`` option that the commands share, and how any file that they write is written."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import click
from rallypoint.model.errors import UnusableError

Command = TypeVar("Command", bound=Callable[..., Any])


def _writable(ctx: click.Context, param: click.Parameter, value: Path | None) -> Path | None:
    """For options that name a file to write: refuses what cannot be one."""
    # Told before any work is done, and without opening it: a pipe can be opened only once.
    if value is not None and value.is_dir():
        raise click.BadParameter(f"{str(value)!r} is a folder", ctx, param)
    if value is not None and not os.access(value.parent, os.W_OK | os.X_OK):
        raise click.BadParameter(f"the folder {str(value.parent)!r} does not exist or is not writable", ctx, param)
    return value


def file_option(flag: str, name: str, help_text: str) -> Callable[[Command], Command]:
    """An option that names a file to write; the command's parameter is called ``name``."""
    kind = click.Path(dir_okay=False, writable=True, path_type=Path)
    return click.option(flag, name, type=kind, callback=_writable, help=help_text)


json_option = file_option("--json", "json_file", "Write the findings to this file too.")


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
