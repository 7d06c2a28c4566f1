"""Conditions, the probes that look at them, and how probes are run.

Every probe runs in a child process of its own, so that a crash or a hang of what it touches is a finding and not the
end of the report. What the probes look at is in ``probes``; how a report looks is in ``doctor``.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum


class Verdict(str, Enum):
    """What is known about a condition. ABSENT is a missing condition that only an option needs."""

    OK = "ok"
    MISSING = "missing"
    BROKEN = "broken"
    ABSENT = "absent"
    NOT_CHECKED = "not checked"


@dataclass(frozen=True)
class Finding:
    """The answer of a probe: the verdict, what was found, and what to do ("" if nothing)."""

    verdict: Verdict
    found: str
    todo: str = ""


@dataclass(frozen=True)
class Probe:
    """A condition, and the top-level function that looks at it.

    ``needs``: names of conditions without which it cannot be looked at. ``only_for``: who needs it; "" means every
    ``rallypoint check``. ``seconds``: after them the probe is ended.
    """

    name: str
    ask: Callable[..., Finding]
    needs: tuple[str, ...] = ()
    only_for: str = ""
    seconds: float = 20.0
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True)
class Condition:
    """A probe's finding under the probe's name; ``seconds`` is the time that it took."""

    name: str
    verdict: Verdict
    found: str
    todo: str
    only_for: str
    seconds: float

    @property
    def met(self) -> bool:
        """Whether ``rallypoint check`` can do its work as far as this condition goes."""
        return self.verdict is Verdict.OK or bool(self.only_for)


def examine(probes: Iterable[Probe]) -> Iterator[Condition]:
    """Run the probes in their order, each bounded by its ``seconds``; one that needs an unmet condition is not run."""
    unmet: list[str] = []
    for probe in probes:
        began = time.monotonic()
        lacking = [need for need in probe.needs if need in unmet]
        finding = Finding(Verdict.NOT_CHECKED, f"needs: {', '.join(lacking)}") if lacking else run(probe)
        if finding.verdict is not Verdict.OK:
            unmet.append(probe.name)
        if finding.verdict is Verdict.MISSING and probe.only_for:
            finding = Finding(Verdict.ABSENT, f"{finding.found}; needed only for {probe.only_for}", finding.todo)
        seconds = round(time.monotonic() - began, 2)
        yield Condition(probe.name, finding.verdict, finding.found, finding.todo, probe.only_for, seconds)


def run(probe: Probe) -> Finding:
    """The probe's finding, from a child process that is ended after ``probe.seconds``."""
    code = f"import sys; sys.path[:] = {sys.path!r}; from rallypoint.cli import conditions; conditions.answer()"
    command = [sys.executable, "-c", code, probe.ask.__module__, probe.ask.__name__, *probe.arguments]
    try:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
    except OSError as error:
        return Finding(
            Verdict.NOT_CHECKED, f"no child process: {error.strerror}", "allow rallypoint to start processes"
        )
    try:
        out, err = child.communicate(timeout=probe.seconds)
    except subprocess.TimeoutExpired:
        return Finding(Verdict.BROKEN, f"no answer in {probe.seconds:g} s", "see what holds it up, then run this again")
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.communicate(timeout=5)
    if child.returncode == 0:
        verdict, found, todo = json.loads(out)
        return Finding(Verdict(verdict), found, todo)
    last = err.decode(errors="replace").strip().rpartition("\n")[2]
    if child.returncode < 0:
        last = f"the process died of {signal.Signals(-child.returncode).name}; {last}"
    return Finding(Verdict.BROKEN, last, "repair or reinstall what the message names")


def answer() -> None:
    """In the child: run the function that the arguments name, and print its finding as JSON."""
    stdout = os.dup(1)
    os.dup2(2, 1)  # what else is printed is not the answer
    finding: Finding = getattr(importlib.import_module(sys.argv[1]), sys.argv[2])(*sys.argv[3:])
    with open(stdout, "w", encoding="utf-8") as file:
        json.dump([finding.verdict.value, finding.found, finding.todo], file)
