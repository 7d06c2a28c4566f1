"""Upstream's shared state, read without trusting its writer (defect D-L).

Upstream's dynamic handler keeps its state as a pickle and loads what it finds: who can write the key runs code in every
agent. The format cannot change while upstream's agents take part. So what comes from etcd is read here first, with
stand-ins for upstream's two classes and nothing else to call, checked field by field, and written anew: upstream only
ever loads a pickle of our own making.
"""

from __future__ import annotations

import io
import pickle
from datetime import datetime, timedelta, timezone
from typing import Any

from torch.distributed.elastic.rendezvous import RendezvousStateError
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import (
    RendezvousBackend,
    Token,
    _NodeDesc,
    _RendezvousState,
)

_PLAIN = {("datetime", kind.__name__): kind for kind in (datetime, timedelta, timezone)}


class _Reader(pickle.Unpickler):
    """Knows three immutable classes, and a stand-in for each of upstream's that lives as long as the reader."""

    def __init__(self, state: bytes) -> None:
        super().__init__(io.BytesIO(state))
        self.node = type("Node", (), {})
        self.state = type("State", (), {})
        module = _RendezvousState.__module__
        names = {(module, _NodeDesc.__name__): self.node, (module, _RendezvousState.__name__): self.state}
        self._known: dict[tuple[str, str], type] = {**_PLAIN, **names}

    def find_class(self, module: str, name: str) -> type:
        known = self._known.get((module, name))
        if known is None:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no rendezvous state holds")
        return known

    def real(self, value: Any) -> Any:
        """The value with upstream's classes in the place of the stand-ins."""
        if type(value) is self.node:
            return _node(vars(value))
        if type(value) is dict:
            return {self.real(key): self.real(item) for key, item in value.items()}
        if type(value) is set:
            return {self.real(item) for item in value}
        if value is None or type(value) in (bool, int, str, datetime):
            return value
        raise ValueError(f"it holds a {type(value).__name__}")


def _node(fields: dict[str, Any]) -> _NodeDesc:
    kinds = {name: type(value) for name, value in fields.items()}
    if kinds != {"addr": str, "pid": int, "local_id": int}:
        raise ValueError("a node is not an address with two numbers")
    return _NodeDesc(**fields)


def checked_state(state: bytes) -> bytes:
    """The same state, as a pickle that is safe to load. Raises RendezvousStateError for anything else."""
    try:
        reader = _Reader(state)
        found = reader.load()
        if type(found) is not reader.state:
            raise ValueError("it is no rendezvous state")
        fields, fresh = reader.real(vars(found)), _RendezvousState()
        for name, default in vars(fresh).items():
            kinds = (type(None), datetime) if default is None else (type(default),)
            if type(fields.get(name)) not in kinds:
                raise ValueError(f"its {name} is missing or of the wrong kind")
        if unknown := fields.keys() - vars(fresh).keys():
            raise ValueError(f"it has the unknown field {min(unknown)!r}; do all agents have the same torch?")
    except Exception as error:  # unpickling fails in as many ways as there are damaged pickles
        raise RendezvousStateError(f"The rendezvous state in etcd is not one: {error}") from error
    vars(fresh).update(fields)
    return pickle.dumps(fresh)


class CheckedBackend(RendezvousBackend):
    """A backend for upstream's handler that hands it only states that are safe to load."""

    def __init__(self, backend: RendezvousBackend, name: str) -> None:
        self._backend = backend
        self._name = name

    @property
    def name(self) -> str:
        """The name under which torchrun asked for the backend; it refuses a handler with another."""
        return self._name

    def get_state(self) -> tuple[bytes, Token] | None:
        found = self._backend.get_state()
        return None if found is None else (checked_state(found[0]), found[1])

    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        result = self._backend.set_state(state, token)
        if result is None or result[2]:
            return result
        return checked_state(result[0]), *result[1:]
