"""The wire format is strict, and the explorer exercises every row of the protocol's table, and nothing else."""

from __future__ import annotations

import pytest
from broken_texts import BROKEN
from rallypoint.model import document as docs
from rallypoint.model import system
from rallypoint.model import worker as machine
from rallypoint.model.etcd import Store
from rallypoint.model.explorer import Code, Explorer
from rallypoint.model.rules import Rules
from rallypoint.model.system import Budget, Config


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN)
def test_anything_else_is_a_broken_document(text: str) -> None:
    with pytest.raises(docs.BrokenDocumentError, match="not a rendezvous document: "):
        docs.parse(text)


# Each of PyTorch's documents, as its workers write them.
WIRE = (
    '{"status": "setup"}',
    '{"status": "joinable", "version": "12", "participants": []}',
    '{"status": "joinable", "version": "12", "participants": [0, 1]}',
    '{"status": "frozen", "version": "12", "participants": [0, 1], "keep_alives": []}',
    '{"status": "final", "version": "12", "participants": [0], "keep_alives": ["/r/v_12/rank_0"], '
    '"num_workers_waiting": 3}',
    '{"status": "closed", "version": "12", "participants": [0]}',
    '{"status": "closed"}',
)


@pytest.mark.parametrize("text", WIRE)
def test_pytorchs_documents_are_kept_byte_for_byte(text: str) -> None:
    assert docs.render(docs.parse(text)) == text


# --- the table against the explorer -------------------------------------------------------------------------------

STEP_OF = {
    "Create": "create",
    "Publish": "publish",
    "Join": "join",
    "Freeze": "freeze",
    "Confirm": "confirm",
    "Announce": "announce",
    "Destroy": "destroy",
    "ExpireDocument": "expire",
    "Close": "close",
    "CloseCreate": "close",
}
"""Action -> step of the document. A lost reply is one of these writes with another reader, so it adds no row."""

SPACES = (
    Config(Rules(1, 2), 2, Budget(closes=1, expiries=1)),
    Config(Rules(2, 2), 2, Budget(crashes=1)),
    Config(Rules(1, 2), 2, Budget(lost_leases=1)),
    Config(machine.upstream(Rules(1, 2)), 2, Budget(expiries=1, closes=1)),
)


def rows_of(config: Config) -> set[tuple[str, str, str]]:
    """(status, step, status) of every change of the document in the whole space."""
    explorer = Explorer(config)
    status: dict[Store, docs.Document | None] = {}
    rows = set()

    def document(code: Code) -> docs.Document | None:
        store = explorer.decode(code).store
        if store not in status:
            status[store] = system.document(config.rules, store)
        return status[store]

    def note(source: Code, action: str, target: Code) -> None:
        before, after = document(source), document(target)
        if before != after and action != "LoseReply":
            names = [docs.ABSENT if it is None else it.status for it in (before, after)]
            rows.add((names[0], STEP_OF[action], names[1]))

    assert explorer.explore(on_edge=note).complete
    return rows


def test_the_explorer_exercises_every_row_of_the_table_and_no_other() -> None:
    table = {(row.source, row.name, row.target) for row in docs.TRANSITIONS}
    assert len(table) == len(docs.TRANSITIONS)
    seen = set().union(*map(rows_of, SPACES))
    assert seen - table == set(), "steps that the table does not have"
    assert table - seen == set(), "rows that nothing exercises"
