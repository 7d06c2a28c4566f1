"""torch's dynamic handler, as ``etcd-v2`` and as ``rallypoint-etcd-v2`` make it."""

from __future__ import annotations

import base64
import os
import pickle
import tempfile
import time
from typing import Any
from urllib.parse import quote

from rallypoint.defects.backends import STATE
from rallypoint.defects.record import Observation
from rallypoint.defects.stage import Attempt, Side, Stage, becomes


def _handler(
    stage: Stage, min_nodes: int = 1, max_nodes: int = 2, *, address: str = "127.0.0.1", attempts: int = 2
) -> Any:
    """A node that counts as lost so many seconds after its last heartbeat."""
    from torch.distributed.elastic.rendezvous import RendezvousParameters
    from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

    config = {"keep_alive_interval": 1, "keep_alive_max_attempt": attempts, "last_call_timeout": 1, "read_timeout": 2}
    return get_rendezvous_handler(
        RendezvousParameters(
            stage.side.dynamic_name, stage.direct, "job", min_nodes, max_nodes, local_addr=address, **config
        )
    )


def _inner(handler: Any) -> Any:
    """Upstream's handler; ours wraps it."""
    return getattr(handler, "_inner", handler)


def lost_member(side: Side) -> Observation:
    """D-K: one of two members is lost (its heartbeats end)."""
    with Stage(side) as stage:
        handlers = [_handler(stage, 2, 2) for _ in range(2)]
        meetings = [Attempt(handler.next_rendezvous) for handler in handlers]
        assert all(meeting.returned(20) for meeting in meetings)
        _inner(handlers[1])._stop_heartbeats()
        told = becomes(lambda: bool(handlers[0].num_nodes_waiting() > 0), 6)
        count = handlers[0].num_nodes_waiting()
        _inner(handlers[0])._stop_heartbeats()
        return Observation(told, f"6 s after the last heartbeat (limit 2 s) num_nodes_waiting = {count}")


def lost_state(side: Side) -> Observation:
    """D-E: the shared state is lost, by its TTL or with etcd's data."""
    with Stage(side) as stage:
        handler = _handler(stage)
        assert Attempt(handler.next_rendezvous).returned(20)
        stage.raw("DELETE", f"{STATE}/job")
        told = becomes(lambda: bool(handler.num_nodes_waiting() > 0), 4)
        count = handler.num_nodes_waiting()
        _inner(handler)._stop_heartbeats()
        return Observation(told, f"4 s later the member's num_nodes_waiting = {count}")


def lost_rank_0(side: Side) -> Observation:
    """D-B: the first of three members is lost, and the others meet again."""
    with Stage(side) as stage:
        handlers = [_handler(stage, 1, 3, address=f"127.0.0.{number}") for number in (1, 2, 3)]
        meetings = [Attempt(handler.next_rendezvous) for handler in handlers]
        assert all(meeting.returned(20) for meeting in meetings)
        lost, *others = handlers
        _inner(lost)._stop_heartbeats()
        time.sleep(3)  # longer than the limit of 2 s
        meetings = [Attempt(handler.next_rendezvous) for handler in others]
        assert all(meeting.returned(30) for meeting in meetings), [meeting.told() for meeting in meetings]
        infos = [meeting.value.bootstrap_store_info for meeting in meetings]
        for handler in others:
            _inner(handler)._stop_heartbeats()
        addresses = [f"{info.master_addr}:{info.master_port}" for info in infos]
        return Observation(len(set(addresses)) == 1, f"the two that are left go to {', '.join(addresses)}")


def foreign_text(side: Side) -> Observation:
    """D-F: for the time of two heartbeats the key holds text that is no state."""
    with Stage(side) as stage:
        handler = _handler(stage, attempts=15)
        assert Attempt(handler.next_rendezvous).returned(20)
        node = stage.node(f"{STATE}/job")
        assert node is not None
        stage.raw("PUT", f"{STATE}/job", "value=@@@@")
        time.sleep(2.2)
        stage.raw("PUT", f"{STATE}/job", f"value={quote(node['value'], safe='')}")
        restored = (stage.node(f"{STATE}/job") or {})["modifiedIndex"]

        def renewed() -> bool:
            return bool((stage.node(f"{STATE}/job") or {}).get("modifiedIndex", 0) > restored)

        alive = becomes(renewed, 5)
        _inner(handler)._stop_heartbeats()
        return Observation(alive, f"the member's heartbeats {'go on' if alive else 'have ended for good'}")


def hung_server(side: Side) -> Observation:
    """D-I: etcd is stopped (SIGSTOP) under a member with a read timeout of 2 s, whose agent asks for waiting nodes."""
    with Stage(side) as stage:
        handler = _handler(stage)
        assert Attempt(handler.next_rendezvous).returned(20)
        _inner(handler)._stop_heartbeats()
        time.sleep(1.2)  # upstream answers from what it has read within the last second
        stage.server.pause()
        try:
            attempt = Attempt(handler.num_nodes_waiting)
            attempt.ended(20)
        finally:
            stage.server.resume()
        return Observation(attempt.ended(0) and attempt.seconds < 3, f"num_nodes_waiting: {attempt.told()}")


class _Marker:
    """Loading its pickle makes a directory."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (self.path,)


def foreign_pickle(side: Side) -> Observation:
    """D-L: somebody else writes a pickle that runs code (here: mkdir) when it is loaded."""
    with Stage(side) as stage, tempfile.TemporaryDirectory() as place:
        path = os.path.join(place, "ran")
        text = base64.b64encode(pickle.dumps(_Marker(path))).decode()
        stage.raw("PUT", f"{STATE}/job", f"value={quote(text, safe='')}")
        attempt = Attempt(_handler(stage).is_closed)
        attempt.ended(10)
        ran = os.path.exists(path)
        return Observation(not ran, "is_closed ran the code" if ran else f"is_closed: {attempt.told()}")
