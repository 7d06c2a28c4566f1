"""What others need to know of a participant: which keys to keep alive for it, and where its version stands.

May live here: views of a worker and a document that change neither. Must not live here: decisions (``worker.py``).
"""

from __future__ import annotations

from typing import NamedTuple

from rallypoint.model import document as docs
from rallypoint.model.document import CLOSED, FINAL, Document
from rallypoint.model.participant import Worker, owns_last_call
from rallypoint.model.rules import Rules, active, directory


class Lease(NamedTuple):
    """A key to keep alive: renewed well within ``ttl`` seconds; with ``guard``, only while it holds that value."""

    key: str
    ttl: float
    guard: str | None = None


def leases(rules: Rules, worker: Worker) -> tuple[Lease, ...]:
    """What the worker must keep alive in this state: its own key, and the document while it owns the last call."""
    own = () if worker.lease is None else (Lease(worker.lease, rules.keep_alive_ttl),)
    if not owns_last_call(rules, worker):
        return own
    return (*own, Lease(active(rules), rules.joinable_ttl, worker.seen))


class Standing(NamedTuple):
    """What a member learns when it asks: how many workers wait (1 at least if it is stale), and why.

    ``stale``: the member's version is no longer what the run believes in, or has lost a member.
    """

    waiting: int
    stale: bool
    reason: str


def standing(rules: Rules, worker: Worker, text: str | None, keys: tuple[str, ...]) -> Standing:
    """A member's view of its version, from the document and the keys of its version's directory.

    ``waiting`` > 0 tells the agent to call next_rendezvous again. A member whose version is gone or superseded, or has
    lost a member, is told so by ``waiting`` = 1 and the reason; members of the version that was closed are not, they
    finish their work. Nobody is told of workers for whom there is no room (R63). PyTorch's rule: it counts the waiting
    workers of whatever version is current, else reads 0.
    """
    document = None if text is None else docs.parse(text)
    status = docs.ABSENT if document is None else document.status
    if worker.pc == "closed":
        return Standing(0, False, "")
    if document is not None and status == FINAL and (document.version == worker.version or not rules.told_when_stale):
        lost = [key for key in document.keep_alives or () if key not in keys] if rules.told_when_stale else []
        if lost:
            return Standing(
                1, True, f"the keep-alive of {lost[0]} is gone: version {document.version} has lost a member"
            )
        if rules.told_when_stale and rules.owned_slots and docs.rank_of(document, worker.id) != worker.rank:
            return Standing(1, True, f"version {document.version} is another one of this number: etcd was set back")
        full = rules.spares_parked and docs.size(document) >= rules.max_workers
        count = 0 if full else waiting(rules, document, keys)
        return Standing(count, False, f"{count} workers wait to be let in" if count else "")
    if not rules.told_when_stale:
        return Standing(0, False, "")
    if document is not None and status == CLOSED and document.version == worker.version:
        return Standing(0, False, "")
    return Standing(1, True, f"version {worker.version} is over: the run is {status} now")


def waiting(rules: Rules, document: Document, keys: tuple[str, ...]) -> int:
    """How many workers wait behind a final document, as a member counts them."""
    listed = document.waiters or ()
    if not rules.counted_once:
        return document.num_workers_waiting or 0
    base = directory(rules, document.version)
    dead = sum(f"{base}/waiter_{waiter}" not in keys for waiter in listed)
    return max(0, (document.num_workers_waiting or 0) - dead)
