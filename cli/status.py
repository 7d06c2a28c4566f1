"""``rallypoint status``: a live run, for its operator."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import click
from rallypoint.cli.json_file import json_option, write_json
from rallypoint.cli.look import Look, look, runs
from rallypoint.cli.runs import document_text, wide_console
from rallypoint.impl.access import access_to
from rallypoint.impl.etcd_http import EtcdHttp, EtcdUnavailable, joined_key, key_segment
from rallypoint.impl.etcd_options import OPTIONS, settings_of
from rallypoint.model import document as docs
from rallypoint.model import outlook as future
from rallypoint.model import worker as machine
from rallypoint.model.errors import UnusableError
from rallypoint.model.worker import Rules
from rallypoint.spec.shape import doubts
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

PATIENCE = 3.0  # seconds for one request
PERIOD = 1.0  # seconds between two looks while nothing happens
PAUSE = 0.2  # seconds between two looks at least


class Report(NamedTuple):
    """What is to be said. ``doubts``: why the model cannot be in this state; () if it can."""

    rules: Rules
    seen: Look
    state: str
    awaited: str
    members: tuple[dict[str, Any], ...]
    prospects: tuple[future.Prospect, ...]
    doubts: tuple[str, ...]
    broken: bool

    @property
    def key(self) -> object:
        """What has to change for the report to be worth repeating."""
        return self.seen.text, [key for key, _ in self.seen.store.nodes], self.doubts


class Run(NamedTuple):
    """Where the run is, and under which id."""

    http: EtcdHttp
    run_id: str
    prefix: str
    directory: str
    rules: Rules


@click.command("status")
@click.option("--endpoint", metavar="HOST:PORT[,...]", required=True, help="Where etcd is.")
@click.option("--run-id", required=True, help="The id of the run, torchrun's --rdzv-id.")
@click.option("--prefix", default=OPTIONS["etcd_prefix"].default, show_default=True, help="The etcd_prefix of the run.")
@click.option("--watch", is_flag=True, help="Follow it until Ctrl-C; nothing is written to etcd.")
@click.option("--protocol", default="http", show_default=True, help="http or https.")
@click.option("--cacert", help="File with the CA to check the server against.")
@click.option("--cert", help="File with the client certificate.")
@click.option("--key", help="File with its private key.")
@click.option("--username", help="The etcd user.")
@click.option("--password-file", help="File with the user's password.")
@click.option(
    "--keep-alive-ttl",
    default=str(OPTIONS["keep_alive_ttl"].default),
    show_default=True,
    help="The run's keep_alive_ttl, in seconds: tells how long ago a lease was renewed.",
)
@json_option
def command(endpoint: str, run_id: str, prefix: str, watch: bool, json_file: Path | None, **options: str) -> int:
    """Show a live run: its document, who takes part, who is awaited, and what can happen next.

    Ends with 0, with 1 if the document is broken or the model cannot be in this state, and with 2 and one line on
    stderr if etcd cannot be used or has no such run. With --watch it follows the run, and Ctrl-C ends it with 0.
    """
    run = _run(endpoint, run_id, prefix, options)
    try:
        if watch:
            return _follow(run, json_file)
        seen = _seen(run)
        if seen is None:
            raise _no_such_run(run)
        report = _report(run, seen)
        wide_console().print(_shown(run, report, None))
        if json_file:
            write_json(json_file, _described(run, report, None))
        return 1 if report.doubts else 0
    finally:
        run.http.close()


def _run(endpoint: str, run_id: str, prefix: str, options: dict[str, str]) -> Run:
    try:
        settings = settings_of({"etcd_prefix": prefix, **options})
        access = access_to(endpoint, settings["protocol"], settings)
        directory = joined_key(settings["etcd_prefix"], f"run_{key_segment(run_id)}")
        http = EtcdHttp(access, attempt_timeout=PATIENCE)
    except ValueError as error:
        raise UnusableError("unusable options", str(error), "see `rallypoint status --help`") from error
    ttl = settings["keep_alive_ttl"]
    rules = Rules(1, 1, root=directory + "/rdzv", keep_alive_ttl=ttl)
    return Run(http, run_id, settings["etcd_prefix"], directory, rules)


def _seen(run: Run) -> Look | None:
    """One look, on the first endpoint that answers. Raises UnusableError."""
    try:
        run.http.check(run.directory, time.monotonic() + PATIENCE * len(run.http.access.endpoints))
        return look(run.http, run.directory, time.monotonic() + 2 * PATIENCE)
    except EtcdUnavailable as error:
        todo = "check that it runs, and --endpoint; `rallypoint doctor --endpoint` tells more"
        raise UnusableError("no answer from etcd", error.reason, todo) from error


def _no_such_run(run: Run) -> UnusableError:
    others = runs(run.http, run.prefix, time.monotonic() + PATIENCE)
    there = f"there are {', '.join(others[:10])}{', ...' if len(others) > 10 else ''}" if others else "there is none"
    return UnusableError(f"no run {run.run_id!r}", f"{run.prefix} on {run.http.endpoint}: {there}", "check --run-id")


def _report(run: Run, seen: Look) -> Report:
    rules, store = run.rules, seen.store
    try:
        document = None if seen.text is None else docs.parse(seen.text)
    except docs.BrokenDocumentError as error:
        return Report(rules, seen, f"broken: {error}", "", (), (), (str(error),), True)
    rules = future.rules_for(rules, document, expires=machine.active(rules) in seen.left)
    found = doubts(rules, store)
    awaited = "" if found else future.awaited(rules, store)
    prospects = () if found else future.outlook(rules, store)  # what cannot be has no future that could be told
    broken = store.get(machine.active(rules)) is not None and seen.text is None
    state = "broken: a directory is in the document's place" if broken else document_text(seen.text)
    members = tuple(_member(rules, seen, one) for one in future.actors(rules, store))
    return Report(rules, seen, state, awaited, members, prospects, found, broken)


def _member(rules: Rules, seen: Look, one: future.Actor) -> dict[str, Any]:
    left = None if one.key is None else seen.left.get(one.key)
    age = None if left is None or left > rules.keep_alive_ttl else rules.keep_alive_ttl - left
    return {"who": one.name, "role": one.role, "alive": one.alive, "ttl_left": left, "renewed_ago": age}


# --- how it is shown --------------------------------------------------------------------------------------------------


def _shown(run: Run, report: Report, waited: float | None) -> Group:
    parts: list[Table | Text] = [_facts(run, report, waited)]
    if report.members:
        table = Table(title="who takes part", title_justify="left")
        for name in ("who", "role", "lease", "TTL left", "renewed"):
            table.add_column(name, overflow="fold")
        for one in report.members:
            table.add_row(*map(_printable, _lease_cells(one)))
        parts.append(table)
    if report.prospects:
        table = Table(title="what can happen next", title_justify="left")
        for name in ("who", "what", "document after it"):
            table.add_column(name, overflow="fold")
        for who, what, after in report.prospects:
            same = after == report.seen.text
            table.add_row(_printable(who), _printable(what), "as now" if same else _printable(document_text(after)))
        parts.append(table)
    if report.doubts:
        parts += [Text.assemble(("cannot be reached: ", "bold red"), _printable(doubt)) for doubt in report.doubts]
        parts.append(Text(_advice(run, report), "bold"))
    else:
        parts.append(Text("the model can be in this state", "green"))
    return Group(*parts)


def _facts(run: Run, report: Report, waited: float | None) -> Table:
    seen = report.seen
    facts = Table.grid(padding=(0, 2))
    facts.add_row("run", _printable(f"{run.run_id} ({run.directory} on {run.http.endpoint})"))
    facts.add_row("document", _printable(report.state))
    if seen.text is not None:
        left = seen.left.get(machine.active(report.rules))
        runs_out = "has no TTL" if left is None else f"runs out in {left} s, unless it is written again"
        facts.add_row("", f"written at index {seen.written}, etcd is at {seen.at}; {runs_out}")
    if report.awaited:
        facts.add_row("awaited", _printable(report.awaited + _since(report, waited)))
    count = seen.store.value(machine.counter(report.rules))
    facts.add_row("versions", _printable("none yet" if count is None else f"{count} so far"))
    if seen.run_left is not None:
        facts.add_row("directory", f"one of PyTorch's workers has made it: all of it goes in {seen.run_left} s (L-A)")
    return facts


def _since(report: Report, waited: float | None) -> str:
    """For how long already: as watched, or as far as a TTL that nobody renews tells."""
    if waited is not None:
        return f"; for {waited:.0f} s, as seen from here"
    left = report.seen.left.get(machine.active(report.rules))
    status = docs.parse(report.seen.text).status if report.seen.text is not None else docs.ABSENT
    ttl = {docs.SETUP: report.rules.setup_ttl, docs.FROZEN: report.rules.frozen_ttl}.get(status)
    if left is None or ttl is None or left > ttl:
        return "; one look does not tell since when (--watch does)"
    return f"; for about {ttl - left:g} s"


def _lease_cells(one: dict[str, Any]) -> tuple[str, ...]:
    if one["ttl_left"] is None:
        return one["who"], one["role"], "none yet" if one["alive"] else "gone: it has left, or was lost", "", ""
    ago = "" if one["renewed_ago"] is None else f"about {one['renewed_ago']:g} s ago"
    return one["who"], one["role"], "kept", f"{one['ttl_left']} s", ago


def _advice(run: Run, report: Report) -> str:
    if report.broken:
        return (
            "Workers of this run get a RendezvousStateError, and somebody else has written to "
            f"{machine.active(run.rules)}; once no worker is left, remove that key."
        )
    return "Somebody else has written here, keys were lost, or a defect of PyTorch's class has struck."


def _printable(text: str) -> Text:
    """What others have written must not steer the terminal."""
    return Text("".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text))


def _described(run: Run, report: Report, waited: float | None) -> dict[str, Any]:
    seen, rules = report.seen, report.rules
    return {
        "run_id": run.run_id,
        "directory": run.directory,
        "endpoint": run.http.endpoint,
        "text": seen.text,
        "state": report.state,
        "broken": report.broken,
        "document_ttl_left": seen.left.get(machine.active(rules)),
        "written_index": seen.written,
        "etcd_index": seen.at,
        "directory_ttl_left": seen.run_left,
        "members": list(report.members),
        "awaited": report.awaited,
        "awaited_seconds": waited,
        "next": [one._asdict() for one in report.prospects],
        "reachable": not report.doubts,
        "doubts": list(report.doubts),
    }


# --- following it -----------------------------------------------------------------------------------------------------


def _follow(run: Run, json_file: Path | None) -> int:
    """Until Ctrl-C. On a terminal the picture is kept up to date, elsewhere each change is printed."""
    console = wide_console()
    try:
        if not console.is_terminal:
            _watch(run, json_file, lambda shown, new: console.print(shown) if new else None, console)
        with Live(console=console, auto_refresh=False) as live:
            _watch(run, json_file, lambda shown, new: live.update(shown, refresh=True), console)
    except KeyboardInterrupt:
        return 0


def _watch(run: Run, json_file: Path | None, show: Callable[[Group, bool], object], console: Console) -> NoReturn:
    last, awaited, since, trouble = None, None, time.monotonic(), ""
    while True:
        try:
            seen = _seen(run)
        except UnusableError as error:
            if str(error) != trouble:
                console.print(_printable(f"{time.strftime('%H:%M:%S')} {error}"))
            trouble, last = str(error), None
            time.sleep(PERIOD)
            continue
        if seen is None:
            if trouble != (trouble := f"waiting for a run {run.run_id!r} in {run.prefix}"):
                console.print(_printable(f"{time.strftime('%H:%M:%S')} {trouble}"))
            time.sleep(PERIOD)
            continue
        trouble = ""
        report = _report(run, seen)
        if (report.awaited, seen.text) != awaited:
            awaited, since = (report.awaited, seen.text), time.monotonic()
        waited = time.monotonic() - since
        if new := report.key != last:
            last = report.key
            if json_file:
                write_json(json_file, _described(run, report, waited))
        stamp = Text(time.strftime("%H:%M:%S"), "dim")
        show(Group(stamp, _shown(run, report, waited)), new)
        time.sleep(PAUSE)
        _await_change(run, seen)


def _await_change(run: Run, seen: Look) -> None:
    """Until the document changes, for ``PERIOD`` seconds at most: what else there is has no event of its own."""
    started = time.monotonic()
    try:
        changed = run.http.watch(machine.active(run.rules), seen.at + 1, started + PERIOD, recursive=False)
    except (EtcdUnavailable, UnusableError):
        changed = None  # the next look says why
    if changed is None:
        time.sleep(max(0.0, started + PERIOD - time.monotonic()))
