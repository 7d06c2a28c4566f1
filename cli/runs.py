"""How a run of the model is shown: one row per step, with worker, request, reply and the document after it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from rallypoint.model import document as docs
from rallypoint.model import etcd
from rallypoint.model import worker as machine
from rallypoint.model.document import Document
from rallypoint.model.system import Step
from rallypoint.model.worker import Rules
from rich.console import Console
from rich.table import Table
from rich.text import Text


def wide_console() -> Console:
    """The terminal; a log has no width of its own, and 80 columns are narrow for the tables."""
    console = Console()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = 120
    return console


def request_text(request: etcd.Request | None) -> str:
    """A request in words: its kind, its key, and what it writes. "" for an event."""
    if request is None:
        return ""
    words = [type(request).__name__.lower(), request.key]
    value = getattr(request, "value", None)
    if isinstance(value, str):
        words.append(f"= {document_text(value)}")
    ttl = getattr(request, "ttl", None)
    if ttl is not None:
        words.append(f"for {ttl:g} s")
    return " ".join(words)


def reply_text(reply: etcd.Reply | None) -> str:
    """A reply in words. "" for an event."""
    if reply is None:
        return ""
    if isinstance(reply, etcd.Failed):
        return f"refused: {etcd.ERROR_NAMES.get(reply.code, reply.code)}"
    if isinstance(reply, etcd.Listing):
        return ", ".join(reply.keys) or "nothing"
    gone = f"; gone: {', '.join(reply.missing)}" if isinstance(reply, etcd.Snapshot) and reply.missing else ""
    return ("ok" if reply.value is None else document_text(reply.value)) + gone


def document_text(text: str | None) -> str:
    """A rendezvous document in short; other values as they are."""
    if text is None:
        return docs.ABSENT
    try:
        return _short(docs.parse(text))
    except docs.BrokenDocumentError:
        return text


def _short(document: Document) -> str:
    parts = [document.status]
    if document.version is not None:
        parts.append(f"version {document.version}")
    if document.participants is not None:
        owners = dict(document.owners or ())
        slots = [f"{rank}:{owners[rank]}" if rank in owners else str(rank) for rank in document.participants]
        parts.append(f"participants [{' '.join(slots)}]")
    if document.keep_alives:
        parts.append(f"confirmed [{' '.join(key.rpartition('/')[2] for key in document.keep_alives)}]")
    if document.num_workers_waiting:
        parts.append(f"{document.num_workers_waiting} waiting")
    return ", ".join(parts)


def run_table(title: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    """A run as a table."""
    table = Table(title=title, title_justify="left", show_lines=True)
    for name in rows[0] if rows else ():
        table.add_column(name, justify="right" if name == "step" else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row.values()))
    return table


def run_rows(rules: Rules, run: Sequence[Step]) -> list[dict[str, Any]]:
    """One row per step. A lost reply is marked: etcd carried the request out, and the worker will repeat it."""
    rows = []
    for number, step in enumerate(run, start=1):
        reply = reply_text(step.reply)
        rows.append(
            {
                "step": number,
                "worker": "clock" if step.slot is None else step.state.workers[step.slot].id,
                "action": step.action,
                "request": request_text(step.request) or (step.key or ""),
                "reply": f"{reply} (lost)" if step.action == "LoseReply" else reply,
                "document after it": document_text(step.state.store.value(machine.active(rules))),
            }
        )
    return rows
