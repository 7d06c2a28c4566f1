"""A verdict needs evidence: what TLC printed, with one piece taken away or added at a time."""

from __future__ import annotations

import pytest
from rallypoint.tla.output import Output, Progress, TlcResult


def message(code: int, text: str, severity: int = 0) -> str:
    return f"@!@!@STARTMSG {code}:{severity} @!@!@\n{text}\n@!@!@ENDMSG {code} @!@!@\n"


INITIAL = message(2190, "Finished computing initial states: 1 distinct state generated at 2026-01-01 00:00:00.")
SUCCESS = message(2193, "Model checking completed. No error has been found.\n  calculated (optimistic):  val = 4.9E-17")
TOTALS = message(2199, "1,462 states generated, 24 distinct states found, 0 states left on queue.")
DEPTH = message(2194, "The depth of the complete state graph search is 8.")
FINISHED = message(2186, "Finished in 953ms at (2026-01-01 00:00:00)")
VIOLATION = message(2110, "Invariant Small is violated.", 1) + message(2121, "The behavior up to this point is:", 1)
TRACE = message(2217, "1: <Initial predicate>\nx = 0\n", 4) + message(
    2217, "2: <Inc line 7, col 1 to line 7, col 9 of module M>\nx = 1\n", 4
)

HOLDS = INITIAL + SUCCESS + TOTALS + DEPTH + FINISHED
VIOLATED = INITIAL + VIOLATION + TRACE + TOTALS + DEPTH + FINISHED


def judged(text: str, exit_code: int = 0, stopped: str = "") -> TlcResult:
    output = Output()
    for line in text.splitlines():
        output.feed(line)
    return output.result(exit_code, 1.0, stopped)


def test_full_evidence() -> None:
    result = judged(HOLDS)
    assert (result.verdict, result.states, result.edges, result.depth) == ("holds", 24, 1461, 8)
    assert result.collisions == 4.9e-17
    violated = judged(VIOLATED, 12)
    assert (violated.verdict, violated.violates, violated.steps) == ("violated", "Small", 1)


@pytest.mark.parametrize("missing", [INITIAL, SUCCESS, TOTALS, DEPTH, FINISHED])
def test_nothing_holds_with_a_piece_missing(missing: str) -> None:
    result = judged(HOLDS.replace(missing, ""))
    assert result.verdict == "harness failed"
    assert result.reason


@pytest.mark.parametrize("missing", [VIOLATION, TRACE, FINISHED])
def test_nothing_is_violated_with_a_piece_missing(missing: str) -> None:
    assert judged(VIOLATED.replace(missing, ""), 12).verdict == "harness failed"


@pytest.mark.parametrize(
    ("text", "exit_code"),
    [
        (VIOLATED, 0),  # what -continue does: a violation is printed, and the exit code says success
        (VIOLATED, 13),
        (HOLDS + VIOLATION + TRACE, 0),
        (HOLDS, 1),
        (HOLDS, -9),
        (HOLDS.replace("0 states left", "3 states left"), 0),
        (HOLDS.replace("0 states left", "10 states left"), 0),
        (HOLDS.replace("24 distinct", "0 distinct"), 0),
        (HOLDS + message(1000, "TLC threw an unexpected exception.", 1), 0),
        (HOLDS + message(2284, "Declaring constraints during liveness checking is dangerous", 3), 0),
        (VIOLATED.replace("2: <Inc", "3: <Inc"), 12),
        (VIOLATED.replace("x = 1", "x = @"), 12),
        (VIOLATED.replace("Invariant Small is", "Something is"), 12),
        ("", 0),
    ],
)
def test_contradictions_prove_nothing(text: str, exit_code: int) -> None:
    result = judged(text, exit_code)
    assert result.verdict == "harness failed"
    assert result.reason
    assert result.violates is None


def test_a_stopped_run_proves_nothing() -> None:
    result = judged(HOLDS, 0, "not finished after 3 s, ended")
    assert (result.verdict, result.reason) == ("harness failed", "not finished after 3 s, ended")
    unreadable = judged(VIOLATED.replace("x = 1", "x = "), 12, "not finished after 3 s, ended")
    assert unreadable.reason == "not finished after 3 s, ended"


def test_advice_about_the_jvm_is_no_warning() -> None:
    assert judged(message(2401, "Please run the Java VM with another garbage collector", 3) + HOLDS).verdict == "holds"


def test_the_cause_of_an_exception_is_in_the_reason() -> None:
    nested = (
        "@!@!@STARTMSG 1000:1 @!@!@\nTLC threw\n: @!@!@STARTMSG 5006:0 @!@!@\nerror at line 2\n@!@!@ENDMSG 5006 @!@!@\n"
    )
    result = judged(INITIAL + nested + "@!@!@ENDMSG 1000 @!@!@\n" + FINISHED, 255)
    assert result.reason == "TLC threw : error at line 2"
    assert "error at line 2" in result.tail


def test_progress_is_reported() -> None:
    output = Output()
    text = "Progress(101) at 2026-01-01 00:00:00: 414,907 states generated (414,907 s/min), 141,817 distinct states "
    lines = message(2200, text + "found (141,817 ds/min), 2,709 states left on queue.").splitlines()
    assert [output.feed(line) for line in lines] == [None, None, Progress(414_907, 141_817, 2_709)]
    stopped = output.result(-9, 1.0, "ended")
    assert (stopped.states, stopped.generated) == (141_817, 414_907)


def test_coverage_is_that_of_the_last_statistics() -> None:
    action = "<Up line 1, col 1 to line 1, col 2 of module M>: "
    early = message(2201, "The coverage statistics at") + message(2772, action + "1:2")
    late = message(2201, "The coverage statistics at") + message(2772, action + "3:4") + message(2772, action + "0:2")
    assert judged(early + late + HOLDS).coverage == {"Up": (3, 6)}
