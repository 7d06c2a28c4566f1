"""EtcdRendezvousBackend under concurrent clients and a bad network: every history is one that a register can have."""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from linearizable import BOUND, Call, is_linearizable
from rallypoint.impl.etcd_http import Access, EtcdHttp
from rallypoint.impl.etcd_rendezvous_backend import EtcdRendezvousBackend
from rallypoint.live.proxy import Exchange, Fault, FaultProxy, is_any, is_write
from torch.distributed.elastic.rendezvous.api import RendezvousConnectionError

CALLS = 8  # per client
PATIENCE = 60.0  # seconds until a history must be done

FAULTS = st.lists(
    st.tuples(
        st.sampled_from([Fault.DROP_REPLY, Fault.DROP_REPLY, Fault.DROP_REQUEST, Fault.DELAY_REPLY]),
        st.booleans(),
        st.integers(1, 12),
    ),
    max_size=6,
)


class Player:
    """One client: reads, writes with its last token, an old one, or none; notes what came of it."""

    def __init__(self, backend: EtcdRendezvousBackend, number: int, seed: int) -> None:
        self._backend = backend
        self._number = number
        self._draw = random.Random(f"{seed} {number}")
        self._tokens: list[int | None] = [None]
        self.history: list[Call] = []

    def play(self) -> None:
        for turn in range(CALLS):
            if self._draw.random() < 0.3:
                self._note("get", self._backend.get_state)
                continue
            state = f"{self._number}.{turn}".encode()
            token = self._draw.choice([self._tokens[-1], self._tokens[-1], self._tokens[-1], *self._tokens[-3:]])
            self._note("set", lambda: self._backend.set_state(state, token), state, token)  # noqa: B023

    def _note(self, kind: str, call: Callable[[], Call.Result], state: bytes = b"", token: int | None = None) -> None:
        start, end, result = time.monotonic(), None, None
        try:
            result = call()
            end = time.monotonic()
            self._tokens.append(None if result is None else result[1])
        except RendezvousConnectionError:
            pass
        self.history.append(Call(kind, start, end, result, state, token))


def played(proxy: FaultProxy, clients: int, seed: int, cuts: int) -> list[Call]:
    """All calls of some clients at once on a register of their own."""
    run_id, https, players = uuid.uuid4().hex, [], []
    for number in range(clients):
        http = EtcdHttp(Access(((proxy.host, proxy.port),)), attempt_timeout=2)
        https.append(http)
        players.append(Player(EtcdRendezvousBackend(http, run_id, "/linearizable"), number, seed))
    threads = [threading.Thread(target=player.play) for player in players]
    for thread in threads:
        thread.start()
    before = len(proxy.seen())
    for cut in range(cuts):
        wanted = before + 10 * (cut + 1)
        try:
            proxy.await_seen(lambda exchange, wanted=wanted: exchange.number >= wanted, timeout=1)
        except TimeoutError:
            break
        proxy.cut()
    deadline = time.monotonic() + PATIENCE
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
        assert not thread.is_alive()
    for http in https:
        http.close()
    return [call for player in players for call in player.history]


@pytest.fixture(scope="module")
def shared_proxy(etcd_server) -> FaultProxy:
    with FaultProxy(("127.0.0.1", etcd_server.get_port())) as one:
        yield one
