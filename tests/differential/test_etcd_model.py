"""``model/etcd.py`` and a real etcd, driven together: same replies, same indices, same keys, after every request.

Two things stay outside: etcd 3.4 renews the TTL of a directory where 3.5 refuses (the model is 3.5's), and 3.5 tells no
index when it does. Both versions are driven; 3.4 is the program that RALLYPOINT_ETCD34 names.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from rallypoint.impl.etcd_http import Answer, EtcdHttp, Node
from rallypoint.impl.etcd_server import BINARY_VARIABLE, EtcdServer, find_etcd
from rallypoint.impl.etcd_v2 import EtcdV2
from rallypoint.model import etcd as model

TTL = 3600.0  # seconds: set, but over long after the test
SOON = 1.0
PATIENCE = 10.0  # seconds for one request, and for a TTL of 1 s to run out
ROOT = "/differential"

KEYS = st.sampled_from(["/a", "/b", "/d", "/d/x", "/d/y", "/d/x/z", "/e/deep/er"])
VALUES = st.sampled_from(["", "1", "two", "mit Ümlaut & more?"])
TTLS = st.sampled_from([None, TTL])
INDICES = st.integers(1, 12)

WRITING: Mapping[type, st.SearchStrategy[model.Request]] = {
    model.Create: st.builds(model.Create, KEYS, VALUES, TTLS),
    model.Put: st.builds(model.Put, KEYS, VALUES, TTLS),
    model.Cas: st.builds(model.Cas, KEYS, VALUES.filter(bool), VALUES, TTLS),
    model.CasIndex: st.builds(model.CasIndex, KEYS, INDICES, VALUES, TTLS),
    model.Cad: st.builds(model.Cad, KEYS, VALUES.filter(bool)),
    model.Delete: st.builds(model.Delete, KEYS),
    model.Mkdir: st.builds(model.Mkdir, KEYS),
    model.Refresh: st.builds(model.Refresh, KEYS, st.just(TTL)),
}
FILLING = st.one_of(WRITING[model.Put], WRITING[model.Create], WRITING[model.Mkdir])
WRITES = st.one_of(list(WRITING.values()))
AWAITS = st.builds(model.Await, KEYS, st.none() | VALUES, st.lists(KEYS, max_size=2, unique=True).map(tuple))


class EtcdMachine(RuleBasedStateMachine):
    """One history. ``performed`` counts, over all histories, which request was answered how."""

    http: EtcdHttp
    version: str
    performed: dict[tuple[str, str], int]

    def __init__(self) -> None:
        super().__init__()
        self.real = EtcdV2(self.http, f"{ROOT}/{uuid.uuid4().hex}")
        self.store = model.Store()
        self.http.call("GET", "/", {}, self._deadline())
        self.start = self.http.index

    def teardown(self) -> None:
        params = {"dir": "true", "recursive": "true"}
        self.http.call("DELETE", self.real.root, params, self._deadline())

    def _deadline(self) -> float:
        return time.monotonic() + PATIENCE

    def both(self, request: model.Request) -> None:
        """The model's index starts at 0, etcd's where it stood: only a request that names one differs."""
        before, (self.store, expected) = self.store.index, model.apply(self.store, request)
        asked = request
        if isinstance(request, model.CasIndex):
            asked = replace(request, prev_index=request.prev_index + self.start)
        reply = self.real.perform(asked, self._deadline())
        assert reply == expected, request
        if not (isinstance(request, model.Refresh) and reply == model.Failed(model.NOT_A_FILE)):  # 3.5 tells no index
            assert self.real.last_index - self.start == self.store.index, request
        self._count(request, reply, before)

    def _count(self, request: model.Request, reply: model.Reply, before: int) -> None:
        how = model.ERROR_NAMES[reply.code] if isinstance(reply, model.Failed) else "done"
        name = type(request).__name__
        self.performed[name, how] = self.performed.get((name, how), 0) + 1
        assert (self.store.index == before) or how == "done"

    @initialize(requests=st.lists(FILLING, min_size=2, max_size=6))
    def fill(self, requests: list[model.Request]) -> None:
        for request in requests:
            self.both(request)

    @rule(requests=st.lists(WRITES, min_size=1, max_size=3))
    def write(self, requests: list[model.Request]) -> None:
        for request in requests:
            if not (isinstance(request, model.Refresh) and self._renewed_by_34(request.key)):
                self.both(request)

    def _renewed_by_34(self, key: str) -> bool:
        node = self.store.get(key)
        return self.version.startswith("3.4") and node is not None and node.is_dir

    @precondition(lambda self: self.store.nodes)
    @rule(data=st.data(), value=VALUES, ttl=TTLS)
    def change_what_is_there(self, data: st.DataObject, value: str, ttl: float | None) -> None:
        """Compared with what is there, so that it mostly succeeds."""
        key, node = data.draw(st.sampled_from(self.store.nodes))
        if node.value:
            self.both(model.Cas(key, node.value, value, ttl))
        if (now := self.store.get(key)) is not None:
            self.both(model.CasIndex(key, now.modified, value, ttl))
        if value and data.draw(st.booleans()):
            self.both(model.Cad(key, value))

    @rule(key=KEYS)
    def look(self, key: str) -> None:
        self.both(model.Get(key))
        self.both(model.List(key))

    @rule(request=AWAITS)
    def await_what_is_there(self, request: model.Await) -> None:
        if model.enabled(self.store, request):
            self.both(request)
        else:
            assert self.real.perform(request, time.monotonic() + 0.02) is None

    @rule(key=KEYS, alive=st.lists(KEYS, max_size=2, unique=True), change=WRITES)
    def wait_for_a_change(self, key: str, alive: list[str], change: model.Request) -> None:
        """A watch that is set up before the write is woken by it if, and only if, the condition holds then."""
        here = tuple(name for name in alive if self.store.get(name) is not None)
        request = model.Await(key, self.store.value(key), here)
        if not model.enabled(model.apply(self.store, change)[0], request):
            return
        got: list[model.Reply | None] = []
        waiting = threading.Thread(target=lambda: got.append(self.real.perform(request, time.monotonic() + PATIENCE)))
        waiting.start()
        self.both(change)
        waiting.join(2 * PATIENCE)
        assert got == [model.apply(self.store, request)[1]]

    @invariant()
    def same_keys(self) -> None:
        reply = self.http.call("GET", self.real.root, {"recursive": "true"}, self._deadline())
        found = dict(self._nodes(reply.node)) if isinstance(reply, Answer) else {}
        assert found == dict(self.store.nodes)

    def _nodes(self, node: Node) -> Iterator[tuple[str, model.Node]]:
        for child in node.children:
            key = child.key[len(self.real.root) :]
            yield key, model.Node(child.value, child.ttl is not None, child.modified - self.start)
            yield from self._nodes(child)


class ExpiringMachine(EtcdMachine):
    """Histories in which TTLs run out: slow, because etcd's are a second or more."""

    def __init__(self) -> None:
        super().__init__()
        self.expired = False

    @precondition(lambda self: not self.expired)
    @rule(key=KEYS, value=VALUES, refreshed=st.booleans())
    def let_expire(self, key: str, value: str, refreshed: bool) -> None:
        self.both(model.Put(key, value, SOON if not refreshed else TTL))
        node = self.store.get(key)
        if node is None or node.is_dir or not node.ttl or node.value != value:
            return
        if refreshed:
            self.both(model.Refresh(key, SOON))
        gone = self.real.perform(model.Await(key, value), self._deadline())
        assert gone == model.Snapshot(None, ())
        self.store = model.expire(self.store, key)
        assert self.real.last_index - self.start == self.store.index
        self.performed["expiry", "done"] = self.performed.get(("expiry", "done"), 0) + 1
        self.expired = True


@pytest.fixture(scope="module", params=["3.5", "3.4"])
def machine(request: pytest.FixtureRequest) -> Iterator[type[EtcdMachine]]:
    """The machine on an etcd of its own: nobody else's writes or expiries move its index."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "3.4":
            named = os.environ.get("RALLYPOINT_ETCD34", "")
            if not Path(named).is_file():
                pytest.skip("not checked: etcd 3.4 (RALLYPOINT_ETCD34 names none)")
            patch.setenv(BINARY_VARIABLE, named)
        version = find_etcd().version
        assert version.startswith(request.param)
        with EtcdServer() as server:
            http = EtcdHttp.of_client(server.get_client())
            http.call("PUT", f"{ROOT}/kept", {"value": ""}, time.monotonic() + PATIENCE)
            yield type("OneEtcd", (EtcdMachine,), {"http": http, "version": version, "performed": {}})
            http.close()


@pytest.mark.timeout(3600)
def test_same_replies_indices_and_keys(machine: type[EtcdMachine]) -> None:
    run_state_machine_as_test(machine, settings=settings(stateful_step_count=20))  # type: ignore[no-untyped-call,unused-ignore]
    seen = {name for name, how in machine.performed if how == "done"}
    assert seen == {kind.__name__ for kind in (*WRITING, model.Get, model.List, model.Await)}
    for how in model.ERROR_NAMES.values():
        assert any(how == answered for _, answered in machine.performed) or how == "directory not empty"


@pytest.mark.timeout(3600)
def test_expiry(machine: type[EtcdMachine]) -> None:
    class OneEtcd(ExpiringMachine):
        http, version, performed = machine.http, machine.version, {}

    few = max(3, settings().max_examples // 15)
    run_state_machine_as_test(OneEtcd, settings=settings(max_examples=few, stateful_step_count=12))  # type: ignore[no-untyped-call,unused-ignore]
    assert OneEtcd.performed["expiry", "done"] >= max(1, few // 8)  # others end before one is due


def test_a_wrong_model_is_noticed(machine: type[EtcdMachine], monkeypatch: pytest.MonkeyPatch) -> None:
    right = model.apply

    def deletes_quietly(store: model.Store, request: model.Request) -> tuple[model.Store, model.Reply]:
        after, reply = right(store, request)
        return (model.Store(after.nodes, store.index) if isinstance(request, model.Delete) else after), reply

    monkeypatch.setattr(model, "apply", deletes_quietly)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(machine, settings=settings(max_examples=20))  # type: ignore[no-untyped-call,unused-ignore]
