"""The shared rendezvous document: its fields, its wire format and its transitions.

May live here: what the JSON text under ``active_version`` means and how it may change. Must not live here: who asks,
when, or with which request; that is ``worker.py``.

The wire format is PyTorch's own (``torch.distributed.elastic.rendezvous.etcd_rendezvous``), plus four optional
fields that PyTorch's workers carry along unread: ``creator``, ``bounds``, ``owners`` and ``waiters``. Fields that
nobody here knows survive every transition. Every transition takes and returns a ``Document``; a transition that the
status does not allow is a ValueError.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

SETUP = "setup"
JOINABLE = "joinable"
FROZEN = "frozen"
FINAL = "final"
CLOSED = "closed"
ABSENT = "(absent)"
STATUSES = (SETUP, JOINABLE, FROZEN, FINAL, CLOSED)


class Transition(NamedTuple):
    """One row of the protocol: from which status, by which step, to which status, and what it does."""

    source: str
    name: str
    target: str
    effect: str


TRANSITIONS = (
    Transition(ABSENT, "create", SETUP, "the creator takes the key, for 5 s"),
    Transition(SETUP, "publish", JOINABLE, "a version number above all earlier ones, nobody in yet"),
    Transition(JOINABLE, "join", JOINABLE, "participants += rank; for 10 s once min are in"),
    Transition(JOINABLE, "join", FROZEN, "the last of max joins: nobody else may"),
    Transition(JOINABLE, "freeze", FROZEN, "last call is over"),
    Transition(FROZEN, "confirm", FROZEN, "keep_alives += own keep-alive, for 10 s"),
    Transition(FROZEN, "confirm", FINAL, "the last participant confirms: rank and world size stand"),
    Transition(FINAL, "announce", FINAL, "a late worker is counted: num_workers_waiting += 1"),
    Transition(JOINABLE, "destroy", ABSENT, "a participant's keep-alive is gone"),
    Transition(FROZEN, "destroy", ABSENT, "a participant's keep-alive is gone"),
    Transition(FINAL, "destroy", ABSENT, "a member's keep-alive is gone, or not everybody had confirmed"),
    Transition(SETUP, "expire", ABSENT, "the creator was lost or slow"),
    Transition(JOINABLE, "expire", ABSENT, "the owner of the last call was lost"),
    Transition(FROZEN, "expire", ABSENT, "a participant did not confirm in time"),
    Transition(ABSENT, "close", CLOSED, "nobody may meet under this run id any more"),
    Transition(SETUP, "close", CLOSED, "as above"),
    Transition(JOINABLE, "close", CLOSED, "as above"),
    Transition(FROZEN, "close", CLOSED, "as above"),
    Transition(FINAL, "close", CLOSED, "as above; members finish their work"),
    Transition(CLOSED, "expire", ABSENT, "the run id may be used again, 2 h after the close"),
)
"""The whole protocol, as seen from the document. Diagrams are drawn from it; the explorer is checked against it."""


MOST = 10**18
"""Counts and version numbers are below: their decimal text is ``is_number``."""


class BrokenDocumentError(ValueError):
    """The text under ``active_version`` is not a rendezvous document; the message says why."""


@dataclass(frozen=True, slots=True)
class Document:
    """The rendezvous document. A field that the wire text does not have is None.

    ``bounds``: min and max of the workers that the version was opened for.
    """

    status: str
    version: int | None = None
    participants: tuple[int, ...] | None = None
    keep_alives: tuple[str, ...] | None = None
    num_workers_waiting: int | None = None
    creator: str | None = None
    bounds: tuple[int, int] | None = None
    owners: tuple[tuple[int, str], ...] | None = None
    waiters: tuple[str, ...] | None = None
    extra: tuple[tuple[str, str], ...] = ()


def _broken(reason: str) -> BrokenDocumentError:
    return BrokenDocumentError(f"not a rendezvous document: {reason}")


def _int(fields: dict[str, Any], name: str) -> int | None:
    value = fields.pop(name, None)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < MOST):
        raise _broken(f"{name} is no count, or none below 10^18")
    return value


def _list(fields: dict[str, Any], name: str, kind: type) -> tuple[Any, ...] | None:
    value = fields.pop(name, None)
    if value is None:
        return None
    if not isinstance(value, list) or any(type(item) is not kind for item in value):
        raise _broken(f"{name} is {value!r}, not a list of {kind.__name__}")
    return tuple(value)


def _owners(fields: dict[str, Any]) -> tuple[tuple[int, str], ...] | None:
    value = fields.pop("owners", None)
    if value is None:
        return None
    if not isinstance(value, dict) or not all(
        is_number(rank) and isinstance(owner, str) for rank, owner in value.items()
    ):
        raise _broken(f"owners is {value!r:.80}, not a mapping from rank to worker id")
    for owner in value.values():
        _key_part(owner, "owner")
    return tuple(sorted((int(rank), owner) for rank, owner in value.items()))


def _bounds(fields: dict[str, Any]) -> tuple[int, int] | None:
    value = _list(fields, "bounds", int)
    if value is None:
        return None
    if len(value) != 2 or not 1 <= value[0] <= value[1]:
        raise _broken(f"bounds is {list(value)}, not [min, max]")
    return value[0], value[1]


def _key_part(name: str, what: str) -> None:
    """Ids of workers are parts of keys."""
    if not name or "/" in name:
        raise _broken(f"{what} {name!r:.80} cannot be part of a key")


def is_number(text: str) -> bool:
    """Decimal text of a count; longer ones than any count are refused, and would make int() raise."""
    return len(text) <= 18 and text.isascii() and text.isdecimal()


def _version(fields: dict[str, Any]) -> int | None:
    value = fields.pop("version", None)
    if value is None:
        return None
    if not isinstance(value, str) or not is_number(value):
        raise _broken(f"version is {str(value)[:40]!r}, not decimal text")
    return int(value)


def _text(fields: dict[str, Any], name: str) -> str | None:
    value = fields.pop(name, None)
    if value is not None and not isinstance(value, str):
        raise _broken(f"{name} is {value!r}, not text")
    return value


@lru_cache(maxsize=4096)
def parse(text: str) -> Document:
    """Read the wire text. BrokenDocumentError if it is not a document that the protocol can produce."""
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _broken(f"no JSON ({error})") from None
    if not isinstance(fields, dict):
        raise _broken("no JSON object")
    status = fields.pop("status", None)
    if status not in STATUSES:
        raise _broken(f"status is {status!r}")
    document = Document(
        status=status,
        version=_version(fields),
        participants=_list(fields, "participants", int),
        keep_alives=_list(fields, "keep_alives", str),
        num_workers_waiting=_int(fields, "num_workers_waiting"),
        creator=_text(fields, "creator"),
        bounds=_bounds(fields),
        owners=_owners(fields),
        waiters=_list(fields, "waiters", str),
        extra=tuple(sorted((name, json.dumps(value)) for name, value in fields.items())),
    )
    for waiter in document.waiters or ():
        _key_part(waiter, "waiter")
    _check(document)
    return document


def _check(document: Document) -> None:
    if document.status in (JOINABLE, FROZEN, FINAL):
        if document.version is None or document.participants is None:
            raise _broken(f"{document.status} without version or participants")
        if document.participants != tuple(range(len(document.participants))):
            raise _broken(f"participants are {list(document.participants)}, not 0, 1, 2, ...")
    if document.status in (FROZEN, FINAL) and document.keep_alives is None:
        raise _broken(f"{document.status} without keep_alives")
    if document.status == FINAL and document.num_workers_waiting is None:
        raise _broken("final without num_workers_waiting")


def render(document: Document) -> str:
    """The wire text: PyTorch's fields first and in PyTorch's order, so that equal documents are equal texts."""
    fields: dict[str, Any] = {"status": document.status}
    if document.version is not None:
        fields["version"] = str(document.version)
    if document.participants is not None:
        fields["participants"] = list(document.participants)
    if document.keep_alives is not None:
        fields["keep_alives"] = list(document.keep_alives)
    if document.num_workers_waiting is not None:
        fields["num_workers_waiting"] = document.num_workers_waiting
    if document.creator is not None:
        fields["creator"] = document.creator
    if document.bounds is not None:
        fields["bounds"] = list(document.bounds)
    if document.owners is not None:
        fields["owners"] = {str(rank): owner for rank, owner in document.owners}
    if document.waiters is not None:
        fields["waiters"] = list(document.waiters)
    fields.update((name, json.loads(value)) for name, value in document.extra)
    return json.dumps(fields)


def _expect(document: Document, *statuses: str) -> None:
    if document.status not in statuses:
        raise ValueError(f"a {document.status} document does not allow this; it must be {' or '.join(statuses)}")


def setup(creator: str | None) -> Document:
    """The marker of a version in the making; with ``creator`` its maker can recognise it after a lost reply."""
    return Document(SETUP, creator=creator)


def publish(version: int, bounds: tuple[int, int] | None) -> Document:
    """Version ``version`` is open, nobody is in. ``bounds``: min and max of its workers, for others to compare."""
    return Document(JOINABLE, version=version, participants=(), bounds=bounds)


def size(document: Document) -> int:
    """Number of participants: the world size, once the document is final."""
    return len(document.participants or ())


def join(document: Document, me: str | None, max_workers: int) -> Document:
    """Take the next rank (= ``size(document)``); the last of ``max_workers`` freezes the document.

    ``me`` None: the slot carries no owner, as PyTorch's own workers do it.
    """
    _expect(document, JOINABLE)
    rank = size(document)
    if rank >= max_workers:
        raise ValueError(f"all {max_workers} places are taken")
    joined = replace(document, participants=(*(document.participants or ()), rank))
    if me is not None:
        joined = replace(joined, owners=(*(document.owners or ()), (rank, me)))
    return freeze(joined) if rank + 1 == max_workers else joined


def freeze(document: Document) -> Document:
    """Nobody else may join; from now on participants confirm."""
    _expect(document, JOINABLE)
    return replace(document, status=FROZEN, keep_alives=())


def confirm(document: Document, key: str, *, once: bool) -> Document:
    """Add the keep-alive ``key``; the last confirmation makes the document final.

    ``once``: a key counts once, however often it is added. Without it (PyTorch's rule) repetitions count.
    """
    _expect(document, FROZEN)
    listed = document.keep_alives or ()
    confirmed = replace(document, keep_alives=listed if once and key in listed else (*listed, key))
    done = covered(confirmed) if once else len(confirmed.keep_alives or ()) == size(confirmed)
    return replace(confirmed, status=FINAL, num_workers_waiting=0) if done else confirmed


def covered(document: Document) -> bool:
    """Every participant has confirmed: as many different keep-alives as participants."""
    return len(set(document.keep_alives or ())) == size(document)


def announce(document: Document, me: str | None) -> Document:
    """Count one more waiting worker; with an id it is counted once, however often this is done."""
    _expect(document, FINAL)
    waiting = document.num_workers_waiting or 0
    if me is None:
        return replace(document, num_workers_waiting=waiting + 1)
    waiters = document.waiters or ()
    if me in waiters:
        return document
    return replace(document, num_workers_waiting=waiting + 1, waiters=(*waiters, me))


def close(document: Document | None) -> Document:
    """The run is over; from ``None`` (no document) too."""
    return Document(CLOSED) if document is None else replace(document, status=CLOSED)


def rank_of(document: Document, me: str) -> int | None:
    """The rank whose slot ``me`` owns, None if there is none."""
    return next((rank for rank, owner in document.owners or () if owner == me), None)
