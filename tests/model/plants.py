"""One planted bug per function of ``model/document.py`` and ``model/etcd.py``: what its contracts are worth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from rallypoint.model import document as docs
from rallypoint.model import etcd

Faulty = Callable[..., Any]


@dataclass(frozen=True)
class Plant:
    """A bug in ``owner.name``: ``make(the right function)`` is the wrong one. ``found_by``: contract that tells."""

    owner: Any
    name: str
    about: str
    make: Callable[[Faulty], Faulty]
    found_by: str

    @property
    def id(self) -> str:
        return f"{self.owner.__name__.rpartition('.')[2]}.{self.name}: {self.about}"


def _renders_sorted(right: Faulty) -> Faulty:
    return lambda document: right(replace(document, status=document.status)).replace(
        '"participants": []', '"participants":[]'
    )


def _freezes_late(right: Faulty) -> Faulty:
    return lambda document, me, places: right(document, me, places + (docs.size(document) + 1 == places))


def _counts_repetitions(right: Faulty) -> Faulty:
    return lambda document, key, *, once: right(document, key, once=False)


def _counts_again(right: Faulty) -> Faulty:
    def announce(document: docs.Document, me: str | None) -> docs.Document:
        waiting = document.num_workers_waiting or 0
        announced: docs.Document = right(document, me)
        return replace(announced, num_workers_waiting=waiting + 1)

    return announce


def _finds_the_last(right: Faulty) -> Faulty:
    return lambda document, me: right(replace(document, owners=(document.owners or ())[::-1]), me)


def _swaps_blindly(right: Faulty) -> Faulty:
    def apply(store: etcd.Store, request: etcd.Request) -> Any:
        if isinstance(request, etcd.Cas):
            request = replace(request, prev=store.value(request.key) or request.prev)
        return right(store, request)

    return apply


def _forgets_where(right: Faulty) -> Faulty:
    def apply(store: etcd.Store, request: etcd.Request) -> Any:
        after, reply = right(store, request)
        return after, etcd.Failed(reply.code) if isinstance(reply, etcd.Failed) else reply

    return apply


def _waits_for_less(right: Faulty) -> Faulty:
    return lambda store, request: right(
        store, replace(request, until=None) if isinstance(request, etcd.Await) else request
    )


def _overwrites_directories(right: Faulty) -> Faulty:
    return lambda store, request, node: right(store, request, None if isinstance(request, etcd.Put) else node)


def _forgets_parents(right: Faulty) -> Faulty:
    def write(store: etcd.Store, key: str, value: str | None, ttl: bool) -> etcd.Store:
        after: etcd.Store = right(store, key, value, ttl)
        known = {name for name, _ in store.nodes} | {key}
        return replace(after, nodes=tuple(item for item in after.nodes if item[0] in known))

    return write


def _lists_all_below(right: Faulty) -> Faulty:
    def listing(store: etcd.Store, request: etcd.List, node: etcd.Node) -> Any:
        if not node.is_dir:
            return right(store, request, node)
        return store, etcd.Listing(tuple(key for key, _ in store.nodes if key.startswith(request.key + "/")))

    return listing


PLANTS = (
    Plant(
        docs, "parse", "drops unknown fields", lambda right: lambda text: replace(right(text), extra=()), "round_trip"
    ),
    Plant(docs, "parse", "no bounds", lambda right: lambda text: replace(right(text), bounds=None), "bounds_stay"),
    Plant(docs, "render", "another byte", _renders_sorted, "wire_is_pytorchs"),
    Plant(
        docs,
        "is_number",
        "long ones too",
        lambda right: lambda text: right(text[:18]),
        "numbers_are_short_decimal_texts",
    ),
    Plant(docs, "setup", "no maker", lambda right: lambda creator: right(None), "setup_and_publish"),
    Plant(docs, "publish", "the next number", lambda right: lambda v, owned: right(v + 1, owned), "setup_and_publish"),
    Plant(docs, "publish", "for any number", lambda right: lambda v, bounds: right(v, None), "bounds_stay"),
    Plant(docs, "size", "one too many", lambda right: lambda d: right(d) + (right(d) > 2), "size_is_the_participants"),
    Plant(docs, "join", "freezes one late", _freezes_late, "join_takes_the_next_rank"),
    Plant(
        docs,
        "freeze",
        "no list",
        lambda right: lambda d: replace(right(d), keep_alives=None),
        "freeze_keeps_the_participants",
    ),
    Plant(docs, "confirm", "repetitions count", _counts_repetitions, "confirm_once"),
    Plant(
        docs,
        "covered",
        "repetitions count",
        lambda right: lambda d: len(d.keep_alives or ()) == docs.size(d),
        "covered_counts_different_keys",
    ),
    Plant(docs, "announce", "counts again", _counts_again, "announce_counts_once"),
    Plant(
        docs,
        "close",
        "forgets the members",
        lambda right: lambda d: right(d and replace(d, participants=None)),
        "close_changes_only_the_status",
    ),
    Plant(docs, "rank_of", "the last slot", _finds_the_last, "first_slot_counts"),
    Plant(etcd, "apply", "swaps blindly", _swaps_blindly, "swaps_compare"),
    Plant(etcd, "apply", "forgets where it refused", _forgets_where, "refusals_change_nothing"),
    Plant(etcd, "_snapshot", "never finds", _waits_for_less, "apply_is_total_and_right"),
    Plant(etcd, "_apply_write", "overwrites a directory", _overwrites_directories, "directories_are_no_files"),
    Plant(etcd, "_write", "forgets parents", _forgets_parents, "keys_form_a_tree"),
    Plant(
        etcd,
        "_delete",
        "index stands still",
        lambda right: lambda s, k: replace(right(s, k), index=s.index),
        "one_index_per_change",
    ),
    Plant(etcd, "_list", "everything below", _lists_all_below, "lists_are_direct"),
    Plant(etcd, "_blocked", "never", lambda right: lambda store, key: False, "keys_form_a_tree"),
    Plant(etcd, "_parents", "the first only", lambda right: lambda key: right(key)[:1], "keys_form_a_tree"),
    Plant(etcd, "expire", "without a TTL too", lambda right: etcd._delete, "expiry_takes_one_key"),
    Plant(etcd, "enabled", "deaf to what it waits for", _waits_for_less, "only_waits_wait"),
    Plant(etcd, "enabled", "always", lambda right: lambda store, request: True, "only_waits_wait"),
    Plant(
        etcd,
        "forget_indices",
        "keeps the last",
        lambda right: lambda s, floor=0: replace(right(s, floor), index=s.index),
        "indices_do_not_matter",
    ),
    Plant(
        etcd.Store,
        "get",
        "takes a prefix",
        lambda right: lambda self, key: next((n for k, n in self.nodes if k.startswith(key)), None),
        "get_is_exact",
    ),
    Plant(
        etcd.Store,
        "value",
        "a directory is empty text",
        lambda right: lambda self, key: (right(self, key) or "") if self.get(key) else None,
        "get_finds_what_is_there",
    ),
)
