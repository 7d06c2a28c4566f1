"""Is a history of a register linearizable? A search after Wing and Gong, with memory.

A history holds calls with their times; an order of them is sought that respects real time and that the register's
sequential specification allows. A call that never returned may have taken effect at any later time, or never.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

BOUND = 200  # calls; the search is exponential in how many overlap, not in how many there are

Held: TypeAlias = "tuple[bytes, int] | None"
"""What the register holds: state and token, None if nothing."""
Result: TypeAlias = "tuple[bytes, int] | tuple[bytes, int, bool] | None"
"""What ``get_state`` and ``set_state`` return."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of ``get_state`` or ``set_state`` and its result; ``end`` None: it failed, so nobody knows.

    ``kind``: "get" or "set". ``state`` and ``token``: the arguments of a set. ``result``: what it returned, for a set
    that failed None. ``start`` and ``end``: monotonic seconds.
    """

    kind: str
    start: float
    end: float | None
    result: Result
    state: bytes = b""
    token: int | None = None


def after(call: Call, held: Held) -> list[Held]:
    """What the register can hold after the call took effect on ``held``; empty: its result was another."""
    fits = held is None if call.token is None else held is not None and held[1] == call.token
    if call.kind == "get":
        return [held] if call.result == held else []
    if call.end is None:  # its token is not known; later calls tell it (see ``_tokens``)
        return [(call.state, call.result[1])] if fits and call.result is not None else []
    if call.result is None:
        return [held] if held is None and not fits else []
    if call.result[-1] is not True:
        return [held] if held == call.result[:2] and not fits else []
    new = (call.result[0], call.result[1])
    newer = held is None or new[1] > held[1]
    return [new] if fits and newer and call.result[0] == call.state else []


def _tokens(history: list[Call]) -> list[Call]:
    """Calls that failed, with the token of their state if anybody ever saw it; states are unique."""
    seen = {call.result[0]: call.result[1] for call in history if call.result is not None}
    return [
        Call(call.kind, call.start, None, (call.state, seen[call.state]), call.state, call.token)
        if call.end is None and call.kind == "set" and call.state in seen
        else call
        for call in history
    ]


def is_linearizable(history: list[Call]) -> bool:
    """The register holds nothing at first. States that are set must be different. Raises ValueError beyond BOUND."""
    if len(history) > BOUND:
        raise ValueError(f"{len(history)} calls, at most {BOUND} are searched")
    written = [call.state for call in history if call.kind == "set"]
    if len(written) != len(set(written)):
        raise ValueError("two calls set the same state")
    calls = [call for call in _tokens(history) if call.kind == "set" or call.end is not None]
    due = frozenset(number for number, call in enumerate(calls) if call.end is not None)
    stack: list[tuple[frozenset[int], Held]] = [(frozenset(range(len(calls))), None)]
    known = set(stack)
    while stack:
        open_calls, held = stack.pop()
        if not open_calls & due:
            return True
        first_end = min(end for number in open_calls if (end := calls[number].end) is not None)
        for number in open_calls:
            if calls[number].start <= first_end:
                for new in after(calls[number], held):
                    then = (open_calls - {number}, new)
                    if then not in known:
                        known.add(then)
                        stack.append(then)
    return False
