"""The picture of the protocol, drawn from ``document.TRANSITIONS``, and the table of a worker, from ``worker.TABLE``:
``python -m rallypoint.spec.picture`` prints them.

Tests hold the picture in README.md and the table in model/README.md against these, so they cannot drift.
"""

from __future__ import annotations

from collections import defaultdict

from rallypoint.model import document as docs
from rallypoint.model import worker as machine
from rallypoint.model.document import ABSENT, TRANSITIONS
from rallypoint.model.etcd import Await, Cad, Cas, Create, Delete, Get, List, Mkdir, Put, Request
from rallypoint.model.rules import Rules
from rallypoint.model.worker import Worker


def mermaid() -> str:
    """A Mermaid state diagram: one arrow per pair of statuses, labelled with the steps that lead there."""
    steps: dict[tuple[str, str], list[str]] = defaultdict(list)
    for row in TRANSITIONS:
        names = steps[row.source, row.target]
        if row.name not in names:
            names.append(row.name)
    lines = ["stateDiagram-v2", f"    absent: {ABSENT}", "    [*] --> absent"]
    for (source, target), names in steps.items():
        lines.append(f"    {_node(source)} --> {_node(target)}: {' / '.join(names)}")
    return "\n".join(lines)


def _node(status: str) -> str:
    return status.strip("()")


def table() -> str:
    """The rows of the transition table as Markdown."""
    rows = ["| from | step | to | what happens |", "|---|---|---|---|"]
    rows += [f"| {row.source} | {row.name} | {row.target} | {row.effect} |" for row in TRANSITIONS]
    return "\n".join(rows)


OURS = frozenset({"recount", "register", "queue", "foreign", "leave", "withdraw", "close_create"})
PYTORCHS = frozenset(
    {
        *("init", "join_read", "peers_read", "confirm_read", "keep_alive", "final_read"),
        *("announce_read", "monitor_read"),
    }
)
"""Lines of the table that one side's workers never reach."""

VERBS: dict[type[Request], str] = {
    Get: "read",
    Create: "create",
    Put: "write",
    Cas: "compare and swap",
    Cad: "compare and delete",
    Delete: "delete",
    Mkdir: "make directory",
    List: "list",
    Await: "wait for a change of",
}


def worker_table() -> str:
    """The lines of the worker's table as Markdown: where it stands, action, request, and what for."""
    rows = ["| line | action | request | what for | whose |", "|---|---|---|---|---|"]
    for line, row in machine.TABLE.items():
        whose = "ours" if line in OURS else "PyTorch's" if line in PYTORCHS else "both"
        rows.append(f"| `{line}` | {row.action} | {_request(line)} | {row.about} | {whose} |")
    return "\n".join(rows)


def _request(line: str) -> str:
    """The request of a worker at this line, that has the fields that matter there."""
    rules = Rules(2, 2, early_lease=line != "keep_alive")
    joined = docs.join(docs.publish(1, (2, 2)), "ID", 2)
    frozen = docs.freeze(joined)
    seen = {"confirm": frozen, "announce": docs.confirm(frozen, "KEY", once=True)}.get(line, joined)
    worker = Worker("ID", line, docs.render(seen), version=1, rank=0, lease="/v_1/alive_ID")
    request = machine.want(rules, worker)
    keys = [request.key]
    if isinstance(request, Await) and request.until is not None:
        keys.append(request.until)
    names = [key.removeprefix("/").replace("v_1", "v_N").replace("rank_0", "rank_R") for key in keys]
    return f"{VERBS[type(request)]} " + ", or ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    print(mermaid(), table(), worker_table(), sep="\n\n")
