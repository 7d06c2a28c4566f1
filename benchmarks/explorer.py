"""The model's explorer against TLC: the same configuration, the same invariants, in the same run.

    python benchmarks/explorer.py [--rounds 3] [--set Crashes=1 ...] [--json FILE]

Each round runs every contender once, each in a process of its own, so that whatever else the machine does meets all of
them. A ratio compares two runs of one round. Seconds are wall clock for whole processes, start-up included; for the
explorer the time of the search alone is there too. Bytes per state: what the search adds to the resident memory of its
process at its peak, divided by the states; not measured for TLC, whose heap is a setting.

TLC counts a transition for each instance of an action, as the explorer does, and both must find the same numbers.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rallypoint.model.explorer import Explorer
from rallypoint.spec.invariants import INVARIANTS
from rallypoint.tla import manifest, tlc, twin

BASE = "lost-reply"
THREE_WORKERS = ["N=3", "Min=2", "Max=3", "Crashes=1", "LostReplies=1"]
CONTENDERS = ("explorer", "explorer, no invariants", "TLC, 1 worker", "TLC, 2 workers")
UNIT = 1024 if sys.platform != "darwin" else 1  # of ru_maxrss, in bytes


def configuration(changes: Sequence[str]) -> manifest.Config:
    base = manifest.select(manifest.load_manifest(), [BASE])[0]
    numbers = {name: int(number) for name, _, number in (change.partition("=") for change in changes)}
    return replace(base, name=" ".join(changes), constants={**base.constants, **numbers})


def explored(config: manifest.Config, checking: bool) -> dict[str, Any]:
    """One search in this process."""
    invariants = {name: INVARIANTS[name] for name in config.invariants} if checking else {}
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = Explorer(twin.model_config(config)).explore(invariants)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * UNIT
    assert found.complete
    assert not found.violations
    return {
        "states": found.states,
        "edges": found.edges,
        "search seconds": found.seconds,
        "bytes per state": grown / found.states,
    }


def measured(contender: str, changes: Sequence[str]) -> dict[str, Any]:
    """One run of a contender in a process of its own."""
    started = time.perf_counter()
    if contender.startswith("explorer"):
        command = [sys.executable, __file__, "--contender", contender, "--set", *changes]
        ran = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=1800)
        return {**json.loads(ran.stdout), "seconds": time.perf_counter() - started}
    workers = int(contender.split()[1])
    job = replace(configuration(changes).job(workers=workers), coverage=False, large=True, timeout_s=1800.0)
    result = tlc.run(job)
    assert result.verdict == "holds", result
    return {"states": result.states, "edges": result.edges, "seconds": result.seconds}


def rate(run: Mapping[str, Any], what: str, seconds: str = "seconds") -> float:
    return float(run[what] / run[seconds])


def spread(values: Sequence[float], digits: int = 0) -> str:
    """Median, and the lowest and highest."""
    middle, low, high = statistics.median(values), min(values), max(values)
    return f"{middle:,.{digits}f} ({low:,.{digits}f} - {high:,.{digits}f})"


def table(rounds: Sequence[Mapping[str, Mapping[str, Any]]]) -> str:
    lines = ["| | transitions/s | states/s | search alone: transitions/s | bytes/state | ratio to TLC, 1 worker |"]
    lines.append("|---|---:|---:|---:|---:|---:|")
    for contender in rounds[0]:
        runs = [runs_of_round[contender] for runs_of_round in rounds]
        rates = [spread([rate(run, what) for run in runs]) for what in ("edges", "states")]
        alone, memory = "", ""
        if "search seconds" in runs[0]:
            alone = spread([rate(run, "edges", "search seconds") for run in runs])
            memory = f"{max(run['bytes per state'] for run in runs):,.0f}"
        ratios = [rate(it[contender], "edges") / rate(it["TLC, 1 worker"], "edges") for it in rounds]
        lines.append(f"| {contender} | {rates[0]} | {rates[1]} | {alone} | {memory} | {spread(ratios, 2)} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--set", nargs="+", default=THREE_WORKERS, metavar="NAME=NUMBER", dest="changes")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--contender", choices=CONTENDERS[:2], help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.contender:
        print(json.dumps(explored(configuration(asked.changes), asked.contender == "explorer")))
        return 0
    rounds = []
    for number in range(1, asked.rounds + 1):
        rounds.append({contender: measured(contender, asked.changes) for contender in CONTENDERS})
        print(f"round {number} of {asked.rounds} done", file=sys.stderr, flush=True)
    sizes = {(run["states"], run["edges"]) for runs in rounds for run in runs.values()}
    assert len(sizes) == 1, f"they do not search the same space: {sizes}"
    (states, edges) = next(iter(sizes))
    print(f"{' '.join(asked.changes)}: {states:,} states, {edges:,} transitions, {asked.rounds} rounds")
    print("median (lowest - highest)\n")
    print(table(rounds))
    if asked.json:
        report = {"configuration": asked.changes, "states": states, "edges": edges, "rounds": rounds}
        asked.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
