"""The live property run, and that its judges do reject: planted faults, and mutants of a recorded run."""

from __future__ import annotations

import os
import re
import signal
import socket
from collections.abc import Iterator
from dataclasses import replace

import hypothesis
import pytest
from rallypoint.impl.etcd_http import EtcdHttp
from rallypoint.impl.etcd_server import EtcdServer
from rallypoint.live import schedule as plans
from rallypoint.live.faults import FAULTS
from rallypoint.live.judge import judge
from rallypoint.live.nursery import Nursery
from rallypoint.live.play import History, Met, Played
from rallypoint.live.record import LEASE, MEET, Record
from rallypoint.live.replay import RejectedError, replay
from rallypoint.live.run import HARNESS_FAILED, HOLDS, Live, ViolationError, run_live
from rallypoint.live.schedule import Entry, Kill, Schedule
from rallypoint.model import etcd

EXAMPLES = 15 if os.environ.get("CI") == "true" else 10
SOME_JOB = Schedule(2, 3, (Entry(), Entry(3), Entry(8, Kill("grouped", 1))), 1)


@pytest.fixture(scope="module")
def live(etcd_server: EtcdServer) -> Iterator[Live]:
    """What plays schedules; quiet is awaited for 8 s only, since planted faults never get there."""
    http = EtcdHttp.of_client(etcd_server.get_client())
    with Nursery() as nursery:
        yield Live(etcd_server, nursery, http, bound=8.0)
    http.close()


@pytest.fixture(scope="module")
def played(live: Live) -> Played:
    """One run that is as it should be."""
    result = live.play(SOME_JOB)
    assert judge(result) is None
    return result


def test_random_jobs_hold() -> None:
    seen: list[tuple[int, int]] = []
    result = run_live(EXAMPLES, seed=1, on_progress=lambda done, total: seen.append((done, total)))
    assert result.failure is None
    assert result.verdict == HOLDS
    assert result.examples == EXAMPLES
    assert seen[-1] == (EXAMPLES, EXAMPLES)
    assert result.kills >= EXAMPLES // 5
    assert result.groups_formed >= EXAMPLES // 2
    assert result.requests_replayed >= 20 * EXAMPLES


CAUGHT = {
    "ranks_rotated": "expected member with .* found that next_rendezvous returned",
    "rank_always_zero": "RankUnique: worker . met in version [0-9]+ as rank 0 of 2, and so did worker",
    "never_renewed": "not quiet .* lease not renewed",
    "confirm_skipped": "expected (a write with an index of its own|an etcd index from)",
    "compare_dropped": r"expected Failed\(code=101\), found Done",
    "never_told": "not quiet|EventuallyTold",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_caught(live: Live, fault: str) -> None:
    schedules = {
        "compare_dropped": Schedule(2, 2, (Entry(), Entry(), Entry(), Entry()), 0, fault),
        "never_told": Schedule(1, 2, (Entry(), Entry(8)), 0, fault),
    }
    with pytest.raises(ViolationError, match=CAUGHT[fault]) as caught:
        live.check(schedules.get(fault, Schedule(2, 2, (Entry(), Entry()), 0, fault)))
    schedule = str(caught.value).rpartition("schedule: ")[2]
    assert plans.loads(schedule).fault == fault


# --- mutants of a recorded run ------------------------------------------------------------------------------------


def _records(history: History) -> list[Record]:
    return [item for item in history if isinstance(item, Record)]


def _find(played: Played, text: str) -> tuple[int, Record]:
    """The first write of a worker's machine whose new value matches, and its worker."""
    for slot, history in enumerate(played.histories):
        for record in _records(history):
            done = record.kind == MEET and isinstance(record.reply, etcd.Done)
            if done and isinstance(record.request, etcd.Cas) and re.search(text, record.request.value):
                return slot, record
    raise AssertionError(f"no write of {text}")


def _changed(played: Played, slot: int, old: Record | Met, new: Record | Met | None) -> tuple[History, ...]:
    """The histories with one item replaced, or left out (and those behind it numbered anew)."""
    history: History = []
    for item in played.histories[slot]:
        if item is old:
            history.extend([] if new is None else [new])
        elif new is None and item.number > old.number:
            history.append(replace(item, number=item.number - 1))
        else:
            history.append(item)
    return tuple(history if number == slot else list(h) for number, h in enumerate(played.histories))


def _rejected(played: Played, histories: tuple[History, ...]) -> str:
    with pytest.raises(RejectedError) as error:
        replay(played.rules, histories)
    return str(error.value)


def test_the_recorded_run_is_accepted(played: Played) -> None:
    replayed = replay(played.rules, played.histories)
    assert replayed.requests == sum(len(_records(history)) for history in played.histories)
    assert replayed.expiries >= 1  # the killed member's lease
    assert replayed.lost == 0


def test_a_missing_confirmation_is_rejected(played: Played) -> None:
    slot, record = _find(played, '"keep_alives": \\["')
    message = _rejected(played, _changed(played, slot, record, None))
    # A renewal may stand between the confirmation and the request that follows it.
    numbers = f"({record.number}|{record.number + 1})"
    assert re.match(rf"worker {slot}, record {numbers}: expected \(?confirm.* found ", message)


def test_a_gap_in_the_numbers_is_rejected(played: Played) -> None:
    slot, record = _find(played, "joinable")
    histories = tuple([item for item in history if item is not record] for history in played.histories)
    assert f"worker {slot}, record {record.number + 1}: expected record {record.number};" in _rejected(
        played, histories
    )


def test_swapped_ranks_are_rejected(played: Played) -> None:
    slot, met = next((s, i) for s, h in enumerate(played.histories) for i in h if isinstance(i, Met) and i.world > 1)
    message = _rejected(played, _changed(played, slot, met, replace(met, rank=(met.rank + 1) % met.world)))
    assert f"worker {slot}, record {met.number}: expected member" in message


def test_another_reply_is_rejected(played: Played) -> None:
    slot, record = _find(played, "joinable")
    message = _rejected(played, _changed(played, slot, record, replace(record, reply=etcd.Failed(101))))
    assert message.startswith(f"worker {slot}, record {record.number + 1}: expected (read) Get")


def test_a_reply_that_only_etcd_knows_to_be_wrong_is_rejected(played: Played) -> None:
    slot, record = next(
        (slot, record)
        for slot, history in enumerate(played.histories)
        for record in _records(history)
        if record.kind == LEASE and isinstance(record.request, etcd.Refresh) and isinstance(record.reply, etcd.Done)
    )
    wrong = replace(record, reply=etcd.Done("somebody else"))
    message = _rejected(played, _changed(played, slot, record, wrong))
    assert message.startswith(f"worker {slot}, record {record.number}, etcd index {record.index}: expected Done")


def test_writes_in_another_order_are_rejected(played: Played) -> None:
    slot, record = _find(played, "frozen")
    message = _rejected(played, _changed(played, slot, record, replace(record, index=1)))
    assert re.match(rf"worker {slot}, record {record.number}: expected an etcd index from", message)


def test_a_request_of_a_dead_worker_is_rejected(played: Played) -> None:
    slot = next(seat.number for seat in played.seats if seat.killed)
    history = list(played.histories[slot])
    history.append(replace(_records(history)[-1], number=len(_records(history)), kind=MEET))
    histories = (*played.histories[:slot], history, *played.histories[slot + 1 :])
    assert "expected no request, the worker is crashed; found" in _rejected(played, histories)


# --- the harness itself -------------------------------------------------------------------------------------------


def _drawn(seed: int) -> list[Schedule]:
    drawn: list[Schedule] = []

    @hypothesis.seed(seed)
    @hypothesis.settings(max_examples=30, database=None, phases=(hypothesis.Phase.generate,))
    @hypothesis.given(plans.schedules())
    def draw(schedule: Schedule) -> None:
        drawn.append(schedule)

    draw()
    return drawn


def test_the_same_seed_draws_the_same_schedules_and_they_survive_json() -> None:
    first = _drawn(7)
    assert first == _drawn(7)
    assert first != _drawn(8)
    assert [plans.loads(plans.dumps(schedule)) for schedule in first] == first
    assert sum(any(entry.kill for entry in schedule.entries) for schedule in first) >= 10


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"min_workers": 1}',
        plans.dumps(SOME_JOB).replace("grouped", "sometime"),
        plans.dumps(SOME_JOB).replace('"min_workers": 2', '"min_workers": 4'),
        plans.dumps(SOME_JOB).replace('"gap"', '"gapp"'),
    ],
)
def test_what_is_no_schedule_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a schedule"):
        plans.loads(text)


def test_a_run_in_which_too_little_happened_is_no_pass(live: Live) -> None:
    idle = Live(live.server, live.nursery, live.http)
    result = idle.result(0.0, HOLDS, None)
    assert result.verdict == HARNESS_FAILED
    assert "0 kills, 0 groups" in str(result.failure)


def test_the_nursery_has_one_thread_and_leaves_no_process() -> None:
    ours, theirs = socket.socketpair()
    nursery = Nursery()
    with ours, theirs:
        try:
            assert nursery.threads == 1
            job = {"kill": None, "fault": None}  # it waits for its order to start
            pid = nursery.start(job, theirs)
            os.kill(pid, 0)
            other = nursery.start(job, theirs)
            nursery.kill(other)
            while other not in nursery.exits:
                nursery.look()
            assert nursery.exits == {other: -signal.SIGKILL}
        finally:
            nursery.close()
    for one in (pid, other):
        with pytest.raises(ProcessLookupError):
            os.kill(one, 0)
