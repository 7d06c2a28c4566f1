"""The keeper: one thread per process that renews every lease of the process, through every outage.

May live here: when a lease is renewed, and what counts as lost. Must not live here: which keys are leased; the model
says so (``worker.leases``).

A lease is renewed three times per TTL; after a failure the keeper tries again at once and then every ``RETRY``
seconds, for as long as it is held. It is lost only when etcd says that the key is gone.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import os
import threading
import time
from dataclasses import dataclass, field

from rallypoint.impl.etcd_v2 import EtcdUnavailable, EtcdV2
from rallypoint.model import etcd
from rallypoint.model.errors import UnusableError
from rallypoint.model.worker import Lease

logger = logging.getLogger(__name__)

LONGEST_WAIT = 3600.0  # seconds; what a Condition can wait is limited, and a TTL need not be
RETRY = 0.5  # seconds between two attempts to renew while etcd cannot be reached


@dataclass
class _Held:
    """A lease in hand. ``client``: the etcd that it lives on; ``attempt`` bounds one renewal, in seconds."""

    client: EtcdV2
    lease: Lease
    lost: threading.Event = field(default_factory=threading.Event)
    cut_off: bool = False

    @property
    def attempt(self) -> float:
        return max(0.5, self.lease.ttl / 3)


class LeaseKeeper:
    """Renews leases until they are released. Safe for several threads; its thread lives while there is a lease."""

    def __init__(self) -> None:
        self._numbers = itertools.count()  # never starts anew: a ticket from before a fork must not be one of the fork
        self.forget()

    def forget(self) -> None:
        """Start anew: in a forked child there is no keeper thread, and the leases are its parent's."""
        self._condition = threading.Condition()
        self._held: dict[int, _Held] = {}
        self._due: list[tuple[float, int]] = []
        self._thread: threading.Thread | None = None

    def hold(self, client: EtcdV2, lease: Lease) -> int:
        """Keep ``lease`` alive from now on; the key was written just now. Returns a ticket for ``release``."""
        with self._condition:
            ticket = next(self._numbers)
            self._held[ticket] = _Held(client, lease)
            heapq.heappush(self._due, (time.monotonic() + lease.ttl / 3, ticket))
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="rallypoint-leases", daemon=True)
                self._thread.start()
            self._condition.notify()
            return ticket

    def release(self, ticket: int) -> None:
        """Stop renewing. A renewal that is under way may still arrive."""
        with self._condition:
            self._held.pop(ticket, None)
            self._condition.notify()

    def lost(self, ticket: int) -> bool:
        """Etcd has said that the key is gone."""
        held = self._held.get(ticket)
        return held is not None and held.lost.is_set()

    def _run(self) -> None:
        while (task := self._next()) is not None:
            ticket, held = task
            wait = self._renew(held)
            with self._condition:
                if ticket in self._held and not held.lost.is_set():
                    heapq.heappush(self._due, (time.monotonic() + wait, ticket))

    def _next(self) -> tuple[int, _Held] | None:
        """The next lease that is due; None when nothing is held any more."""
        with self._condition:
            while True:
                while self._due and self._due[0][1] not in self._held:
                    heapq.heappop(self._due)
                if not self._held:
                    self._thread = None
                    return None
                wait = self._due[0][0] - time.monotonic() if self._due else LONGEST_WAIT
                if wait <= 0:
                    ticket = heapq.heappop(self._due)[1]
                    return ticket, self._held[ticket]
                self._condition.wait(min(wait, LONGEST_WAIT))

    def _renew(self, held: _Held) -> float:
        """One renewal; the seconds until the next."""
        lease = held.lease
        request: etcd.Request = etcd.Refresh(lease.key, lease.ttl)
        if lease.guard is not None:
            request = etcd.Cas(lease.key, lease.guard, lease.guard, lease.ttl)
        try:
            reply = held.client.perform(request, time.monotonic() + held.attempt)
        except (EtcdUnavailable, UnusableError) as error:
            if not held.cut_off:
                logger.warning("lease of %s not renewed, trying again: %s", lease.key, error)
            held.cut_off = True
            return RETRY
        except Exception:
            logger.exception("lease of %s not renewed, trying again", lease.key)
            return RETRY
        held.cut_off = False
        if isinstance(reply, etcd.Failed) and lease.guard is None:
            logger.warning("lease of %s is lost: %s", lease.key, etcd.ERROR_NAMES.get(reply.code, reply.code))
            held.lost.set()
        return lease.ttl / 3


KEEPER = LeaseKeeper()
"""The keeper of this process."""

os.register_at_fork(after_in_child=KEEPER.forget)
