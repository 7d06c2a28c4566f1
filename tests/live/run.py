"""The live property run: hypothesis draws jobs, real processes play them on a real etcd, two judges look at each."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import hypothesis
from hypothesis import HealthCheck, Phase, Verbosity
from hypothesis.strategies import SearchStrategy
from rallypoint.impl.etcd_http import EtcdHttp
from rallypoint.impl.etcd_server import EtcdServer
from rallypoint.live import schedule as plans
from rallypoint.live.judge import judge
from rallypoint.live.nursery import Nursery
from rallypoint.live.play import BOUND, Play, Played
from rallypoint.live.replay import RejectedError, replay
from rallypoint.live.schedule import Schedule
from rallypoint.model.errors import UnusableError

HOLDS, VIOLATED, NOT_CHECKED, HARNESS_FAILED = "holds", "violated", "not checked", "harness failed"
SHRINKING = 60.0  # seconds for making a failing schedule smaller


class ViolationError(Exception):
    """A judge rejected a run; the message says which worker did what."""


@dataclass(frozen=True, slots=True)
class LiveResult:
    """Verdict and size of a live run.

    ``examples``: jobs played; ``processes``: workers started; ``kills``: workers killed; ``groups_formed``: groups that
    gathered; ``requests_replayed``: records that the model accepted; ``expiries``: expired keys among them.
    ``failure``: what is wrong, with the schedule that plays it again.
    """

    verdict: str
    examples: int
    processes: int
    kills: int
    groups_formed: int
    requests_replayed: int
    expiries: int
    seconds: float
    failure: str | None = None


@dataclass(slots=True)
class Live:
    """An etcd and a nursery to play schedules with, and the count of what was played."""

    server: EtcdServer
    nursery: Nursery
    http: EtcdHttp
    seed: int = 0
    bound: float = BOUND
    shrinking: float = SHRINKING
    on_progress: Callable[[int], None] = lambda _: None
    examples: int = 0
    processes: int = 0
    kills: int = 0
    groups: int = 0
    requests: int = 0
    expiries: int = 0
    failures: dict[Schedule, str] = field(default_factory=dict)
    _failed_at: float = 0.0

    def play(self, schedule: Schedule) -> Played:
        """Play one schedule, unjudged."""
        run_id = f"live-{self.seed}-{self.examples}"
        self.examples += 1
        play = Play(schedule, run_id, self.server.get_endpoint(), self.nursery, self.http, self.bound)
        played = play.play()
        self.processes += len(played.seats)
        self.kills += sum(seat.killed and seat.entry.kill is not None for seat in played.seats)
        self.groups += len({version for seat in played.seats for version in seat.groups})
        return played

    def check(self, schedule: Schedule) -> None:
        """Play one schedule and judge it. Raises ViolationError, the same for the same schedule.

        After a failure so many seconds may be spent on smaller schedules; those that come later pass unplayed.
        """
        in_time = not self.failures or time.monotonic() - self._failed_at < self.shrinking
        if schedule not in self.failures and in_time:
            fault = self._judged(self.play(schedule))
            self.on_progress(self.examples)
            if fault is not None:
                self._failed_at = self._failed_at or time.monotonic()
                self.failures[schedule] = f"{fault}\nschedule: {plans.dumps(schedule)}"
        if schedule in self.failures:
            raise ViolationError(self.failures[schedule])

    def _judged(self, played: Played) -> str | None:
        faults = [judge(played)]
        try:
            replayed = replay(played.rules, played.histories)
            self.requests += replayed.requests
            self.expiries += replayed.expiries
        except RejectedError as error:
            faults.append(f"the model rejects the run: {error}")
        return "\n".join(fault for fault in faults if fault is not None) or None

    def result(self, seconds: float, verdict: str, failure: str | None) -> LiveResult:
        if verdict == HOLDS and not (self.kills and self.groups and self.requests):
            verdict = HARNESS_FAILED
            failure = f"too little happened: {self.kills} kills, {self.groups} groups, {self.requests} requests"
        sizes = (self.examples, self.processes, self.kills, self.groups, self.requests, self.expiries)
        return LiveResult(verdict, *sizes, seconds, failure)


def run_live(
    examples: int,
    seed: int,
    on_progress: Callable[[int, int], None] | None = None,
    *,
    fault: str | None = None,
    shrinking: float = SHRINKING,
    device: str = "cpu",
    members: int = plans.MEMBERS,
    environment: Mapping[str, str] = os.environ,
) -> LiveResult:
    """Play and judge ``examples`` drawn jobs; the same seed draws the same jobs. ``on_progress(done, examples)``.

    ``fault``: planted in every worker (``faults.FAULTS``), to try the judges. ``shrinking``: seconds for making a
    failing job smaller. ``device``: what groups are proved on, "cpu" (gloo) or "npu" (hccl), in this ``environment``;
    ``members``: of a job at most.
    Nothing is left running. Never raises, but for a wrong argument: what went wrong is in the result.
    """
    if examples < 1:
        raise ValueError("at least one example")
    start = time.monotonic()

    def seconds() -> float:
        return time.monotonic() - start

    def progress(done: int) -> None:
        if on_progress is not None:
            on_progress(min(done, examples), examples)

    try:
        with EtcdServer() as server, Nursery(device, environment) as nursery:
            http = EtcdHttp.of_client(server.get_client())
            live = Live(server, nursery, http, seed, shrinking=shrinking, on_progress=progress)
            try:
                _explore(live, examples, plans.schedules(fault, members))
                return live.result(seconds(), HOLDS, None)
            except ViolationError as error:
                return live.result(seconds(), VIOLATED, str(error))
            except Exception as error:
                return live.result(seconds(), HARNESS_FAILED, f"{type(error).__name__}: {error}\n{nursery.tail()}")
            finally:
                http.close()
    except UnusableError as error:
        return LiveResult(NOT_CHECKED, 0, 0, 0, 0, 0, 0, seconds(), str(error))


def _explore(live: Live, examples: int, schedules: SearchStrategy[Schedule]) -> None:
    @hypothesis.seed(live.seed)
    @hypothesis.settings(
        max_examples=examples,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.quiet,
        print_blob=False,
        report_multiple_bugs=False,
    )
    @hypothesis.given(schedules)
    def explore(schedule: Schedule) -> None:
        live.check(schedule)

    explore()


def replay_schedule(schedule: Schedule, bound: float = BOUND) -> LiveResult:
    """Play and judge one schedule, quiet within ``bound`` seconds; the floor for kills and groups does not apply.

    Raises UnusableError if etcd or the workers' process cannot be started.
    """
    start = time.monotonic()
    with EtcdServer() as server, Nursery() as nursery:
        live = Live(server, nursery, EtcdHttp.of_client(server.get_client()), bound=bound)
        verdict, failure = HOLDS, None
        try:
            live.check(schedule)
        except ViolationError as error:
            verdict, failure = VIOLATED, str(error)
        except Exception as error:
            verdict, failure = HARNESS_FAILED, f"{type(error).__name__}: {error}\n{nursery.tail()}"
        finally:
            live.http.close()
        sizes = (live.examples, live.processes, live.kills, live.groups, live.requests, live.expiries)
        return LiveResult(verdict, *sizes, time.monotonic() - start, failure)
