"""What every function of ``model/etcd.py`` promises, as properties over simple values.

May live here: deterministic top-level functions that assert, their strategies, and a second, plainer description of
the key space (a dict) to compare with. Must not live here: how the properties are run.
"""

from __future__ import annotations

from contract import Contract
from hypothesis import strategies as st
from rallypoint.model import etcd
from rallypoint.model.etcd import Done, Failed, Listing, Node, Reply, Request, Snapshot, Store

KEYS = ("/a", "/a/b", "/a/b/c", "/ab")
VALUES = ("x", "y")
KINDS = 10
CODES = {"missing": 100, "compare": 101, "not a file": 102, "not a directory": 104, "exists": 105}

Ask = tuple[int, int, int, bool]
"""A request in numbers: kind, key, value, with a TTL."""


def request(ask: Ask) -> Request:
    """The request that the numbers stand for."""
    kind, place, what, timed = ask
    key, value, ttl = KEYS[place], VALUES[what % 2], 5.0 if timed else None
    prev = VALUES[what // 2]
    match kind:
        case 0:
            return etcd.Get(key)
        case 1:
            return etcd.Create(key, value, ttl)
        case 2:
            return etcd.Put(key, value, ttl)
        case 3:
            return etcd.Cas(key, prev, value, ttl)
        case 4:
            return etcd.Cad(key, prev)
        case 5:
            return etcd.Delete(key)
        case 6:
            return etcd.Mkdir(key)
        case 7:
            return etcd.Refresh(key, 5.0)
        case 8:
            return etcd.List(key)
        case _:
            return etcd.Await(key, None if timed else value, KEYS[: what % 3], KEYS[3] if what == 3 else None)


STARTS: tuple[tuple[Ask, ...], ...] = (
    (),
    ((2, 1, 0, True),),  # /a/b = x with a TTL
    ((2, 2, 1, False), (2, 3, 0, True)),  # /a/b/c = y; /ab = x with a TTL
    ((2, 0, 0, False), (6, 3, 0, False)),  # /a is a file, /ab a directory
)
"""Stores to begin with, as requests: random requests alone seldom meet in one key."""


def store_after(start: int, asks: list[Ask]) -> Store:
    store = Store()
    for ask in [*STARTS[start], *asks]:
        store, _ = etcd.apply(store, request(ask))
    return store


def _above(key: str) -> list[str]:
    return [other for other in ("/a", "/a/b") if key.startswith(other + "/")]


Plain = dict[str, tuple[str | None, bool]]
"""key -> (value, None for a directory; has a TTL)."""


def plain(store: Store) -> Plain:
    return {key: (node.value, node.ttl) for key, node in store.nodes}


def expected(before: Plain, ask: Ask) -> tuple[Plain, Reply]:
    """etcd's documentation, once more and plainly."""
    it = request(ask)
    if isinstance(it, etcd.Await):
        now = before.get(it.key, (None, False))[0]
        gone = tuple(key for key in it.alive if key not in before) if now == it.seen else ()
        return before, Snapshot(now, gone, it.until in before)
    writes = isinstance(it, etcd.Create | etcd.Put | etcd.Mkdir)
    if any(before.get(above, (None, False))[0] is not None for above in _above(it.key)):
        return before, Failed(CODES["not a directory"])
    there, (value, _) = it.key in before, before.get(it.key, (None, False))
    if isinstance(it, etcd.Create | etcd.Mkdir) and there:
        return before, Failed(CODES["exists"])
    if not writes and not there:
        return before, Failed(CODES["missing"])
    if isinstance(it, etcd.Get):
        return before, Done(value)
    if isinstance(it, etcd.List):
        below = [key for key in before if key.rpartition("/")[0] == it.key]
        return before, Listing((it.key,) if value is not None else tuple(sorted(below)))
    if there and value is None:
        return before, Failed(CODES["not a file"])
    if isinstance(it, etcd.Cas | etcd.Cad) and value != it.prev:
        return before, Failed(CODES["compare"])
    if isinstance(it, etcd.Cad | etcd.Delete):
        return {key: held for key, held in before.items() if key != it.key}, Done(None)
    parents: Plain = dict.fromkeys(_above(it.key), (None, False))
    if isinstance(it, etcd.Mkdir):
        return {**parents, **before, it.key: (None, False)}, Done(None)
    if isinstance(it, etcd.Refresh):
        return {**before, it.key: (value, True)}, Done(value)
    return {**parents, **before, it.key: (it.value, it.ttl is not None)}, Done(it.value)


def apply_is_total_and_right(start: int, asks: list[Ask], ask: Ask) -> None:
    """Every request gets the reply, and leaves the keys, that etcd's documentation gives it."""
    store = store_after(start, asks)
    after, reply = etcd.apply(store, request(ask))
    keys, want = expected(plain(store), ask)
    assert reply == want
    assert plain(after) == keys


def refusals_change_nothing(start: int, asks: list[Ask], ask: Ask) -> None:
    """A refused request, and one that only reads, leaves the very same store, its index included."""
    store = store_after(start, asks)
    after, reply = etcd.apply(store, request(ask))
    if isinstance(reply, Failed) or not isinstance(request(ask), (*etcd.WRITES, etcd.Refresh)):
        assert after == store
    if isinstance(reply, Failed):
        assert reply.code in etcd.ERROR_NAMES
        assert reply.index == store.index
        assert reply == Failed(reply.code), "two refusals differ in nothing but their reason"


def one_index_per_change(start: int, asks: list[Ask], ask: Ask) -> None:
    """The index grows by exactly one per write that is carried out; what was written bears it, the rest does not."""
    store = store_after(start, asks)
    it = request(ask)
    after, reply = etcd.apply(store, it)
    wrote = isinstance(it, (*etcd.WRITES, etcd.Refresh)) and not isinstance(reply, Failed)
    assert after.index == store.index + wrote
    for key, node in after.nodes:
        old = store.get(key)
        touched = wrote and (key == it.key or old is None)
        assert node.modified == (after.index if touched or old is None else old.modified)


def swaps_compare(held: int, prev: int, value: int, timed: bool) -> None:
    """A compare-and-swap or compare-and-delete goes through exactly when the key holds what it names."""
    store, _ = etcd.apply(Store(), etcd.Put("/a", VALUES[held]))
    ttl = 5.0 if timed else None
    swapped, reply = etcd.apply(store, etcd.Cas("/a", VALUES[prev], VALUES[value], ttl))
    assert reply == (Done(VALUES[value]) if held == prev else Failed(CODES["compare"]))
    assert plain(swapped) == {"/a": (VALUES[value], timed) if held == prev else (VALUES[held], False)}
    deleted, reply = etcd.apply(store, etcd.Cad("/a", VALUES[prev]))
    assert reply == (Done(None) if held == prev else Failed(CODES["compare"]))
    assert plain(deleted) == ({} if held == prev else plain(store))


def index_swaps_compare(writes: int, index: int, timed: bool) -> None:
    """A compare-and-swap on the index goes through exactly when it names the key's last write."""
    store = Store()
    for _ in range(writes):
        store, _ = etcd.apply(store, etcd.Put("/a", "x"))
    after, reply = etcd.apply(store, etcd.CasIndex("/a", index, "y", 5.0 if timed else None))
    if writes == 0 or index != writes:
        assert after == store
        assert reply == Failed(CODES["compare" if writes else "missing"])
    else:
        assert after.nodes == (("/a", Node("y", timed, writes + 1)),)
        assert reply == Done("y")


def directories_are_no_files(kind: int, value: int, timed: bool) -> None:
    """Nothing that is meant for a file touches a directory."""
    store, _ = etcd.apply(Store(), etcd.Put("/a/b", "x"))
    after, reply = etcd.apply(store, request((kind, 0, value, timed)))
    assert after == store
    assert reply == Failed(CODES["not a file"])


def lists_are_direct(start: int, asks: list[Ask]) -> None:
    """A directory lists the keys right below it, not those further down."""
    store = store_after(start, asks)
    for place, key in enumerate(KEYS):
        _, reply = etcd.apply(store, request((8, place, 0, False)))
        if isinstance(reply, Listing) and store.value(key) is None:
            assert reply.keys == tuple(name for name, _ in store.nodes if name.rpartition("/")[0] == key)


def keys_form_a_tree(start: int, asks: list[Ask]) -> None:
    """Keys are sorted, different, and stand below directories; a directory has no TTL of its own."""
    store = store_after(start, asks)
    names = [key for key, _ in store.nodes]
    assert names == sorted(set(names))
    for key, node in store.nodes:
        assert node.is_dir == (node.value is None)
        assert not (node.is_dir and node.ttl)
        for above in _above(key):
            found = store.get(above)
            assert found is not None
            assert found.is_dir


def get_finds_what_is_there(start: int, asks: list[Ask], place: int) -> None:
    store = store_after(start, asks)
    found = dict(store.nodes).get(KEYS[place])
    assert store.get(KEYS[place]) == found
    assert store.value(KEYS[place]) == (None if found is None else found.value)


def get_is_exact(kept: int, place: int) -> None:
    """A key is found under its own name only, and under those of the directories above it as a directory."""
    store, _ = etcd.apply(Store(), etcd.Put(KEYS[kept], "x"))
    node = store.get(KEYS[place])
    if place == kept:
        assert node == Node("x", False, 1)
    else:
        assert node == (Node(None, False, 1) if KEYS[place] in _above(KEYS[kept]) else None)


def expiry_takes_one_key(start: int, asks: list[Ask], place: int) -> None:
    """Only a key with a TTL expires; it is gone, nothing else is, and the index counts it."""
    store, key = store_after(start, asks), KEYS[place]
    node = store.get(key)
    try:
        after = etcd.expire(store, key)
    except ValueError:
        assert node is None or not node.ttl
        return
    assert node is not None
    assert node.ttl
    assert plain(after) == {name: held for name, held in plain(store).items() if name != key}
    assert after.index == store.index + 1


def only_waits_wait(start: int, asks: list[Ask], ask: Ask) -> None:
    """A wait is enabled exactly when its answer is news; everything else is answered at once."""
    store, it = store_after(start, asks), request(ask)
    if isinstance(it, etcd.Await):
        _, reply = etcd.apply(store, it)
        assert isinstance(reply, Snapshot)
        assert etcd.enabled(store, it) == (reply.value != it.seen or reply.missing != () or reply.found)
    else:
        assert etcd.enabled(store, it)


def indices_do_not_matter(start: int, asks: list[Ask], ask: Ask, floor: int) -> None:
    """Forgetting indices keeps every answer and every later key; what remains of etcd's own index is as told."""
    store = store_after(start, asks)
    bare = etcd.forget_indices(store, floor)
    assert bare.index == floor
    assert bare.nodes == tuple((key, Node(node.value, node.ttl, 0)) for key, node in store.nodes)
    after, reply = etcd.apply(store, request(ask))
    later, same = etcd.apply(bare, request(ask))
    assert reply == same
    assert etcd.forget_indices(after) == etcd.forget_indices(later)
    assert etcd.enabled(store, request(ask)) == etcd.enabled(bare, request(ask))


_ask = st.tuples(st.integers(0, KINDS - 1), st.integers(0, len(KEYS) - 1), st.integers(0, 3), st.booleans())
_asks = st.lists(_ask, max_size=3)
_start = st.integers(0, len(STARTS) - 1)
_place = st.integers(0, len(KEYS) - 1)

_two = st.integers(0, 1)

CONTRACTS = (
    Contract(swaps_compare, ("apply",), {"held": _two, "prev": _two, "value": _two, "timed": st.booleans()}),
    Contract(
        index_swaps_compare,
        ("apply",),
        {"writes": st.integers(0, 2), "index": st.integers(1, 3), "timed": st.booleans()},
    ),
    Contract(
        directories_are_no_files,
        ("apply", "_apply_write"),
        {"kind": st.sampled_from([2, 3, 4, 5, 7]), "value": st.integers(0, 3), "timed": st.booleans()},
    ),
    Contract(lists_are_direct, ("_list",), {"start": _start, "asks": _asks}),
    Contract(
        apply_is_total_and_right,
        ("apply", "_apply_write", "_list", "_write", "_delete", "_blocked", "_snapshot"),
        {"start": _start, "asks": _asks, "ask": _ask},
    ),
    Contract(refusals_change_nothing, ("apply", "_apply_write"), {"start": _start, "asks": _asks, "ask": _ask}),
    Contract(one_index_per_change, ("apply", "_write", "_delete"), {"start": _start, "asks": _asks, "ask": _ask}),
    Contract(keys_form_a_tree, ("_write", "_parents"), {"start": _start, "asks": _asks}),
    Contract(get_finds_what_is_there, ("Store.get", "Store.value"), {"start": _start, "asks": _asks, "place": _place}),
    Contract(get_is_exact, ("Store.get",), {"kept": _place, "place": _place}),
    Contract(expiry_takes_one_key, ("expire",), {"start": _start, "asks": _asks, "place": _place}),
    Contract(only_waits_wait, ("enabled",), {"start": _start, "asks": _asks, "ask": _ask}),
    Contract(
        indices_do_not_matter,
        ("forget_indices",),
        {"start": _start, "asks": _asks, "ask": _ask, "floor": st.integers(0, 9)},
    ),
)
