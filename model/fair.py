"""The system when time is fair: what happens by itself, in which order, and whose steps cannot be put off for ever.

May live here: which steps of ``system.steps`` remain, and the fairness class of each. Must not live here: what must
come to pass (``spec/liveness.py``).

Time passes only while nobody has anything to do: a last call and a TTL are long against a request, and
who waits whether others are alive waits until every lease of the dead has run out. A member
that is told meets again, as its agent makes it. Faults have their budgets, and nothing makes them happen. Twin of the
formulas ``Fair`` and ``FairWithoutTtl`` of ``tla/Rendezvous.tla``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from rallypoint.model import system
from rallypoint.model import worker as machine
from rallypoint.model.system import Config, State, Step
from rallypoint.model.worker import Worker

PROGRESS = frozenset({"SeeClosed", *(row.action for row in machine.TABLE.values())})
TTLS = -1
"""The fairness class of TTLs that run out; a worker's own is its slot."""


class FairStep(NamedTuple):
    """``owed``: the class of steps that must be taken some day if it can be taken from some day on; None: a fault."""

    owed: int | None
    step: Step


def told(config: Config, state: State, worker: Worker) -> bool:
    """What ``num_nodes_waiting() > 0`` says to a member."""
    below = machine.directory(config.rules, worker.version) + "/"
    keys = tuple(key for key, _ in state.store.nodes if key.startswith(below))
    text = state.store.value(machine.active(config.rules))
    return machine.standing(system.rules_of(config, worker), worker, text, keys).waiting > 0


def steps(config: Config, state: State, *, ttls: bool = True) -> Iterator[FairStep]:
    """All transitions from ``state``. Without ``ttls``, none runs out: nobody is to wait for one."""
    possible = list(system.steps(config, state))
    awake = any(step.action in PROGRESS for step in possible)
    last_call = any(step.action == "LastCallOver" for step in possible)
    dead = any(step.action == "ExpireKey" for step in possible)
    for step in possible:
        if step.action in PROGRESS:
            yield FairStep(step.slot, step)
        elif step.action == "OthersStay":
            if not awake and not dead:
                yield FairStep(step.slot, step._replace(action="OthersHaveStayed"))
        elif step.action == "LastCallOver" and not awake:
            yield FairStep(step.slot, step._replace(action="LastCallEnds"))
        elif step.action == "ExpireKey" and ttls:
            yield FairStep(TTLS, step)
        elif step.action not in ("LastCallOver", "ExpireKey"):
            yield FairStep(None, step)
    for slot, worker in enumerate(state.workers):
        if worker.pc == machine.MEMBER and told(config, state, worker):
            again = machine.reenter(system.rules_of(config, worker), worker, system.next_id(worker))
            workers = (*state.workers[:slot], again, *state.workers[slot + 1 :])
            yield FairStep(slot, Step("MeetAgain", slot, state._replace(workers=workers)))
    if ttls and not awake and not last_call:
        for event in system.environment(config.rules, state.store, frozenset()):
            if event.action == "ExpireDocument":
                history = system.remember(config.rules, state.history, state.store, event.store)
                yield FairStep(TTLS, Step("RunOut", None, state._replace(store=event.store, history=history)))
