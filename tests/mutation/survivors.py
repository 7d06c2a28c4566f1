"""Mutants that no layer tells, and why they may live."""

from __future__ import annotations

REASONS: dict[str, str] = {}
