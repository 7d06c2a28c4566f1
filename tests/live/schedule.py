"""What a live run does, as a value: it is drawn, shrunk, printed and played again.

May live here: the schedule, its JSON form and the strategy that draws it. Must not live here: processes or etcd.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import Any

from hypothesis import strategies as st

MOMENTS = ("before", "after", "member", "grouped")
MEMBERS = 6  # of a job at most
REQUESTS = 14  # a worker that meets undisturbed needs 8 to 12 requests


@dataclass(frozen=True, slots=True)
class Kill:
    """SIGKILL of one worker by its own hand, so that the moment is exact.

    ``moment``: "before" or "after" its ``count``-th request; "member": when next_rendezvous has returned for the
    ``count``-th time; "grouped": when it has gathered for the ``count``-th time. What is not reached does not happen.
    """

    moment: str
    count: int


@dataclass(frozen=True, slots=True)
class Entry:
    """One worker, in order of arrival. ``gap``: it starts when the one before it is at its ``gap``-th request.

    One that waits, has met or has died holds nobody back.
    """

    gap: int = 0
    kill: Kill | None = None


@dataclass(frozen=True, slots=True)
class Schedule:
    """One job: its size, its workers and their fates. ``last_call`` in seconds.

    ``fault``: a fault of ``rallypoint.live.faults`` that is planted in every worker; the run must then be rejected.
    """

    min_workers: int
    max_workers: int
    entries: tuple[Entry, ...]
    last_call: int = 0
    fault: str | None = None

    def __post_init__(self) -> None:
        if any(type(number) is not int for number in (self.min_workers, self.max_workers, self.last_call)):
            raise ValueError(f"not a schedule, its sizes are whole numbers: {self}")
        if not 1 <= self.min_workers <= self.max_workers or not self.entries or self.last_call < 0:
            raise ValueError(f"not a schedule: {self}")
        for entry in self.entries:
            if any(type(number) is not int for number in (entry.gap, entry.kill.count if entry.kill else 0)):
                raise ValueError(f"not a schedule, its counts are whole numbers: {entry}")
            if entry.gap < 0 or (entry.kill is not None and (entry.kill.moment not in MOMENTS or entry.kill.count < 1)):
                raise ValueError(f"not a schedule: {entry}")


def dumps(schedule: Schedule) -> str:
    """One line of JSON."""
    return json.dumps(asdict(schedule))


def loads(text: str) -> Schedule:
    """The inverse of ``dumps``. Raises ValueError for anything else."""
    try:
        data = _exactly(Schedule, json.loads(text))
        entries = [_exactly(Entry, entry) for entry in data.pop("entries")]
        return Schedule(
            **data,
            entries=tuple(
                Entry(entry["gap"], None if entry["kill"] is None else Kill(**_exactly(Kill, entry["kill"])))
                for entry in entries
            ),
        )
    except (TypeError, KeyError, ValueError) as error:
        raise ValueError(f"not a schedule: {error}") from error


def _exactly(kind: type[Any], data: Any) -> dict[str, Any]:
    names = {field.name for field in fields(kind)}
    if not isinstance(data, dict) or set(data) != names:
        raise ValueError(f"a {kind.__name__} has the fields {sorted(names)}")
    return dict(data)


def kills() -> st.SearchStrategy[Kill]:
    """One kill: at a request, or of a member."""
    at_request = st.builds(Kill, st.sampled_from(MOMENTS[:2]), st.integers(1, REQUESTS))
    of_member = st.builds(Kill, st.sampled_from(MOMENTS[2:]), st.integers(1, 2))
    return st.one_of(at_request, of_member)


@st.composite
def schedules(draw: st.DrawFn, fault: str | None = None, members: int = MEMBERS) -> Schedule:
    """Jobs of 1 to 6 workers, at most ``members`` of them members at a time.

    In two of three, somebody is killed, mostly so that min workers live on.
    """
    workers = draw(st.integers(1, 6))
    min_workers = draw(st.integers(1, min(workers, members)))
    max_workers = draw(st.integers(min_workers, members))
    harmless = draw(st.sampled_from((True, False, False)))
    at_most = 0 if harmless else max(1, workers - min_workers)
    victims = draw(st.sets(st.integers(0, workers - 1), min_size=min(1, at_most), max_size=at_most))
    entries = tuple(
        Entry(draw(st.integers(0, 8)), draw(kills()) if number in victims else None) for number in range(workers)
    )
    # Without a last call, min workers at a time go ahead and turn the others away, again and again.
    least = 1 if min_workers < min(workers, max_workers) else 0
    return Schedule(min_workers, max_workers, entries, draw(st.integers(least, 1)), fault)
