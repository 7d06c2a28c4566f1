"""What an agent is told while etcd is away: a short outage is no reason to end healthy workers (defect G-A)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from torch.distributed.elastic.rendezvous import RendezvousConnectionError

logger = logging.getLogger(__name__)

POLL = 2.0  # seconds for a question that an agent asks again and again, and that must not keep it from its workers

_T = TypeVar("_T")


class Outage:
    """Answers in etcd's place for ``limit`` seconds after its last answer."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._since: float | None = None

    def ask(self, question: Callable[[], _T], meanwhile: _T) -> _T:
        """The answer, or ``meanwhile``. Raises RendezvousConnectionError when the outage is longer than the limit."""
        asked = time.monotonic()
        try:
            answer = question()
        except RendezvousConnectionError as error:
            if self._since is None:
                self._since = asked
                logger.warning("going on without etcd, for %g s at most: %s", self._limit, error)
            if time.monotonic() - self._since > self._limit:
                raise
            return meanwhile
        if self._since is not None:
            logger.warning("etcd is back after %.1f s", time.monotonic() - self._since)
            self._since = None
        return answer
