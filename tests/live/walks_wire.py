"""How the model's requests, keys and numbers look on the wire: said once more, so that the client is checked by it.

May live here: the expected form of requests, the key space read back, version numbers. Must not live here: steps.

Numbers. A run's first version number comes from etcd's index, which is 0 in the model and anything on a real server.
What is read live is therefore told in the model's numbers: a counter that was made with the index stands for the
model's number, and each bump counts on from there.
"""

from __future__ import annotations

import http.client
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import urlencode

from rallypoint.live.gate import Held
from rallypoint.model import etcd
from rallypoint.model.etcd import Store

_NUMBERS = re.compile(r'(/v_|"version": ?")(\d+)')
COUNTER = "/version_counter"


class Wire(NamedTuple):
    """A request below the run's root, in the model's keys and numbers. ``form``: sorted."""

    method: str
    key: str
    form: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        return f"{self.method} {self.key} " + "&".join(f"{name}={value}" for name, value in self.form)


Keys = Mapping[str, tuple["str | None", bool]]
"""Key -> (value, None for a directory; whether it has a TTL)."""


def _wire(method: str, key: str, **form: str) -> Wire:
    return Wire(method, key, tuple(sorted(form.items())))


def _ttl(seconds: float | None) -> dict[str, str]:
    return {} if seconds is None else {"ttl": str(math.ceil(seconds))}


def expected(request: etcd.Request) -> Wire:
    """The request as it must come to the gate; of an Await, the first look."""
    key = request.key
    match request:
        case etcd.Create(value=value, ttl=ttl):
            return _wire("PUT", key, value=value, prevExist="false", **_ttl(ttl))
        case etcd.Put(value=value, ttl=ttl):
            return _wire("PUT", key, value=value, **_ttl(ttl))
        case etcd.Cas(prev=prev, value=value, ttl=ttl):
            return _wire("PUT", key, value=value, prevValue=prev, **_ttl(ttl))
        case etcd.Mkdir():
            return _wire("PUT", key, dir="true", prevExist="false")
        case etcd.Cad(prev=prev):
            return _wire("DELETE", key, prevValue=prev)
        case etcd.Delete():
            return _wire("DELETE", key)
        case etcd.Get() | etcd.List() | etcd.Await():
            return _wire("GET", key, quorum="true")
    raise ValueError(f"a rendezvous does not send {request}")


def looks(request: etcd.Await) -> tuple[Wire, ...]:
    """The looks that follow an Await's first one while the document has not changed: at the leases."""
    directories = sorted({key.rpartition("/")[0] for key in request.alive})
    return tuple(_wire("GET", directory, quorum="true") for directory in directories)


def watch(request: etcd.Await) -> Wire:
    """The long poll of an Await, without its index."""
    several = bool(request.alive)
    return _wire("GET", "" if several else request.key, wait="true", recursive=str(several).lower())


def keys_of(store: Store) -> Keys:
    """The model's key space."""
    return {key: (node.value, node.ttl) for key, node in store.nodes}


@dataclass(slots=True)
class Numbers:
    """Live version numbers in the model's terms. ``root``: what is cut off live keys."""

    root: str
    known: dict[int, int] = field(default_factory=dict)

    def model(self, live: int) -> int:
        """The model's number; -1 for one that follows no known one."""
        if live not in self.known:
            if live - 1 not in self.known:
                return -1
            self.known[live] = self.known[live - 1] + 1
        return self.known[live]

    def text(self, live: str) -> str:
        """A key or a document."""
        short = live.replace(self.root, "")
        return _NUMBERS.sub(lambda found: found[1] + str(self.model(int(found[2]))), short)

    def value(self, key: str, live: str) -> str:
        """The value of a key of the run (whose own name is the model's)."""
        return str(self.model(int(live))) if key == COUNTER and live.isdigit() else self.text(live)

    def seen(self, held: Held) -> Wire:
        """A held request; without the index of a watch."""
        key = self.text(held.key)
        form = {
            name: self.value(key, value) if name in ("value", "prevValue") else value
            for name, value in held.form.items()
            if name != "waitIndex"
        }
        return Wire(held.method, key, tuple(sorted(form.items())))


class Reader:
    """Reads and deletes keys on etcd directly, past all gates, on one connection.

    ``index``: etcd's, at the last reply. ``live``: the model's key -> (key, value) on the wire, at the last look.
    """

    def __init__(self, host: str, port: int) -> None:
        self._connection = http.client.HTTPConnection(host, port, timeout=10)
        self.index = 0
        self.live: dict[str, tuple[str, str]] = {}

    def close(self) -> None:
        self._connection.close()

    def ask(self, method: str, key: str, **form: str) -> dict[str, object]:
        """The reply's JSON."""
        self._connection.request(method, f"/v2/keys{key}?{urlencode(form)}")
        response = self._connection.getresponse()
        body: dict[str, object] = json.loads(response.read())
        self.index = int(response.headers.get("X-Etcd-Index") or 0)
        if "errorCode" in body and isinstance(index := body.get("index"), int):
            self.index = index
        return body

    def keys(self, numbers: Numbers) -> Keys:
        """All keys of the run. One server, so what has been answered is what is read."""
        found: dict[str, tuple[str | None, bool]] = {}
        self.live = {}
        node = self.ask("GET", numbers.root, recursive="true").get("node")
        todo = list(_children(node))
        while todo:
            node = todo.pop()
            live, text = str(node["key"]), str(node.get("value", ""))
            key = numbers.text(live)
            self.live[key] = live, text
            value = None if node.get("dir") else numbers.value(key, text)
            found[key] = value, "ttl" in node
            todo.extend(_children(node))
        return found


def _children(node: object) -> list[dict[str, object]]:
    children = node.get("nodes", []) if isinstance(node, dict) else []
    return children if isinstance(children, list) else []
