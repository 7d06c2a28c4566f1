"""PyTorch's unmodified workers and ours in one rendezvous, on the same keys."""

from __future__ import annotations

import contextlib
import itertools
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from rallypoint.defects.stage import OURS, UPSTREAM, Attempt, Side, becomes
from rallypoint.impl.etcd_server import EtcdServer
from torch.distributed.elastic.rendezvous import RendezvousClosedError, RendezvousError
from torch.distributed.elastic.rendezvous import etcd_rendezvous as theirs

# Upstream's thread for the run's directory dies at once on etcd 3.5 (defect L-A).
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")

KEEP_ALIVE = 2  # seconds: an upstream worker that meets again waits for its own keep-alive to run out (defect L-P)


class Run:
    """One run with workers of both sides."""

    def __init__(self, server: EtcdServer, prefix: str) -> None:
        self.endpoint = server.get_endpoint()
        self.client = server.get_client()
        self.prefix = prefix
        self.handlers: list[Any] = []

    def worker(self, side: str, min_nodes: int, max_nodes: int, **options: Any) -> Any:
        """A handler of one side, for this run."""
        config = {"etcd_prefix": self.prefix, "last_call_timeout": 1, "keep_alive_ttl": KEEP_ALIVE, **options}
        handler = Side(side).handler(self.endpoint, min_nodes, max_nodes, **config)
        self.handlers.append(handler)
        return handler

    def meet(self, sides: tuple[str, ...], min_nodes: int, max_nodes: int) -> tuple[list[Any], list[Any]]:
        """Workers that arrive in this order, the next when the one before has joined: handlers and results."""
        handlers, attempts = [], []
        for number, side in enumerate(sides):
            handlers.append(self.worker(side, min_nodes, max_nodes))
            attempts.append(Attempt(handlers[-1]._rdzv_impl.rendezvous_barrier))
            if number + 1 < len(sides):
                assert becomes(lambda joined=number + 1: len(self.document().get("participants", ())) >= joined, 10)  # type: ignore[misc]
        return handlers, [result(attempt) for attempt in attempts]

    def document(self) -> dict[str, Any]:
        import etcd

        try:
            return dict(json.loads(self.client.read(f"{self.prefix}/run_job/rdzv/active_version").value))
        except etcd.EtcdKeyNotFound:
            return {}

    def lose_lease(self, handler: Any, rank: int) -> None:
        """What is left when the worker is killed and its TTL has run out."""
        silence(handler)
        name = f"/rank_{rank}" if isinstance(handler._rdzv_impl, theirs.EtcdRendezvous) else "/alive_"
        [key] = [key for key in self.document()["keep_alives"] if name in key]
        self.client.delete(key)


def silence(handler: Any) -> None:
    """The worker renews nothing any more, and does not say so to anybody."""
    rendezvous = handler._rdzv_impl
    if isinstance(rendezvous, theirs.EtcdRendezvous):
        if rendezvous._lease_this_rank_stop is not None:
            rendezvous._lease_this_rank_stop.set()
    else:
        rendezvous._driver.release()


def result(attempt: Attempt, seconds: float = 15) -> Any:
    """(version, rank, world size)."""
    assert attempt.returned(seconds), attempt.told()
    return attempt.value


def agree(results: list[Any], world: int) -> None:
    """One version, dense unique ranks, one world size."""
    assert len({version for version, _, _ in results}) == 1, results
    assert sorted(rank for _, rank, _ in results) == list(range(world)), results
    assert {size for _, _, size in results} == {world}, results


@pytest.fixture
def run(etcd_server: EtcdServer, prefix: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    monkeypatch.setattr(theirs, "CONST_WORKER_KEEPALIVE_TTL", KEEP_ALIVE)
    one = Run(etcd_server, prefix)
    yield one
    with contextlib.suppress(RendezvousError):
        one.worker(OURS, 1, 1).set_closed()  # whoever still waits stops
    for handler in one.handlers:
        silence(handler)


def mixes(size: int) -> list[tuple[str, ...]]:
    """Every order of arrival with workers of both sides."""
    return [mix for mix in itertools.product((OURS, UPSTREAM), repeat=size) if len(set(mix)) == 2]


ORDERS = [(OURS, UPSTREAM), (UPSTREAM, OURS)]
FEW = [*mixes(2), (OURS, UPSTREAM, OURS), (UPSTREAM, OURS, UPSTREAM)]


@pytest.mark.parametrize("mix", [*mixes(2), *mixes(3)], ids="-".join)
def test_fixed_size(run: Run, mix: tuple[str, ...]) -> None:
    agree(run.meet(mix, len(mix), len(mix))[1], len(mix))


@pytest.mark.parametrize("mix", FEW, ids="-".join)
def test_elastic(run: Run, mix: tuple[str, ...]) -> None:
    # All are in before the minimum lets the last call begin, or during it.
    agree(run.meet(mix, len(mix), len(mix) + 1)[1], len(mix))


@pytest.mark.slow
@pytest.mark.parametrize("mix", mixes(4), ids="-".join)
def test_fixed_size_of_four(run: Run, mix: tuple[str, ...]) -> None:
    agree(run.meet(mix, 4, 4)[1], 4)


@pytest.mark.slow
@pytest.mark.parametrize("mix", [*mixes(3), *mixes(4)], ids="-".join)
@pytest.mark.parametrize("least", [2, 3])
def test_elastic_of_three_and_four(run: Run, mix: tuple[str, ...], least: int) -> None:
    # All at once: the order of their requests is for etcd to say.
    handlers = [run.worker(side, least, len(mix), last_call_timeout=3) for side in mix]
    attempts = [Attempt(handler._rdzv_impl.rendezvous_barrier) for handler in handlers]
    agree([result(attempt) for attempt in attempts], len(mix))


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_one_address_and_one_store(run: Run, order: tuple[str, ...]) -> None:
    handlers = [run.worker(side, 2, 2) for side in order]
    attempts = [Attempt(handlers[0].next_rendezvous)]
    assert becomes(lambda: run.document().get("participants") == [0], 10)
    attempts.append(Attempt(handlers[1].next_rendezvous))
    zero, one = (result(attempt) for attempt in attempts)
    assert (zero.rank, one.rank) == (0, 1)
    assert zero.bootstrap_store_info.master_addr == one.bootstrap_store_info.master_addr
    assert zero.bootstrap_store_info.master_port == one.bootstrap_store_info.master_port
    zero.store.set("from 0", "a")
    one.store.set("from 1", "b")
    assert (one.store.get("from 0"), zero.store.get("from 1")) == (b"a", b"b")
    assert one.store.add("n", 2) + zero.store.add("n", 3) == 2 + 5


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_one_closes_for_the_other(run: Run, order: tuple[str, ...]) -> None:
    (first, second), _ = run.meet(order, 2, 2)
    assert not second.is_closed()
    first.set_closed()
    assert second.is_closed()
    assert second.num_nodes_waiting() == 0
    late = Attempt(run.worker(order[1], 2, 2)._rdzv_impl.rendezvous_barrier)
    assert late.ended(10)
    assert isinstance(late.error, RendezvousClosedError)


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_closing_ends_the_wait_of_the_other(run: Run, order: tuple[str, ...]) -> None:
    waiting = Attempt(run.worker(order[0], 2, 2)._rdzv_impl.rendezvous_barrier)
    assert becomes(lambda: run.document().get("participants") == [0], 10)
    run.worker(order[1], 2, 2).set_closed()
    assert waiting.ended(10)
    assert isinstance(waiting.error, RendezvousClosedError), waiting.told()


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_a_late_worker_is_let_in(run: Run, order: tuple[str, ...]) -> None:
    # Upstream sleeps for 1 s when it sees a version in the making: a last call of 1 s would be over by then.
    member = run.worker(order[0], 1, 2, last_call_timeout=3)
    first, _, _ = result(Attempt(member._rdzv_impl.rendezvous_barrier))
    assert member.num_nodes_waiting() == 0
    late = Attempt(run.worker(order[1], 1, 2, last_call_timeout=3)._rdzv_impl.rendezvous_barrier)
    assert becomes(lambda: bool(member.num_nodes_waiting() == 1), 10)
    again = Attempt(member._rdzv_impl.rendezvous_barrier)
    results = [result(again), result(late)]
    agree(results, 2)
    assert int(results[0][0]) > int(first)


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_a_version_with_a_lost_member_is_destroyed_by_the_other(run: Run, order: tuple[str, ...]) -> None:
    (lost,), results = run.meet(order[:1], 1, 2)
    run.lose_lease(lost, 0)
    version, rank, world = result(Attempt(run.worker(order[1], 1, 2)._rdzv_impl.rendezvous_barrier))
    assert int(version) > int(results[0][0])
    assert (rank, world) == (0, 1)


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_the_survivor_of_a_mixed_version_meets_the_newcomer(run: Run, order: tuple[str, ...]) -> None:
    (lost, survivor), before = run.meet(order, 2, 2)
    run.lose_lease(lost, 0)
    # Only ours tells its member at once (defect L-W); upstream's is woken by the count of waiters, or by its workers.
    newcomer = Attempt(run.worker(order[0], 2, 2)._rdzv_impl.rendezvous_barrier)
    if order[1] == OURS:
        assert becomes(lambda: bool(survivor.num_nodes_waiting() > 0), 5)
    else:
        assert becomes(lambda: run.document().get("version", before[0][0]) != before[0][0], 5)
    again = Attempt(survivor._rdzv_impl.rendezvous_barrier)
    results = [result(newcomer), result(again)]
    agree(results, 2)
    assert int(results[0][0]) > int(before[0][0])


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_a_member_of_ours_that_leaves_is_replaced_at_once(run: Run, order: tuple[str, ...]) -> None:
    handlers, _ = run.meet(order, 2, 2)
    ours, other = handlers if order[0] == OURS else reversed(handlers)
    ours._rdzv_impl.leave()
    newcomer = Attempt(run.worker(OURS, 2, 2)._rdzv_impl.rendezvous_barrier)
    again = Attempt(other._rdzv_impl.rendezvous_barrier)
    results = [result(again), result(newcomer)]
    agree(results, 2)


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_a_run_is_continued_by_the_other(run: Run, order: tuple[str, ...]) -> None:
    starters, before = run.meet(order[:1] * 2, 2, 2)
    for handler in starters:
        silence(handler)
    started = time.monotonic()
    successors = [Attempt(run.worker(order[1], 2, 2)._rdzv_impl.rendezvous_barrier) for _ in range(2)]
    results = [result(attempt) for attempt in successors]
    agree(results, 2)
    assert int(results[0][0]) == int(before[0][0]) + 1
    assert time.monotonic() - started < KEEP_ALIVE + 4


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_extra_data_is_shared(run: Run, order: tuple[str, ...]) -> None:
    (first, second), results = run.meet(order, 2, 2)
    version = results[0][0]
    first._rdzv_impl.store_extra_data(version, "a", "1")
    second._rdzv_impl.store_extra_data(version, "b", "2")
    load: Callable[[Any, str], Any] = lambda handler, key: handler._rdzv_impl.load_extra_data(version, key)  # noqa: E731
    assert [load(first, "b"), load(second, "a")] == ["2", "1"]


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_a_member_that_meets_again_is_noticed_by_the_other(run: Run, order: tuple[str, ...]) -> None:
    """The first one's workers have failed; the second one's are healthy, and its agent only asks for the count."""
    (first, second), _ = run.meet(order, 2, 2)
    again = Attempt(first._rdzv_impl.rendezvous_barrier)
    assert becomes(lambda: bool(second.num_nodes_waiting() > 0), 4)
    other = Attempt(second._rdzv_impl.rendezvous_barrier)
    agree([result(again), result(other)], 2)


@pytest.mark.parametrize("side", [OURS, UPSTREAM])
def test_waiters_of_both_sides_are_counted(run: Run, side: str) -> None:
    (member,), _ = run.meet((side,), 1, 3)
    for waiter in (OURS, UPSTREAM):
        Attempt(run.worker(waiter, 1, 3)._rdzv_impl.rendezvous_barrier)
    assert becomes(lambda: bool(member.num_nodes_waiting() == 2), 10)


def test_a_final_version_that_upstream_has_not_confirmed_is_void(run: Run) -> None:
    """What a lost reply makes of a version of upstream's (defect L-K): one keep-alive is listed twice."""
    run.meet((UPSTREAM,), 1, 1)
    document = run.document()
    broken = {**document, "participants": [0, 1], "keep_alives": document["keep_alives"] * 2}
    run.client.write(f"{run.prefix}/run_job/rdzv/active_version", json.dumps(broken))
    assert result(Attempt(run.worker(OURS, 1, 1)._rdzv_impl.rendezvous_barrier)) == ("2", 0, 1)


def test_a_participant_of_upstream_that_never_confirms_is_not_waited_for(run: Run) -> None:
    """It has joined, which leaves no lease, and died."""
    first = run.worker(OURS, 2, 2, frozen_ttl=2)
    run.client.write(f"{run.prefix}/run_job/rdzv/version_counter", "1")
    run.client.write(f"{run.prefix}/run_job/rdzv/v_1", None, dir=True)
    ghost = {"status": "joinable", "version": "1", "participants": [0]}
    run.client.write(f"{run.prefix}/run_job/rdzv/active_version", json.dumps(ghost))
    attempt = Attempt(first._rdzv_impl.rendezvous_barrier)
    assert becomes(lambda: run.document().get("status") == "frozen", 5)
    late = Attempt(run.worker(UPSTREAM, 2, 2)._rdzv_impl.rendezvous_barrier)
    results = [result(attempt), result(late)]
    agree(results, 2)
    assert results[0][0] == "2"
