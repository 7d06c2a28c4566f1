"""The legacy handler as its caller sees it: errors, options, time-outs, and clocks."""

from __future__ import annotations

import time
from typing import Any
from unittest import mock

from rallypoint.defects.record import Observation
from rallypoint.defects.stage import Attempt, Side, Stage, becomes


def close_first(side: Side) -> Observation:
    """L-D: the run is closed before anybody has met; then a worker comes."""
    from torch.distributed.elastic.rendezvous import RendezvousClosedError

    with Stage(side) as stage:
        handler = stage.handler(1, 1)
        closing = Attempt(handler.set_closed)
        closing.ended(10)
        late = Attempt(stage.handler(1, 1)._rdzv_impl.rendezvous_barrier)
        late.ended(10)
        ok = closing.error is None and isinstance(late.error, RendezvousClosedError)
        closed = "set_closed done" if closing.error is None else f"set_closed: {type(closing.error).__name__}"
        return Observation(ok, f"{closed}; a worker that comes later: {late.told()}")


def away(side: Side) -> Observation:
    """L-F: etcd is down, and the handler is asked and made."""
    from torch.distributed.elastic.rendezvous import RendezvousError

    with Stage(side) as stage:
        handler = stage.handler(1, 1)
        handler._rdzv_impl.rendezvous_barrier()
        stage.server.kill()
        calls = {
            "is_closed": Attempt(handler.is_closed),
            "num_nodes_waiting": Attempt(handler.num_nodes_waiting),
            "a new handler": Attempt(lambda: stage.handler(1, 1)),
        }
        assert all(attempt.ended(25) for attempt in calls.values())
        raw = [name for name, one in calls.items() if one.error and not isinstance(one.error, RendezvousError)]
        seen = ", ".join(
            f"{name}: {type(one.error).__name__ if one.error else one.value}" for name, one in calls.items()
        )
        return Observation(not raw, seen)


def documented_prefix(side: Side) -> Observation:
    """L-H: ``etcd_prefix="custom_prefix"``, as the documentation of create_rdzv_handler has it."""
    with Stage(side) as stage:
        attempt = Attempt(stage.handler(1, 1, etcd_prefix="custom_prefix").next_rendezvous)
        met = attempt.returned(6)
        return Observation(met, f"next_rendezvous: {'met' if met else attempt.told()}")


def unequal_maximum(side: Side) -> Observation:
    """L-Q: two workers of one run were started with different maxima."""
    from torch.distributed.elastic.rendezvous import RendezvousTimeoutError

    with Stage(side) as stage:
        Attempt(stage.handler(2, 3)._rdzv_impl.rendezvous_barrier)
        assert becomes(lambda: stage.document().get("participants") == [0], 10)
        other = stage.handler(1, 1, endpoint=stage.proxy.endpoint, timeout=4)
        before = len(stage.proxy.seen())
        attempt = Attempt(other._rdzv_impl.rendezvous_barrier)
        assert attempt.ended(12)
        tries = sum(one.form.get("prevExist") == "false" for one in stage.proxy.seen()[before:])
        named = attempt.error is not None and not isinstance(attempt.error, RendezvousTimeoutError)
        return Observation(named and attempt.seconds < 2, f"{tries} attempts, {attempt.told()}")


def unequal_minimum(side: Side) -> Observation:
    """L-R: two workers of one run were started with different minima."""
    ttls: dict[str, Any] = {"joinable_ttl": 2, "last_call_timeout": 1}
    with Stage(side) as stage:
        first = Attempt(stage.handler(2, 4, **ttls)._rdzv_impl.rendezvous_barrier)
        assert becomes(lambda: stage.document().get("participants") == [0], 10)
        second = Attempt(stage.handler(1, 4, **ttls)._rdzv_impl.rendezvous_barrier)
        met = first.returned(9) and second.returned(1)
        seen = f"met, {first.told()}" if met else f"not met, {first.told()}"
        return Observation(met and first.value[0] == "1", f"the first version expires; {seen}")


def extra_data(side: Side) -> Observation:
    """L-T: extra data that nobody publishes, awaited for 1 s."""
    with Stage(side) as stage:
        rendezvous = stage.handler(1, 1)._rdzv_impl
        version = rendezvous.rendezvous_barrier()[0]
        attempt = Attempt(lambda: rendezvous.load_extra_data(version, "key", timeout=1))
        attempt.ended(4)
        return Observation(attempt.error is not None and attempt.seconds < 3, f"timeout=1: {attempt.told()}")


def clock_step(side: Side) -> Observation:
    """L-U: the wall clock is put forward by an hour while a worker waits for its peer (injected: time.time)."""
    with Stage(side) as stage:
        first = Attempt(stage.handler(2, 2)._rdzv_impl.rendezvous_barrier)
        assert becomes(lambda: stage.document().get("participants") == [0], 10)
        now = time.time
        with mock.patch("time.time", side_effect=lambda: now() + 3600):
            second = Attempt(stage.handler(2, 2)._rdzv_impl.rendezvous_barrier)
            met = first.returned(8) and second.returned(2)
        return Observation(met, f"timeout 20 s, the clock steps: {'both met' if met else first.told()}")


def advertised_address(side: Side) -> Observation:
    """P-A: etcd advertises an address that cannot be reached from here, and is away for a moment."""
    with Stage(side, advertised="http://127.0.0.1:9") as stage:
        handler = stage.handler(1, 2)
        handler._rdzv_impl.rendezvous_barrier()
        stage.server.kill()
        during = Attempt(handler.is_closed)
        assert during.ended(25)
        stage.server.start()
        after = Attempt(handler.num_nodes_waiting)
        after.ended(15)
        count = after.value if after.error is None else after.told()
        return Observation(after.error is None, f"etcd is back at the configured address: num_nodes_waiting = {count}")
