"""The requests of a participant that depend on what it has seen.

May live here: one function for each such request. Must not live here: when it is made (``worker.TABLE``).
"""

from __future__ import annotations

from rallypoint.model import document as docs
from rallypoint.model.document import FINAL, FROZEN
from rallypoint.model.etcd import Await, Cas, Delete, Get, Request
from rallypoint.model.participant import Worker, address, keep_alive, owner_name, seen_text, watched_keys
from rallypoint.model.rules import Rules, active, counter


def setup_text(rules: Rules, worker: Worker) -> str:
    return docs.render(docs.setup(owner_name(rules, worker)))


def get(rules: Rules, worker: Worker) -> Request:
    return Get(active(rules))


def bump(rules: Rules, worker: Worker) -> Request:
    assert worker.version is not None
    return Cas(counter(rules), str(worker.version - 1), str(worker.version))


def publish(rules: Rules, worker: Worker) -> Request:
    assert worker.version is not None
    bounds = (rules.min_workers, rules.max_workers) if rules.bounds_agreed else None
    text = docs.render(docs.publish(worker.version, bounds))
    return Cas(active(rules), setup_text(rules, worker), text)


def join(rules: Rules, worker: Worker) -> Request:
    document = docs.join(docs.parse(seen_text(worker)), owner_name(rules, worker), rules.max_workers)
    ttl = None
    if document.status == FROZEN:
        ttl = rules.frozen_ttl
    elif docs.size(document) >= rules.min_workers:
        ttl = rules.joinable_ttl
    return Cas(active(rules), seen_text(worker), docs.render(document), ttl)


def freeze(rules: Rules, worker: Worker) -> Request:
    text = docs.render(docs.freeze(docs.parse(seen_text(worker))))
    return Cas(active(rules), seen_text(worker), text, rules.frozen_ttl)


def confirm(rules: Rules, worker: Worker) -> Request:
    confirmed = docs.confirm(docs.parse(seen_text(worker)), keep_alive(rules, worker), once=rules.idempotent_confirm)
    ttl = None if confirmed.status == FINAL else rules.frozen_ttl
    return Cas(active(rules), seen_text(worker), docs.render(confirmed), ttl)


def announce(rules: Rules, worker: Worker) -> Request:
    me = worker.id if rules.counted_once else None
    return Cas(active(rules), seen_text(worker), docs.render(docs.announce(docs.parse(seen_text(worker)), me)))


def await_change(rules: Rules, worker: Worker) -> Request:
    return Await(active(rules), seen_text(worker), watched_keys(rules, docs.parse(seen_text(worker))))


def await_address(rules: Rules, worker: Worker) -> Request:
    if not rules.address_watched:
        return Await(address(rules, worker), None)
    watched = () if worker.seen is None else watched_keys(rules, docs.parse(worker.seen))
    return Await(active(rules), worker.seen, watched, address(rules, worker))


def delete(rules: Rules, worker: Worker) -> Request:
    assert worker.lease is not None
    return Delete(worker.lease)


def close(rules: Rules, worker: Worker) -> Request:
    text = docs.render(docs.close(docs.parse(seen_text(worker))))
    return Cas(active(rules), seen_text(worker), text, closed_ttl(rules))


def closed_ttl(rules: Rules) -> float | None:
    return rules.closed_ttl if rules.closed_expires else None
