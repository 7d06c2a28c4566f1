"""A participant: what it knows of itself, which keys are its own, and what a document says about it.

May live here: the worker's data and questions about it. Must not live here: what it does next (``worker.py``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rallypoint.model import document as docs
from rallypoint.model.document import FINAL, Document
from rallypoint.model.rules import Rules, directory


@dataclass(frozen=True, slots=True)
class Worker:
    """One participant. ``id`` names one attempt to meet: a restart and a re-entry get a new one.

    ``pc`` says which request is next (see ``TABLE``) or how the attempt ended (``ENDED``). ``seen`` is the document
    text that the next compare-and-swap compares with. ``lease`` is the key that this worker keeps alive. ``mixed``: its
    version has members that do not watch the keep-alives of the others, as PyTorch's do not.
    """

    id: str
    pc: str = "create"
    seen: str | None = None
    version: int | None = None
    rank: int | None = None
    world: int | None = None
    lease: str | None = None
    mixed: bool = False


MEMBER = "member"
ENDED = (MEMBER, "closed", "timed_out", "mismatch", "fatal", "crashed")


def keep_alive(rules: Rules, worker: Worker) -> str:
    """The worker's keep-alive key: by id where slots have owners, else by rank as PyTorch names it."""
    if rules.early_lease:
        return f"{directory(rules, worker.version)}/alive_{worker.id}"
    return f"{directory(rules, worker.version)}/rank_{worker.rank}"


def waiter_key(rules: Rules, worker: Worker) -> str:
    return f"{directory(rules, worker.version)}/waiter_{worker.id}"


def address(rules: Rules, worker: Worker) -> str:
    """Where rank 0 publishes its address; stands for the two keys in the version's store that torch's own function
    writes and reads."""
    return f"{directory(rules, worker.version)}/address"


def seen_text(worker: Worker) -> str:
    assert worker.seen is not None
    return worker.seen


def owner_name(rules: Rules, worker: Worker) -> str | None:
    return worker.id if rules.owned_slots else None


def rank_in(rules: Rules, worker: Worker, document: Document) -> int | None:
    """The worker's rank in this version, None if it does not take part (any more)."""
    if not rules.owned_slots:
        return worker.rank if worker.version == document.version else None
    if rules.early_lease and worker.lease != keep_alive(rules, replace(worker, version=document.version)):
        return None
    return docs.rank_of(document, worker.id)


def has_confirmed(rules: Rules, worker: Worker, document: Document) -> bool:
    if not rules.idempotent_confirm:
        return worker.pc in ("wait_final", "final_read", "confirm")
    return keep_alive(rules, worker) in (document.keep_alives or ())


def watched_keys(rules: Rules, document: Document) -> tuple[str, ...]:
    """The keep-alives whose loss makes the version void."""
    if document.status == FINAL:
        return tuple(sorted(set(document.keep_alives or ())))
    if not rules.early_lease:
        return ()
    base = directory(rules, document.version)
    owned = {f"{base}/alive_{owner}" for _, owner in document.owners or ()}
    return tuple(sorted(owned | set(document.keep_alives or ())))


def is_foreign(rules: Rules, document: Document) -> bool:
    """The version was opened for other numbers of workers: nobody would know when it is full (L-Q, L-R)."""
    return rules.bounds_agreed and document.bounds not in (None, (rules.min_workers, rules.max_workers))


def owns_last_call(rules: Rules, worker: Worker) -> bool:
    """The worker whose join reached min waits out the last call and then freezes the document."""
    return worker.pc == "peers" and worker.rank == rules.min_workers - 1
