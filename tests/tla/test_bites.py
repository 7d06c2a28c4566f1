"""Invariants that no configuration violates, on states made by hand: each tells its own, in TLA+ and in Python."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from rallypoint.model import etcd, system
from rallypoint.model import worker as machine
from rallypoint.model.rules import Rules
from rallypoint.model.system import Budget, Config, State
from rallypoint.model.worker import Worker
from rallypoint.spec.invariants import INVARIANTS
from rallypoint.tla import SPEC_DIR, manifest, tlc

LOWEST, HIGHEST = 2, 3
BY_HAND = r"""
---- MODULE ByHand ----
EXTENDS Rendezvous
Member(i, rank, world) == [Fresh(<<i, 0>>) EXCEPT !.pc = "member", !.version = 1, !.rank = rank, !.world = world]
Members2(a, b) == w = (0 :> Member(0, a[1], a[2]) @@ 1 :> Member(1, b[1], b[2]))
Rest == left = [none |-> 0]
Store(status) == store = [doc |-> [NoDoc EXCEPT !.status = status], ttl |-> FALSE, count |-> 1, dirs |-> {1},
                          keys |-> {}, addresses |-> {}, floor |-> 1]
Hist(closed) == hist = [published |-> 1, reused |-> FALSE, closed |-> closed]
Start == %s
Stay == UNCHANGED vars
ByHandSpec == Start /\ [][Stay]_vars
====
"""
Pair = tuple[tuple[int, int], tuple[int, int]]
CASES: dict[str, tuple[Pair, str, bool]] = {
    # invariant: ((rank, world size) of both members, status of the document, the run has been closed)
    "RankUnique": (((0, 2), (0, 2)), "setup", False),
    "RanksDense": (((0, 2), (2, 2)), "setup", False),
    "WorldAgree": (((0, 2), (1, 3)), "setup", False),
    "WorldBounds": (((0, 4), (1, 4)), "setup", False),
    "ClosedIsFinal": (((0, 2), (1, 2)), "setup", True),
    "TypeOK": (((0, 2), (1, 2)), "odd", False),
    "": (((0, 2), (1, 2)), "setup", False),
}
JUDGED = [name for name in CASES if name]


def judged(members: Pair, status: str, closed: bool, place: Path, invariants: list[str]) -> str:
    """TLC's verdict on the one state."""
    shutil.copy(SPEC_DIR / "Rendezvous.tla", place)
    (a, b), (c, d) = members
    start = rf"Members2(<<{a}, {b}>>, <<{c}, {d}>>) /\ Rest /\ Store(\"{status}\") /\ Hist({str(closed).upper()})"
    module = BY_HAND.replace("%s", start.replace('\\"', '"')).replace("EXTENDS Rendezvous", "EXTENDS Rendezvous, TLC")
    (place / "ByHand.tla").write_text(module.lstrip())
    base = next(config for config in manifest.load_manifest() if config.name == "lost-reply")
    config = replace(
        base,
        spec_dir=place,
        module="ByHand",
        constants={**base.constants, "Min": LOWEST, "Max": HIGHEST},
        specification="ByHandSpec",
        invariants=tuple(invariants),
    )
    result = tlc.run(config.job())
    assert result.verdict in ("holds", "violated"), result.reason
    return result.verdict


def by_predicate(members: Pair, status: str, closed: bool) -> set[str]:
    """Which predicates the same state breaks."""
    config = Config(Rules(LOWEST, HIGHEST), 2, Budget())
    start = system.initial(config)
    document = etcd.Create(machine.active(config.rules), f'{{"status": "{status}"}}')
    store, _ = etcd.apply(start.store, document)
    workers = tuple(
        Worker(f"{slot}.0", machine.MEMBER, version=1, rank=rank, world=world)
        for slot, (rank, world) in enumerate(members)
    )
    state = State(store, workers, start.left, replace(start.history, published=1, closed=closed))
    return {
        name for name in JUDGED if not (name != "TypeOK" and status == "odd") and not INVARIANTS[name](config, state)
    }


@pytest.mark.parametrize("name", CASES)
def test_each_invariant_tells_the_state_that_breaks_it_and_no_other_does(name: str, tmp_path: Path) -> None:
    assert by_predicate(*CASES[name]) == ({name} if name else set())
    assert judged(*CASES[name], tmp_path, [name] if name else JUDGED) == ("violated" if name else "holds")
