"""Mutants that no layer tells, and why they may live."""

from __future__ import annotations

REASONS: dict[str, str] = {
    "worker.upstream constant 1": "the configurations name their switches; test_worker's dead ends use upstream()",
    "worker._outside guard 3": "only a worker of PyTorch's makes such a document: mixed groups are no small space",
    "worker._alive and-or 4": "leases its place twice, which shows only with two waiters: three workers",
    "worker.waiting and-or 3": "too low a count breaks no invariant; test_worker counts by example",
    "ConfirmedBy: repetitions count": "a HARDENED worker finds itself confirmed, never repeats: equal on these rules",
    "Announced: not once": "a HARDENED waiter finds itself listed and never repeats: equal on these rules",
    "Refused: rereads": "needs a document that vanishes under PyTorch's rules: 4 000 states and more",
}
