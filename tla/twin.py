"""The model and the spec side by side: one configuration for both, one form of a state for both.

May live here: the translation of a manifest entry into a model configuration, and of a model state into TLA+ values.
Must not live here: rules of the protocol.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from dataclasses import fields
from typing import TypeVar

from rallypoint.model import document as docs
from rallypoint.model import fair, system
from rallypoint.model import worker as machine
from rallypoint.model.document import Document
from rallypoint.model.etcd import Store
from rallypoint.model.explorer import Code, Explorer
from rallypoint.model.rules import Rules
from rallypoint.model.system import Budget
from rallypoint.model.worker import Worker
from rallypoint.tla import manifest
from rallypoint.tla.graph import Edge, Graph
from rallypoint.tla.values import State, Value, canonical

MODULE = "Rendezvous"
"""The module whose twin is ``rallypoint.model``."""
TTLS_RUN_OUT = {"Fair": True, "FairWithoutTtl": False}
"""The formulas whose twin is ``model/fair.py``, and whether TTLs run out in them."""
Node = TypeVar("Node", bound=Hashable)


def model_config(config: manifest.Config) -> system.Config:
    """The model's configuration with the constants of a manifest entry of module Rendezvous."""
    constants = config.constants
    switches = constants["Rules"]
    lowest, highest, workers = constants["Min"], constants["Max"], constants["N"]
    assert isinstance(switches, list)
    assert isinstance(lowest, int)
    assert isinstance(highest, int)
    assert isinstance(workers, int)
    on = {name: name in switches for name in (*machine.HARDENING, "reread")}
    budget = {field.name: constants[field.name.title().replace("_", "")] for field in fields(Budget)}
    return system.Config(
        Rules(lowest, highest, bootstrap=bool(constants["Bootstrap"]), **on),  # type: ignore[arg-type]
        workers,
        Budget(**budget),  # type: ignore[arg-type]
        tuple(constants["Theirs"]),  # type: ignore[arg-type]
        tuple(constants["Others"]),  # type: ignore[arg-type]
        (constants["OtherMin"], constants["OtherMax"]),  # type: ignore[arg-type]
    )


def _id(text: str) -> tuple[int, int]:
    slot, incarnation = text.split(".")
    return int(slot), int(incarnation)


def _key(key: str) -> tuple[str, int, int | tuple[int, int]]:
    _, directory, name = key.split("/")
    kind, owner = name.split("_")
    return kind, int(directory.removeprefix("v_")), int(owner) if kind == "rank" else _id(owner)


def _document(document: Document | None) -> dict[str, object]:
    if document is None:
        document = Document("absent")
    owners = dict(document.owners or ())
    return {
        "status": document.status,
        "version": document.version or 0,
        "size": docs.size(document),
        "bounds": list(document.bounds or ()),
        "owners": [_id(owners[rank]) if rank in owners else () for rank in document.participants or ()],
        "frozen": document.keep_alives is not None,
        "keeps": [_key(key) for key in document.keep_alives or ()],
        "waiting": -1 if document.num_workers_waiting is None else document.num_workers_waiting,
        "creator": [] if document.creator is None else _id(document.creator),
        "waiters": [_id(waiter) for waiter in document.waiters or ()],
    }


def _worker(worker: Worker) -> Value:
    return canonical(
        {
            "id": _id(worker.id),
            "pc": worker.pc,
            "seen": _document(None if worker.seen is None else docs.parse(worker.seen)),
            "version": worker.version or 0,
            "rank": -1 if worker.rank is None else worker.rank,
            "world": worker.world or 0,
            "lease": [] if worker.lease is None else _key(worker.lease),
            "mixed": worker.mixed,
        }
    )


def _store(rules: Rules, store: Store) -> Value:
    active, count = store.get(machine.active(rules)), store.value(machine.counter(rules))
    names = [key for key, _ in store.nodes if key not in (machine.active(rules), machine.counter(rules))]
    return canonical(
        {
            "doc": _document(system.document(rules, store)),
            "ttl": active is not None and active.ttl,
            "count": -1 if count is None else int(count),
            "floor": store.index,
            "dirs": {int(name.removeprefix("/v_")) for name in names if name.count("/") == 1},
            "keys": {_key(name) for name in names if name.count("/") == 2 and "_" in name.rpartition("/")[2]},
            "addresses": {int(name.split("/")[1].removeprefix("v_")) for name in names if name.endswith("/address")},
        }
    )


def tla_state(config: system.Config, state: system.State) -> State:
    """A model state as TLC prints it, in canonical values."""
    return State(
        {
            "store": _store(config.rules, state.store),
            "w": canonical({slot: _worker(worker) for slot, worker in enumerate(state.workers)}),
            "left": canonical({field.name: getattr(state.left, field.name) for field in fields(Budget)}),
            "hist": canonical(
                {
                    "published": state.history.published,
                    "reused": state.history.reused,
                    "closed": state.history.closed,
                }
            ),
        }
    )


def model_graph(
    config: system.Config, specification: str = "Spec", on_progress: Callable[[int], None] | None = None
) -> Graph:
    """The labelled state graph of the model, to be compared with TLC's dump of the ``specification`` of that name."""
    if specification in TTLS_RUN_OUT:
        return _fair(config, TTLS_RUN_OUT[specification])
    return _explored(config, on_progress)


def _explored(config: system.Config, on_progress: Callable[[int], None] | None) -> Graph:
    explorer = Explorer(config)
    raw: Counter[tuple[Code, str, Code]] = Counter()

    def note(source: Code, action: str, target: Code) -> None:
        raw[source, action, target] += 1

    explorer.explore(on_edge=note, on_progress=on_progress)
    return _graph(config, explorer.encode(system.initial(config)), raw, explorer.decode)


def fair_edges(config: system.Config, ttls: bool) -> Iterator[tuple[system.State, str, system.State]]:
    """Every fair transition, in the order of a breadth-first search."""
    start = system.initial(config)
    queue, seen = [start], {start}
    for state in queue:
        for _, step in fair.steps(config, state, ttls=ttls):
            yield state, step.action, step.state
            if step.state not in seen:
                seen.add(step.state)
                queue.append(step.state)


def _fair(config: system.Config, ttls: bool) -> Graph:
    return _graph(config, system.initial(config), Counter(fair_edges(config, ttls)), lambda state: state)


def _graph(
    config: system.Config, start: Node, raw: Counter[tuple[Node, str, Node]], decode: Callable[[Node], system.State]
) -> Graph:
    nodes = {start} | {node for source, _, target in raw for node in (source, target)}
    states = {node: tla_state(config, decode(node)) for node in nodes}
    if len(set(states.values())) != len(nodes):
        raise ValueError("two states of the model are one of the specification")
    edges: Counter[Edge] = Counter()
    for (source, action, target), count in raw.items():
        edges[states[source], action, states[target]] += count
    return Graph.from_edges([states[start]], edges)
