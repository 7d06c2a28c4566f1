"""Replies that are lost or late: the request was carried out, and whoever sent it does not know."""

from __future__ import annotations

import datetime

from rallypoint.defects.record import Observation
from rallypoint.defects.stage import Attempt, Side, Stage, becomes, writes
from rallypoint.live.proxy import Exchange, Fault, FaultProxy

SETTLING = 2.0  # seconds for the repetition of a request whose reply was lost


def _dropped(stage: Stage) -> bool:
    return any(one.fault is not None and one.status is not None for one in stage.proxy.seen())


def lost_join(side: Side) -> Observation:
    """L-J: the only worker of a run for two joins, and does not get the reply."""
    with Stage(side) as stage:
        handler = stage.handler(2, 2, endpoint=stage.proxy.endpoint, timeout=5)
        stage.proxy.order(Fault.DROP_REPLY, writes("active_version", '"participants": [0]'))
        Attempt(handler._rdzv_impl.rendezvous_barrier)
        assert becomes(lambda: _dropped(stage), 5)
        becomes(lambda: len(stage.document().get("participants", ())) > 1, SETTLING)
        document = stage.document()
        ranks = document.get("participants", [])
        return Observation(ranks == [0], f"one worker, {document.get('status')}, participants {ranks}")


def lost_confirmation(side: Side) -> Observation:
    """L-K: one worker's confirmation is applied but not answered, the other's is on its way for 1.5 s."""
    with Stage(side) as stage:
        stage.proxy.order(Fault.DROP_REPLY, writes("active_version", '"keep_alives": ["'))
        with FaultProxy(("127.0.0.1", stage.server.get_port())) as slow:
            slow.order(Fault.DELAY_REQUEST, writes("active_version", '"keep_alives": ["'), seconds=1.5)
            handlers = [stage.handler(2, 2, endpoint=one) for one in (stage.proxy.endpoint, slow.endpoint)]
            attempts = [Attempt(handler._rdzv_impl.rendezvous_barrier) for handler in handlers]
            assert becomes(lambda: _dropped(stage), 10)
            becomes(lambda: stage.document().get("status") == "final", 5)
            document = stage.document()
            confirmed, members = document.get("keep_alives", []), document.get("participants", [])
            both = all(attempt.returned(3) for attempt in attempts)
            seen = f"final with {len(set(confirmed))} of {len(members)} confirmed; the others: {attempts[1].told()}"
            if len(set(confirmed)) == len(members) and both:
                seen = f"final when {len(set(confirmed))} of {len(members)} had confirmed, both returned"
            return Observation(len(set(confirmed)) == len(members) and both, seen)


def lost_counter(side: Side) -> Observation:
    """L-L: the reply to the new version number is lost."""
    with Stage(side) as stage:
        handler = stage.handler(1, 1, endpoint=stage.proxy.endpoint)
        stage.proxy.order(Fault.DROP_REPLY, writes("version_counter"))
        attempt = Attempt(handler._rdzv_impl.rendezvous_barrier)
        return Observation(attempt.returned(10) and _dropped(stage), attempt.told())


def lost_announcement(side: Side) -> Observation:
    """L-M: a waiting worker announces itself, and does not get the reply."""
    with Stage(side) as stage:
        member = stage.handler(1, 2)
        member._rdzv_impl.rendezvous_barrier()
        waiter = stage.handler(1, 2, endpoint=stage.proxy.endpoint)
        stage.proxy.order(Fault.DROP_REPLY, writes("active_version", '"num_workers_waiting": 1'))
        Attempt(waiter._rdzv_impl.rendezvous_barrier)
        assert becomes(lambda: _dropped(stage), 10)
        becomes(lambda: bool(member.num_nodes_waiting() > 1), SETTLING)
        count = member.num_nodes_waiting()
        return Observation(count == 1, f"one waiter, num_nodes_waiting = {count}")


def cut_waiter(side: Side) -> Observation:
    """L-C: the connection of a waiting worker is cut while it watches, more often than the client itself retries."""
    with Stage(side) as stage:
        member = stage.handler(1, 2)
        member._rdzv_impl.rendezvous_barrier()
        waiter = stage.handler(1, 2, endpoint=stage.proxy.endpoint)

        def watches(exchange: Exchange) -> bool:
            return exchange.form.get("wait") == "true"

        stage.proxy.order(Fault.DROP_REQUEST, watches, times=8)
        Attempt(waiter._rdzv_impl.rendezvous_barrier)
        assert becomes(lambda: sum(one.fault is not None for one in stage.proxy.seen()) == 8, 15)
        becomes(lambda: bool(member.num_nodes_waiting() > 1), SETTLING)
        count = member.num_nodes_waiting()
        return Observation(count == 1, f"one waiter, 8 cut connections, num_nodes_waiting = {count}")


def late_counter(side: Side) -> Observation:
    """L-O: the request for the new version number is late, and another worker takes over meanwhile."""
    with Stage(side) as stage:
        slow = stage.handler(2, 2, endpoint=stage.proxy.endpoint, setup_ttl=1)
        quick = stage.handler(2, 2, setup_ttl=1)
        stage.proxy.order(Fault.DELAY_REQUEST, writes("version_counter"), seconds=3.5)
        attempt = Attempt(slow._rdzv_impl.rendezvous_barrier)
        stage.proxy.await_seen(lambda one: one.fault is not None)
        other = Attempt(quick._rdzv_impl.rendezvous_barrier)
        return Observation(attempt.returned(12) and other.returned(5), f"the slow one: {attempt.told()}")


def lost_addition(side: Side) -> Observation:
    """S-B: the replies to two additions are lost, the first of which creates the key."""
    with Stage(side) as stage:
        store = side.store.EtcdStore(stage.client(endpoint=stage.proxy.endpoint), "/store")
        stage.proxy.order(Fault.DROP_REPLY, times=1)
        first = store.add("n", 1)
        stage.proxy.order(Fault.DROP_REPLY, times=1)
        second = store.add("n", 1)
        return Observation((first, second) == (1, 2), f"add(1) twice from nothing: {first}, {second}")


def lost_state(side: Side) -> Observation:
    """B-A: the reply to a write of the state is lost."""
    with Stage(side) as stage:
        client = stage.client(endpoint=stage.proxy.endpoint)
        backend = side.backend.EtcdRendezvousBackend(client, "job", "/state")
        _, token, _ = backend.set_state(b"one")
        stage.proxy.order(Fault.DROP_REPLY)
        state, _, was_set = backend.set_state(b"two", token)
        return Observation((state, was_set) == (b"two", True), f"etcd holds {state!r}, set_state says set = {was_set}")


def late_key(side: Side) -> Observation:
    """S-G: the first key of a store is set between a reader's look and its watch."""
    with Stage(side) as stage:
        limit = datetime.timedelta(seconds=3)
        reader = side.store.EtcdStore(stage.client(endpoint=stage.proxy.endpoint), "/store", limit)
        writer = side.store.EtcdStore(stage.client(), "/store", limit)
        seen = len(stage.proxy.seen())
        stage.proxy.order(Fault.DELAY_REPLY, lambda one: one.method == "GET" and bool(one.key), seconds=0.7)
        attempt = Attempt(lambda: reader.get("k"))
        stage.proxy.await_seen(lambda one: one.number >= seen and one.fault is not None and one.status is not None)
        writer.set("k", "v")
        return Observation(attempt.returned(6), f"get of a key that is there: {attempt.told()}")
