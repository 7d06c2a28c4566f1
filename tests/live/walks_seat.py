"""One live worker of a walk: our own rendezvous in a thread, a gate before its etcd, and a clock that obeys.

A worker is a thread, not a process: its requests, which are all that the others see of it, pass its own gate, so a
crash is a gate that answers nothing any more and a thread that is abandoned; no key is given up, no lease renewed.
(Real SIGKILLs are the live property run's.) Its clock stands still but for the moment of a step that time causes, so
"the last call is over" is a decision of the controller, carried out by the driver's own comparison of times.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, TypeAlias
from unittest import mock

from rallypoint.impl import driver, etcd_http, etcd_run, etcd_v2, outage
from rallypoint.impl.etcd_http import Access, EtcdHttp
from rallypoint.impl.etcd_rendezvous import EtcdRendezvous, EtcdRendezvousHandler
from rallypoint.live.gate import BOUND, Gate, Held, Mode
from rallypoint.model.worker import Rules

TTLS = {"setup_ttl": 601, "joinable_ttl": 602, "frozen_ttl": 603, "keep_alive_ttl": 604}
"""Seconds: all different, so that none passes for another, and longer than a walk, so that none runs out."""
PREFIX = "/walks"
LAST_CALL = 10_000.0  # seconds on a clock that stands still
TIMEOUT = 1_000_000.0
START = 1_000.0


@dataclass(slots=True)
class Clock:
    """What the time is for one worker, in monotonic seconds."""

    now: float = START


class _Current(threading.local):
    """Whose thread this is."""

    clock: Clock | None = None
    name: str = ""


_current = _Current()


def _now() -> float:
    return time.monotonic() if _current.clock is None else _current.clock.now


def _sleep(seconds: float) -> None:
    """A pause orders nothing that the gates do not order."""
    if _current.clock is None:
        time.sleep(seconds)


@contextlib.contextmanager
def obedient() -> Iterator[None]:
    """Workers' threads have the clocks and the names that the controller gave them; all other threads the real ones."""
    clocks = SimpleNamespace(monotonic=_now, sleep=_sleep)
    participant = etcd_run._participant

    def named() -> str:
        return _current.name or participant()

    with contextlib.ExitStack() as patches:
        for module in (driver, etcd_v2, etcd_http, etcd_run, outage):
            patches.enter_context(mock.patch.object(module, "time", clocks))
        patches.enter_context(mock.patch.object(etcd_run, "_participant", named))
        yield


@dataclass(frozen=True, slots=True)
class Outcome:
    """A call has ended: with ``value``, or with ``error``."""

    value: Any = None
    error: Exception | None = None

    def __str__(self) -> str:
        return f"{type(self.error).__name__}: {self.error}" if self.error is not None else f"returned {self.value}"


Arrival: TypeAlias = "Held | Outcome"


@dataclass(slots=True)
class Seat:
    """The worker in one slot, for as many walks as you like. ``arrivals``: requests at the gate, ended calls."""

    slot: int
    upstream: tuple[str, int]
    rules: Rules | None = None
    run_id: str = ""
    clock: Clock = field(default_factory=Clock)
    arrivals: queue.SimpleQueue[Arrival] = field(default_factory=queue.SimpleQueue)
    handler: EtcdRendezvousHandler | None = None
    busy: bool = False
    _calls: queue.SimpleQueue[Callable[[], Any] | None] = field(default_factory=queue.SimpleQueue)

    def __post_init__(self) -> None:
        self.gate = Gate(self.upstream, hold_watches=True, on_arrival=self.arrivals.put)
        self.http = EtcdHttp(Access(endpoints=((self.gate.host, self.gate.port),)), attempt_timeout=120)
        self._thread = threading.Thread(target=self._work, name=f"walk worker {self.slot}", daemon=True)
        self._thread.start()

    gate: Gate = field(init=False)
    http: EtcdHttp = field(init=False)
    _thread: threading.Thread = field(init=False)

    @property
    def run(self) -> EtcdRendezvous:
        assert self.handler is not None
        return self.handler._rdzv_impl

    # --- what the controller orders ---------------------------------------------------------------------------------

    def sit_down(self, rules: Rules, run_id: str) -> None:
        """A new process in this slot, for this run, that has asked nothing yet."""
        self.rules, self.run_id = rules, run_id
        self.gate.set_mode(Mode.PASS)
        run = EtcdRendezvous(
            self.http, PREFIX, run_id, rules.min_workers, rules.max_workers, TIMEOUT, LAST_CALL, ttls=TTLS
        )
        self.handler = EtcdRendezvousHandler(run, "127.0.0.1")
        self.gate.set_mode(Mode.HOLD)

    def meet(self, name: str) -> None:
        """Begin to meet, under this name."""
        self._call(name, self.run.rendezvous_barrier)

    def close_run(self, name: str) -> None:
        """Begin to close the run."""
        self._call(name, self.run.set_closed)

    def look(self) -> int:
        """Ask whether somebody waits, at once."""
        assert self.handler is not None
        self.gate.set_mode(Mode.PASS)
        self._call("", self.handler.num_nodes_waiting)
        outcome = self.await_arrival()
        self.gate.set_mode(Mode.HOLD)
        if not isinstance(outcome, Outcome) or outcome.error is not None:
            raise TimeoutError(f"num_nodes_waiting: {outcome}")
        return int(outcome.value)

    def abandon(self) -> None:
        """The process is gone: nothing of it reaches etcd any more."""
        self.gate.set_mode(Mode.DENY)
        deadline = time.monotonic() + BOUND
        while self.busy:
            self.await_arrival(deadline - time.monotonic())
        if self.handler is not None:
            self.run._driver.release()
            self.handler = None

    def await_arrival(self, timeout: float | None = None) -> Arrival:
        """The next request at the gate, or the end of the call, within ``BOUND``. Raises TimeoutError."""
        timeout = BOUND if timeout is None else timeout
        try:
            arrival = self.arrivals.get(timeout=max(0.0, timeout))
        except queue.Empty:
            raise TimeoutError(f"nothing from worker {self.slot} within {timeout:.0f} s") from None
        if isinstance(arrival, Outcome):
            self.busy = False
        return arrival

    def close(self) -> None:
        """End the thread, the gate and the connections. Raises RuntimeError if the thread does not end in 10 s."""
        self.gate.set_mode(Mode.DENY)
        self._calls.put(None)
        self.gate.close()
        self.http.close()
        self._thread.join(BOUND)
        if self._thread.is_alive():
            raise RuntimeError(f"{self._thread.name} still runs")

    # --- the thread -----------------------------------------------------------------------------------------------

    def _call(self, name: str, call: Callable[[], Any]) -> None:
        assert not self.busy
        self.busy = True

        def named() -> Any:
            _current.name = name
            return call()

        self._calls.put(named)

    def _work(self) -> None:
        _current.clock = self.clock
        while (call := self._calls.get()) is not None:
            try:
                outcome = Outcome(call())
            except Exception as error:
                outcome = Outcome(error=error)
            self.arrivals.put(outcome)
