"""Can this state be reached? What of it can be judged from one look at the keys of a run, by an outsider.

Every rule is one that all reachable states of the model keep, under our rules and in groups with PyTorch's workers; a
test holds them against the explorer. So a doubt means that somebody else has written, that a defect of PyTorch's class
has struck, or that keys were lost.
"""

from __future__ import annotations

from collections.abc import Iterator

from rallypoint.model import document as docs
from rallypoint.model import worker as machine
from rallypoint.model.document import CLOSED, FINAL, FROZEN, JOINABLE, SETUP, Document
from rallypoint.model.etcd import Store
from rallypoint.model.rules import Rules


def doubts(rules: Rules, store: Store) -> tuple[str, ...]:
    """Why the model cannot be in this state; () if nothing speaks against it.

    ``rules`` need the right root and numbers of workers. A text that is no document is one doubt.
    """
    text = store.value(machine.active(rules))
    node = store.get(machine.active(rules))
    if node is not None and node.is_dir:
        return ("a directory is in the document's place",)
    try:
        document = None if text is None else docs.parse(text)
    except docs.BrokenDocumentError as error:
        return (str(error),)
    found = list(_of_leases(rules, store))
    if document is not None:
        found += _of_version(rules, store, document)
        found += _of_ttl(rules, document, expires=node is not None and node.ttl)
        found += _of_workers(rules, document)
    return tuple(found)


def _of_leases(rules: Rules, store: Store) -> Iterator[str]:
    for key, node in store.nodes:
        name = key.rpartition("/")[2]
        if name.startswith(("alive_", "waiter_", "rank_")) and not node.ttl and not node.is_dir:
            yield f"the lease {name} has no TTL: it never runs out"


def _of_version(rules: Rules, store: Store, document: Document) -> Iterator[str]:
    if document.version is None:
        return
    count = store.value(machine.counter(rules))
    if count is None or not docs.is_number(count):
        yield f"version {document.version}, and the version counter is {'missing' if count is None else repr(count)}"
    elif int(count) < document.version:
        yield f"version {document.version} is above the version counter, {count}: the number may come back"
    if store.get(machine.directory(rules, document.version)) is None:
        yield f"the directory of version {document.version} is missing"


def _of_ttl(rules: Rules, document: Document, *, expires: bool) -> Iterator[str]:
    full = docs.size(document) >= rules.min_workers
    if document.status in (SETUP, FROZEN) and not expires:
        yield f"{document.status} without a TTL: it stays if its workers are lost"
    if document.status == FINAL and expires:
        yield "final with a TTL: it runs out under its members"
    if document.status == JOINABLE and expires != full:
        yield f"joinable {'without' if full else 'with'} a TTL, {docs.size(document)} of {rules.min_workers} are in"


def _of_workers(rules: Rules, document: Document) -> Iterator[str]:
    size, confirmed = docs.size(document), document.keep_alives or ()
    if document.status in (FROZEN, FINAL) and not rules.min_workers <= size <= rules.max_workers:
        yield f"{size} workers, and not {rules.min_workers} to {rules.max_workers} (WorldBounds)"
    if document.status == JOINABLE and size >= rules.max_workers:
        yield f"joinable although all {rules.max_workers} are in"
    if document.status == JOINABLE and document.keep_alives:
        yield "joinable, and somebody has confirmed"
    if document.status == FROZEN and docs.covered(document):
        yield "frozen although everybody has confirmed"
    if document.status == FINAL and (not docs.covered(document) or len(confirmed) != size):
        yield f"final although {len(set(confirmed))} of {size} have confirmed (FinalAllConfirmed, L-K)"
    base = machine.directory(rules, document.version) + "/"
    if strange := [key for key in confirmed if not key.startswith(base)]:
        yield f"a keep-alive of another version is listed: {strange[0]}"
    owners = document.owners or ()
    if len({owner for _, owner in owners}) < len(owners):
        yield "one worker owns two slots (OneSlotEach, L-J)"
    if any(rank >= size for rank, _ in owners):
        yield "a slot has an owner, and is not taken"
    if document.status not in (FINAL, CLOSED) and (document.waiters or document.num_workers_waiting):
        yield f"{document.status}, and somebody waits to be let in"
    listed, counted = len(document.waiters or ()), document.num_workers_waiting or 0
    if listed > counted:
        yield f"{listed} waiting workers are listed, {counted} are counted"
