"""``EtcdStore``."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable
from typing import Any

from rallypoint.defects.record import Observation
from rallypoint.defects.stage import Attempt, Side, Stage


def _store(stage: Stage, prefix: str = "/store", seconds: float = 2, **client: Any) -> Any:
    limit = datetime.timedelta(seconds=seconds)
    return stage.side.store.EtcdStore(stage.client(**client), prefix, limit)


def plain_prefix(side: Side) -> Observation:
    """S-A: a prefix without leading slash."""
    with Stage(side) as stage:
        store = _store(stage, "jobs/store")
        store.set("k", "v")
        there = store.check(["k"])
        return Observation(there, f"set, then check: {there}")


def slash_in_base64(side: Side) -> Observation:
    """S-F: keys whose base64 holds a slash."""
    with Stage(side) as stage:
        store = _store(stage, seconds=1)
        seen = []
        for key in (b"ab?", b"\xff\xff\xff"):
            attempt = Attempt(lambda key=key: (store.set(key, b"v"), store.get(key))[1])  # type: ignore[misc]
            attempt.ended(5)
            seen.append((key, attempt))
        ok = all(attempt.value == b"v" for _, attempt in seen)
        return Observation(
            ok,
            "set and get of "
            + ", ".join(
                f"{key!r}: {attempt.value if attempt.error is None else type(attempt.error).__name__}"
                for key, attempt in seen
            ),
        )


def cost_of_get(side: Side) -> Observation:
    """S-I: what one get reads from a store of 300 keys of 1 kB."""
    with Stage(side) as stage:
        writer = _store(stage, seconds=30)
        for number in range(300):
            writer.set(f"k{number}", b"x" * 1000)
        reader = _store(stage, endpoint=stage.proxy.endpoint)
        before = len(stage.proxy.seen())
        assert len(reader.get("k7")) == 1000
        reads = [one.key for one in stage.proxy.seen()[before:] if one.key]
        size = sum(len(stage.raw("GET", key)) for key in reads)
        return Observation(size < 10_000, f"one get of 1 kB among 300 keys reads {size:,} bytes")


def prefix_store(side: Side) -> Observation:
    """S-J: an EtcdStore that only a PrefixStore refers to."""
    from torch.distributed.distributed_c10d import PrefixStore

    with Stage(side) as stage:
        store = PrefixStore("p", _store(stage))

        def set_and_get() -> Any:
            store.set("k", "v")
            return store.get("k")

        attempt = Attempt(set_and_get)
        attempt.ended(5)
        return Observation(attempt.value == b"v", f"set and get through PrefixStore: {attempt.told()}")


def hung_server(side: Side) -> Observation:
    """S-L: etcd is stopped (SIGSTOP) under a store with a timeout of 1 s."""
    import torch.distributed as dist

    with Stage(side) as stage:
        store = _store(stage, seconds=1, read_timeout=2)
        store.set("k", "v")
        stage.server.pause()
        try:
            attempt = Attempt(lambda: store.get("k"))
            assert attempt.ended(20)
        finally:
            stage.server.resume()
        ok = attempt.seconds < 2.5 and isinstance(attempt.error, dist.DistStoreError)
        return Observation(ok, f"timeout 1 s: {type(attempt.error).__name__} after {attempt.seconds:.1f} s")


def whole_interface(side: Side) -> Observation:
    """S-M: the methods that other stores have."""
    with Stage(side) as stage:
        store = _store(stage)
        store.set("a", "1")
        calls: dict[str, Callable[[], Any]] = {
            "compare_set": lambda: store.compare_set("a", "1", "2"),
            "append": lambda: store.append("a", "3"),
            "num_keys": store.num_keys,
            "clone": store.clone,
            "delete_key": lambda: store.delete_key("a"),
            "queue_push": lambda: store.queue_push("q", "1"),
        }
        missing = []
        for name, call in calls.items():
            try:
                call()
            except (RuntimeError, NotImplementedError, AttributeError):
                missing.append(name)
        return Observation(not missing, f"missing: {', '.join(missing)}" if missing else "all of them work")


def kinds_of_text(side: Side) -> Observation:
    """S-N: keys and values that are str, bytes or bytearray, or of a class derived from str or bytes."""

    class Name(str):
        __slots__ = ()

    class Data(bytes):
        __slots__ = ()

    with Stage(side) as stage:
        store, refused = _store(stage), []
        for text in (Name("a"), Data(b"b"), bytearray(b"c")):
            try:
                store.set(text, text)
                assert store.get(text) == (text.encode() if isinstance(text, str) else text)
            except (TypeError, ValueError):
                refused.append(type(text).__name__)
        seen = f"refused, unlike in TCPStore: {', '.join(refused)}" if refused else "all are taken, as in TCPStore"
        return Observation(not refused, seen)


def old_run(side: Side) -> Observation:
    """S-C: the state of a run is gone (by its TTL), and the next run with that id starts at round 0."""
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.elastic.rendezvous import RendezvousParameters

    with Stage(side) as stage:
        parameters = RendezvousParameters("etcd-v2", stage.direct, "job", 1, 2, read_timeout=10)
        backend, whole = side.backend.create_backend(parameters)
        backend.set_state(b"round 0 of the first run")
        PrefixStore("torch.rendezvous.job.0", whole).set("MASTER_ADDR", "192.0.2.1")
        stage.raw("DELETE", "/torch/elastic/rendezvous/job")
        time.sleep(0.05)
        backend, again = side.backend.create_backend(parameters)
        backend.set_state(b"round 0 of the second run")
        stale = PrefixStore("torch.rendezvous.job.0", again).check(["MASTER_ADDR"])
        return Observation(not stale, f"the second run finds the first one's MASTER_ADDR: {stale}")
