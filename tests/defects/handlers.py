"""The legacy handler as its caller sees it: errors, options, time-outs, clocks, logs and events."""

from __future__ import annotations

import json
import logging
import threading
import time
from typing import Any
from unittest import mock

from rallypoint.defects.record import Observation
from rallypoint.defects.stage import ACTIVE, RUN, Attempt, Side, Stage, becomes, writes
from rallypoint.live.proxy import Fault


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
        Attempt(stage.handler(2, 3, keep_alive_ttl=1)._rdzv_impl.rendezvous_barrier)
        assert becomes(lambda: stage.document().get("participants") == [0], 10)
        other = stage.handler(1, 1, endpoint=stage.proxy.endpoint, timeout=8, keep_alive_ttl=1)
        before = len(stage.proxy.seen())
        attempt = Attempt(other._rdzv_impl.rendezvous_barrier)
        assert attempt.ended(16)
        tries = sum(one.form.get("prevExist") == "false" for one in stage.proxy.seen()[before:])
        named = attempt.error is not None and not isinstance(attempt.error, RendezvousTimeoutError)
        return Observation(named and attempt.seconds < 5, f"{tries} attempts, {attempt.told()}")


def unequal_minimum(side: Side) -> Observation:
    """L-R: two workers of one run were started with different minima."""
    from torch.distributed.elastic.rendezvous import RendezvousStateError

    ttls: dict[str, Any] = {"joinable_ttl": 2, "last_call_timeout": 1, "keep_alive_ttl": 1}
    with Stage(side) as stage:
        first = Attempt(stage.handler(2, 4, **ttls)._rdzv_impl.rendezvous_barrier)
        assert becomes(lambda: stage.document().get("participants") == [0], 10)
        version = stage.document()["version"]
        second = Attempt(stage.handler(1, 4, **ttls)._rdzv_impl.rendezvous_barrier)
        if second.ended(5) and isinstance(second.error, RendezvousStateError):
            return Observation(True, f"the second is told: {second.told()}")
        met = first.returned(6) and second.returned(1)
        seen = f"met, {first.told()}" if met else f"not met, {first.told()}"
        return Observation(met and first.value[0] == version, f"the first version expires; {seen}")


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


def contended(side: Side) -> Observation:
    """L-AB: somebody else changes the document faster than a worker with a timeout of 3 s can join."""
    text = {"status": "joinable", "version": "1", "participants": []}
    with Stage(side) as stage:
        handler = stage.handler(2, 2, endpoint=stage.proxy.endpoint, timeout=3)
        over = threading.Event()

        def change() -> None:
            number = 0
            while not over.wait(0.03):
                number += 1
                stage.request("PUT", ACTIVE, f"value={json.dumps({**text, 'number': number})}")

        busy = Attempt(change)
        try:
            assert becomes(lambda: bool(stage.document()), 5)
            stage.proxy.order(Fault.DELAY_REQUEST, writes("active_version"), times=1000, seconds=0.15)
            attempt = Attempt(handler._rdzv_impl.rendezvous_barrier)
            ended = attempt.ended(6)
        finally:
            over.set()
            busy.ended(5)
        return Observation(ended, f"timeout=3: {attempt.told()}")


def missing_key(side: Side) -> Observation:
    """R10: the directory of the running version has been removed, and a worker comes."""
    with Stage(side) as stage:
        version = stage.handler(1, 2, last_call_timeout=0)._rdzv_impl.rendezvous_barrier()[0]
        stage.request("DELETE", f"{RUN}/rdzv/v_{version}", recursive=True)
        late = stage.handler(1, 2, endpoint=stage.proxy.endpoint, timeout=4, last_call_timeout=0)
        attempt = Attempt(late._rdzv_impl.rendezvous_barrier)
        assert attempt.ended(12)
        tries = sum(one.form.get("prevExist") == "false" for one in stage.proxy.seen())
        counted = stage.document().get("num_workers_waiting", 0)
        seen = f"{tries} requests to create a key, counted {counted} times as waiting, {attempt.told()}"
        return Observation(attempt.error is None and attempt.seconds < 2, seen)


def woken_by_store(side: Side) -> Observation:
    """L-Y: the members of a running version use its store, while a worker waits to be let in."""
    with Stage(side) as stage:
        member = stage.handler(1, 2)
        version = member._rdzv_impl.rendezvous_barrier()[0]
        store = member._rdzv_impl.setup_kv_store(version)
        store.set("key", "0")
        Attempt(stage.handler(1, 2, endpoint=stage.proxy.endpoint)._rdzv_impl.rendezvous_barrier)
        assert becomes(lambda: bool(member.num_nodes_waiting() == 1), 10)
        assert becomes(lambda: stage.proxy.seen()[-1].form.get("wait") == "true", 5)
        before = len(stage.proxy.seen())
        for number in range(10):
            store.set("key", str(number))
            time.sleep(0.05)
        reads = sum(one.method == "GET" and "wait" not in one.form for one in stage.proxy.seen()[before:])
        return Observation(reads <= 2, f"10 writes to the store, {reads} reads by the waiting worker")


def log_handlers(side: Side) -> Observation:
    """L-Z: what importing the module does to the program's logging."""
    module = logging.getLogger(side.rendezvous.__name__)
    seen = f"{len(module.handlers)} handlers added, propagation {'on' if module.propagate else 'stopped'}"
    return Observation(not module.handlers and module.propagate, seen)


def unheard(side: Side) -> Observation:
    """R88: somebody listens to torch's rendezvous events while a worker meets and closes the run."""
    from torch.distributed.elastic.events import handlers

    heard: list[str] = []
    listener = mock.Mock(spec=logging.Handler, level=logging.INFO)
    listener.handle.side_effect = lambda record: heard.append(json.loads(record.getMessage())["message"])
    with Stage(side) as stage, mock.patch.dict(handlers._log_handlers, {"dynamic_rendezvous": listener}):
        handler = stage.handler(1, 1)
        handler.next_rendezvous()
        handler.set_closed()
    return Observation(len(heard) >= 3, f"{len(heard)} events{': ' + heard[-1] if heard else ''}")


def no_id(side: Side) -> Observation:
    """R05-ETCD: two jobs of one node each, one after the other, both without an id, as torchrun starts them."""
    from torch.distributed.elastic.rendezvous import RendezvousParameters
    from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler
    from torch.distributed.run import get_args_parser

    given = str(get_args_parser().get_default("rdzv_id"))
    with Stage(side) as stage:
        asked = RendezvousParameters(side.backend_name, stage.direct, given, 1, 1, "127.0.0.1", timeout=5)
        first = get_rendezvous_handler(asked)
        first.next_rendezvous()
        first.shutdown()
        second = Attempt(get_rendezvous_handler(asked).next_rendezvous)
        met = second.returned(8)
        return Observation(met, f"the first closes run {given!r}; the second: {'meets' if met else second.told()}")
