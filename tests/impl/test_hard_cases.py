"""What breaks a rendezvous in the middle: keys that vanish, workers that die or are interrupted, odd neighbours."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from rallypoint.defects.stage import Attempt, becomes
from rallypoint.impl.etcd_http import EtcdHttp, joined_key
from rallypoint.impl.etcd_rendezvous import EtcdRendezvousHandler
from rallypoint.impl.etcd_run import EtcdRendezvous
from rallypoint.impl.etcd_server import EtcdServer
from rallypoint.impl.etcd_store import EtcdStore
from rallypoint.model import document as docs
from rallypoint.model import worker as machine
from rallypoint.model.rules import Rules
from rallypoint.model.worker import Worker
from torch.distributed.elastic.rendezvous import RendezvousStateError

Make = Callable[..., EtcdRendezvousHandler]


def delete(http: EtcdHttp, prefix: str) -> None:
    http.call("DELETE", joined_key(prefix, "run_job"), {"recursive": "true"}, time.monotonic() + 5)


def put(http: EtcdHttp, prefix: str, name: str, value: str) -> None:
    http.call("PUT", joined_key(prefix, f"run_job/rdzv/{name}"), {"value": value}, time.monotonic() + 5)


def test_rank_0_does_not_wait_for_an_address_that_it_has_published_itself(
    make: Make, http: EtcdHttp, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = EtcdStore.set

    def write_and_lose(self: EtcdStore, key: Any, value: Any) -> None:
        write(self, key, value)
        if key == "MASTER_PORT":
            delete(http, prefix)

    monkeypatch.setattr(EtcdStore, "set", write_and_lose)
    handler = make()
    started = time.monotonic()
    assert handler.next_rendezvous().rank == 0
    assert time.monotonic() - started < 5
    assert handler.num_nodes_waiting() > 0


def test_a_job_that_was_killed_can_start_again_with_other_bounds(make: Make) -> None:
    killed = make(1, 1)
    first = killed.next_rendezvous()
    killed._rdzv_impl._driver.release()  # as after a SIGKILL: its lease ends with its TTL
    again = Attempt(make(1, 2).next_rendezvous)
    assert again.returned(8), again.told()
    assert (again.value.rank, again.value.world_size) == (first.rank, 1)


def test_other_bounds_beside_living_members_are_an_error_after_one_ttl(make: Make) -> None:
    make(1, 1).next_rendezvous()
    started = time.monotonic()
    with pytest.raises(RendezvousStateError, match="is for 1 to 1 workers, this one asks for 1 to 2"):
        make(1, 2).next_rendezvous()
    assert 2 <= time.monotonic() - started < 6


def test_an_empty_version_with_other_bounds_is_named_in_the_time_out(make: Make, http: EtcdHttp, prefix: str) -> None:
    put(http, prefix, "active_version", docs.render(docs.publish(7, (1, 1))))
    waiting = Attempt(make(1, 2, timeout=2).next_rendezvous)
    assert waiting.ended(6)
    assert "version 7 is for 1 to 1 workers, this one asks for 1 to 2" in str(waiting.error)


def test_an_interrupted_worker_leaves_no_ghost(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = make(2, 2)
    note = EtcdRendezvous._note

    def interrupt(self: EtcdRendezvous, worker: Worker) -> None:
        note(self, worker)
        if worker.pc == "peers":
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(EtcdRendezvous, "_note", interrupt)
        with pytest.raises(KeyboardInterrupt):
            alone.next_rendezvous()
    others = [Attempt(make(2, 2).next_rendezvous) for _ in range(2)]
    assert all(other.returned(5) for other in others), [other.told() for other in others]


def test_who_closed_a_run_is_not_called_back_when_the_mark_has_run_out(make: Make) -> None:
    handler = make(1, 1, closed_ttl=1)
    handler.next_rendezvous()
    handler.set_closed()
    assert becomes(lambda: not handler.is_closed(), 5)
    assert handler.num_nodes_waiting() == 0


def test_a_version_of_the_same_number_is_another_one() -> None:
    rules = Rules(1, 1)
    theirs = docs.confirm(docs.join(docs.publish(5, (1, 1)), "theirs", 1), "k", once=True)
    keys, text = ("k",), docs.render(theirs)
    assert (
        machine.standing(rules, Worker("theirs", machine.MEMBER, version=5, rank=0, world=1), text, keys).waiting == 0
    )
    mine = machine.standing(rules, Worker("mine", machine.MEMBER, version=5, rank=0, world=1), text, keys)
    assert mine.stale
    assert "another one of this number" in mine.reason


@pytest.mark.parametrize("bound", [1.0, "1", True, None])
def test_bounds_are_whole_numbers(etcd_server: EtcdServer, prefix: str, bound: Any) -> None:
    with pytest.raises(ValueError, match=r"min_workers=.*must be a whole number"):
        EtcdRendezvous(etcd_server.get_client(), prefix, "job", bound, 2, 5, 1)


@pytest.mark.parametrize("counter", ["007", "9" * 18, "many"])
def test_a_counter_that_nobody_wrote_is_a_state_error(make: Make, http: EtcdHttp, prefix: str, counter: str) -> None:
    put(http, prefix, "version_counter", counter)
    with pytest.raises(RendezvousStateError, match="version counter"):
        make().next_rendezvous()


def test_a_key_in_place_of_a_directory_is_a_state_error(make: Make, http: EtcdHttp, prefix: str) -> None:
    handler = make()
    http.call("PUT", joined_key(prefix, "run_job/rdzv"), {"value": "x"}, time.monotonic() + 5)
    with pytest.raises(RendezvousStateError, match="in the place of a directory"):
        handler.next_rendezvous()
    assert handler.shutdown() is False
