"""The register's model and its spec side by side: one configuration for both, one form of a state for both.

May live here: the translation of a manifest entry of module Register into a model configuration, and of a model state
into TLA+ values. Must not live here: rules of the register.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import fields

from rallypoint.model.etcd import CasIndex
from rallypoint.model.register import KEY, Client, Rules
from rallypoint.model.register_system import Budget, Config, Late, State, explore, given, initial
from rallypoint.tla import manifest
from rallypoint.tla import values as tla
from rallypoint.tla.graph import Edge, Graph
from rallypoint.tla.values import Value, canonical

MODULE = "Register"
"""The module whose twin is ``rallypoint.model.register_system``."""


def model_config(config: manifest.Config) -> Config:
    """The model's configuration with the constants of a manifest entry of module Register."""
    constants = config.constants
    switches, clients = constants["Rules"], constants["N"]
    assert isinstance(switches, list)
    assert isinstance(clients, int)
    rules = Rules(**{field.name: field.name in switches for field in fields(Rules)})
    budget = {field.name: constants[field.name.title().replace("_", "")] for field in fields(Budget)}
    return Config(rules, clients, Budget(**budget), bool(constants["LateCreates"]))  # type: ignore[arg-type]


def _token(token: int | None) -> int:
    return -1 if token is None else token


def _value(value: str | None) -> tuple[int, ...]:
    if value is None:
        return ()
    slot, call, _ = value.split(".")
    return int(slot), int(call), _token(given(value))


def _client(client: Client) -> Value:
    return canonical(
        {
            "pc": client.pc,
            "token": _token(client.token),
            "value": _value(client.value),
            "given": _token(client.given),
            "unsure": client.unsure,
            "result": client.result,
        }
    )


def _late(late: Late) -> Value:
    swap = isinstance(late.request, CasIndex)
    value = _value(getattr(late.request, "value", None))
    return canonical((late.number, "swap" if swap else "create", value[2], value))


def tla_state(state: State) -> tla.State:
    """A model state as TLC prints it, in canonical values."""
    node = state.store.get(KEY)
    value, modified = (None, 0) if node is None else (node.value, node.modified)
    return tla.State(
        {
            "store": canonical({"value": _value(value), "modified": modified, "index": state.store.index}),
            "effects": canonical([(effect.modified, _value(effect.value), effect.over) for effect in state.effects]),
            "c": canonical({slot: _client(client) for slot, client in enumerate(state.clients)}),
            "flying": frozenset(map(_late, state.flying)),
            "left": canonical({field.name: getattr(state.left, field.name) for field in fields(Budget)}),
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
