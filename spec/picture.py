"""The picture of the protocol, drawn from ``document.TRANSITIONS``: ``python -m rallypoint.spec.picture`` prints it.

A test holds the README's picture against this one, so it cannot drift.
"""

from __future__ import annotations

from collections import defaultdict

from rallypoint.model.document import ABSENT, TRANSITIONS


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


if __name__ == "__main__":
    print(mermaid())
    print()
    print(table())
