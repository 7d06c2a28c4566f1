"""``EtcdRendezvousBackend``, the state register behind torch's dynamic handler, and how torchrun's options reach it."""

from __future__ import annotations

import base64
import importlib
import sys
import types
from typing import Any

from rallypoint.defects.record import Observation
from rallypoint.defects.stage import PACKAGES, Attempt, Side, Stage
from rallypoint.impl.etcd_server import EtcdServer
from rallypoint.live.proxy import Fault, FaultProxy, is_any

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


def _made(side: Side, endpoint: str, run_id: str = "job", **options: Any) -> Any:
    """What torch makes of a backend's name and these options."""
    from torch.distributed.elastic.rendezvous import RendezvousParameters
    from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

    parameters = RendezvousParameters(side.dynamic_name, endpoint, run_id, 1, 2, local_addr="127.0.0.1", **options)
    return get_rendezvous_handler(parameters)


def _reasons(error: BaseException | None) -> str:
    """The error and what it was raised from, as a traceback shows them."""
    texts = []
    while error is not None:
        texts.append(f"{type(error).__name__}: {' '.join(str(error).split())}")
        error = error.__cause__
    return "; ".join(texts) or "no error"


def no_v2_api(side: Side) -> Observation:
    """B-K: an etcd whose v2 API is off, as it is by default."""
    with EtcdServer(enable_v2=False) as server:
        attempt = Attempt(lambda: _made(side, f"127.0.0.1:{server.get_port()}"))
        attempt.ended(20)
        reasons = _reasons(attempt.error)
        return Observation("v2 API" in reasons, reasons[:160])


def endpoints(side: Side) -> Observation:
    """B-M: an IPv6 address without a port, and several endpoints of which the first is away."""
    with Stage(side) as stage:
        ipv6 = Attempt(lambda: _made(side, "::1", read_timeout=1))
        ipv6.ended(10)
        named = "[::1]:2379" in _reasons(ipv6.error) or ipv6.returned(0)
        several = Attempt(lambda: _made(side, f"127.0.0.1:1,{stage.direct}", read_timeout=5))
        served = several.returned(10)
        seen = f"'::1' is {'[::1]:2379' if named else 'not read as an address'}; two endpoints: "
        return Observation(named and served, seen + ("served" if served else several.told()))


def user_and_password(side: Side) -> Observation:
    """R84: an etcd that asks for a user; and options under the names that the backend ``etcd`` has for them."""
    with Stage(side) as stage:
        client, secret = stage.client(), "a secret"
        client.api_execute_json("/v2/auth/users/root", "PUT", params={"user": "root", "password": secret})
        client.api_execute_json("/v2/auth/enable", "PUT", params={})
        credentials = base64.b64encode(f"root:{secret}".encode()).decode()
        client._get_headers = lambda: {"authorization": f"Basic {credentials}"}
        no_guest = {"role": "guest", "revoke": {"kv": {"read": ["/*"], "write": ["/*"]}}}
        client.api_execute_json("/v2/auth/roles/guest", "PUT", params=no_guest)
        attempt = Attempt(lambda: _made(side, stage.direct, username="root", password=secret).is_closed())
        entered = attempt.returned(10)
        other_names = Attempt(lambda: _made(side, "127.0.0.1:1", protocol="https", cacert="/nowhere/ca.pem"))
        other_names.ended(10)
        read = "/nowhere/ca.pem" in _reasons(other_names.error)
        seen = f"user and password: {'let in' if entered else 'not let in'}; cacert= is {'read' if read else 'dropped'}"
        return Observation(entered and read, seen)


def changed_advertisement(side: Side) -> Observation:
    """R79: etcd advertises another address than before, and a connection is cut."""
    with Stage(side) as stage, FaultProxy(("127.0.0.1", stage.server.get_port())) as front:
        client = stage.client(endpoint=front.endpoint)
        backend = side.backend.EtcdRendezvousBackend(client, "job", STATE)
        backend.set_state(b"x")
        stage.server.kill()
        stage.server._extra_args = ["--advertise-client-urls", f"http://localhost:{stage.server.get_port()}"]
        stage.server.start()
        front.cut()
        front.order(Fault.DROP_REQUEST, is_any, times=4)  # as often as the HTTP layer repeats a request
        attempt = Attempt(backend.get_state)
        assert attempt.ended(15)
        from torch.distributed.elastic.rendezvous import RendezvousError

        ok = attempt.error is None or isinstance(attempt.error, RendezvousError)
        return Observation(ok, f"get_state: {attempt.told()}")


def foreign_module(side: Side) -> Observation:
    """R86: another package named etcd is installed, which has no Client."""
    sys.modules["etcd"] = types.ModuleType("etcd")
    for name in [name for name in sys.modules if name.startswith(f"{PACKAGES[side.name]}.etcd_")]:
        del sys.modules[name]
    try:
        importlib.import_module(f"{PACKAGES[side.name]}.etcd_rendezvous_backend")
    except Exception as error:
        return Observation(False, f"the import fails: {_reasons(error)}")
    attempt = Attempt(lambda: _made(side, "127.0.0.1:1"))
    attempt.ended(10)
    reasons = _reasons(attempt.error)
    return Observation("python-etcd is missing" in reasons, reasons[:160])


def no_id(side: Side) -> Observation:
    """R05: two jobs without an id of their own, as torchrun starts them."""
    from torch.distributed.run import get_args_parser

    given = str(get_args_parser().get_default("rdzv_id"))
    with Stage(side) as stage:
        try:
            one, other = _made(side, stage.direct, given), _made(side, stage.direct, given)
        except ValueError as error:
            return Observation(True, f"refused: {error}"[:100])
        assert one.is_closed() is False
        one.set_closed()
        closed = other.is_closed()
        return Observation(not closed, f"both are run {given!r}: one is closed, the other reads closed = {closed}")
