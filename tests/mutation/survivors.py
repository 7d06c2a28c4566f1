"""Mutants that no layer tells, and why they may live."""

from __future__ import annotations

REASONS: dict[str, str] = {
    "document._version constant 1": "how much of a broken text its error quotes",
    "rules.without constant 1": "the configurations name their switches; tests/tla plants differences by without()",
    "standing.waiting and-or 3": "too low a count breaks no invariant; test_worker counts by example",
    "worker._wrong_bounds constant 2": "stands for bounds that a document without them would have: it is never asked",
    "ConfirmedBy: repetitions count": "a HARDENED worker finds itself confirmed, never repeats: equal on these rules",
    "Announced: not once": "a HARDENED waiter finds itself listed and never repeats: equal on these rules",
}
