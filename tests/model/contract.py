"""A contract: one property of one function or more, and the arguments to try it with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st


@dataclass(frozen=True)
class Contract:
    """A property, what it is about, and its arguments. ``symbolic``: arguments that crosshair can solve for."""

    check: Callable[..., None]
    about: tuple[str, ...]
    arguments: dict[str, st.SearchStrategy[Any]]
    symbolic: bool = True

    @property
    def name(self) -> str:
        return self.check.__name__
