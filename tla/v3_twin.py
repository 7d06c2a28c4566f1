"""The v3 rendezvous's model and its spec side by side: one configuration for both, one form of a state for both.

May live here: the translation of a manifest entry of module RendezvousV3 into a model configuration, and of a model
state into TLA+ values. Must not live here: rules of the rendezvous.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import fields

from rallypoint.model.etcd3 import View
from rallypoint.model.system3 import Budget, Config, State, explore, initial
from rallypoint.model.worker3 import SWITCHES, Rules, Worker
from rallypoint.tla import manifest
from rallypoint.tla import values as tla
from rallypoint.tla.graph import Edge, Graph
from rallypoint.tla.values import Value, canonical

MODULE = "RendezvousV3"
"""The module whose twin is ``rallypoint.model.system3``."""

NO_VIEW = View(0, initial(Config(Rules(1, 1), 0, Budget())).store.doc, (), frozenset())


def model_config(config: manifest.Config) -> Config:
    """The model's configuration with the constants of a manifest entry of module RendezvousV3."""
    constants = config.constants
    switches, low, high, workers = (constants[name] for name in ("Rules", "Min", "Max", "N"))
    assert isinstance(switches, list)
    assert isinstance(low, int)
    assert isinstance(high, int)
    assert isinstance(workers, int)
    rules = Rules(low, high, **{name: name in switches for name in SWITCHES})
    budget = {field.name: constants[field.name.title().replace("_", "")] for field in fields(Budget)}
    return Config(rules, workers, Budget(**budget))  # type: ignore[arg-type]


def _view(view: View | None) -> dict[str, object]:
    seen = NO_VIEW if view is None else view
    return {**seen._asdict(), "doc": seen.doc._asdict()}


def _worker(worker: Worker) -> Value:
    values = {field.name: getattr(worker, field.name) for field in fields(Worker)}
    return canonical({**values, "seen": _view(worker.seen)})


def tla_state(state: State) -> tla.State:
    """A model state as TLC prints it, in canonical values."""
    return tla.State(
        {
            "store": canonical({**state.store._asdict(), "doc": state.store.doc._asdict()}),
            "c": canonical({slot: _worker(worker) for slot, worker in enumerate(state.workers)}),
            "left": canonical({field.name: getattr(state.left, field.name) for field in fields(Budget)}),
            "history": canonical(state.history._asdict()),
        }
    )


def model_graph(config: Config) -> Graph:
    """The labelled state graph of the model, to be compared with TLC's dump."""
    raw: Counter[tuple[State, str, State]] = Counter()

    def note(source: State, action: str, target: State) -> None:
        raw[source, action, target] += 1

    explore(config, on_edge=note)
    start = initial(config)
    states = {state: tla_state(state) for state in {start, *(end for edge in raw for end in (edge[0], edge[2]))}}
    edges: Counter[Edge] = Counter()
    for (source, action, target), count in raw.items():
        edges[states[source], action, states[target]] += count
    return Graph.from_edges([states[start]], edges)
