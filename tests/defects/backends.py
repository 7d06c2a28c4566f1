"""``EtcdRendezvousBackend``, the state register behind torch's dynamic handler, and how torchrun's options reach it."""

from __future__ import annotations

from typing import Any

from rallypoint.defects.record import Observation
from rallypoint.defects.stage import Side, Stage

STATE = "/torch/elastic/rendezvous"


def _backend(stage: Stage, run_id: str = "job") -> Any:
    return stage.side.backend.EtcdRendezvousBackend(stage.client(), run_id, STATE)


def _called(error: BaseException | None, otherwise: object) -> str:
    return repr(otherwise) if error is None else type(error).__name__


def token_of_zero(side: Side) -> Observation:
    """B-B: a token that never was one, and no state."""
    with Stage(side) as stage:
        backend = _backend(stage)
        made = []
        for token in (0, "", b""):
            reply = backend.set_state(b"x", token)
            if reply is not None and reply[2]:
                made.append(token)
            stage.raw("DELETE", f"{STATE}/job")
        seen = f"tokens that created the state: {made}" if made else "no token created the state"
        return Observation(not made, seen)


def foreign_state(side: Side) -> Observation:
    """B-D: text that no backend has written."""
    from torch.distributed.elastic.rendezvous import RendezvousStateError

    with Stage(side) as stage:
        backend = _backend(stage)
        taken = []
        for text in ("@@@@", "", "YQ==%0A", "Y!Q=="):
            stage.raw("PUT", f"{STATE}/job", f"value={text}")
            try:
                taken.append(f"{text!r} -> {backend.get_state()[0]!r}")
            except RendezvousStateError:
                continue
        return Observation(not taken, "read as a state: " + ", ".join(taken) if taken else "each is refused")


def alike_run_ids(side: Side) -> Observation:
    """B-E: run ids with characters that mean something in a URL."""
    with Stage(side) as stage:
        for run_id in ("job?1", "job?2", "job#3"):
            _backend(stage, run_id).set_state(run_id.encode())
        states = [_backend(stage, run_id).get_state()[0].decode() for run_id in ("job?1", "job?2", "job#3")]
        ok = states == ["job?1", "job?2", "job#3"]
        return Observation(ok, f"job?1, job?2 and job#3 hold {', '.join(states)}")


def escaping_run_id(side: Side) -> Observation:
    """B-G: a run id that leads out of the prefix."""
    with Stage(side) as stage:
        try:
            _backend(stage, "../../other/k").set_state(b"x")
        except ValueError:
            return Observation(True, "refused at construction")
        outside = stage.node("/torch/other/k") is not None
        return Observation(not outside, f"the state is at {'/torch/other/k' if outside else 'a key of its own'}")


def vanished_state(side: Side) -> Observation:
    """B-H: the state's key is gone while a token for it is held."""
    with Stage(side) as stage:
        backend = _backend(stage)
        _, token, _ = backend.set_state(b"x")
        stage.raw("DELETE", f"{STATE}/job")
        try:
            reply, error = backend.set_state(b"y", token), None
        except Exception as caught:
            reply, error = None, caught
        return Observation(error is None and reply is None, f"set_state with the old token: {_called(error, reply)}")


def options(side: Side) -> Observation:
    """B-J: torchrun's own timeout, and an option that nobody reads."""
    from torch.distributed.elastic.rendezvous import RendezvousParameters
    from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

    with Stage(side) as stage:

        def make(**config: Any) -> Any:
            return get_rendezvous_handler(
                RendezvousParameters(side.dynamic_name, stage.direct, "job", 1, 1, local_addr="127.0.0.1", **config)
            )

        handler = make(timeout=900)
        join = getattr(handler, "_inner", handler).settings.timeout.join.total_seconds()  # ours wraps upstream's
        try:
            make(keepalive=3)
            unknown = "is dropped"
        except ValueError:
            unknown = "is refused"
        ok = join == 900 and unknown == "is refused"
        return Observation(ok, f"timeout=900 gives {join:.0f} s to join; an unknown option {unknown}")


def life_time(side: Side) -> Observation:
    """B-L: how long a closed state blocks its run id can be said."""
    from torch.distributed.elastic.rendezvous import RendezvousParameters

    with Stage(side) as stage:
        parameters = RendezvousParameters("etcd-v2", stage.direct, "job", 1, 1, ttl=60)
        backend, _ = side.backend.create_backend(parameters)
        backend.set_state(b"closed")
        ttl = (stage.node(f"{STATE}/job") or {}).get("ttl", 0)
        return Observation(0 < ttl <= 60, f"ttl=60: the state stays for {ttl} s")
