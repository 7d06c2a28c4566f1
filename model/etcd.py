"""The etcd v2 key space, as far as the rendezvous relies on it: ``apply(store, request) -> (store, reply)``.

May live here: keys, values, directories, TTL marks, indices, and what etcd answers to the requests below.
Must not live here: anything about rendezvous, clocks, sockets or retries. Time enters only through ``expire``.

Source: etcd v2 API, "Atomic Compare-and-Swap", "Using key TTL", "Listing a directory" and the error codes of its
documentation. A request is applied at one instant (etcd is linearizable for the requests that we send).
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import TypeAlias

NOT_FOUND = 100
COMPARE_FAILED = 101
NOT_A_FILE = 102
NOT_A_DIRECTORY = 104
ALREADY_EXISTS = 105
DIRECTORY_NOT_EMPTY = 108

ERROR_NAMES = {
    NOT_FOUND: "key not found",
    COMPARE_FAILED: "compare failed",
    NOT_A_FILE: "not a file",
    NOT_A_DIRECTORY: "not a directory",
    ALREADY_EXISTS: "key already exists",
    DIRECTORY_NOT_EMPTY: "directory not empty",
}


@dataclass(frozen=True, slots=True)
class Get:
    """Read one key."""

    key: str


@dataclass(frozen=True, slots=True)
class Create:
    """Write a key that must not exist (``prevExist=false``). ``ttl`` in seconds, None: it stays."""

    key: str
    value: str
    ttl: float | None = None


@dataclass(frozen=True, slots=True)
class Put:
    """Write a key whether it exists or not."""

    key: str
    value: str
    ttl: float | None = None


@dataclass(frozen=True, slots=True)
class Cas:
    """Compare-and-swap on the value: write ``value`` if the key holds ``prev``. Without ``ttl`` a TTL is removed."""

    key: str
    prev: str
    value: str
    ttl: float | None = None


@dataclass(frozen=True, slots=True)
class CasIndex:
    """Compare-and-swap on the modifiedIndex (``prevIndex``, at least 1). Without ``ttl`` a TTL is removed."""

    key: str
    prev_index: int
    value: str
    ttl: float | None = None


@dataclass(frozen=True, slots=True)
class Cad:
    """Compare-and-delete on the value."""

    key: str
    prev: str


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete one key."""

    key: str


@dataclass(frozen=True, slots=True)
class Mkdir:
    """Create a directory that must not exist."""

    key: str


@dataclass(frozen=True, slots=True)
class Refresh:
    """Renew the TTL of an existing key, value untouched (``refresh=true``). Etcd 3.5 refuses it for a directory."""

    key: str
    ttl: float


@dataclass(frozen=True, slots=True)
class List:
    """The keys directly below a directory."""

    key: str


@dataclass(frozen=True, slots=True)
class Await:
    """Wait until ``key`` no longer holds ``seen`` (None: is absent), one of ``alive`` is gone, or ``until`` is there;
    then read all.

    Stands for a watch followed by a read. A watch that returns early changes nothing (the request is repeated), so
    only the two causes are steps; see ``enabled``.
    """

    key: str
    seen: str | None
    alive: tuple[str, ...] = ()
    until: str | None = None


Request: TypeAlias = Get | Create | Put | Cas | CasIndex | Cad | Delete | Mkdir | Refresh | List | Await
WRITES = (Create, Put, Cas, CasIndex, Cad, Delete, Mkdir)


@dataclass(frozen=True, slots=True)
class Done:
    """The request was carried out; ``value`` is what the key holds now (None: deleted, or a directory)."""

    value: str | None


@dataclass(frozen=True, slots=True)
class Failed:
    """Etcd refused; ``code`` is its error code, ``index`` its index at that moment, which makes no difference between
    two refusals."""

    code: int
    index: int = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Listing:
    """The full names of the keys below a directory, sorted."""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Answer to ``Await``: the value (None: absent); if it is still ``seen``, those of ``alive`` that are gone; and
    whether ``until`` is there."""

    value: str | None
    missing: tuple[str, ...]
    found: bool = False


Reply: TypeAlias = Done | Failed | Listing | Snapshot


@dataclass(frozen=True, slots=True)
class Node:
    """One key. ``value`` None: a directory. ``ttl``: it can expire. ``modified``: index of the last write."""

    value: str | None
    ttl: bool = False
    modified: int = 0

    @property
    def is_dir(self) -> bool:
        return self.value is None


@dataclass(frozen=True, slots=True)
class Store:
    """All keys, sorted, and etcd's index: one more for every change."""

    nodes: tuple[tuple[str, Node], ...] = ()
    index: int = 0

    def get(self, key: str) -> Node | None:
        at = bisect_left(self.nodes, (key,))
        if at < len(self.nodes) and self.nodes[at][0] == key:
            return self.nodes[at][1]
        return None

    def value(self, key: str) -> str | None:
        node = self.get(key)
        return None if node is None else node.value


def _name(item: tuple[str, Node]) -> str:
    return item[0]


def _parents(key: str) -> list[str]:
    parts = key.strip("/").split("/")[:-1]
    return ["/" + "/".join(parts[: n + 1]) for n in range(len(parts))]


def _write(store: Store, key: str, value: str | None, ttl: bool) -> Store:
    index = store.index + 1
    nodes = dict(store.nodes)
    for parent in _parents(key):
        nodes.setdefault(parent, Node(None, False, index))
    nodes[key] = Node(value, ttl, index)
    return Store(tuple(sorted(nodes.items(), key=_name)), index)


def _delete(store: Store, key: str) -> Store:
    below = key + "/"
    return Store(
        tuple(item for item in store.nodes if item[0] != key and not item[0].startswith(below)), store.index + 1
    )


def _blocked(store: Store, key: str) -> bool:
    """A parent of ``key`` is a file."""
    return any((node := store.get(parent)) is not None and not node.is_dir for parent in _parents(key))


def enabled(store: Store, request: Request) -> bool:
    """All requests are answered at once, except a wait whose condition does not hold yet."""
    if not isinstance(request, Await):
        return True
    reply = _snapshot(store, request)
    return reply.value != request.seen or bool(reply.missing) or reply.found


def apply(store: Store, request: Request) -> tuple[Store, Reply]:
    """What etcd does with one request, at one instant."""
    if isinstance(request, Await):
        return store, _snapshot(store, request)
    node = store.get(request.key)
    if isinstance(request, Create | Put | Mkdir):
        return _apply_write(store, request, node)
    if node is None:
        return store, Failed(NOT_A_DIRECTORY if _blocked(store, request.key) else NOT_FOUND, store.index)
    if isinstance(request, Get):
        return store, Done(node.value)
    if isinstance(request, List):
        return _list(store, request, node)
    if node.is_dir:
        return store, Failed(NOT_A_FILE, store.index)
    if isinstance(request, Cas | Cad) and node.value != request.prev:
        return store, Failed(COMPARE_FAILED, store.index)
    if isinstance(request, CasIndex) and node.modified != request.prev_index:
        return store, Failed(COMPARE_FAILED, store.index)
    if isinstance(request, Cas | CasIndex):
        return _write(store, request.key, request.value, request.ttl is not None), Done(request.value)
    if isinstance(request, Refresh):
        return _write(store, request.key, node.value, True), Done(node.value)
    return _delete(store, request.key), Done(None)


def _snapshot(store: Store, request: Await) -> Snapshot:
    value = store.value(request.key)
    found = request.until is not None and store.get(request.until) is not None
    if value != request.seen:
        return Snapshot(value, (), found)
    return Snapshot(value, tuple(key for key in request.alive if store.get(key) is None), found)


def _apply_write(store: Store, request: Create | Put | Mkdir, node: Node | None) -> tuple[Store, Reply]:
    if _blocked(store, request.key):
        return store, Failed(NOT_A_DIRECTORY, store.index)
    if isinstance(request, Put):
        if node is not None and node.is_dir:
            return store, Failed(NOT_A_FILE, store.index)
    elif node is not None:
        return store, Failed(ALREADY_EXISTS, store.index)
    if isinstance(request, Mkdir):
        return _write(store, request.key, None, False), Done(None)
    return _write(store, request.key, request.value, request.ttl is not None), Done(request.value)


def _list(store: Store, request: List, node: Node) -> tuple[Store, Reply]:
    if not node.is_dir:
        return store, Listing((request.key,))
    below = request.key + "/"
    return store, Listing(
        tuple(key for key, _ in store.nodes if key.startswith(below) and "/" not in key[len(below) :])
    )


def expire(store: Store, key: str) -> Store:
    """The TTL of ``key`` ran out. The key must exist and have a TTL (ValueError otherwise)."""
    node = store.get(key)
    if node is None or not node.ttl:
        raise ValueError(f"{key} cannot expire: it has no TTL")
    return _delete(store, key)


def forget_indices(store: Store, floor: int = 0) -> Store:
    """The same key space with the indices of all keys 0, and etcd's index ``floor``.

    Exact for searches over protocols that never compare by index: stores that differ only in indices answer alike.
    """
    return Store(
        tuple((key, Node(node.value, node.ttl) if node.modified else node) for key, node in store.nodes), floor
    )
