"""The gate: it holds, loses and lets through exactly what it is told to, for our workers and for PyTorch's."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from rallypoint.impl import etcd_rendezvous
from rallypoint.impl.etcd_http import Access, Answer, EtcdHttp, EtcdUnavailable
from rallypoint.impl.etcd_server import EtcdServer
from rallypoint.live.gate import Gate, Mode, step_of
from rallypoint.live.proxy import Exchange
from rallypoint.model.errors import UnusableError
from torch.distributed.elastic.rendezvous import RendezvousClosedError, RendezvousParameters
from torch.distributed.elastic.rendezvous import etcd_rendezvous as upstream_rendezvous

# PyTorch's renewal of the run's directory dies in a thread of its own: etcd 3.5 refuses it (L-A).
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")

UPSTREAM = "upstream"
OURS = "ours"


@pytest.fixture
def gate(etcd_server: EtcdServer) -> Iterator[Gate]:
    """A gate before the shared etcd."""
    with Gate(("127.0.0.1", etcd_server.get_port())) as one:
        yield one


@pytest.fixture
def behind(gate: Gate) -> Iterator[EtcdHttp]:
    """A client behind the gate."""
    connection = EtcdHttp(Access(endpoints=(("127.0.0.1", gate.port),)), attempt_timeout=10)
    yield connection
    connection.close()


class Doing:
    """One call in a thread of its own."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.result: Any = None
        self._thread = threading.Thread(target=self._run, args=(call,), daemon=True)
        self._thread.start()

    def _run(self, call: Callable[[], Any]) -> None:
        try:
            self.result = call()
        except Exception as error:
            self.result = error

    def done(self) -> Any:
        """What came of it, within 10 s."""
        self._thread.join(10)
        assert not self._thread.is_alive()
        return self.result


def put(http: EtcdHttp, key: str, value: str) -> Doing:
    return Doing(lambda: http.call("PUT", key, {"value": value}, time.monotonic() + 10))


def value_of(http: EtcdHttp, key: str) -> str | None:
    reply = http.call("GET", key, {}, time.monotonic() + 10)
    return reply.node.value if isinstance(reply, Answer) else None


def test_held_until_released(gate: Gate, behind: EtcdHttp, http: EtcdHttp, prefix: str) -> None:
    doing = put(behind, prefix, "x")
    held = gate.await_request()
    assert (held.method, held.key, held.form) == ("PUT", prefix, {"value": "x"})
    assert value_of(http, prefix) is None
    held.release()
    assert held.await_reply() == 201
    assert isinstance(doing.done(), Answer)
    assert value_of(http, prefix) == "x"


def test_dropped_reply_is_carried_out(gate: Gate, behind: EtcdHttp, http: EtcdHttp, prefix: str) -> None:
    doing = put(behind, prefix, "x")
    gate.await_request().release(drop_reply=True)
    assert isinstance(doing.done(), EtcdUnavailable)
    assert value_of(http, prefix) == "x"


def test_refused_is_not_carried_out(gate: Gate, behind: EtcdHttp, http: EtcdHttp, prefix: str) -> None:
    doing = put(behind, prefix, "x")
    held = gate.await_request()
    held.refuse()
    held.release()  # too late: the first decision counts
    assert isinstance(doing.done(), EtcdUnavailable)
    assert value_of(http, prefix) is None


def test_denied_is_final(gate: Gate, behind: EtcdHttp, http: EtcdHttp, prefix: str) -> None:
    doing = put(behind, prefix, "x")
    gate.await_request()
    gate.set_mode(Mode.DENY)
    assert isinstance(doing.done(), UnusableError)
    assert isinstance(put(behind, prefix, "y").done(), UnusableError)
    gate.set_mode(Mode.PASS)
    assert isinstance(put(behind, prefix, "z").done(), Answer)
    assert value_of(http, prefix) == "z"


def test_who_has_given_up_is_not_served_later(gate: Gate, etcd_server: EtcdServer, http: EtcdHttp, prefix: str) -> None:
    hasty = EtcdHttp(Access(endpoints=(("127.0.0.1", gate.port),)), attempt_timeout=0.2)
    doing = put(hasty, prefix, "x")
    held = gate.await_request()
    assert isinstance(doing.done(), EtcdUnavailable)
    hasty.close()
    held.release()
    with pytest.raises(TimeoutError):
        held.await_reply(0.2)
    assert value_of(http, prefix) is None


def test_renewals_and_watches_pass(gate: Gate, behind: EtcdHttp, http: EtcdHttp, prefix: str) -> None:
    deadline = time.monotonic() + 10
    made = http.call("PUT", prefix, {"value": "x", "ttl": "60"}, deadline)
    watch = Doing(lambda: behind.watch(prefix, made.index + 2, deadline, recursive=False))
    gate.await_seen(lambda one: one.form.get("wait") == "true")
    renewed = behind.call("PUT", prefix, {"refresh": "true", "prevExist": "true", "ttl": "60"}, deadline)
    assert isinstance(renewed, Answer)
    http.call("PUT", prefix, {"value": "y"}, deadline)
    event = watch.done()
    assert isinstance(event, Answer)
    assert event.node.value == "y"
    with pytest.raises(TimeoutError):
        gate.await_request(0.05)


def test_watches_are_held_on_request(etcd_server: EtcdServer, prefix: str) -> None:
    with Gate(("127.0.0.1", etcd_server.get_port()), hold_watches=True) as gate:
        behind = EtcdHttp(Access(endpoints=(("127.0.0.1", gate.port),)))
        watch = Doing(lambda: behind.watch(prefix, 1, time.monotonic() + 10, recursive=False))
        held = gate.await_request()
        assert held.step == "watch"
        held.release()
        gate.cut()
        assert isinstance(watch.done(), EtcdUnavailable | None)
        behind.close()


def test_close_frees_all(etcd_server: EtcdServer, prefix: str) -> None:
    gate = Gate(("127.0.0.1", etcd_server.get_port()))
    clients = [EtcdHttp(Access(endpoints=(("127.0.0.1", gate.port),))) for _ in range(4)]
    doings = [put(client, prefix, "x") for client in clients]
    for _ in doings:
        gate.await_request()
    start = time.monotonic()
    gate.close()
    assert all(isinstance(doing.done(), EtcdUnavailable) for doing in doings)
    assert time.monotonic() - start < 5
    for client in clients:
        client.close()


class Meeting(Doing):
    """One worker, alone in its job, that meets behind the gate."""

    def __init__(self, kind: str, gate: Gate, run_id: str) -> None:
        self._parameters = RendezvousParameters(
            backend="etcd",
            endpoint=f"127.0.0.1:{gate.port}",
            run_id=run_id,
            min_nodes=1,
            max_nodes=1,
            local_addr="127.0.0.1",
            timeout=60,
            last_call_timeout=1,
        )
        self._module = etcd_rendezvous if kind == OURS else upstream_rendezvous
        self._handler: Any = None
        super().__init__(self._meet)

    def _meet(self) -> Any:
        self._handler = self._module.create_rdzv_handler(self._parameters)
        return self._handler.next_rendezvous()

    def end(self) -> None:
        """PyTorch's class leaves threads that renew until they are told to stop."""
        for name in ("_lease_run_id_stop", "_lease_this_rank_stop"):
            stop = getattr(self._handler._rdzv_impl, name, None)
            if stop is not None:
                stop.set()


@pytest.mark.parametrize("kind", [OURS, UPSTREAM])
def test_a_whole_rendezvous_step_by_step(kind: str, etcd_server: EtcdServer, prefix: str) -> None:
    with Gate(("127.0.0.1", etcd_server.get_port())) as gate:
        doing = Meeting(kind, gate, prefix.rpartition("/")[2])
        steps: list[str] = []
        deadline = time.monotonic() + 30
        while "confirm" not in steps and time.monotonic() < deadline:
            held = gate.await_request()
            steps.append(held.step)
            held.release()
        gate.set_mode(Mode.PASS)
        info = doing.done()
        assert (info.rank, info.world_size) == (0, 1)
        doing.end()
    wanted = ["create", "publish", "join", "confirm"]
    assert [step for step in steps if step in wanted] == wanted


@pytest.mark.parametrize("kind", [OURS, UPSTREAM])
def test_a_lost_reply_comes_back_as_the_same_request(
    kind: str, etcd_server: EtcdServer, http: EtcdHttp, prefix: str
) -> None:
    with Gate(("127.0.0.1", etcd_server.get_port())) as gate:
        doing = Meeting(kind, gate, prefix.rpartition("/")[2])
        while (held := gate.await_request()).step != "join":
            held.release()
        held.release(drop_reply=True)
        again = gate.await_request()
        assert (again.step, again.form) == ("join", held.form)
        again.release()
        assert again.await_reply() == 412  # compare failed: its own success stands in the way
        http.call("PUT", held.key, {"value": '{"status": "closed"}'}, time.monotonic() + 10)
        gate.set_mode(Mode.PASS)
        assert isinstance(doing.done(), RendezvousClosedError)
        doing.end()


def test_steps_are_named() -> None:
    def step(method: str, form: dict[str, str], key: str = "/r/active_version") -> str:
        return step_of(Exchange(0, method, "/v2/keys" + key, key, form))

    assert step("GET", {}) == "read"
    assert step("DELETE", {"prevValue": "{}"}) == "destroy"
    assert step("PUT", {"prevValue": '{"status":"setup"}', "value": '{"status":"closed"}'}) == "close"
    assert step("PUT", {"prevValue": "no document", "value": "x"}) == "write"
    assert step("PUT", {"refresh": "true", "ttl": "1"}) == "renew"
    assert step("PUT", {"value": "0"}, "/r/version_counter") == "PUT version_counter"
