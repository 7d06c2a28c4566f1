"""The ``rallypoint`` command: its sub-commands are one module each, loaded when they are called.

May live here: the table of sub-commands, and how any failure becomes one line and an exit code.
Must not live here: what a sub-command does, or an import that only one of them needs; ``rallypoint doctor`` has to
work where everything else is broken.
"""

from __future__ import annotations

import difflib
import errno
import importlib
import io
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import NamedTuple

import click
from rallypoint.model.errors import UnusableError

UNUSABLE = 2
INTERRUPTED = 128 + signal.SIGINT
_ended_by: list[int] = []  # the signals that asked this process to end


class SubCommand(NamedTuple):
    """Where a sub-command lives (its module has a ``command``), and its line in ``rallypoint --help``."""

    module: str
    summary: str


SUB_COMMANDS: Mapping[str, SubCommand] = {
    "check": SubCommand("rallypoint.cli.check", "Check everything: model, TLA+, live runs; one table of verdicts."),
    "explore": SubCommand("rallypoint.cli.explore", "Search the model for the shortest way to break a requirement."),
    "tlc": SubCommand(
        "rallypoint.cli.tlc", "Run TLC on the TLA+ specification and compare the verdicts with the manifest."
    ),
    "review": SubCommand("rallypoint.cli.review", "From each requirement to its property, code, tests and evidence."),
    "defects": SubCommand("rallypoint.cli.defects", "Show upstream's defects, and the same scenarios on ours."),
    "conform": SubCommand("rallypoint.cli.conform", "Run PyTorch's own rendezvous tests, on its modules and ours."),
    "status": SubCommand("rallypoint.cli.status", "Show a live run to its operator; --watch follows it."),
    "replay": SubCommand("rallypoint.cli.replay", "Play a job of the live property run again, from its schedule."),
    "doctor": SubCommand("rallypoint.cli.doctor", "Say which outside conditions are met, and what to do about others."),
}


class LazyGroup(click.Group):
    """A group that knows its sub-commands by name, and imports one only to run it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(SUB_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in SUB_COMMANDS:
            return None
        try:
            command = importlib.import_module(SUB_COMMANDS[cmd_name].module).command
        except (ImportError, OSError, RuntimeError) as error:  # the last two: torch, when a library of it is missing
            raise UnusableError(
                f"{cmd_name} cannot be loaded",
                f"{type(error).__name__}: {error}",
                "`rallypoint doctor` finds the cause",
            ) from error
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in SUB_COMMANDS and not name.startswith("-"):
            near = difflib.get_close_matches(name, SUB_COMMANDS, n=1)
            raise UnusableError(
                f"unknown command {name!r}",
                f"there are {', '.join(SUB_COMMANDS)}",
                f"did you mean {near[0]!r}?" if near else "see `rallypoint --help`",
            )
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in SUB_COMMANDS.items()])


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    no_args_is_help=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="`rallypoint COMMAND --help` tells more. Exit codes: 0 all holds, 1 something does not, 2 unusable input.",
)
@click.version_option(package_name="rallypoint", prog_name="rallypoint", message="%(prog)s %(version)s")
@click.pass_context
def rallypoint(ctx: click.Context) -> None:
    """The formally modelled reference implementation of PyTorch's etcd rendezvous."""
    if ctx.invoked_subcommand is None:
        raise UnusableError("no command", f"there are {', '.join(SUB_COMMANDS)}", "see `rallypoint --help`")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line (default: the process's own) and return its exit code.

    0, 1 or what the sub-command returns; 2 with one line on stderr for anything unusable; 130 after Ctrl-C.
    """
    for ending in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(ending) is signal.SIG_DFL:  # under nohup SIGHUP is ignored, and stays so
            signal.signal(ending, _leave)
    _ended_by.clear()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a run id may have letters that the terminal has not
            stream.reconfigure(errors="backslashreplace")
    try:
        if sys.flags.optimize:
            raise UnusableError("Python runs without assertions", "-O or PYTHONOPTIMIZE", "run it without")
        code = rallypoint.main(arguments, prog_name="rallypoint", standalone_mode=False)
        if sys.stdout is not None:
            sys.stdout.flush()
    except UnusableError as error:
        return _say(str(error), UNUSABLE)
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx else "rallypoint"
        return _say(f"{error.format_message().rstrip('.')} ({path}): see `{path} --help`", UNUSABLE)
    except click.ClickException as error:
        return _say(error.format_message(), UNUSABLE)
    except (click.Abort, KeyboardInterrupt):
        return 128 + _ended_by[-1] if _ended_by else _say("interrupted", INTERRUPTED)
    except BrokenPipeError:
        _drop_output()
        return 1
    except OSError as error:
        if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
            raise
        _drop_output()
        return _say(f"output cannot be written ({error.strerror}): make room, then run the command again", UNUSABLE)
    return code if isinstance(code, int) else 0


def _leave(number: int, frame: FrameType | None) -> None:
    """End by an exception, so that every ``finally`` on the way ends the processes that it owns.

    As Ctrl-C does, because libraries let that one through (hypothesis takes a SystemExit for a failing example).
    """
    _ended_by.append(number)
    raise KeyboardInterrupt


def _drop_output() -> None:
    """What is still buffered for stdout must not fail once more when the interpreter ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _say(message: str, code: int) -> int:
    """One line on stderr, whatever the message quotes."""
    line = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in message)
    click.echo(f"rallypoint: {line}", err=True)
    return code
