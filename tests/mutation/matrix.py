"""The kill matrix: every chosen mutant against every layer, and the survivors with their reasons."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from layers import LAYERS, Outcome, Right, judge_model, judge_tla
from mutate import Mutant, TlaMutant
from rich.table import Table


@dataclass(frozen=True)
class Line:
    mutant: Mutant | TlaMutant
    outcome: Outcome
    seconds: float

    @property
    def side(self) -> str:
        return "TLA+" if isinstance(self.mutant, TlaMutant) else self.mutant.module


def judged(mutant: Mutant | TlaMutant, rights: list[Right]) -> Line:
    started = time.perf_counter()
    outcome = judge_tla(mutant, rights) if isinstance(mutant, TlaMutant) else judge_model(mutant, rights)
    return Line(mutant, outcome, time.perf_counter() - started)


def matrix(
    mutants: Iterable[Mutant | TlaMutant], rights: list[Right], on_line: Callable[[Line], None] | None = None
) -> list[Line]:
    lines = []
    for mutant in mutants:
        lines.append(judged(mutant, rights))
        if on_line is not None:
            on_line(lines[-1])
    return lines


def summary(lines: list[Line]) -> Table:
    """One row per mutated module: how many mutants each layer tells, and how many none does."""
    table = Table("mutated", "mutants", *LAYERS, "killed", "survive", title="Kill matrix by layer")
    sides = [*dict.fromkeys(line.side for line in lines)]
    for name, group in [*((side, [line for line in lines if line.side == side]) for side in sides), ("all", lines)]:
        by_layer = [str(sum(layer in line.outcome for line in group)) for layer in LAYERS]
        killed = sum(bool(line.outcome) for line in group)
        table.add_row(name, str(len(group)), *by_layer, str(killed), str(len(group) - killed))
    return table


def details(lines: list[Line], reasons: dict[str, str]) -> Table:
    """One row per mutant: what each layer said; for a survivor, why it may live."""
    table = Table("mutant", *LAYERS, title="Every mutant")
    for line in lines:
        if line.outcome:
            table.add_row(line.mutant.name, *(line.outcome.get(layer, "-") for layer in LAYERS))
        else:
            table.add_row(line.mutant.name, f"survives: {reasons.get(line.mutant.name, 'UNEXPLAINED')}")
    return table
