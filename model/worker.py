"""One rendezvous participant as a machine: which request it wants next, and what a reply makes of it.

May live here: every decision of a participant. Must not live here: performing anything. The machine never sees a
clock: time arrives as the events ``last_call_over`` and ``deadline``; a lost reply arrives as the answer to the
repeated request. Three drivers run it: the explorer, hypothesis, and ``impl/driver.py`` on a real etcd.

``want(rules, worker)`` is the next request, ``step(rules, worker, reply)`` the worker after its reply; one function
per event gives the worker after it; ``leases(rules, worker)`` is what must be kept alive, ``reason(rules, worker)``
what it waits for, in words.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from rallypoint.model import document as docs
from rallypoint.model import wants
from rallypoint.model.document import CLOSED, FINAL, FROZEN, JOINABLE, SETUP, Document
from rallypoint.model.etcd import (
    ALREADY_EXISTS,
    NOT_FOUND,
    Await,
    Cad,
    Create,
    Done,
    Failed,
    Get,
    List,
    Listing,
    Mkdir,
    Put,
    Reply,
    Request,
    Snapshot,
)
from rallypoint.model.participant import (
    ENDED,
    MEMBER,
    Worker,
    address,
    has_confirmed,
    is_foreign,
    keep_alive,
    owns_last_call,
    rank_in,
    seen_text,
    waiter_key,
    watched_keys,
)
from rallypoint.model.rules import HARDENING, Rules, active, counter, directory, upstream, without
from rallypoint.model.standing import Lease, Standing, leases, standing, waiting

__all__ = [  # with the names of rules, participant and standing: who runs a worker needs them all
    "ENDED",
    "HARDENING",
    "MEMBER",
    "TABLE",
    "Lease",
    "Row",
    "Rules",
    "Standing",
    "Worker",
    "active",
    "address",
    "awaits_others",
    "counter",
    "crash",
    "cut_off",
    "deadline",
    "directory",
    "fresh",
    "introduce",
    "keep_alive",
    "last_call_over",
    "leases",
    "notice",
    "others_stay",
    "owns_last_call",
    "reason",
    "reenter",
    "standing",
    "start_closing",
    "step",
    "upstream",
    "waiter_key",
    "waiting",
    "want",
    "without",
]


# --- level-triggered: what to do about a document, whatever led here -------------------------------------------


def _at(worker: Worker, pc: str, **fields: object) -> Worker:
    """The worker at ``pc`` with just the fields that matter there (and its lease)."""
    return Worker(worker.id, pc, lease=worker.lease, **fields)  # type: ignore[arg-type]


def _enter(rules: Rules, worker: Worker) -> Worker:
    """Back to the start: give up a lease first, if leaving is to be seen at once."""
    if worker.lease is None:
        return _at(worker, "create")
    if rules.leave_at_once:
        return _at(worker, "leave")
    return _at(replace(worker, lease=None), "create")


def _dispatch(rules: Rules, worker: Worker, text: str | None, missing: tuple[str, ...] = ()) -> Worker:
    """Decide by what the document says now."""
    if text is None:
        return _enter(rules, worker)
    document = docs.parse(text)
    if document.status == CLOSED:
        return _at(worker, "closed")
    if document.status == SETUP:
        if rules.owned_slots and document.creator == worker.id:
            return _at(worker, "counter")
        return _at(worker, "wait", seen=text)
    rank = rank_in(rules, worker, document)
    if rank is None:
        return _outside(rules, worker, text, document)
    inside = replace(worker, seen=text, version=document.version, rank=rank)
    if document.status == FINAL:
        return _met(rules, inside, document)
    if missing:
        return _at(worker, "destroy", seen=text, version=document.version)
    if document.status == FROZEN and not has_confirmed(rules, inside, document):
        return _to_confirm(rules, inside)
    pc = "peers" if document.status == JOINABLE else "wait_final"
    return _at(worker, pc, seen=text, version=document.version, rank=rank)


def _outside(rules: Rules, worker: Worker, text: str, document: Document) -> Worker:
    """The document is joinable, frozen or final, and this worker is not in it."""
    here = replace(worker, version=document.version)
    if worker.lease not in (None, (waiter_key if document.status == FINAL else keep_alive)(rules, here)):
        return _enter(rules, worker)
    if document.status == FINAL and not docs.covered(document):
        return _at(worker, "destroy", seen=text, version=document.version)
    foreign = is_foreign(rules, document)
    if document.status == FINAL or (foreign and docs.size(document)):
        return _at(worker, "alive", seen=text, version=document.version)
    if document.status == JOINABLE and docs.size(document) < rules.max_workers and not foreign:
        if rules.reread:
            return _at(worker, "join_read", version=document.version)
        return _to_join(rules, worker, text, document)
    return _at(worker, "wait", seen=text)


def _to_join(rules: Rules, worker: Worker, text: str, document: Document) -> Worker:
    registered = not rules.early_lease or worker.lease == keep_alive(rules, replace(worker, version=document.version))
    return _at(worker, "join" if registered else "register", seen=text, version=document.version)


def _to_confirm(rules: Rules, worker: Worker) -> Worker:
    pc = "confirm" if rules.early_lease else "keep_alive"
    return _at(worker, pc, seen=worker.seen, version=worker.version, rank=worker.rank)


def _met(rules: Rules, worker: Worker, document: Document) -> Worker:
    """The document is final and this worker has a slot in it."""
    if rules.idempotent_confirm and not (docs.covered(document) and has_confirmed(rules, worker, document)):
        return _at(worker, "destroy", seen=worker.seen, version=worker.version)
    mixed = rules.owned_slots and len(document.owners or ()) < docs.size(document)
    member = _at(worker, MEMBER, version=worker.version, rank=worker.rank, world=docs.size(document), mixed=mixed)
    return introduce(member) if rules.bootstrap else member


# --- PyTorch's phases: only the expected document lets a worker go on -------------------------------------------


def _expected(worker: Worker, document: Document | None, *statuses: str) -> bool:
    return document is not None and document.status in statuses and document.version == worker.version


def _read(text: str | None) -> Document | None:
    return None if text is None else docs.parse(text)


def _on_init_read(rules: Rules, worker: Worker, text: str | None) -> Worker:
    document = _read(text)
    if document is not None and document.status == FINAL and rules.reread:
        return _at(worker, "announce_read", version=document.version)
    return _dispatch(rules, worker, text)


def _on_join_read(rules: Rules, worker: Worker, text: str | None) -> Worker:
    document = _read(text)
    if document is None or not _expected(worker, document, JOINABLE) or docs.size(document) >= rules.max_workers:
        return _enter(rules, worker)
    return _at(worker, "join", seen=text, version=worker.version)


def _on_peers(rules: Rules, worker: Worker, text: str | None, missing: tuple[str, ...] = ()) -> Worker:
    if not rules.reread:
        return _dispatch(rules, worker, text, missing)
    document = _read(text)
    if _expected(worker, document, JOINABLE):
        return _at(worker, "peers", seen=text, version=worker.version, rank=worker.rank)
    if _expected(worker, document, FROZEN):
        return _at(worker, "confirm_read", version=worker.version, rank=worker.rank)
    return _enter(rules, worker)


def _on_confirm_read(rules: Rules, worker: Worker, text: str | None) -> Worker:
    if not _expected(worker, _read(text), FROZEN):
        return _enter(rules, worker)
    return _to_confirm(rules, replace(worker, seen=text))


def _on_wait_final(rules: Rules, worker: Worker, text: str | None, missing: tuple[str, ...] = ()) -> Worker:
    if not rules.reread:
        return _dispatch(rules, worker, text, missing)
    document = _read(text)
    if document is not None and _expected(worker, document, FINAL):
        return _met(rules, worker, document)
    if _expected(worker, document, FROZEN):
        return _at(worker, "wait_final", seen=text, version=worker.version, rank=worker.rank)
    return _enter(rules, worker)


def _on_announce_read(rules: Rules, worker: Worker, text: str | None) -> Worker:
    if not _expected(worker, _read(text), FINAL):
        return _enter(rules, worker)
    return _at(worker, "announce", seen=text, version=worker.version)


def _on_monitor(rules: Rules, worker: Worker, text: str | None, missing: tuple[str, ...] = ()) -> Worker:
    """A waiting worker looks at the version that it waits behind."""
    if _expected(worker, _read(text), FINAL):
        return _at(worker, "destroy" if missing else "alive", seen=text, version=worker.version)
    return _enter(rules, worker) if rules.reread else _dispatch(rules, worker, text)


# --- one function per reply -------------------------------------------------------------------------------------


def _value(reply: Reply) -> str | None:
    """The document text in a reply, None when the key is absent."""
    if reply == Done(None):
        raise docs.BrokenDocumentError("not a rendezvous document: a directory is in its place")
    if isinstance(reply, Done | Snapshot):
        return reply.value
    if reply != Failed(NOT_FOUND):
        raise docs.BrokenDocumentError("not a rendezvous document: a key is in the place of a directory above it")
    return None


def _missing(reply: Reply) -> tuple[str, ...]:
    return reply.missing if isinstance(reply, Snapshot) else ()


def _init(rules: Rules, worker: Worker, reply: Reply) -> Worker:
    return _at(worker, "create")


def _create(rules: Rules, worker: Worker, reply: Reply) -> Worker:
    return _at(worker, "counter" if isinstance(reply, Done) else "read")


def _counter(rules: Rules, worker: Worker, reply: Reply) -> Worker:
    if isinstance(reply, Failed):
        return _at(worker, "recount", version=reply.index) if rules.counter_restored else _at(worker, "fatal")
    assert isinstance(reply, Done)
    if reply.value is None or not docs.is_number(reply.value) or reply.value != str(int(reply.value)):
        raise docs.BrokenDocumentError(f"not a rendezvous document: the version counter holds {reply.value!r}")
    if int(reply.value) + 1 >= docs.MOST:
        raise docs.BrokenDocumentError(f"not a rendezvous document: the version counter is at its end, {reply.value}")
    return _at(worker, "bump", version=int(reply.value) + 1)


def _recount(rules: Rules, worker: Worker, reply: Reply) -> Worker:
    if isinstance(reply, Done):
        return _at(worker, "bump", version=(worker.version or 0) + 1)
    return _at(worker, "counter")


def _bump(rules: Rules, worker: Worker, reply: Reply) -> Worker:
    if isinstance(reply, Done):
        return _at(worker, "mkdir", version=worker.version)
    return _at(worker, "read" if rules.races_not_fatal else "fatal")


def _mkdir(rules: Rules, worker: Worker, reply: Reply) -> Worker:
    if isinstance(reply, Failed) and not (rules.races_not_fatal and reply.code == ALREADY_EXISTS):
        return _enter(rules, worker)
    return _at(worker, "publish", version=worker.version)


def _publish(rules: Rules, worker: Worker, reply: Reply) -> Worker:
    if isinstance(reply, Done):
        return _dispatch(rules, worker, reply.value)
    return _enter(rules, worker) if rules.reread else _at(worker, "read")


def _register(rules: Rules, worker: Worker, reply: Reply) -> Worker:
    return _at(replace(worker, lease=keep_alive(rules, worker)), "join", seen=worker.seen, version=worker.version)


def _join(rules: Rules, worker: Worker, reply: Reply) -> Worker:
    if isinstance(reply, Done):
        joined = replace(worker, rank=docs.size(docs.parse(seen_text(worker))))
        if rules.reread:
            return _at(joined, "peers_read", version=joined.version, rank=joined.rank)
        return _dispatch(rules, joined, reply.value)
    return _refused(rules, worker, reply, "join_read")


def _look_again(rules: Rules, worker: Worker) -> Worker:
    """Read the document; only where slots have no owners must the worker remember which one it took."""
    if rules.owned_slots:
        return _at(worker, "read")
    return _at(worker, "read", version=worker.version, rank=worker.rank)


def _refused(rules: Rules, worker: Worker, reply: Reply, reread: str) -> Worker:
    """A compare-and-swap did not go through: PyTorch's workers go round their phase, ours look again."""
    if not rules.reread:
        return _look_again(rules, worker)
    if reply == Failed(NOT_FOUND):
        return _enter(rules, worker)
    return _at(worker, reread, version=worker.version, rank=worker.rank)


def _freeze(rules: Rules, worker: Worker, reply: Reply) -> Worker:
    if isinstance(reply, Done) and not rules.reread:
        return _dispatch(rules, worker, reply.value)
    if isinstance(reply, Done):
        return _at(worker, "peers_read", version=worker.version, rank=worker.rank)
    return _refused(rules, worker, reply, "peers_read")


def _keep_alive(rules: Rules, worker: Worker, reply: Reply) -> Worker:
    return _at(worker, "confirm", seen=worker.seen, version=worker.version, rank=worker.rank)


def _confirm(rules: Rules, worker: Worker, reply: Reply) -> Worker:
    if isinstance(reply, Done):
        confirmed = replace(worker, lease=keep_alive(rules, worker))
        if rules.reread:
            return _at(confirmed, "final_read", version=worker.version, rank=worker.rank)
        return _dispatch(rules, confirmed, reply.value)
    return _refused(rules, worker, reply, "confirm_read")


def _alive(rules: Rules, worker: Worker, reply: Reply) -> Worker:
    if not isinstance(reply, Listing) and rules.reread:
        return _enter(rules, worker)
    keys = reply.keys if isinstance(reply, Listing) else ()
    document = docs.parse(seen_text(worker))
    if any(key not in keys for key in watched_keys(rules, document)):
        return _at(worker, "destroy", seen=worker.seen, version=worker.version)
    if is_foreign(rules, document):
        return _at(worker, "foreign", seen=worker.seen, version=worker.version)
    if rules.reread or (document.waiters is not None and worker.id in document.waiters):
        return _at(worker, "monitor", seen=worker.seen, version=worker.version)
    pc = "queue" if rules.counted_once and worker.lease is None else "announce"
    return _at(worker, pc, seen=worker.seen, version=worker.version)


def _on_foreign(rules: Rules, worker: Worker, text: str | None, missing: tuple[str, ...]) -> Worker:
    """Workers with other bounds are in the way: until one of them is gone, or all have outlived a TTL."""
    if missing:
        return _at(worker, "destroy", seen=text, version=worker.version)
    return _dispatch(rules, worker, text)


def _queue(rules: Rules, worker: Worker, reply: Reply) -> Worker:
    return _at(replace(worker, lease=waiter_key(rules, worker)), "announce", seen=worker.seen, version=worker.version)


def _announce(rules: Rules, worker: Worker, reply: Reply) -> Worker:
    if isinstance(reply, Done):
        if rules.reread:
            return _at(worker, "monitor_read", version=worker.version)
        return _at(worker, "monitor", seen=reply.value, version=worker.version)
    return _refused(rules, worker, reply, "announce_read")


def _destroy(rules: Rules, worker: Worker, reply: Reply) -> Worker:
    if rules.reread or isinstance(reply, Done):
        return _enter(rules, worker)
    return _at(worker, "read")


def _leave(rules: Rules, worker: Worker, reply: Reply) -> Worker:
    return _at(replace(worker, lease=None), "create")


def _withdraw(rules: Rules, worker: Worker, reply: Reply) -> Worker:
    return _at(replace(worker, lease=None), "timed_out")


def _publish_address(rules: Rules, worker: Worker, reply: Reply) -> Worker:
    return replace(worker, pc=MEMBER)


def _await_address(rules: Rules, worker: Worker, reply: Reply) -> Worker:
    assert isinstance(reply, Snapshot)
    if reply.found:
        return replace(worker, pc=MEMBER, seen=None)
    if not rules.address_watched:
        return worker if reply.value is None else replace(worker, pc=MEMBER, seen=None)
    document = _read(reply.value)
    if document is not None and document.status == CLOSED:
        return _at(worker, "closed", version=worker.version)
    if _expected(worker, document, FINAL) and not reply.missing:
        return replace(worker, seen=reply.value)
    return reenter(rules, worker, worker.id)


def _wait(rules: Rules, worker: Worker, reply: Reply) -> Worker:
    return _enter(rules, worker) if rules.reread else _dispatch(rules, worker, _value(reply))


def _close_read(rules: Rules, worker: Worker, reply: Reply) -> Worker:
    text = _value(reply)
    if text is not None and docs.parse(text).status == CLOSED:
        return _at(worker, "closed")
    if text is None:
        return _at(worker, "close_create" if rules.closing_always_closes else "fatal")
    return _at(worker, "close", seen=text)


def _close(rules: Rules, worker: Worker, reply: Reply) -> Worker:
    return _at(worker, "closed" if isinstance(reply, Done) else "close_read")


def _reads(
    decide: Callable[[Rules, Worker, str | None], Worker],
) -> Callable[[Rules, Worker, Reply], Worker]:
    return lambda rules, worker, reply: decide(rules, worker, _value(reply))


def _waits(
    decide: Callable[[Rules, Worker, str | None, tuple[str, ...]], Worker],
) -> Callable[[Rules, Worker, Reply], Worker]:
    return lambda rules, worker, reply: decide(rules, worker, _value(reply), _missing(reply))


# --- the table -----------------------------------------------------------------------------------------------------


class Row(NamedTuple):
    """One line of the worker's table: its action's name, its next request, what it does with the reply, and why."""

    action: str
    want: Callable[[Rules, Worker], Request]
    react: Callable[[Rules, Worker, Reply], Worker]
    about: str


TABLE: dict[str, Row] = {
    "init": Row("InitCounter", lambda r, w: Create(counter(r), "0"), _init, "making the version counter"),
    "create": Row(
        "Create",
        lambda r, w: Create(active(r), wants.setup_text(r, w), r.setup_ttl),
        _create,
        "trying to start a new version",
    ),
    "read": Row("Read", wants.get, _reads(_on_init_read), "looking at the current version"),
    "wait": Row(
        "Wait",
        lambda r, w: Await(active(r), seen_text(w)),
        _wait,
        "waiting until the version in the making can be joined",
    ),
    "counter": Row("ReadCounter", lambda r, w: Get(counter(r)), _counter, "reading the version counter"),
    "recount": Row(
        "Recount",
        lambda r, w: Create(counter(r), str(w.version)),
        _recount,
        "making the version counter, above every number that was ever used",
    ),
    "bump": Row("Bump", wants.bump, _bump, "taking the next version number"),
    "mkdir": Row(
        "MakeDirectory", lambda r, w: Mkdir(directory(r, w.version)), _mkdir, "making the version's directory"
    ),
    "publish": Row("Publish", wants.publish, _publish, "opening the version for joining"),
    "register": Row(
        "Register",
        lambda r, w: Put(keep_alive(r, w), w.id, r.keep_alive_ttl),
        _register,
        "leasing a keep-alive before joining",
    ),
    "join_read": Row("JoinRead", wants.get, _reads(_on_join_read), "reading before joining"),
    "join": Row("Join", wants.join, _join, "joining"),
    "peers_read": Row("PeersRead", wants.get, _reads(_on_peers), "looking for peers"),
    "peers": Row("AwaitPeers", wants.await_change, _waits(_on_peers), "waiting for peers"),
    "freeze": Row("Freeze", wants.freeze, _freeze, "ending the last call"),
    "confirm_read": Row("ConfirmRead", wants.get, _reads(_on_confirm_read), "reading before confirming"),
    "keep_alive": Row(
        "KeepAlive",
        lambda r, w: Put(keep_alive(r, w), "", r.keep_alive_ttl),
        _keep_alive,
        "leasing a keep-alive before confirming",
    ),
    "confirm": Row("Confirm", wants.confirm, _confirm, "confirming"),
    "final_read": Row("FinalRead", wants.get, _reads(_on_wait_final), "looking for the final state"),
    "wait_final": Row("AwaitFinal", wants.await_change, _waits(_on_wait_final), "waiting for confirmations"),
    "announce_read": Row("AnnounceRead", wants.get, _reads(_on_announce_read), "reading before announcing"),
    "queue": Row(
        "Queue", lambda r, w: Put(waiter_key(r, w), w.id, r.keep_alive_ttl), _queue, "leasing a place in the queue"
    ),
    "announce": Row("Announce", wants.announce, _announce, "asking the members to let this worker in"),
    "monitor_read": Row("MonitorRead", wants.get, _reads(_on_monitor), "looking at the running version"),
    "alive": Row(
        "CheckAlive", lambda r, w: List(directory(r, w.version)), _alive, "checking that all members are alive"
    ),
    "monitor": Row("Monitor", wants.await_change, _waits(_on_monitor), "waiting for the running version to end"),
    "foreign": Row(
        "AwaitOthers", wants.await_change, _waits(_on_foreign), "waiting whether workers with other bounds are alive"
    ),
    "destroy": Row("Destroy", lambda r, w: Cad(active(r), seen_text(w)), _destroy, "removing a version that is void"),
    "publish_address": Row(
        "PublishAddress",
        lambda r, w: Put(address(r, w), ""),
        _publish_address,
        "publishing the address of rank 0",
    ),
    "await_address": Row("AwaitAddress", wants.await_address, _await_address, "waiting for the address of rank 0"),
    "leave": Row("Leave", wants.delete, _leave, "giving up the old lease"),
    "withdraw": Row("Withdraw", wants.delete, _withdraw, "giving up after the timeout"),
    "close_read": Row("CloseRead", wants.get, _close_read, "looking at the current version to close it"),
    "close": Row("Close", wants.close, _close, "closing the run"),
    "close_create": Row(
        "CloseCreate",
        lambda r, w: Create(active(r), docs.render(docs.close(None)), wants.closed_ttl(r)),
        _close,
        "closing an empty run",
    ),
}
"""The worker's table: state of the machine -> request, reaction, description."""


def want(rules: Rules, worker: Worker) -> Request:
    """The next request. The worker must not have ended."""
    return TABLE[worker.pc].want(rules, worker)


def step(rules: Rules, worker: Worker, reply: Reply) -> Worker:
    """The worker after the reply to ``want``."""
    return TABLE[worker.pc].react(rules, worker, reply)


# --- events -----------------------------------------------------------------------------------------------------


def last_call_over(worker: Worker) -> Worker:
    """The last call's time is up (only for its owner)."""
    return _at(worker, "freeze", seen=worker.seen, version=worker.version, rank=worker.rank)


def awaits_others(worker: Worker) -> bool:
    """Workers with other bounds are in the way; they may be dead until each of their leases has outlived a TTL."""
    return worker.pc == "foreign"


def others_stay(worker: Worker) -> Worker:
    """They are alive (only for who waits for that)."""
    return _at(worker, "mismatch", seen=worker.seen, version=worker.version)


def deadline(rules: Rules, worker: Worker) -> Worker:
    """The time for the whole rendezvous is up: leave no trace, then give up (at once if that takes too long, too)."""
    if worker.pc == "await_address" and not rules.address_watched:
        return replace(worker, pc="fatal")
    if worker.lease is not None and rules.leave_at_once and worker.pc != "withdraw":
        return _at(worker, "withdraw")
    return _at(replace(worker, lease=None), "timed_out")


def fresh(rules: Rules, new_id: str) -> Worker:
    """A worker that has done nothing yet."""
    return Worker(new_id, "init" if rules.reread else "create")


def reenter(rules: Rules, worker: Worker, new_id: str) -> Worker:
    """A member starts over (its agent called next_rendezvous again), under a new id.

    In a mixed version it only stops to renew its keep-alive: until that has run out, PyTorch's members can count it
    among the waiting; once it is gone, nothing ever tells them (L-W).
    """
    return _enter(rules, replace(worker, id=new_id, lease=None if worker.mixed else worker.lease))


def introduce(worker: Worker) -> Worker:
    """A member goes on to agree on the address of rank 0."""
    return replace(worker, pc="publish_address" if worker.rank == 0 else "await_address")


def start_closing(worker: Worker) -> Worker:
    return _at(worker, "close_read")


def notice(rules: Rules, worker: Worker, text: str | None) -> Worker:
    """A member has looked at the document. Once it has seen its version closed, nothing calls it back to meet again,
    also when the closed mark has run out."""
    document = None if text is None else docs.parse(text)
    if worker.pc == MEMBER and rules.closed_expires and _expected(worker, document, CLOSED):
        return _at(worker, "closed", version=worker.version)
    return worker


def cut_off(rules: Rules, worker: Worker) -> Worker:
    """Etcd could not be reached for a while, and some request has failed. Ours is repeated; PyTorch's class starts
    over (L-C), and stops to renew its keep-alive (L-V)."""
    if worker.pc not in ENDED and rules.reread:
        return _enter(rules, worker)
    return worker if rules.tireless_leases else replace(worker, lease=None)


def crash(worker: Worker) -> Worker:
    return Worker(worker.id, "crashed")


def _wrong_bounds(rules: Rules, document: Document) -> str:
    lowest, highest = document.bounds or (0, 0)
    return (
        f"version {document.version} is for {lowest} to {highest} workers, this one asks for "
        f"{rules.min_workers} to {rules.max_workers}"
    )


def reason(rules: Rules, worker: Worker) -> str:
    """What the worker waits for, for logs, errors and status pages."""
    if worker.pc in ("foreign", "mismatch"):
        return _wrong_bounds(rules, docs.parse(seen_text(worker)))
    if worker.pc in ENDED:
        return worker.pc
    about = TABLE[worker.pc].about
    if worker.pc in ("wait", "peers", "wait_final") and worker.seen is not None:
        document = docs.parse(worker.seen)
        if worker.pc == "wait":
            return _wrong_bounds(rules, document) if is_foreign(rules, document) else about
        if worker.pc == "peers":
            return f"{about}: {docs.size(document)} of {rules.min_workers} to {rules.max_workers} are in"
        confirmed = len(set(document.keep_alives or ()))
        return f"{about}: {confirmed} of {docs.size(document)} have confirmed version {document.version}"
    return about
