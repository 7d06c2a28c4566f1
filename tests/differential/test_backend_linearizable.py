"""EtcdRendezvousBackend under concurrent clients and a bad network: every history is one that a register can have."""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import etcd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from linearizable import BOUND, Call, Result, is_linearizable
from rallypoint.impl import etcd_rendezvous_backend
from rallypoint.impl.etcd_http import Answer, EtcdHttp, Refusal
from rallypoint.impl.etcd_rendezvous_backend import EtcdRendezvousBackend
from rallypoint.impl.etcd_server import EtcdServer
from rallypoint.impl.etcd_sure import insist
from rallypoint.live.proxy import Fault, FaultProxy, is_any, is_write
from torch.distributed.elastic.rendezvous.api import RendezvousConnectionError

CALLS = 8  # per client
TIMEOUT = 1  # seconds for one call of the backend
LATE = 1.3  # seconds: a request or reply that is this late meets nobody
PATIENCE = 60.0  # seconds until a history must be done

FAULTS = st.lists(
    st.tuples(
        st.sampled_from([*[Fault.DROP_REPLY] * 4, *[Fault.DROP_REQUEST] * 2, Fault.DELAY_REPLY, Fault.DELAY_REQUEST]),
        st.sampled_from([is_write, is_write, is_any]),
        st.integers(1, 12),
    ),
    max_size=5,
)
SEEDS = st.integers(0, 1 << 30)


class Player:
    """One client: reads, writes with its last token, an older one, or none; notes what came of it."""

    def __init__(self, backend: EtcdRendezvousBackend, number: int, seed: int) -> None:
        self._backend = backend
        self._number = number
        self._draw = random.Random(f"{seed} {number}")
        self._tokens: list[int | None] = [None]
        self.history: list[Call] = []
        self.thread = threading.Thread(target=self._play, name=f"player {number}")

    def close(self) -> None:
        self._backend._http.close()  # thousands of histories, and select() knows 1024 descriptors

    def _play(self) -> None:
        for turn in range(CALLS):
            if self._draw.random() < 0.3:
                self._note(Call("get", 0.0, None, None), self._backend.get_state)
                continue
            state = f"{self._number}.{turn}".encode()
            token = self._draw.choice([*self._tokens[-1:] * 5, *self._tokens[-3:]])
            self._note(Call("set", 0.0, None, None, state, token), partial(self._backend.set_state, state, token))

    def _note(self, call: Call, perform: Callable[[], Result]) -> None:
        start = time.monotonic()
        try:
            result = perform()
        except RendezvousConnectionError:
            self.history.append(replace(call, start=start))
            return
        self.history.append(replace(call, start=start, end=time.monotonic(), result=result))
        self._tokens.append(None if result is None else result[1])


def played(server: EtcdServer, clients: int, seed: int, faults: list[tuple], cuts: int) -> list[Call]:  # type: ignore[type-arg]
    """All calls of some clients at once, on a register and a network of their own."""
    run_id = uuid.uuid4().hex
    with FaultProxy(("127.0.0.1", server.get_port())) as proxy:
        for fault, when, nth in faults:
            proxy.order(fault, when, nth=nth, seconds=LATE)
        players = []
        for number in range(clients):
            client = etcd.Client(host=proxy.host, port=proxy.port, read_timeout=TIMEOUT)
            players.append(Player(EtcdRendezvousBackend(client, run_id, "/linearizable"), number, seed))
        for player in players:
            player.thread.start()
        for cut in range(1, cuts + 1):
            proxy.await_seen(lambda exchange, after=8 * cut: exchange.number >= after)  # type: ignore[misc]
            proxy.cut()
        deadline = time.monotonic() + PATIENCE
        for player in players:
            player.thread.join(max(0.0, deadline - time.monotonic()))
            assert not player.thread.is_alive()
            player.close()
    return [call for player in players for call in player.history]


@pytest.mark.timeout(3600)
def test_concurrent_clients_on_a_bad_network(etcd_server: EtcdServer) -> None:
    seen: list[Call] = []

    @settings(max_examples=max(10, settings().max_examples // 5))
    @given(clients=st.integers(2, 4), seed=SEEDS, faults=FAULTS, cuts=st.integers(0, 2))
    def every_history(clients: int, seed: int, faults: list[tuple], cuts: int) -> None:  # type: ignore[type-arg]
        history = played(etcd_server, clients, seed, faults, cuts)
        seen.extend(history)
        assert len(history) == clients * CALLS
        assert is_linearizable(history), sorted(history, key=lambda call: call.start)

    every_history()
    results = [call.result for call in seen if call.kind == "set" and call.end is not None]
    assert sum(result is not None and result[-1] is True for result in results) >= 20
    assert sum(result is not None and result[-1] is False for result in results) >= 20
    assert any(call.end is None for call in seen)


def _believes_the_refusal(
    http: EtcdHttp, key: str, params: Mapping[str, str], was: tuple[int, int], deadline: float
) -> Answer | Refusal:
    """B-A: what is refused when it is repeated was not written."""
    condition = {"prevIndex": str(was[0])} if was[0] else {"prevExist": "false"}
    return insist(http, "PUT", key, {**params, **condition}, deadline).reply


def _writes_anyway(
    http: EtcdHttp, key: str, params: Mapping[str, str], was: tuple[int, int], deadline: float
) -> Answer | Refusal:
    return insist(http, "PUT", key, params, deadline).reply


@pytest.mark.parametrize("planted", [_believes_the_refusal, _writes_anyway])
def test_a_wrong_backend_is_noticed(
    planted: Callable[..., object], etcd_server: EtcdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_rendezvous_backend, "write_once", planted)
    faults = [(Fault.DROP_REPLY, is_write, nth) for nth in (1, 3, 5)]
    assert not all(is_linearizable(played(etcd_server, 3, seed, faults, 0)) for seed in range(5))


# --- the checker itself ---------------------------------------------------------------------------------------------


def gets(start: float, end: float, result: Result) -> Call:
    return Call("get", start, end, result)


def sets(start: float, end: float | None, state: bytes, token: int | None, result: Result) -> Call:
    return Call("set", start, end, result, state, token)


CREATED = sets(0, 1, b"a", None, (b"a", 5, True))
REPLACED = sets(2, 3, b"b", 5, (b"b", 6, True))
LOST = sets(2, None, b"b", 5, None)

GOOD: dict[str, list[Call]] = {
    "nothing": [],
    "absent": [gets(0, 1, None), sets(2, 3, b"a", 4, None)],
    "one after the other": [CREATED, gets(1, 2, (b"a", 5)), REPLACED, gets(4, 5, (b"b", 6))],
    "a stale token": [CREATED, REPLACED, sets(4, 5, b"c", 5, (b"b", 6, False))],
    "created twice": [CREATED, sets(2, 3, b"b", None, (b"a", 5, False))],
    "overlapping reads see old and new": [CREATED, REPLACED, gets(2, 2.5, (b"b", 6)), gets(2, 3, (b"a", 5))],
    "a race": [CREATED, REPLACED, sets(2, 3, b"c", 5, (b"b", 6, False))],
    "failed, without effect": [CREATED, LOST, gets(4, 5, (b"a", 5))],
    "failed, with a late effect": [CREATED, LOST, gets(4, 5, (b"a", 5)), gets(6, 7, (b"b", 6))],
    "failed, then built upon": [CREATED, LOST, gets(4, 5, (b"b", 6)), sets(6, 7, b"c", 6, (b"c", 7, True))],
}
BAD: dict[str, list[Call]] = {
    "lost update": [CREATED, REPLACED, sets(2, 3, b"c", 5, (b"c", 7, True))],
    "stale read": [CREATED, REPLACED, gets(4, 5, (b"a", 5))],
    "reads go backwards": [CREATED, REPLACED, gets(2, 2.3, (b"b", 6)), gets(2.4, 2.9, (b"a", 5))],
    "double apply": [CREATED, gets(2, 3, (b"a", 5)), gets(4, 5, (b"a", 9))],
    "double apply after another": [CREATED, REPLACED, gets(4, 5, (b"b", 6)), gets(6, 7, (b"a", 9))],
    "own write denied": [CREATED, sets(2, 3, b"b", 5, (b"b", 6, False))],
    "denied without a reason": [CREATED, sets(2, 3, b"b", 5, (b"a", 5, False))],
    "a token created": [sets(0, 1, b"a", 4, (b"a", 5, True))],
    "never written": [CREATED, gets(2, 3, (b"z", 6))],
    "read before it was written": [gets(0, 1, (b"a", 5)), sets(2, 3, b"a", None, (b"a", 5, True))],
    "vanished": [CREATED, gets(2, 3, None)],
    "failed, and effect undone": [CREATED, LOST, gets(4, 5, (b"b", 6)), gets(6, 7, (b"a", 5))],
    "failed, though its token was stale": [CREATED, REPLACED, sets(4, None, b"c", 5, None), gets(6, 7, (b"c", 7))],
    "another state than was set": [sets(0, 1, b"a", None, (b"b", 5, True))],
    "an index that goes backwards": [CREATED, sets(2, 3, b"b", 5, (b"b", 4, True))],
}


@pytest.mark.parametrize("history", GOOD.values(), ids=GOOD)
def test_histories_of_a_register(history: list[Call]) -> None:
    assert is_linearizable(history)


@pytest.mark.parametrize("history", BAD.values(), ids=BAD)
def test_planted_violations(history: list[Call]) -> None:
    assert not is_linearizable(history)


def test_the_bounds_of_the_checker() -> None:
    with pytest.raises(ValueError, match="at most"):
        is_linearizable([gets(0, 1, None)] * (BOUND + 1))
    with pytest.raises(ValueError, match="same state"):
        is_linearizable([CREATED, replace(CREATED, start=2, end=3)])
