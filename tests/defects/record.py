"""What a scenario is and what it returns.

May live here: the shape of a row of the track record. Must not live here: how one is run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from rallypoint.defects.stage import Side

AREAS = ("legacy", "etcd-v2", "store", "server")


@dataclass(frozen=True, slots=True)
class Observation:
    """``ok``: the required property held. ``seen``: the fact that says so, in one short line."""

    ok: bool
    seen: str


Scenario: TypeAlias = "Callable[[Side], Observation]"


@dataclass(frozen=True, slots=True)
class Defect:
    """One row. ``title``: what upstream does; ``required``: the property that it breaks.

    ``seconds``: what the scenario takes on our side. ``bound``: when it is ended, on either side. ``reports``: the
    public reports of the same thing.
    """

    id: str
    title: str
    area: str
    required: str
    seconds: float
    run: Scenario
    bound: float = 60.0
    reports: tuple[str, ...] = ()
