"""Runs the model's worker on a real etcd: performs what it wants, tells it what came back and what time it is.

May live here: requests, clocks, pauses. Must not live here: any decision about the rendezvous; those are in
``model/worker.py``.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import time
from collections.abc import Callable

from rallypoint.impl.etcd_v2 import EtcdUnavailable, EtcdV2
from rallypoint.impl.leases import KEEPER
from rallypoint.model import etcd
from rallypoint.model import worker as machine
from rallypoint.model.errors import UnusableError
from rallypoint.model.worker import Lease, Rules, Worker

logger = logging.getLogger(__name__)

PAUSE = 0.2  # seconds between two attempts while etcd cannot be reached
SWEEP = 1.0  # seconds by which etcd may be late to remove a key whose TTL has run out
GRACE = 2.0  # seconds after the deadline for giving up the lease


class Driver:
    """One participant on one etcd. Not safe for several threads; its leases are kept by the process's keeper.

    In a fork it starts with no leases: those that it had are the parent's.
    """

    def __init__(self, client: EtcdV2, rules: Rules) -> None:
        self.client = client
        self.rules = rules
        self._tickets: dict[Lease, int] = {}
        self._told = ""
        self._refusals = 0
        self._cut_off = False
        self._pid = os.getpid()

    def run(self, worker: Worker, deadline: float, last_call: float, on_step: Callable[[Worker], None]) -> Worker:
        """Until the attempt has ended (``worker.ENDED``), at the latest GRACE seconds after ``deadline``.

        ``deadline`` in monotonic seconds, ``last_call`` in seconds. ``on_step`` sees the worker after each change.
        Raises BrokenDocumentError if the document is none, UnusableError if etcd cannot be used.
        """
        last_call_ends: tuple[int | None, float] | None = None
        others_known: tuple[int | None, float] | None = None
        while worker.pc not in machine.ENDED:
            self._tell(worker)
            now = time.monotonic()
            if now >= deadline:
                worker = self._moved(machine.deadline(self.rules, worker), on_step)
                deadline += GRACE
                continue
            until = deadline
            if machine.owns_last_call(self.rules, worker):
                if last_call_ends is None or last_call_ends[0] != worker.version:
                    last_call_ends = (worker.version, now + last_call)
                if now >= last_call_ends[1]:
                    worker = self._moved(machine.last_call_over(worker), on_step)
                    continue
                until = min(until, last_call_ends[1])
            if machine.awaits_others(worker):
                if others_known is None or others_known[0] != worker.version:
                    others_known = (worker.version, now + self.rules.keep_alive_ttl + SWEEP)
                if now >= others_known[1]:
                    worker = self._moved(machine.others_stay(worker), on_step)
                    continue
                until = min(until, others_known[1])
            reply = self._perform(worker, until)
            if reply is not None:
                worker = self._moved(machine.step(self.rules, worker, reply), on_step)
        self._tell(worker)
        return worker

    def once(self, request: etcd.Request, deadline: float) -> etcd.Reply:
        """One request outside the worker's course, repeated until it is answered. Raises EtcdUnavailable."""
        while True:
            try:
                reply = self.client.perform(request, deadline)
                assert reply is not None
                return reply
            except EtcdUnavailable:
                if time.monotonic() + PAUSE >= deadline:
                    raise
                time.sleep(PAUSE)

    def release(self) -> None:
        """Stop renewing all leases."""
        self._keep(())

    def abandon(self) -> None:
        """Give up all leases: the process ends, so nobody is to wait for a TTL."""
        self.forked()
        keys = [lease.key for lease in self._tickets if lease.guard is None]
        self.release()
        for key in keys:
            with contextlib.suppress(EtcdUnavailable, UnusableError):
                self.client.perform(etcd.Delete(key), time.monotonic() + GRACE)

    def forked(self) -> bool:
        """Is this a fork that did not know it yet? Then the parent's leases are forgotten here, and stay kept there."""
        if self._pid == os.getpid():
            return False
        self._pid = os.getpid()
        self._tickets = {}
        return True

    def _perform(self, worker: Worker, until: float) -> etcd.Reply | None:
        """The reply, or None: nothing came in time, so the worker wants the same again."""
        request = machine.want(self.rules, worker)
        try:
            reply = self.client.perform(request, until)
        except EtcdUnavailable as error:
            if not self._cut_off:
                logger.warning("%s, while %s; trying again", error, machine.reason(self.rules, worker))
            self._cut_off = True
            time.sleep(max(0.0, min(PAUSE, until - time.monotonic())))
            return None
        self._cut_off = False
        self._pace(reply, until)
        return reply

    def _pace(self, reply: etcd.Reply | None, until: float) -> None:
        """After a refused compare-and-swap, wait a little longer each time: the others are at it, too."""
        if reply != etcd.Failed(etcd.COMPARE_FAILED):
            if isinstance(reply, etcd.Snapshot | etcd.Listing):
                self._refusals = 0
            return
        self._refusals = min(self._refusals + 1, 8)
        pause = random.uniform(0, 0.002 * 2**self._refusals)
        time.sleep(max(0.0, min(pause, until - time.monotonic())))

    def _moved(self, worker: Worker, on_step: Callable[[Worker], None]) -> Worker:
        self._keep(machine.leases(self.rules, worker))
        on_step(worker)
        return worker

    def _keep(self, leases: tuple[Lease, ...]) -> None:
        self.forked()
        for lease in set(self._tickets) - set(leases):
            KEEPER.release(self._tickets.pop(lease))
        for lease in leases:
            if lease not in self._tickets:
                self._tickets[lease] = KEEPER.hold(self.client, lease)

    def _tell(self, worker: Worker) -> None:
        """Each change of what is waited for, once."""
        reason = machine.reason(self.rules, worker)
        if reason != self._told:
            self._told = reason
            logger.info("worker %s: %s", worker.id, reason)
