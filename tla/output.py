"""What TLC prints under ``-tool``, read message by message, and the verdict that it amounts to.

May live here: message codes, what each proves, and the result of a run.
Must not live here: processes, files, clocks.

A verdict needs positive evidence. ``holds`` takes the success message, exit code 0, a state count above zero and an
empty queue; ``violated`` takes one of the known messages, the exit code that belongs to it and a trace. Everything
else, warnings of TLC about the specification included, is ``harness failed`` and carries a reason.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from rallypoint.tla.values import State, UnreadableError, parse_state

Verdict: TypeAlias = Literal["holds", "violated", "harness failed"]

DEADLOCK = "deadlock"
TEMPORAL = "temporal"
"""Stand-ins for a property's name. TLC does not say *which* liveness property failed: check one per run to know it."""
UNNAMED = "something"
"""The same for TLC's distributed server, which shows the end of a counterexample and never says to what."""

_INITIAL_INVARIANT, _INITIAL_PROPERTY = 2107, 2108
_SUCCESS, _TOTALS, _DEPTH, _FINISHED, _SIMULATION = 2193, 2199, 2194, 2186, 2188
_PROGRESS, _SIMULATION_PROGRESS = 2200, 2209
_COVERAGE_START, _COVERAGE, _COVERAGE_DETAIL = 2201, 2772, 2221
_SERVING, _REGISTERED, _BEHAVIOUR = 7000, 7001, 2121
_STATE, _STUTTERING, _BACK_TO = 2217, 2218, 2122
_GARBAGE_COLLECTOR_ADVICE = 2401
_INITIAL_COUNTS = (2190, 2191, 2207, 2208)
_TRACE_FOLLOWS = (_BEHAVIOUR, 2264)
_ASSERTION, _PARSING_FAILED = 2132, 3002
_ERROR, _WARNING = 1, 3

_VIOLATIONS = {
    # message: (exit code, how the text names the property)
    _INITIAL_INVARIANT: (12, r"Invariant (\S+) is violated by the initial state"),
    2110: (12, r"Invariant (\S+) is violated"),
    _INITIAL_PROPERTY: (13, r"Property (\S+) is violated by the initial state"),
    2112: (13, r"Action property (\S+) is violated"),
    2114: (11, r"(Deadlock) reached"),
    2116: (13, r"(Temporal) properties were violated"),
}

TAIL_LINES = 40


@dataclass(frozen=True, slots=True)
class Step:
    """One state of a counterexample and the action that led to it; the first action is ``Initial predicate``."""

    action: str
    state: State


@dataclass(frozen=True, slots=True)
class Progress:
    """What TLC reports while it runs (after 3 s, then once a minute)."""

    generated: int
    states: int
    queued: int


@dataclass(frozen=True, slots=True)
class TlcResult:
    """What one run of TLC established.

    ``states`` are distinct states, ``generated`` counts every transition taken plus the ``initial`` states,
    ``depth`` the breadth-first levels (a lone initial state is depth 1; exact with one worker only).
    ``coverage``: action -> (distinct states it found first, transitions it took); an action at (0, 0) never happened.
    ``collisions``: TLC's estimate of the probability that two states shared a fingerprint and one was missed.
    ``sampled``: the run was a simulation, so ``holds`` means "not seen to fail" and ``states`` and ``depth`` are 0.
    """

    verdict: Verdict
    seconds: float
    violates: str | None = None
    """The invariant or property that fails, by name; DEADLOCK and TEMPORAL where there is none."""
    trace: tuple[Step, ...] = ()
    ending: str = ""
    """How an infinite counterexample goes on: ``stutters for ever``, or ``Wrap, back to step 1`` (the first is 0)."""
    states: int = 0
    generated: int = 0
    initial: int = 0
    depth: int = 0
    coverage: dict[str, tuple[int, int]] = field(default_factory=dict, hash=False)
    collisions: float = 0.0
    sampled: bool = False
    partial: bool = False
    """Only the end of the counterexample is in ``trace``: the distributed server shows no more."""
    registered: int = 0
    """How many of the distributed workers took part."""
    reason: str = ""
    """Why the harness failed: one line."""
    tail: tuple[str, ...] = ()
    """The last lines that TLC printed, for a failed harness."""

    @property
    def edges(self) -> int:
        """Transitions taken, one per enabled instance of an action, self loops included.

        Equals the number of edges of the dumped graph, unless a constraint cuts: cut transitions count here only.
        """
        return max(0, self.generated - self.initial)

    @property
    def steps(self) -> int:
        """Transitions from the initial state to the last state of the counterexample."""
        return max(0, len(self.trace) - 1)


@dataclass(frozen=True, slots=True)
class _Message:
    code: int
    severity: int
    text: str


class Output:
    """Collects the lines of one run. ``feed`` each line, then ask for the ``result``.

    ``serving``: the distributed server waits for workers; ``registered``: how many have come.
    """

    def __init__(self, *, distributed: bool = False) -> None:
        self.serving = False
        self.registered = 0
        self._distributed = distributed
        self._open: list[tuple[int, int, list[str]]] = []
        self._messages: list[_Message] = []
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._loose: list[str] = []  # the first lines outside all messages, where the parser says what it did not like

    def feed(self, line: str) -> Progress | None:
        """Take one line without its line end; returns the progress if the line completed such a message."""
        start = re.search(r"@!@!@STARTMSG (-?\d+):(\d+) @!@!@", line)
        if start:  # in the middle of a line, and inside another message, when TLC reports an exception
            self._text(line[: start.start()])
            self._open.append((int(start[1]), int(start[2]), []))
            return None
        if line.startswith("@!@!@ENDMSG ") and self._open:
            code, severity, lines = self._open.pop()
            if code == _COVERAGE_DETAIL:
                return None
            message = _Message(code, severity, "\n".join(lines).strip())
            self._messages.append(message)
            self.serving = self.serving or code == _SERVING
            self.registered += code == _REGISTERED
            if self._open:  # the cause of an exception belongs to its text
                self._open[-1][2].append(message.text)
            return _progress(message)
        self._text(line)
        return None

    def _text(self, line: str) -> None:
        if self._open:
            self._open[-1][2].append(line)
            if self._open[-1][0] == _COVERAGE_DETAIL:
                return
        elif len(self._loose) < TAIL_LINES and not line.startswith(("Parsing file", "Semantic processing")):
            self._loose.append(line)
        if line.strip():
            self._tail.append(line.rstrip())

    def result(self, exit_code: int, seconds: float, stopped: str = "") -> TlcResult:
        """The verdict. ``stopped`` says why the process was ended from outside, if it was."""
        facts = TlcResult("harness failed", seconds)
        try:
            facts = self._facts(seconds)
            reason = stopped or self._doubt(facts, exit_code)
        except UnreadableError as error:
            reason = stopped or f"TLC's output cannot be read: {error}"
        if reason:
            return replace(facts, reason=_one_line(reason), tail=tuple(self._tail))
        violation = self._violation()
        if violation:
            return replace(facts, verdict="violated", violates=violation[1], ending=self._ending())
        return replace(facts, verdict="holds")

    def _last(self, *codes: int) -> str:
        return next((message.text for message in reversed(self._messages) if message.code in codes), "")

    def _facts(self, seconds: float) -> TlcResult:
        """Everything that was counted and shown, with no verdict yet. Raises UnreadableError."""
        sampled = bool(self._last(_SIMULATION))
        totals = _numbers(r"([\d,]+) states generated.*?, ([\d,]+) distinct", self._last(_TOTALS, _PROGRESS))
        sampled_totals = _numbers(r"([\d,]+) states generated", self._last(_SIMULATION_PROGRESS))
        depth = _numbers(r"search is (\d+)", self._last(_DEPTH))
        initial = _numbers(r"(\d+) (?:distinct )?state(?:s|\(s\))? generated", self._last(*_INITIAL_COUNTS))
        estimates = re.findall(r"val = ([\d.E+-]+)", self._last(_SUCCESS))
        return TlcResult(
            "harness failed",
            seconds,
            trace=self._trace(),
            states=totals[1] if totals else 0,
            generated=(sampled_totals or totals or [0])[0],
            initial=initial[0] if initial else 0,
            depth=depth[0] if depth else 0,
            coverage=self._coverage(),
            collisions=max(map(float, estimates), default=0.0),
            sampled=sampled,
            partial=self._distributed,
            registered=self.registered,
        )

    def _coverage(self) -> dict[str, tuple[int, int]]:
        """Summed by name: TLC counts each place separately where an action occurs in the next-state relation."""
        coverage: dict[str, tuple[int, int]] = {}
        for message in self._messages:
            if message.code == _COVERAGE_START:
                coverage.clear()  # the statistics come again, grown, with each progress and at the end
            counted = re.match(r"<([^\s(]+).*>: (\d+):(\d+)", message.text) if message.code == _COVERAGE else None
            if counted:
                found, taken = coverage.get(counted[1], (0, 0))
                coverage[counted[1]] = (found + int(counted[2]), taken + int(counted[3]))
        return coverage

    def _trace(self) -> tuple[Step, ...]:
        steps: list[Step] = []
        for message in self._messages:
            if message.code in (_INITIAL_INVARIANT, _INITIAL_PROPERTY):
                return (Step("Initial predicate", parse_state(message.text.partition("\n")[2])),)
            if message.code == _STATE:
                header, _, text = message.text.partition("\n")
                heading = re.match(r"(\d+): <(.+?)(?:\(.*\))?(?: line .*)?>$", header)
                if heading is None or int(heading[1]) != len(steps) + 1:
                    raise UnreadableError(f"not the heading of state {len(steps) + 1}: {header!r}")
                steps.append(Step(heading[2], parse_state(text)))
        return tuple(steps)

    def _ending(self) -> str:
        if self._last(_STUTTERING):
            return "stutters for ever"
        back = re.search(r"(\d+): Back to state: <(\S+)|Back to state (\d+): <(\S+)", self._last(_BACK_TO))
        if back is None:
            return ""
        return f"{back[2] or back[4]}, back to step {int(back[1] or back[3]) - 1}"

    def _violation(self) -> tuple[int, str] | None:
        """The exit code that belongs to the first reported violation, and the name of what is violated."""
        for message in self._messages:
            if message.code in _VIOLATIONS:
                exit_code, pattern = _VIOLATIONS[message.code]
                named = re.match(pattern, message.text)
                if named is None:
                    raise UnreadableError(f"violation without a name: {message.text!r}")
                return exit_code, {"Deadlock": DEADLOCK, "Temporal": TEMPORAL}.get(named[1], named[1])
        return (0, UNNAMED) if self._distributed and self._last(_BEHAVIOUR) else None

    def _doubt(self, facts: TlcResult, exit_code: int) -> str:
        """Why the run proves nothing; empty if it does prove something."""
        expected = {*_VIOLATIONS, *_TRACE_FOLLOWS}
        for message in self._messages:
            if message.severity == _ERROR and message.code not in expected:
                return " ".join([message.text, *self._details(message)])
            if message.severity == _WARNING and message.code != _GARBAGE_COLLECTOR_ADVICE:
                return f"TLC warns: {message.text}"
        violation = self._violation()
        due = violation[0] if violation else 0
        if exit_code != due:
            return f"TLC ended with exit code {exit_code} where {due} was due"
        if not self._last(_FINISHED):
            return "TLC did not say that it finished"
        if violation:
            return "" if facts.trace else "TLC showed no counterexample"
        return self._missing_evidence(facts)

    def _details(self, message: _Message) -> list[str]:
        """What TLC says about an error outside the message itself."""
        if message.code == _PARSING_FAILED:
            return self._loose
        assertion = self._last(_ASSERTION)
        return [] if assertion in message.text else [assertion]

    def _missing_evidence(self, facts: TlcResult) -> str:
        if facts.sampled:
            return "" if facts.generated else "the simulation generated no state"
        if not self._last(_SUCCESS):
            return "TLC did not say that it found no error"
        if not (facts.states and facts.initial and facts.depth):
            return "TLC found no initial state: nothing was checked"
        if not re.search(r"\b0 states left on queue", self._last(_TOTALS)):
            return f"TLC left states unexplored: {self._last(_TOTALS)}"
        return ""


def computed(said: Sequence[str], registered: int) -> int | None:
    """The transitions that the distributed workers computed, from what they printed; None unless all have said it.

    ``registered``: how many took part. The server's own total is higher: it counts some states twice.
    """
    counts = [int(count) for text in said for count in re.findall(r"work completed at: .* Computed: (\d+)", text)]
    return sum(counts) if len(counts) == registered > 0 else None


def with_transitions(result: TlcResult, transitions: int | None) -> TlcResult:
    """The result of a distributed run with the workers' count of transitions; nothing holds without it."""
    if transitions is None and result.verdict == "holds":
        return replace(result, verdict="harness failed", reason="a worker ended without saying what it computed")
    return replace(result, generated=result.initial + (transitions or 0))


def _numbers(pattern: str, text: str) -> list[int]:
    found = re.search(pattern, text)
    return [int(number.replace(",", "")) for number in found.groups()] if found else []


def _progress(message: _Message) -> Progress | None:
    if message.code != _PROGRESS:
        return None
    pattern = r"([\d,]+) states generated.*?, ([\d,]+) distinct states found.*?, ([\d,]+) states left"
    numbers = _numbers(pattern, message.text)
    return Progress(*numbers) if numbers else None


def _one_line(text: str, limit: int = 400) -> str:
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 3] + "..."
