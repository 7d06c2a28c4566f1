"""Upstream's dynamic handler as our agents run it: what is put around it, in one process."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from crew import becomes
from rallypoint.impl import dynamic_handler
from rallypoint.impl.dynamic_handler import CACHED, DynamicHandler
from rallypoint.impl.dynamic_state import checked_state
from rallypoint.impl.etcd_rendezvous_backend import STATE_PREFIX, EtcdRendezvousBackend
from rallypoint.impl.etcd_server import EtcdServer
from torch.distributed.elastic.rendezvous import RendezvousInfo, RendezvousParameters, RendezvousStateError
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import _NodeDesc, _RendezvousState
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

Maker = Callable[..., DynamicHandler]


@pytest.fixture
def make(etcd_server: EtcdServer, prefix: str) -> Iterator[Maker]:
    """Makes handlers of one run, for 1 to 2 nodes; a dead one is noticed after 4 s."""
    made: list[DynamicHandler] = []

    def one(address: str = "127.0.0.1", **options: Any) -> DynamicHandler:
        options = {"last_call_timeout": 1, "keep_alive_interval": 1, "keep_alive_max_attempt": 4, **options}
        parameters = RendezvousParameters(
            "rallypoint-etcd-v2", etcd_server.get_endpoint(), prefix[6:], 1, 2, address, **options
        )
        handler = get_rendezvous_handler(parameters)
        assert isinstance(handler, DynamicHandler)
        made.append(handler)
        return handler

    yield one
    for handler in made:
        handler.shutdown()


@pytest.fixture
def state(etcd_server: EtcdServer, prefix: str) -> EtcdRendezvousBackend:
    """The run's state, to look at and to write by hand."""
    return EtcdRendezvousBackend(etcd_server.get_client(), prefix[6:], STATE_PREFIX)


def meet(*handlers: DynamicHandler) -> list[RendezvousInfo]:
    with ThreadPoolExecutor() as pool:
        return list(pool.map(lambda handler: handler.next_rendezvous(), handlers))


def die(handler: DynamicHandler) -> None:
    """No heartbeat any more, as after a SIGKILL."""
    handler._inner._stop_heartbeats()


def address_of(info: RendezvousInfo) -> str:
    assert info.bootstrap_store_info is not None
    return f"{info.bootstrap_store_info.master_addr}:{info.bootstrap_store_info.master_port}"


def test_this_torch_caches_what_we_forget(make: Maker) -> None:
    assert all(hasattr(make()._inner, name) for name in CACHED)


def test_D_A_D_C_R31_R32_a_newcomer_that_sorts_first_is_the_new_address(make: Maker) -> None:
    old, new = (make(address, last_call_timeout=3) for address in ("127.0.0.2", "127.0.0.1"))
    (alone,) = meet(old)
    with ThreadPoolExecutor() as pool:
        entering = pool.submit(new.next_rendezvous)
        assert becomes(lambda: old.num_nodes_waiting() == 1, 10)
        both = [old.next_rendezvous(), entering.result(20)]
    assert [info.rank for info in both] == [1, 0]
    assert address_of(both[0]) == address_of(both[1]) != address_of(alone)
    assert address_of(both[0]).startswith("127.0.0.1:")


def test_D_B_D_K_R30_R31_the_loss_of_rank_0_is_told_and_its_address_forgotten(make: Maker) -> None:
    first, second = make("127.0.0.1"), make("127.0.0.2")
    before = meet(first, second)
    before[1].store.set("of round 0", "v")
    assert second.num_nodes_waiting() == 0
    die(first)
    assert becomes(lambda: second.num_nodes_waiting() == 1, 10)
    (after,) = meet(second)
    assert (after.rank, after.world_size) == (0, 1)
    assert address_of(after).startswith("127.0.0.2:")
    assert address_of(before[1]).startswith("127.0.0.1:")
    assert not after.store.check(["of round 0"])  # a round's store has a name that all its members agree on


def test_D_F_R24_foreign_text_does_not_end_the_heartbeats(make: Maker, etcd_server: EtcdServer, prefix: str) -> None:
    handler = make(keep_alive_max_attempt=20)
    meet(handler)
    client, key = etcd_server.get_client(), f"{STATE_PREFIX}/{prefix[6:]}"
    text = client.read(key).value
    client.write(key, "@@@@")
    time.sleep(1.5)  # longer than the interval of heartbeats
    restored = client.write(key, text).modifiedIndex
    assert becomes(lambda: client.read(key).modifiedIndex > restored, 5)
    assert handler.num_nodes_waiting() == 0


def test_D_E_a_member_is_told_when_the_state_is_lost(make: Maker, etcd_server: EtcdServer, prefix: str) -> None:
    """And a newcomer has started the run anew, in a round of the same number and size."""
    old, new = make("127.0.0.1"), make("127.0.0.2")
    meet(old)
    assert old.num_nodes_waiting() == 0
    etcd_server.get_client().delete(f"{STATE_PREFIX}/{prefix[6:]}")
    meet(new)
    assert new._round == old._round
    assert becomes(lambda: old.num_nodes_waiting() == 1, 6)


def test_L_S_rank_0_is_lost_before_it_publishes(make: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dynamic_handler, "BOOTSTRAP", timedelta(seconds=1))
    first, second = make("127.0.0.1"), make("127.0.0.2")

    def lost(*_: object) -> None:
        die(first)
        raise ConnectionAbortedError("lost")

    monkeypatch.setattr(first._inner, "_create_tcp_store_server", lost)
    with ThreadPoolExecutor() as pool:
        doomed, survivor = pool.submit(first.next_rendezvous), pool.submit(second.next_rendezvous)
        assert isinstance(doomed.exception(20), ConnectionAbortedError)
        assert (survivor.result(20).rank, survivor.result().world_size) == (0, 1)


def test_S_C_a_new_run_of_the_same_id_reads_nothing_of_the_old(
    make: Maker, etcd_server: EtcdServer, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = make("127.0.0.1"), make("127.0.0.2")
    before = meet(*old)
    before[0].store.set("left", "behind")
    for handler in old:
        die(handler)
    etcd_server.get_client().delete(f"{STATE_PREFIX}/{prefix[6:]}")
    new = make("127.0.0.1"), make("127.0.0.2")
    create = new[0]._inner._create_tcp_store_server

    def late(*arguments: Any) -> Any:
        time.sleep(1)  # rank 1 looks for the address long before rank 0 publishes it
        return create(*arguments)

    monkeypatch.setattr(new[0]._inner, "_create_tcp_store_server", late)
    after = meet(*new)
    assert address_of(after[0]) == address_of(after[1]) != address_of(before[0])
    assert not after[0].store.check(["left"])


class Evil:
    """Unpickling this makes a directory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_D_L_a_foreign_pickle_is_never_run(make: Maker, state: EtcdRendezvousBackend, tmp_path: Path) -> None:
    state.set_state(pickle.dumps(Evil(tmp_path / "made")))
    with pytest.raises(RendezvousStateError, match=r"not one: it asks for .*\.mkdir, which no rendezvous state holds"):
        make().next_rendezvous()
    assert list(tmp_path.iterdir()) == []
    pickle.loads(pickle.dumps(Evil(tmp_path / "made")))
    assert [path.name for path in tmp_path.iterdir()] == ["made"]


def a_state() -> _RendezvousState:
    one = _RendezvousState()
    nodes = [_NodeDesc(f"host{number}", 100 + number, number) for number in range(3)]
    one.round, one.complete, one.deadline = 3, True, datetime.now(timezone.utc)
    one.participants = {nodes[0]: 0, nodes[1]: 1}
    one.wait_list, one.redundancy_list = {nodes[2]}, {nodes[1]}
    one.last_heartbeats = dict.fromkeys(nodes, datetime.now(timezone.utc))
    return one


@pytest.mark.parametrize("protocol", range(4, pickle.HIGHEST_PROTOCOL + 1))  # 4: Python's default from 3.8 on
def test_D_L_real_states_pass_unchanged(protocol: int) -> None:
    for one in (_RendezvousState(), a_state()):
        assert vars(pickle.loads(checked_state(pickle.dumps(one, protocol)))) == vars(one)


def damaged(**fields: Any) -> bytes:
    one = a_state()
    vars(one).update(fields)
    return pickle.dumps(one)


# A pickle that sets an attribute of the class itself: ``_RendezvousState.closed = True``.
DEFACED = (
    b"\x80\x04\x8c\x37torch.distributed.elastic.rendezvous.dynamic_rendezvous\x8c\x10_RendezvousState\x93"
    b"N}\x8c\x07defaced\x88s\x86b."
)


@pytest.mark.parametrize(
    ("state", "complaint"),
    [
        (b"", "Ran out of input"),
        (b"\x80\x04N.", "it is no rendezvous state"),
        (pickle.dumps(a_state())[:-9], "pickle data was truncated|is not one"),
        (pickle.dumps(a_state().participants), "it is no rendezvous state"),
        (damaged(participants=[]), "it holds a list"),
        (damaged(round=None), "its round is missing or of the wrong kind"),
        (damaged(extra=1), "unknown field 'extra'"),
        (damaged(participants={_NodeDesc("a", "1", 2): 0}), "a node is not an address with two numbers"),  # type: ignore[arg-type]
        (damaged(closed=Path("/")), "it asks for pathlib"),
        (DEFACED, "it is no rendezvous state"),
    ],
)
def test_D_L_anything_else_is_a_state_error(state: bytes, complaint: str) -> None:
    with pytest.raises(RendezvousStateError, match=complaint):
        checked_state(state)
    assert not hasattr(_RendezvousState, "defaced")
