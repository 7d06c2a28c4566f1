"""Generated walks: the walks cover what they promise, the live system follows them, and planted faults stop it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from rallypoint.impl.etcd_v2 import EtcdV2
from rallypoint.live import faults, walks
from rallypoint.live.run import HARNESS_FAILED, HOLDS, NOT_CHECKED, VIOLATED
from rallypoint.live.walks_player import UNPLAYABLE
from rallypoint.live.walks_wire import Numbers
from rallypoint.model import etcd
from rallypoint.model.walks import Graph, Transition, covering

CONFIGS = walks.configurations()


@pytest.fixture(scope="module")
def graph() -> Graph:
    return Graph(CONFIGS["lost-reply"])


def test_walks_take_every_transition(graph: Graph) -> None:
    taken: set[Transition] = set()
    for walk in covering(graph, seed=3):
        assert walk[0].source == graph.start
        assert all(one.target == other.source for one, other in pairwise(walk))
        taken.update(walk)
    assert len(taken) == len(graph) == 746


def test_the_same_seed_gives_the_same_walks(graph: Graph) -> None:
    assert list(covering(graph, seed=3)) == list(covering(Graph(CONFIGS["lost-reply"]), seed=3))
    assert list(covering(graph, seed=3)) != list(covering(graph, seed=4))


def test_what_is_avoided_is_not_walked(graph: Graph) -> None:
    actions = {step.action for walk in covering(graph, avoid={"LoseReply"}) for step in walk}
    assert "Confirm" in actions
    assert "LoseReply" not in actions


def test_a_graph_that_is_too_large_is_refused() -> None:
    with pytest.raises(ValueError, match="more than 10 states"):
        Graph(CONFIGS["lost-reply"], max_states=10)


def test_all_configurations_of_two_workers_of_ours_are_there() -> None:
    assert len(CONFIGS) >= 20
    assert all(config.workers == 2 and not config.theirs for config in CONFIGS.values())
    assert "crash-restart" not in walks.configurations(large=False)


@pytest.mark.timeout(400)
def test_the_ci_profile() -> None:
    profile = walks.PROFILES["ci"]
    goal = profile.transitions, profile.kinds
    result = walks.judged(walks.run_walks(walks.configurations(profile.large), profile.seconds, goal=goal), profile)
    print(walks.report(result))
    assert (result.verdict, result.failure) == (HOLDS, None)
    assert all(row.seen for row in result.coverage.rows.values())


def test_a_whole_space() -> None:
    result = walks.run_walks({"other-minimum": CONFIGS["other-minimum"]}, 60)
    assert (result.verdict, result.failure) == (HOLDS, None)
    row = result.coverage.rows["other-minimum"]
    assert (row.seen, row.transitions, row.unplayable, row.behind) == (143, 143, {}, 0)
    assert result.coverage.never() == []
    assert "OthersStay > mismatch" in result.coverage.kinds
    assert not [thread for thread in threading.enumerate() if "walk worker" in thread.name]


def slot_left_out() -> AbstractContextManager[Any]:
    """A join writes a rank that is not the next one."""
    perform = EtcdV2.perform

    def wrong(self: EtcdV2, request: etcd.Request, deadline: float) -> etcd.Reply | None:
        if isinstance(request, etcd.Cas) and '"joinable"' in request.prev:
            document = json.loads(request.value)
            if document["participants"]:
                document["participants"][-1] += 1
                request = etcd.Cas(request.key, request.prev, json.dumps(document), request.ttl)
        return perform(self, request, deadline)

    return mock.patch.object(EtcdV2, "perform", wrong)


def never_sees_a_change() -> AbstractContextManager[Any]:
    """A long poll that begins too late: it misses the event that it is there for."""
    watch = EtcdV2._watch

    def late(self: EtcdV2, request: etcd.Await, index: int, deadline: float) -> None:
        watch(self, request, index + 1_000_000, deadline)

    return mock.patch.object(EtcdV2, "_watch", late)


PLANTS = {
    "ranks_rotated": (faults.ranks_rotated, "rendezvous_barrier"),
    "confirm_skipped": (faults.confirm_skipped, "the worker's next request"),
    "compare_dropped": (faults.compare_dropped, "the worker's next request"),
    "slot_left_out": (slot_left_out, "the worker's next request"),
    "never_sees_a_change": (never_sees_a_change, "nothing"),
}


@pytest.mark.parametrize("plant", PLANTS)
def test_planted_faults_are_differences(plant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rallypoint.live.walks_seat.BOUND", 2.0)
    fault: Callable[[], AbstractContextManager[Any]]
    fault, where = PLANTS[plant]
    with fault():
        result = walks.run_walks({"lost-reply": CONFIGS["lost-reply"]}, 30)
    assert result.verdict == VIOLATED
    assert result.failure is not None
    for words in ("walk lost-reply/", ", step ", "expected", "seen", where):
        assert words in result.failure


def test_a_run_that_did_too_little_fails() -> None:
    result = walks.judged(walks.run_walks({"lost-reply": CONFIGS["lost-reply"]}, 0), walks.PROFILES["ci"])
    assert result.verdict == HARNESS_FAILED
    assert result.failure == "too little was played: 0.0% of all transitions were seen, the floor is 15%"


def test_without_an_etcd_nothing_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_ETCD_BINARY_PATH", "/no/such/etcd")
    result = walks.run_walks({"lost-reply": CONFIGS["lost-reply"]}, 1)
    assert result.verdict == NOT_CHECKED
    assert "/no/such/etcd" in str(result.failure)


def test_one_walk_by_its_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "coverage.json"
    assert walks.main(["--only", "lost-reply/3", "--coverage", str(table)]) == 0
    printed = capsys.readouterr().out
    assert "walks: holds" in printed
    assert "1 walks," in printed
    assert json.loads(table.read_text())["rows"]["lost-reply"]["seen"] > 0


@pytest.mark.parametrize("name", ["no-such", "lost-reply/x"])
def test_unusable_names_are_told(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert walks.main(["--only", name]) == 2
    assert "cannot play that" in capsys.readouterr().err


def test_every_action_that_is_left_out_has_a_reason() -> None:
    assert set(UNPLAYABLE) == {"WakeEarly", "Outage"}


def test_numbers_are_told_in_the_models() -> None:
    numbers = Numbers("/walks/run_x/rdzv", {57: 0})
    assert numbers.value("/version_counter", "58") == "1"
    assert numbers.text("/walks/run_x/rdzv/v_58/alive_0.0") == "/v_1/alive_0.0"
    assert numbers.text('{"status": "final", "version": "59"}') == '{"status": "final", "version": "2"}'
    assert numbers.model(99) == -1
