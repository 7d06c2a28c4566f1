"""Time-to-live: who keeps a key, who notices that one is gone, and how long anybody has to wait for that."""

from __future__ import annotations

import json
import time
from typing import Any

from rallypoint.defects.record import Observation
from rallypoint.defects.stage import ACTIVE, RUN, Attempt, Side, Stage, becomes


def run_directory(side: Side) -> Observation:
    """L-A: a member works for longer than the TTL of the run's directory (7200 s, here 2); then a newcomer comes."""
    with Stage(side) as stage:
        member = stage.handler(1, 2, run_ttl=2)
        first = member._rdzv_impl.rendezvous_barrier()
        time.sleep(4.5)  # etcd sweeps directories every 0.5 s; upstream's thread would have renewed it four times
        newcomer = Attempt(stage.handler(1, 2, run_ttl=60)._rdzv_impl.rendezvous_barrier)
        told = becomes(lambda: bool(member.num_nodes_waiting() > 0), 3)
        newcomer.ended(1)
        if newcomer.value is not None:
            return Observation(False, f"member holds {first}, newcomer is handed {newcomer.value}, member told: {told}")
        return Observation(told, f"the newcomer waits behind {first}, member told: {told}")


def foreign_run_directory(side: Side) -> Observation:
    """L-A-MIXED: the same, but the directory was made by an upstream worker, so that it does expire."""
    with Stage(side) as stage:
        stage.request("PUT", RUN, "dir=true&ttl=2&prevExist=false")
        member = stage.handler(1, 2, run_ttl=60)
        first = member._rdzv_impl.rendezvous_barrier()
        gone = becomes(lambda: stage.node(ACTIVE) is None, 8)
        assert gone
        told = member.num_nodes_waiting() > 0
        again = Attempt(member._rdzv_impl.rendezvous_barrier)
        numbered_above = again.returned(8) and int(again.value[0]) > int(first[0])
        return Observation(told and numbered_above, f"member told: {told}; meeting again: {again.told()}")


def dead_waiter(side: Side) -> Observation:
    """L-B: a waiting worker is killed."""
    with Stage(side, participants=1) as stage:
        member = stage.handler(1, 2, keep_alive_ttl=2)
        member._rdzv_impl.rendezvous_barrier()
        waiter = stage.participants[0]
        waiter.order("rendezvous_barrier", stage.direct, 1, 2, keep_alive_ttl=2)
        assert becomes(lambda: bool(member.num_nodes_waiting() == 1), 10)
        waiter.kill()
        started = time.monotonic()
        forgotten = becomes(lambda: bool(member.num_nodes_waiting() == 0), 5)
        seconds, count = time.monotonic() - started, member.num_nodes_waiting()
        return Observation(forgotten, f"{seconds:.1f} s after it was killed num_nodes_waiting = {count} (TTL 2 s)")


def spare(side: Side) -> Observation:
    """R63: a worker waits for which there is no room; is the healthy member called back to meet again?"""
    with Stage(side) as stage:
        member = stage.handler(1, 1)
        member._rdzv_impl.rendezvous_barrier()
        waiting = Attempt(stage.handler(1, 1)._rdzv_impl.rendezvous_barrier)
        announced = becomes(lambda: stage.document().get("num_workers_waiting") == 1, 10)
        assert announced
        assert not waiting.returned(0)
        count = member.num_nodes_waiting()
        return Observation(count == 0, f"all places are taken, one worker waits: num_nodes_waiting = {count}")


def closed_mark(side: Side) -> Observation:
    """L-E: how long a closed run keeps its id from being used again."""
    with Stage(side) as stage:
        handler = stage.handler(1, 1)
        handler._rdzv_impl.rendezvous_barrier()
        handler.set_closed()
        ttl = (stage.node(ACTIVE) or {}).get("ttl")
        return Observation(ttl is not None, f"the closed mark has {'no TTL' if ttl is None else f'a TTL of {ttl} s'}")


def dead_participant(side: Side) -> Observation:
    """L-N: a worker that has joined is killed before the minimum is reached; later two others come."""
    ttls: dict[str, Any] = {"keep_alive_ttl": 2, "frozen_ttl": 5}
    with Stage(side, participants=1) as stage:
        early = stage.participants[0]
        early.order("rendezvous_barrier", stage.direct, 2, 2, **ttls)
        assert becomes(lambda: stage.document().get("participants") == [0], 10)
        early.kill()
        time.sleep(3.5)
        first = Attempt(stage.handler(2, 2, **ttls)._rdzv_impl.rendezvous_barrier)
        time.sleep(1)
        ghost = stage.document().get("participants") == [0, 1]
        second = Attempt(stage.handler(2, 2, **ttls)._rdzv_impl.rendezvous_barrier)
        met = first.returned(15) and second.returned(5)
        seen = f"{'one live worker froze the version with the dead one; ' if ghost else ''}two met {second.told()}"
        return Observation(met and not ghost and second.seconds < 3, seen)


def voluntary_restart(side: Side) -> Observation:
    """L-P: all four members meet again, of their own will, on an idle etcd."""
    with Stage(side) as stage:
        handlers = [stage.handler(4, 4) for _ in range(4)]
        took = []
        for _ in range(2):
            started = time.monotonic()
            attempts = [Attempt(handler._rdzv_impl.rendezvous_barrier) for handler in handlers]
            assert all(attempt.returned(20) for attempt in attempts)
            took.append(time.monotonic() - started)
        return Observation(took[1] < 2, f"4 workers met in {took[0]:.2f} s, and again in {took[1]:.2f} s")


def outage(side: Side) -> Observation:
    """L-V: etcd is killed right after a renewal and comes back before the keep-alive (TTL 5 s) runs out."""
    with Stage(side) as stage:
        member = stage.handler(1, 1, endpoint=stage.proxy.endpoint, keep_alive_ttl=5)
        member._rdzv_impl.rendezvous_barrier()
        key = json.loads((stage.node(ACTIVE) or {})["value"])["keep_alives"][0]
        before = len(stage.proxy.seen())
        stage.proxy.await_seen(
            lambda one: (
                one.number >= before
                and one.form.get("refresh") == "true"
                and one.status == 200
                and one.key.endswith(key.rsplit("/", 1)[1])
            )
        )
        stage.restart(2.8)
        here = stage.node(key) is not None
        assert here
        lost = becomes(lambda: stage.node(key) is None, 7)
        again = f"the keep-alive {'is gone 5 s later' if lost else 'is still renewed 7 s later'}"
        return Observation(not lost, f"outage of 3 s survived by the key; {again}")


def superseded(side: Side) -> Observation:
    """L-W: a member is paused for longer than its TTL, and a newcomer forms the next version without it."""
    with Stage(side, participants=1) as stage:
        member = stage.participants[0]
        member.order("rendezvous_barrier", stage.direct, 1, 2, keep_alive_ttl=2)
        first = member.answer(10)
        member.pause()
        newcomer = Attempt(stage.handler(1, 2, keep_alive_ttl=2)._rdzv_impl.rendezvous_barrier)
        assert newcomer.returned(10)
        member.resume()
        member.order("num_nodes_waiting")
        count = member.answer(15)
        seen = f"member of version {first[0]}, version {newcomer.value[0]} runs: its num_nodes_waiting = {count}"
        return Observation(isinstance(count, int) and count > 0, seen)


def lost_before_bootstrap(side: Side) -> Observation:
    """L-S: rank 0 is killed after the version is final and before it has published its address."""
    with Stage(side, participants=1) as stage:
        zero = stage.participants[0]
        zero.order("rendezvous_barrier", stage.direct, 2, 2, keep_alive_ttl=2)
        assert becomes(lambda: stage.document().get("participants") == [0], 10)
        survivor = Attempt(stage.handler(2, 2, keep_alive_ttl=2).next_rendezvous)
        assert zero.answer(10)[1] == 0
        zero.kill()
        newcomer = Attempt(stage.handler(2, 2, keep_alive_ttl=2).next_rendezvous)
        met = survivor.returned(8) and newcomer.returned(3)
        if met:
            info = survivor.value
            return Observation(True, f"met again: rank {info.rank} of {info.world_size} after {survivor.seconds:.1f} s")
        return Observation(False, f"the survivor waits for MASTER_ADDR: {survivor.told()}")


def last_call(side: Side) -> Observation:
    """L-X: a worker waits out the last call alone, on an etcd that advertises the very address it was given."""
    with Stage(side) as stage:
        attempt = Attempt(stage.handler(1, 2, endpoint=stage.proxy.endpoint)._rdzv_impl.rendezvous_barrier)
        attempt.ended(14)
        ranks = stage.document().get("participants", [])
        seen = f"one worker, participants {ranks}: {attempt.told()}"
        return Observation(attempt.returned(0) and attempt.value[1:] == (0, 1) and ranks == [0], seen)


def late_worker(side: Side) -> Observation:
    """L-I: with a prefix without slash, a late worker looks whether the members are alive."""
    with Stage(side) as stage:
        member = stage.handler(1, 2, etcd_prefix="jobs")
        first = member._rdzv_impl.rendezvous_barrier()
        late = Attempt(stage.handler(1, 2, etcd_prefix="jobs")._rdzv_impl.rendezvous_barrier)
        late.ended(4)
        if late.value is not None:
            return Observation(False, f"version {first[0]} is healthy, yet version {late.value[0]} formed beside it")
        count = member.num_nodes_waiting()
        return Observation(count == 1, f"the late worker waits, num_nodes_waiting = {count}")


def returning_member(side: Side) -> Observation:
    """R03: one of two members meets again, to let in the one worker that waits."""
    with Stage(side) as stage:
        handlers = [stage.handler(2, 3, keep_alive_ttl=2, last_call_timeout=0) for _ in range(2)]
        attempts = [Attempt(handler._rdzv_impl.rendezvous_barrier) for handler in handlers]
        assert all(attempt.returned(10) for attempt in attempts)
        Attempt(stage.handler(2, 3, keep_alive_ttl=2, last_call_timeout=0)._rdzv_impl.rendezvous_barrier)
        assert becomes(lambda: bool(handlers[1].num_nodes_waiting() == 1), 10)
        Attempt(handlers[0]._rdzv_impl.rendezvous_barrier)
        more = becomes(lambda: bool(handlers[1].num_nodes_waiting() > 1), 1.5)
        count = handlers[1].num_nodes_waiting()
        return Observation(not more, f"one worker waits, one member meets again: num_nodes_waiting = {count}")


def lost_member(side: Side) -> Observation:
    """R13: one of two members is killed, and nobody else comes."""
    with Stage(side, participants=1) as stage:
        stage.participants[0].order("rendezvous_barrier", stage.direct, 2, 2, keep_alive_ttl=2)
        survivor = stage.handler(2, 2, keep_alive_ttl=2)
        attempt = Attempt(survivor._rdzv_impl.rendezvous_barrier)
        assert attempt.returned(10)
        stage.participants[0].answer(5)
        stage.participants[0].kill()
        started = time.monotonic()
        told = becomes(lambda: bool(survivor.num_nodes_waiting() > 0), 4.5)
        seconds = time.monotonic() - started
        return Observation(
            told, f"{seconds:.1f} s after the loss (TTL 2 s) the survivor is {'' if told else 'not '}told"
        )
