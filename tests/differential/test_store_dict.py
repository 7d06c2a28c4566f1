"""EtcdStore against a dictionary: one client call by call, then several at once; replies are lost all the time."""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test
from rallypoint.impl import etcd_kv
from rallypoint.impl.etcd_http import Access, Answer, EtcdHttp, Refusal
from rallypoint.impl.etcd_server import EtcdServer
from rallypoint.impl.etcd_store import EtcdStore
from rallypoint.impl.etcd_sure import insist
from rallypoint.live.proxy import Fault, FaultProxy, is_any, is_write

# "ab?" has a slash in its base64; \xff\xff\xff is nothing but slashes.
KEYS = st.sampled_from([b"a", b"b", b"ab?", b"ab?/c", b"\xff\xff\xff", b""])
VALUES = st.sampled_from([b"", b"1", b"-7", b"x", b"\x00\xff"])
FAULTS = st.none() | st.tuples(
    st.sampled_from([Fault.DROP_REPLY, Fault.DROP_REPLY, Fault.DROP_REQUEST]), st.integers(1, 3)
)
TIMEOUT = timedelta(seconds=20)
AT_ONCE = timedelta(milliseconds=10)
PATIENCE = 60.0  # seconds until threads must be done


def new_store(proxy: FaultProxy) -> EtcdStore:
    return EtcdStore(EtcdHttp(Access(((proxy.host, proxy.port),))), f"/stores/{uuid.uuid4().hex}", TIMEOUT)


class StoreMachine(RuleBasedStateMachine):
    """One client. Before each call the network may be told to lose its first, second or third request or reply."""

    proxy: FaultProxy
    faults: dict[Fault, int]

    def __init__(self) -> None:
        super().__init__()
        self.store = new_store(self.proxy)
        self.dict: dict[bytes, bytes] = {}
        self.queues: dict[bytes, list[bytes]] = {}

    def teardown(self) -> None:
        self.store.client.close()

    def _break(self, fault: tuple[Fault, int] | None) -> None:
        if fault is not None:
            seen = len(self.proxy.seen()) + fault[1] - 1
            self.proxy.order(fault[0], lambda exchange: exchange.number == seen)
            self.faults[fault[0]] = self.faults.get(fault[0], 0) + 1

    @rule(key=KEYS, value=VALUES, fault=FAULTS)
    def set(self, key: bytes, value: bytes, fault: tuple[Fault, int] | None) -> None:
        self._break(fault)
        self.store.set(key, value)
        self.dict[key] = value

    @rule(keys=st.lists(KEYS, unique=True, max_size=3), value=VALUES, fault=FAULTS)
    def multi_set(self, keys: list[bytes], value: bytes, fault: tuple[Fault, int] | None) -> None:
        self._break(fault)
        self.store.multi_set(keys, [value] * len(keys))
        self.dict.update(dict.fromkeys(keys, value))

    @rule(key=KEYS, fault=FAULTS)
    def get(self, key: bytes, fault: tuple[Fault, int] | None) -> None:
        self._break(fault)
        if key in self.dict:
            assert self.store.get(key) == self.dict[key]
            assert self.store.multi_get([key, key]) == [self.dict[key]] * 2
            self.store.wait([key])
        else:
            with pytest.raises(LookupError):
                self.store.wait([key], AT_ONCE)

    @rule(key=KEYS, amount=st.integers(-2, 9), fault=FAULTS)
    def add(self, key: bytes, amount: int, fault: tuple[Fault, int] | None) -> None:
        self._break(fault)
        try:
            total = int(self.dict.get(key) or b"0") + amount
        except ValueError:
            with pytest.raises(ValueError, match="invalid literal"):
                self.store.add(key, amount)
            return
        assert self.store.add(key, amount) == total
        self.dict[key] = str(total).encode()

    @rule(key=KEYS, value=VALUES, fault=FAULTS)
    def append(self, key: bytes, value: bytes, fault: tuple[Fault, int] | None) -> None:
        self._break(fault)
        self.store.append(key, value)
        self.dict[key] = self.dict.get(key, b"") + value

    @rule(key=KEYS, expected=VALUES, desired=VALUES, right=st.booleans(), fault=FAULTS)
    def compare_set(
        self, key: bytes, expected: bytes, desired: bytes, right: bool, fault: tuple[Fault, int] | None
    ) -> None:
        self._break(fault)
        expected = self.dict.get(key, expected) if right else expected
        if self.dict.get(key, b"") == expected:
            self.dict[key] = desired
        assert self.store.compare_set(key, expected, desired) == self.dict.get(key, expected)

    @rule(key=KEYS, fault=FAULTS)
    def delete(self, key: bytes, fault: tuple[Fault, int] | None) -> None:
        self._break(fault)
        assert self.store.delete_key(key) == (self.dict.pop(key, None) is not None)

    @rule(keys=st.lists(KEYS, max_size=3), fault=FAULTS)
    def check(self, keys: list[bytes], fault: tuple[Fault, int] | None) -> None:
        self._break(fault)
        assert self.store.check(keys) == all(key in self.dict for key in keys)
        assert self.store.num_keys() == len(self.dict)

    @rule(key=KEYS, value=VALUES, fault=FAULTS)
    def push(self, key: bytes, value: bytes, fault: tuple[Fault, int] | None) -> None:
        self._break(fault)
        self.store.queue_push(key, value)
        self.queues.setdefault(key, []).append(value)
        assert self.store.queue_len(key) == len(self.queues[key])

    @rule(key=KEYS, fault=FAULTS)
    def pop(self, key: bytes, fault: tuple[Fault, int] | None) -> None:
        self._break(fault)
        if self.queues.get(key):
            assert self.store.queue_pop(key) == self.queues[key].pop(0)
        else:
            assert self.store.queue_len(key) == 0

    @rule(key=KEYS, value=VALUES, fault=FAULTS)
    def wait_for_another(self, key: bytes, value: bytes, fault: tuple[Fault, int] | None) -> None:
        """Whenever the key comes, before, while or after the other one starts to wait, it is seen."""
        if key in self.dict:
            return
        self._break(fault)
        got: list[bytes] = []
        waiting = threading.Thread(target=lambda: got.append(self.store.clone().get(key)))
        waiting.start()
        self.store.set(key, value)
        waiting.join(PATIENCE)
        assert got == [value]
        self.dict[key] = value


@pytest.fixture(scope="module")
def network(etcd_server: EtcdServer) -> Iterator[FaultProxy]:
    with FaultProxy(("127.0.0.1", etcd_server.get_port())) as proxy:
        yield proxy


@pytest.mark.timeout(3600)
def test_one_client(network: FaultProxy) -> None:
    machine = type("OneNetwork", (StoreMachine,), {"proxy": network, "faults": {}})
    run_state_machine_as_test(  # type: ignore[no-untyped-call,unused-ignore]
        machine, settings=settings(max_examples=max(20, settings().max_examples // 5), stateful_step_count=20)
    )
    dropped = [exchange for exchange in network.seen() if exchange.fault is Fault.DROP_REPLY and is_write(exchange)]
    assert len(dropped) >= 20


# --- several at once ------------------------------------------------------------------------------------------------

TURNS = 5  # per client and kind of call


class Hand:
    """One of several clients of the same keys: counts, appends, swaps, in an order of its own."""

    def __init__(self, store: EtcdStore, number: int, seed: int) -> None:
        self._store = store
        self._number = number
        self.sums: list[int] = []
        self.swaps: list[tuple[bytes, bytes]] = []
        calls: list[Callable[[int], None]] = [*[self._add] * TURNS, *[self._append] * TURNS, *[self._swap] * TURNS]
        random.Random(f"{seed} {number}").shuffle(calls)
        self._calls = calls
        self.thread = threading.Thread(target=self._work, name=f"hand {number}")

    def _work(self) -> None:
        self._store.wait(["start"])
        for turn, call in enumerate(self._calls):
            call(turn)

    def _add(self, turn: int) -> None:
        self.sums.append(self._store.add("sum", 1))

    def _append(self, turn: int) -> None:
        self._store.append("log", f"{self._number}.{turn} ")

    def _swap(self, turn: int) -> None:
        old = self._store.get("baton")
        new = f"{self._number}.{turn}".encode()
        if self._store.compare_set("baton", old, new) == new:
            self.swaps.append((old, new))


def worked(server: EtcdServer, clients: int, seed: int, faults: list[int]) -> tuple[EtcdStore, list[Hand]]:
    """Let clients work at once on a network that loses the replies to these writes; the store then, and the clients."""
    with FaultProxy(("127.0.0.1", server.get_port())) as proxy:
        store = new_store(proxy)
        store.set("baton", "nobody")
        hands = [Hand(store.clone(), number, seed) for number in range(clients)]
        for hand in hands:
            hand.thread.start()
        for nth in faults:
            proxy.order(Fault.DROP_REPLY, is_write, nth=nth)
        proxy.order(Fault.DROP_REQUEST, is_any, nth=17)
        store.set("start", "")
        deadline = time.monotonic() + PATIENCE
        for hand in hands:
            hand.thread.join(max(0.0, deadline - time.monotonic()))
            assert not hand.thread.is_alive()
        store.client.close()
    direct = EtcdHttp.of_client(server.get_client())
    return EtcdStore(direct, store.prefix, TIMEOUT), hands


def judge(store: EtcdStore, hands: list[Hand]) -> None:
    """Every call took effect once, and all at one moment each."""
    sums = sorted(total for hand in hands for total in hand.sums)
    assert sums == list(range(1, TURNS * len(hands) + 1))
    assert store.get("sum") == str(len(sums)).encode()
    log = store.get("log").decode().split()
    assert len(log) == len(set(log)) == len(sums)
    for number in range(len(hands)):
        turns = [int(entry.split(".")[1]) for entry in log if entry.startswith(f"{number}.")]
        assert turns == sorted(turns)
    after = dict(swap for hand in hands for swap in hand.swaps)
    assert len(after) == sum(len(hand.swaps) for hand in hands)  # nobody replaced what another had replaced
    baton, passed = b"nobody", 0
    while baton in after:
        baton, passed = after[baton], passed + 1
    assert (store.get("baton"), passed) == (baton, len(after))


@pytest.mark.timeout(3600)
def test_several_clients(etcd_server: EtcdServer) -> None:
    @settings(max_examples=max(8, settings().max_examples // 5))
    @given(st.integers(2, 4), st.integers(0, 1 << 30), st.lists(st.integers(1, 10), max_size=8))
    def every_interleaving(clients: int, seed: int, faults: list[int]) -> None:
        store, hands = worked(etcd_server, clients, seed, faults)
        judge(store, hands)
        store.client.close()

    every_interleaving()


def _believes_the_refusal(
    http: EtcdHttp, key: str, params: dict[str, str], was: tuple[int, int], deadline: float
) -> Answer | Refusal:
    """S-B: what is refused when it is repeated was not written."""
    condition = {"prevIndex": str(was[0])} if was[0] else {"prevExist": "false"}
    return insist(http, "PUT", key, {**params, **condition}, deadline).reply


def _writes_anyway(
    http: EtcdHttp, key: str, params: dict[str, str], was: tuple[int, int], deadline: float
) -> Answer | Refusal:
    return insist(http, "PUT", key, params, deadline).reply


@pytest.mark.parametrize("planted", [_believes_the_refusal, _writes_anyway])
def test_a_wrong_store_is_noticed(
    planted: Callable[..., object], etcd_server: EtcdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_kv, "write_once", planted)
    store, hands = worked(etcd_server, 3, 1, [2, 4, 6])
    with pytest.raises(AssertionError):
        judge(store, hands)
    store.client.close()
