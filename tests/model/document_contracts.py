"""What every function of ``model/document.py`` promises, as properties over simple values.

May live here: deterministic top-level functions that assert, and the strategies for their arguments. Must not live
here: how they are run; the same properties serve hypothesis' own backend, crosshair and the mutation test.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields, replace
from itertools import pairwise
from typing import Any

from broken_texts import BROKEN
from contract import Contract
from hypothesis import strategies as st
from rallypoint.model import document as docs
from rallypoint.model.document import Document

STATUS_ROWS = {(row.source, row.name, row.target) for row in docs.TRANSITIONS}


def grow(moves: list[int], places: int, owned: bool, extra: tuple[tuple[str, str], ...] = ()) -> list[Document]:
    """The documents of one version, in order: each move is a step that the status allows; 7 closes."""
    documents = [replace(docs.publish(1, (1, places) if owned else None), extra=extra)]
    for move in moves:
        documents.append(_grown(documents[-1], move, places, owned))
    return documents


def _grown(document: Document, move: int, places: int, owned: bool) -> Document:
    if move == 7:
        return docs.close(document)
    if document.status == docs.JOINABLE:
        if move == 6 and document.participants:
            return docs.freeze(document)
        return docs.join(document, f"{docs.size(document)}.0" if owned else None, places)
    if document.status == docs.FROZEN:
        return docs.confirm(document, f"k{move % max(1, docs.size(document))}", once=owned)
    if document.status == docs.FINAL:
        return docs.announce(document, f"{move}.1" if owned else None)
    return document


def last(moves: list[int], places: int, owned: bool) -> Document:
    return grow(moves, places, owned)[-1]


def frozen(size: int, confirmed: list[int]) -> Document:
    return Document(docs.FROZEN, 1, tuple(range(size)), tuple(f"k{key}" for key in confirmed))


# ------------------------------------------------------------------------------------------------------- wire format


def round_trip(moves: list[int], places: int, owned: bool, extra: dict[str, Any]) -> None:
    """What the protocol can produce is read back as it was, and its text is unique."""
    fields = tuple(sorted((f"x_{name}", json.dumps(value)) for name, value in extra.items()))
    for document in [docs.setup("0.0" if owned else None), *grow(moves, places, owned, fields)]:
        text = docs.render(document)
        assert docs.parse(text) == document
        assert docs.render(docs.parse(text)) == text


def wire_is_pytorchs(moves: list[int], places: int) -> None:
    """Unowned documents are, byte for byte, what json.dumps makes of a dict that is changed field by field."""
    assert docs.render(docs.setup(None)) == json.dumps({"status": "setup"})
    wire: dict[str, Any] = {"status": "joinable", "version": "1", "participants": []}
    document = docs.publish(1, None)
    for move in moves:
        assert docs.render(document) == json.dumps(wire)
        document = _grown(document, move, places, False)
        _pytorch(wire, move, places)
    assert docs.render(document) == json.dumps(wire)


def _pytorch(wire: dict[str, Any], move: int, places: int) -> None:
    """One step on the wire dict, written down apart from the functions under test."""
    members = wire["participants"]
    if move == 7:
        wire["status"] = "closed"
    elif wire["status"] == "joinable":
        if move != 6 or not members:
            members.append(max(members, default=-1) + 1)
            if len(members) < places:
                return
        wire["status"], wire["keep_alives"] = "frozen", []
    elif wire["status"] == "frozen":
        wire["keep_alives"].append(f"k{move % len(members)}")
        if len(wire["keep_alives"]) == len(members):
            wire["status"], wire["num_workers_waiting"] = "final", 0
    elif wire["status"] == "final":
        wire["num_workers_waiting"] += 1


def only_broken_is_raised(text: str) -> None:
    """Any text is a document or a BrokenDocumentError; what is accepted has one normal form."""
    try:
        document = docs.parse(text)
    except docs.BrokenDocumentError:
        return
    assert docs.parse(docs.render(document)) == document


def known_breaks_are_broken(which: str) -> None:
    try:
        document = docs.parse(BROKEN[which])
    except docs.BrokenDocumentError:
        return
    raise AssertionError(f"{which}: taken as {document}")


def strange_fields_are_broken(moves: list[int], field: str, value: Any) -> None:
    """A known field with a value that the protocol cannot produce is an error, not a guess."""
    wire = json.loads(docs.render(last(moves, 3, True)))
    wire[field] = value
    only_broken_is_raised(json.dumps(wire))
    try:
        document = docs.parse(json.dumps(wire))
    except docs.BrokenDocumentError:
        return
    assert _plausible(field, value), f"{field}={value!r} was taken as {document}"


def _plausible(field: str, value: Any) -> bool:
    if field == "status":
        return value in docs.STATUSES
    if value is None:
        return True
    if field == "version":
        return isinstance(value, str) and value != "" and set(value) <= set("0123456789")
    if field == "num_workers_waiting":
        return type(value) is int and value >= 0
    if field == "participants":
        return isinstance(value, list) and all(type(rank) is int for rank in value)
    if field in ("keep_alives", "waiters"):
        return isinstance(value, list) and all(isinstance(key, str) for key in value)
    if field == "creator":
        return isinstance(value, str)
    if field == "bounds":
        two = isinstance(value, list) and len(value) == 2 and all(type(bound) is int for bound in value)
        return two and 1 <= value[0] <= value[1]
    return isinstance(value, dict) and all(
        rank != "" and set(rank) <= set("0123456789") and isinstance(owner, str) for rank, owner in value.items()
    )


def missing_fields_are_broken(moves: list[int], field: str) -> None:
    """A document without a field that its status needs is not taken."""
    document = last(moves, 3, False)
    wire = json.loads(docs.render(document))
    if field not in wire:
        return
    del wire[field]
    needed = {
        docs.JOINABLE: {"status", "version", "participants"},
        docs.FROZEN: {"status", "version", "participants", "keep_alives"},
        docs.FINAL: {"status", "version", "participants", "keep_alives", "num_workers_waiting"},
        docs.CLOSED: {"status"},
    }[document.status]
    try:
        docs.parse(json.dumps(wire))
    except docs.BrokenDocumentError:
        assert field in needed
    else:
        assert field not in needed


# ------------------------------------------------------------------------------------------------------- transitions


def unknown_fields_survive(moves: list[int], places: int, owned: bool, name: str, value: Any) -> None:
    """A field that nobody here knows is in the text after every transition, unchanged."""
    for document in grow(moves, places, owned, ((f"x_{name}", json.dumps(value)),)):
        assert json.loads(docs.render(document))[f"x_{name}"] == value


def bounds_stay(moves: list[int], places: int) -> None:
    """What a version was opened for is in every later document."""
    for document in grow(moves, places, True):
        assert docs.parse(docs.render(document)).bounds == (1, places)


def steps_are_rows(moves: list[int], places: int, owned: bool) -> None:
    """Every change is a row of TRANSITIONS."""
    documents = grow(moves, places, owned)
    for before, after in pairwise(documents):
        if before.status == docs.CLOSED:
            continue
        if after.status == docs.CLOSED:
            name = "close"
        elif before.status == docs.JOINABLE:
            name = "join" if docs.size(after) > docs.size(before) else "freeze"
        else:
            name = "confirm" if before.status == docs.FROZEN else "announce"
        assert (before.status, name, after.status) in STATUS_ROWS


def setup_and_publish(version: int, owned: bool) -> None:
    """A marker carries its maker only; a new version is joinable and empty."""
    assert docs.setup("0.0" if owned else None) == Document("setup", creator="0.0" if owned else None)
    bounds = (1, version) if owned else None
    assert docs.publish(version, bounds) == Document("joinable", version, (), bounds=bounds)


def join_takes_the_next_rank(size: int, places: int, owned: bool) -> None:
    """A join takes rank ``size``, adds exactly that, freezes at the last place, and is refused beyond."""
    owners = tuple((rank, f"w{rank}") for rank in range(size)) if owned else None
    before = Document("joinable", 4, tuple(range(size)), owners=owners)
    try:
        after = docs.join(before, "me" if owned else None, places)
    except ValueError:
        assert size >= places
        return
    assert size < places
    full = size + 1 == places
    assert after == Document(
        "frozen" if full else "joinable",
        4,
        (*range(size), size),
        keep_alives=() if full else None,
        owners=(*owners, (size, "me")) if owners is not None else None,
    )


def rank_is_remembered(moves: list[int], places: int) -> None:
    """An owner finds its rank in every later document; whoever did not join finds none."""
    documents = grow(moves, places, True)
    for before, after in pairwise(documents):
        assert docs.rank_of(after, "stranger") is None
        for rank in range(docs.size(before)):
            assert docs.rank_of(after, f"{rank}.0") == rank


def first_slot_counts(first: int, second: int) -> None:
    """Whoever holds two slots (which no HARDENED worker does) has the rank of the first."""
    owners = tuple((rank, "me" if rank in (first, second) else "other") for rank in range(4))
    found = docs.rank_of(Document("frozen", 1, (0, 1, 2, 3), (), owners=owners), "me")
    assert found == (min(first, second) if min(first, second) < 4 else None)


def freeze_keeps_the_participants(size: int) -> None:
    """Freezing changes the status and opens the list of confirmations."""
    ranks = tuple(range(size))
    assert docs.freeze(Document("joinable", 2, ranks)) == Document("frozen", 2, ranks, keep_alives=())


def confirm_once(size: int, confirmed: list[int], key: int) -> None:
    """HARDENED: a key counts once; final exactly when as many different keys as participants are listed."""
    after = docs.confirm(frozen(size, confirmed), f"k{key}", once=True)
    assert after.keep_alives is not None
    assert f"k{key}" in after.keep_alives
    assert after.keep_alives.count(f"k{key}") == max(1, confirmed.count(key))
    assert after.keep_alives[: len(confirmed)] == tuple(f"k{other}" for other in confirmed)
    _is_final_iff(after, len({*confirmed, key}) == size)


def confirm_counting(size: int, confirmed: list[int], key: int) -> None:
    """PyTorch: every confirmation counts; final exactly when there are as many as participants."""
    after = docs.confirm(frozen(size, confirmed), f"k{key}", once=False)
    assert after.keep_alives == tuple(f"k{other}" for other in [*confirmed, key])
    _is_final_iff(after, len(confirmed) + 1 == size)


def _is_final_iff(document: Document, done: bool) -> None:
    assert document.status == ("final" if done else "frozen")
    assert document.num_workers_waiting == (0 if done else None)


def confirm_twice_is_once(size: int, confirmed: list[int], key: int) -> None:
    """Repeating a confirmation changes nothing (unless it was the last, which leaves nothing to confirm)."""
    once = docs.confirm(frozen(size, confirmed), f"k{key}", once=True)
    if once.status == "frozen":
        assert docs.confirm(once, f"k{key}", once=True) == once


def covered_counts_different_keys(size: int, confirmed: list[int]) -> None:
    assert docs.covered(frozen(size, confirmed)) == (len(set(confirmed)) == size)


def announce_counts_once(waiting: list[int], me: int) -> None:
    """With an id: counted and listed once, however often; without: one more each time."""
    listed = tuple(dict.fromkeys(f"{waiter}.0" for waiter in waiting))
    before = Document("final", 1, (0,), ("k",), len(listed), waiters=listed or None)
    after = docs.announce(before, f"{me}.0")
    new = me not in waiting
    assert after.num_workers_waiting == len(listed) + new
    assert after.waiters == (*listed, *([f"{me}.0"] if new else []))
    assert docs.announce(after, f"{me}.0") == after
    counted = docs.announce(before, None)
    assert counted == replace(before, num_workers_waiting=len(listed) + 1)


def close_changes_only_the_status(moves: list[int], owned: bool) -> None:
    """Also from no document; closing twice is closing once."""
    document = last(moves, 3, owned)
    assert docs.close(document) == replace(document, status="closed")
    assert docs.close(docs.close(document)) == docs.close(document)
    assert docs.close(None) == Document("closed")


def wrong_status_is_refused(status: int, size: int) -> None:
    """A transition that the status does not allow is a ValueError."""
    name = docs.STATUSES[status]
    document = Document(name, 1, tuple(range(size)), (), 0)
    calls: tuple[tuple[str, Callable[[], Document]], ...] = (
        ("joinable", lambda: docs.join(document, "me", size + 2)),
        ("joinable", lambda: docs.freeze(document)),
        ("frozen", lambda: docs.confirm(document, "k", once=True)),
        ("final", lambda: docs.announce(document, "me")),
    )
    for allowed, call in calls:
        try:
            call()
        except ValueError as error:
            assert name != allowed
            assert name in str(error)  # noqa: PT017
        else:
            assert name == allowed


def size_is_the_participants(size: int) -> None:
    assert docs.size(Document("frozen", 1, tuple(range(size)))) == size
    assert docs.size(Document("setup")) == 0


# ---------------------------------------------------------------------------------------------------------- the table

_moves = st.lists(st.integers(0, 7), max_size=9)
_places = st.integers(1, 4)
_size = st.integers(0, 4)
_keys = st.lists(st.integers(0, 4), max_size=5)
_json = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 10**20) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=4,
)
_names = st.text(max_size=3)
_fields = st.sampled_from([field.name for field in fields(Document) if field.name != "extra"])
_lists: list[Any] = [["k"], [0], [True], [1, 0], [1, 2], [2, 1], [1, 1, 1]]
_strange = _json | st.sampled_from(
    ["", "1", "-1", "1.0", "٣", "setup", -1, 0, True, 1.5, *_lists, {"0": "a"}, {"x": "a"}, {"0": 1}]
)
_flag = st.booleans()
_text = (
    st.text(max_size=12)
    | _json.map(json.dumps)
    | st.builds(
        lambda fields: json.dumps(
            {
                "status": "final",
                "version": "1",
                "participants": [0],
                "keep_alives": ["k"],
                "num_workers_waiting": 0,
                **fields,
            }
        ),
        st.dictionaries(_fields, _strange, max_size=3),
    )
)


def numbers_are_short_decimal_texts(number: int, sign: int) -> None:
    """is_number: what int() reads back unchanged, and nothing signed, empty or longer than a count."""
    assert docs.is_number(str(number))
    assert not docs.is_number(("-", "+", " ")[sign] + str(number))
    assert not docs.is_number("")
    assert not docs.is_number("1" * 19)


CONTRACTS = (
    Contract(
        numbers_are_short_decimal_texts, ("is_number",), {"number": st.integers(0, 99), "sign": st.integers(0, 2)}
    ),
    Contract(
        round_trip,
        ("parse", "render"),
        {"moves": _moves, "places": _places, "owned": _flag, "extra": st.dictionaries(_names, _json, max_size=2)},
        False,
    ),
    Contract(wire_is_pytorchs, ("render",), {"moves": _moves, "places": _places}, False),
    Contract(only_broken_is_raised, ("parse",), {"text": _text}, False),
    Contract(known_breaks_are_broken, ("parse",), {"which": st.sampled_from(sorted(BROKEN))}, False),
    Contract(strange_fields_are_broken, ("parse",), {"moves": _moves, "field": _fields, "value": _strange}, False),
    Contract(missing_fields_are_broken, ("parse",), {"moves": _moves, "field": _fields}, False),
    Contract(
        unknown_fields_survive,
        ("parse", "render"),
        {"moves": _moves, "places": _places, "owned": _flag, "name": _names, "value": _json},
        False,
    ),
    Contract(bounds_stay, ("parse", "render"), {"moves": _moves, "places": _places}, False),
    Contract(
        steps_are_rows,
        ("join", "freeze", "confirm", "announce", "close"),
        {"moves": _moves, "places": _places, "owned": _flag},
    ),
    Contract(setup_and_publish, ("setup", "publish"), {"version": st.integers(1, 99), "owned": _flag}),
    Contract(join_takes_the_next_rank, ("join",), {"size": _size, "places": _places, "owned": _flag}),
    Contract(rank_is_remembered, ("rank_of", "join"), {"moves": _moves, "places": _places}),
    Contract(first_slot_counts, ("rank_of",), {"first": st.integers(0, 5), "second": st.integers(0, 5)}),
    Contract(freeze_keeps_the_participants, ("freeze",), {"size": _size}),
    Contract(confirm_once, ("confirm",), {"size": _size, "confirmed": _keys, "key": st.integers(0, 4)}),
    Contract(confirm_counting, ("confirm",), {"size": _size, "confirmed": _keys, "key": st.integers(0, 4)}),
    Contract(confirm_twice_is_once, ("confirm",), {"size": _size, "confirmed": _keys, "key": st.integers(0, 4)}),
    Contract(covered_counts_different_keys, ("covered",), {"size": _size, "confirmed": _keys}),
    Contract(announce_counts_once, ("announce",), {"waiting": _keys, "me": st.integers(0, 4)}),
    Contract(close_changes_only_the_status, ("close",), {"moves": _moves, "owned": _flag}),
    Contract(
        wrong_status_is_refused, ("join", "freeze", "confirm", "announce"), {"status": st.integers(0, 4), "size": _size}
    ),
    Contract(size_is_the_participants, ("size",), {"size": _size}),
)
