"""What can happen next in a run that is seen from outside: by its document and its keys, not by its workers.

May live here: who takes part, who is awaited, and what each of them would do if it alone went on, as the worker machine
has it. Must not live here: how the keys were read, or how any of it is shown.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from rallypoint.model import document as docs
from rallypoint.model import etcd
from rallypoint.model import worker as machine
from rallypoint.model.document import CLOSED, FINAL, FROZEN, JOINABLE, SETUP, Document
from rallypoint.model.etcd import Store
from rallypoint.model.rules import Rules
from rallypoint.model.worker import Worker

NEWCOMER = "a newcomer"
MOST = 20  # requests of one worker between two changes of the document; the machine needs half of them


class Actor(NamedTuple):
    """Somebody of whom the document tells. ``name``: the worker's id, or for PyTorch's workers its keep-alive.

    ``key``: its lease (None: it has none yet), ``alive``: the lease is there. ``ours``: it follows these rules.
    """

    name: str
    role: str
    key: str | None
    alive: bool
    ours: bool


class Prospect(NamedTuple):
    """One thing that can happen: who does it, what it is, and the document after it (None: absent)."""

    who: str
    what: str
    after: str | None


def rules_for(rules: Rules, document: Document | None, *, expires: bool) -> Rules:
    """The rules with the numbers of workers that the document tells, or lets guess. ``expires``: it has a TTL."""
    if document is not None and document.bounds is not None:
        lowest, highest = document.bounds
    elif document is None or document.participants is None:
        return rules
    else:
        size = docs.size(document)
        lowest = size + 1 if document.status == JOINABLE and not expires else max(1, min(rules.min_workers, size))
        highest = max(rules.max_workers, lowest, size + 1)
    return replace(rules, min_workers=lowest, max_workers=highest)


def actors(rules: Rules, store: Store) -> tuple[Actor, ...]:
    """The creator of a version in the making; the participants, by rank; the waiting workers.

    Raises BrokenDocumentError, as all functions here do.
    """
    document = _document(rules, store)
    if document is None:
        return ()
    if document.status == SETUP and document.creator is not None:
        return (Actor(document.creator, "creator", None, True, True),)
    if document.participants is None:
        return ()
    place = "member" if document.status in (FINAL, CLOSED) else "participant"
    owners = dict(document.owners or ())
    found = []
    for rank in document.participants:
        if rank in owners:
            key: str | None = machine.keep_alive(rules, Worker(owners[rank], version=document.version))
            found.append(_actor(store, owners[rank], f"{place} {rank}", key, ours=True))
        else:
            key = f"{machine.directory(rules, document.version)}/rank_{rank}"
            key = key if key in (document.keep_alives or ()) else None
            found.append(_actor(store, f"rank_{rank} (PyTorch's)", f"{place} {rank}", key, ours=False))
    for waiter in document.waiters or ():
        key = machine.waiter_key(rules, Worker(waiter, version=document.version))
        found.append(_actor(store, waiter, "waiting", key, ours=True))
    return tuple(found)


def _actor(store: Store, name: str, role: str, key: str | None, *, ours: bool) -> Actor:
    return Actor(name, role, key, key is None or store.get(key) is not None, ours)


def awaited(rules: Rules, store: Store) -> str:
    """For whom or for what the run waits, in words; "" if for nobody."""
    document = _document(rules, store)
    if document is None:
        return "a worker that starts a version"
    if document.status == SETUP:
        return f"{document.creator or 'the creator'}, to open the version for joining"
    if document.status == JOINABLE:
        return _awaited_to_join(rules, document)
    if document.status == FROZEN:
        confirmed = set(document.keep_alives or ())
        late = [one.name for one in actors(rules, store) if one.key is None or one.key not in confirmed]
        return f"{', '.join(late)}, to confirm"
    parked = rules.spares_parked and docs.size(document) >= rules.max_workers
    if document.status == FINAL and document.num_workers_waiting and not parked:
        return f"the members, to meet again and let {document.num_workers_waiting} in"
    return ""


def _awaited_to_join(rules: Rules, document: Document) -> str:
    missing = rules.min_workers - docs.size(document)
    if missing > 0:
        return f"{missing} more {'worker' if missing == 1 else 'workers'} to join"
    owner = dict(document.owners or ()).get(rules.min_workers - 1, f"rank {rules.min_workers - 1}")
    return f"late workers, until {owner} ends the last call"


def outlook(rules: Rules, store: Store) -> tuple[Prospect, ...]:
    """What can happen next: what each worker and a newcomer would do until the document changes, and what time does."""
    document = _document(rules, store)
    text = store.value(machine.active(rules))
    found = []
    for one in actors(rules, store):
        if not one.ours or not one.alive:
            continue
        found.append(_course(rules, store, one.name, Worker(one.name, "read", lease=one.key)))
    found.append(_course(rules, store, NEWCOMER, Worker("newcomer")))
    found += _by_last_call(rules, store)
    if document is not None and document.status != CLOSED:
        found.append(Prospect("anybody", "closes the run", docs.render(docs.close(document))))
    for key, node in store.nodes:
        if node.ttl and key == machine.active(rules):
            found.append(Prospect("time", "the document's TTL runs out", None))
    for one in actors(rules, store):
        if one.key is not None and one.alive and document is not None and document.status in (JOINABLE, FROZEN, FINAL):
            found.append(Prospect("time", f"the lease of {one.name} runs out: {_loss(one)}", text))
    return tuple(found)


def _loss(one: Actor) -> str:
    return "it is counted no more" if one.role == "waiting" else "the version becomes void"


def _course(rules: Rules, store: Store, name: str, worker: Worker) -> Prospect:
    """One worker alone, until it changes the document, ends, or has to wait."""
    active = machine.active(rules)
    before = store.value(active)
    for _ in range(MOST):
        if worker.pc == machine.MEMBER:
            return Prospect(name, "works on, or leaves and meets again", before)
        if worker.pc in machine.ENDED:
            return Prospect(name, f"is turned away: {machine.reason(rules, worker)}", before)
        request, about = machine.want(rules, worker), machine.TABLE[worker.pc].about
        if not etcd.enabled(store, request):
            return Prospect(name, machine.reason(rules, worker), before)
        store, reply = etcd.apply(store, request)
        worker = machine.step(rules, worker, reply)
        if store.value(active) != before:
            return Prospect(name, about, store.value(active))
    raise AssertionError(f"{name} goes round in circles from {before!r}")


def _by_last_call(rules: Rules, store: Store) -> list[Prospect]:
    document = _document(rules, store)
    if document is None or document.status != JOINABLE or docs.size(document) < rules.min_workers:
        return []
    owner = dict(document.owners or ()).get(rules.min_workers - 1, f"rank {rules.min_workers - 1}")
    return [Prospect(owner, "ends the last call", docs.render(docs.freeze(document)))]


def _document(rules: Rules, store: Store) -> Document | None:
    text = store.value(machine.active(rules))
    return None if text is None else docs.parse(text)
