"""Requests repeated until etcd answers, and what became of a write whose reply was lost.

A write is repeated only in a form that can take effect once: create-only, or on the modifiedIndex that was read. When a
repetition is refused, etcd's own history (its last 1000 events) tells whether it was the first attempt that did it.
Must not live here: torch, the meaning of keys and values.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from rallypoint.impl.etcd_http import INDEX_CLEARED, Answer, EtcdHttp, EtcdUnavailable, Refusal
from rallypoint.model.etcd import NOT_FOUND

PAUSES = (0.02, 0.05, 0.1, 0.2, 0.5)  # seconds between attempts; the last one from then on
QUIET = 0.5  # seconds without an event after which an absent key is taken to have no further history


class OutOfTimeError(Exception):
    """The deadline came before a definite reply; the text says what the last attempt met."""


class HistoryLostError(Exception):
    """Etcd no longer has the events that would tell whether a write took effect."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The definite reply. ``unsure``: an earlier attempt may have been carried out, its reply was lost."""

    reply: Answer | Refusal
    unsure: bool


def insist(
    http: EtcdHttp,
    method: str,
    key: str,
    params: Mapping[str, str],
    deadline: float,
    *,
    settled: Callable[[], Answer | None] = lambda: None,
) -> Outcome:
    """Repeat one request until etcd answers it.

    ``settled`` is asked before a request is repeated that may have been carried out: an answer from it ends the matter.
    Raises OutOfTimeError at the deadline, or UnusableError as ``EtcdHttp.call``.
    """
    unsure, attempt = False, 0
    while True:
        try:
            return Outcome(http.call(method, key, params, deadline), unsure)
        except EtcdUnavailable as error:
            unsure = unsure or error.maybe_applied
            pause = PAUSES[min(attempt, len(PAUSES) - 1)]
            if time.monotonic() + pause >= deadline:
                doubt = "; it may have taken effect" if unsure and method != "GET" else ""
                raise OutOfTimeError(f"{error.reason}{doubt}") from error
            time.sleep(pause)
        attempt += 1
        answer = settled() if unsure else None
        if answer is not None:
            return Outcome(answer, unsure)


def write_once(
    http: EtcdHttp, key: str, params: Mapping[str, str], was: tuple[int, int], deadline: float
) -> Answer | Refusal:
    """Write on the state that was read, once, whatever happens to replies.

    ``params``: "value", and "ttl" if wanted. ``was``: (modifiedIndex of the key, 0 if it was absent; etcd's index at
    that time). The value must be one that no other write on the same state carries, or one whose authors need not be
    told apart. An Answer: it took effect. A Refusal: the key had changed, and the write will not take effect any more.
    Raises HistoryLostError when that cannot be told, OutOfTimeError, or UnusableError.
    """
    modified, index = was
    value = params["value"]
    if not modified:  # a created key may have been deleted since: creating it again would be a second effect

        def created() -> Answer | None:
            return find_value(http, key, value, index, deadline)

        outcome = insist(http, "PUT", key, {**params, "prevExist": "false"}, deadline, settled=created)
        return outcome.reply if isinstance(outcome.reply, Answer) or not outcome.unsure else created() or outcome.reply
    outcome = insist(http, "PUT", key, {**params, "prevIndex": str(modified)}, deadline)
    if isinstance(outcome.reply, Answer) or not outcome.unsure:
        return outcome.reply
    return _successor(http, key, value, modified, deadline) or outcome.reply


def _successor(http: EtcdHttp, key: str, value: str, modified: int, deadline: float) -> Answer | None:
    """The event that changed the key after index ``modified``, if it wrote this value: the swap that we asked for.

    Where the history is gone, the value that the key holds now must do.
    """
    try:
        first = next(events(http, key, modified, deadline), None)
        return first if first is not None and first.node.value == value else None
    except HistoryLostError:
        now = insist(http, "GET", key, {}, deadline).reply
        if isinstance(now, Answer) and now.node.value == value:
            return now
        raise


def find_value(http: EtcdHttp, key: str, value: str, since: int, deadline: float) -> Answer | None:
    """When the key was given this value after index ``since``: what it holds now, or the event. Raises as above."""
    now = insist(http, "GET", key, {}, deadline).reply
    if isinstance(now, Answer) and now.node.modified > since and now.node.value == value:
        return now
    return next((event for event in events(http, key, since, deadline) if event.node.value == value), None)


def delete_once(http: EtcdHttp, key: str, modified: int, deadline: float) -> bool:
    """Delete the key as it was read. False: it had changed. Raises as ``write_once``.

    If the reply is lost, a deletion of the same state by somebody else in that moment counts as this one.
    """
    outcome = insist(http, "DELETE", key, {"prevIndex": str(modified)}, deadline)
    if isinstance(outcome.reply, Answer):
        return True
    if not outcome.unsure:
        return False
    first = next(events(http, key, modified, deadline), None)
    return first is not None and first.action == "compareAndDelete"


def events(http: EtcdHttp, key: str, since: int, deadline: float) -> Iterator[Answer]:
    """What happened to one key after index ``since`` and up to now, in order. Raises as ``write_once``."""
    now = insist(http, "GET", key, {}, deadline).reply
    last = now.node.modified if isinstance(now, Answer) else None
    index = since + 1
    while last is None or index <= last:
        event = _event(http, key, index, deadline, exists=last is not None)
        if event is None:
            return
        yield event
        index = event.node.modified + 1


def _event(http: EtcdHttp, key: str, index: int, deadline: float, *, exists: bool) -> Answer | None:
    """The first event from ``index`` on. Unless it is known to exist, None after a while without one."""
    end = deadline if exists else min(deadline, time.monotonic() + QUIET)
    while time.monotonic() < end:
        try:
            event = http.watch(key, index, end, recursive=False)
        except EtcdUnavailable:
            time.sleep(PAUSES[0])
            continue
        if isinstance(event, Answer):
            return event
        if isinstance(event, Refusal) and event.code == INDEX_CLEARED:
            raise HistoryLostError(f"etcd's history of {key} after index {index} is gone")
    if end < deadline:
        return None
    raise OutOfTimeError("etcd did not tell the history of the key")


def is_absent(reply: Answer | Refusal) -> bool:
    """The key is not there."""
    return isinstance(reply, Refusal) and reply.code == NOT_FOUND
