"""The table of what was seen live: it adds up, it survives a file, and a run that did too little fails."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from rallypoint.live import walks
from rallypoint.live.coverage import Coverage, Row, possible_kinds
from rallypoint.live.play import History
from rallypoint.live.record import MEET, Attempt, Record
from rallypoint.live.run import HARNESS_FAILED, HOLDS
from rallypoint.live.walks import PROFILES, WalksResult, judged
from rallypoint.live.walks_player import UNPLAYABLE
from rallypoint.model import etcd
from rallypoint.model import worker as machine
from rallypoint.model.errors import UnusableError
from rallypoint.model.etcd import Store
from rallypoint.model.walks import Graph
from rallypoint.model.worker import Rules, Worker


def recorded(rules: Rules) -> History:
    """What a recorder notes of one worker that meets alone, the reply of its first write lost."""
    worker, store = Worker("0.0"), Store()
    history: History = [Attempt(0, worker)]
    store, _ = etcd.apply(store, machine.want(rules, worker))
    history.append(Record(0, MEET, machine.want(rules, worker), None, 0))
    while worker.pc != machine.MEMBER:
        ready = machine.last_call_over(worker) if machine.owns_last_call(rules, worker) else worker
        request = machine.want(rules, ready)
        store, reply = etcd.apply(store, request)
        history.append(Record(len(history) - 1, MEET, request, reply, store.index))
        worker = machine.step(rules, ready, reply)
    return history


def test_a_recorded_run_adds_its_kinds() -> None:
    coverage = Coverage()
    coverage.add_histories(Rules(1, 2), [recorded(Rules(1, 2))])
    assert coverage.kinds["Create > read"] == 1  # its own success stands in its way
    assert coverage.kinds["LastCallOver > freeze"] == 1
    assert coverage.kinds["Confirm > member"] == 1
    assert not [kind for kind in coverage.kinds if kind.startswith("Deadline")]


def test_what_is_possible_comes_from_the_model() -> None:
    configs = walks.configurations()
    kinds = possible_kinds([Graph(configs["lost-reply"])], UNPLAYABLE)
    assert {"Join > peers", "Join > read", "LoseReply of Confirm", "ExpireKey"} <= kinds
    assert not [kind for kind in kinds if kind.startswith(("WakeEarly", "Crash", "Deadline"))]


def test_never_seen_is_listed() -> None:
    coverage = Coverage({"x": Row(10, 4, {"WakeEarly": 2}, 1)}, Counter({"A": 3}), {"A", "B > c"})
    assert coverage.never() == ["B > c"]
    text = "\n".join(coverage.report({"WakeEarly": "the reason"}))
    assert "never seen: B > c" in text
    assert "in all 40.0% of the transitions, 1 of 2 kinds" in text
    assert "WakeEarly: 2 transitions cannot be taken live: the reason" in text
    assert "1 transitions are only behind those" in text


def test_runs_add_up() -> None:
    one = Coverage({"x": Row(10, 4)}, Counter({"A": 3}), {"A", "B"})
    one.merge(Coverage({"x": Row(10, 7), "y": Row(10, 1)}, Counter({"A": 1, "B": 1}), {"C"}))
    assert one.kinds == Counter({"A": 4, "B": 1})
    assert one.rows == {"x": Row(10, 7), "y": Row(10, 1)}
    assert one.never() == ["C"]
    assert one.share() == 0.4


def test_a_table_survives_its_file(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    one = Coverage({"x": Row(10, 4, {"WakeEarly": 2}, 1)}, Counter({"A": 3}), {"A", "B"})
    assert Coverage.load(path) == Coverage()
    one.save(path)
    assert Coverage.load(path) == one


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"rows": {"x": {"y": 1}}, "kinds": {}, "possible": []}'])
def test_what_is_no_table_is_named(text: str, tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.write_text(text)
    with pytest.raises(UnusableError, match="not a coverage table"):
        Coverage.load(path)


@pytest.mark.parametrize(
    ("seen", "kinds", "words"),
    [
        (0, 20, "0.0% of all transitions were seen, the floor is 15%"),
        (1400, 20, "14.0% of all transitions were seen, the floor is 15%"),
        (1600, 17, "3 of 20 kinds of steps were never seen, the floor is 90%"),
        (1600, 18, None),
    ],
)
def test_a_run_below_the_floor_fails(seen: int, kinds: int, words: str | None) -> None:
    possible = [f"kind {number}" for number in range(20)]
    coverage = Coverage({"x": Row(10_000, seen)}, Counter(possible[:kinds]), set(possible))
    result = judged(WalksResult(coverage=coverage), PROFILES["ci"])
    assert result.verdict == (HOLDS if words is None else HARNESS_FAILED)
    assert result.failure == (None if words is None else f"too little was played: {words}")
