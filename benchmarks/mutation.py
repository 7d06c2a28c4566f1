"""Print the kill matrix: ``python benchmarks/mutation.py [--all] [--only TEXT]``.

``--all`` plants every mutation of every function, not one of every second (about half an hour). Exit code 1 if a mutant
survives without a reason, 2 if the right model or spec is itself rejected (then nothing else would mean anything).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent / "tests"
sys.path[:0] = [str(TESTS / "model"), str(TESTS / "mutation")]

from layers import configs, judge_model, right_graphs  # noqa: E402
from matrix import Line, details, matrix, summary  # noqa: E402
from mutate import TLA_MUTANTS, Mutant, TlaMutant, chosen, every_mutant  # noqa: E402
from rich.console import Console  # noqa: E402
from survivors import REASONS  # noqa: E402


def main() -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    options.add_argument("--all", action="store_true", help="every mutation, not a choice")
    options.add_argument("--only", default="", help="mutants whose name contains this text")
    given = options.parse_args()
    console = Console()
    rights = right_graphs(configs())
    wrong = judge_model(None, rights)
    if wrong:
        console.print(f"harness failed: the right model is rejected: {wrong}")
        return 2
    candidates: list[Mutant | TlaMutant] = [*(every_mutant() if given.all else chosen()), *TLA_MUTANTS]
    mutants = [mutant for mutant in candidates if given.only in mutant.name]

    def progress(line: Line) -> None:
        console.print(f"{line.seconds:5.1f} s  {line.mutant.name}: {', '.join(line.outcome) or 'survives'}")

    lines = matrix(mutants, rights, progress)
    console.print(details(lines, REASONS), summary(lines))
    return int(any(not line.outcome and line.mutant.name not in REASONS for line in lines))


if __name__ == "__main__":
    sys.exit(main())
