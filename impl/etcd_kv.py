"""A key-value space under one directory of etcd: names, values, waiting, and updates that take effect once.

The wire is upstream's EtcdStore: ``PREFIX/base64(key)`` holds ``base64(value)``. Must not live here: torch.

Names. Where base64(key) holds a slash, upstream's name is a path of several segments, without empty ones: the key
``ab?`` (``YWI/``) is at ``PREFIX/YWI``. That name is used unless it cannot be: because two keys would share it
(``////`` would be the directory itself), or because there is a file where a directory is needed. The key is then at
``PREFIX/~`` followed by its base64 with ``-_`` for ``+/`` (no base64 starts with ``~``). Queues, which upstream does
not have, are at ``PREFIX/~q~...``.

Values. An update (add, append, compare-and-set) appends a mark of 16 characters outside the base64 alphabet, so that
its author can tell it from the update of another. Readers of base64 skip them, upstream's among them.
"""

from __future__ import annotations

import binascii
import os
import random
import time
from base64 import b64decode, b64encode, urlsafe_b64encode
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rallypoint.impl.etcd_http import Answer, EtcdHttp, EtcdUnavailable, Node, Refusal, checked_key, joined_key
from rallypoint.impl.etcd_sure import PAUSES, HistoryLostError, delete_once, find_value, insist, write_once
from rallypoint.model.errors import UnusableError
from rallypoint.model.etcd import ALREADY_EXISTS, COMPARE_FAILED, NOT_A_DIRECTORY, NOT_A_FILE, NOT_FOUND

MARKS = ".,:;!~^*()[]{}<>"  # one for each hexadecimal digit; none is of the base64 alphabet
_TO_MARKS = str.maketrans("0123456789abcdef", MARKS)
_NO_MARKS = str.maketrans("", "", MARKS)
QUEUE = "~q~"
CHANGED = frozenset({NOT_FOUND, COMPARE_FAILED, NOT_A_FILE, NOT_A_DIRECTORY, ALREADY_EXISTS})
TOO_LARGE = 210


class UnreadableError(Exception):
    """A value under the prefix is not base64."""


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a key is, or would be: ``name`` of the possible ``names``, value (None: absent), indices of the read."""

    names: tuple[str, ...]
    name: str
    value: bytes | None
    modified: int
    index: int


class KeyValue:
    """The space below ``prefix``. Deadlines are monotonic seconds; safe for several threads.

    All methods raise OutOfTimeError when etcd gave no definite reply in time, UnusableError when there cannot be one.
    Raises ValueError if the prefix cannot be a directory of etcd.
    """

    def __init__(self, http: EtcdHttp, prefix: str) -> None:
        self.http = http
        self.root = checked_key(joined_key(prefix))
        if self.root == "/":
            raise ValueError("a store needs a directory of its own, not the root of etcd")

    def names(self, key: bytes) -> tuple[str, ...]:
        """The possible names of a key; the first one is always possible."""
        return tuple(f"{self.root}/{name}" for name in _names(key))

    def queue_names(self, key: bytes) -> tuple[str, ...]:
        """The name of a queue, for ``read`` and ``update``."""
        return (f"{self.root}/{QUEUE}{urlsafe_b64encode(key).decode()}",)

    def read(self, names: tuple[str, ...], deadline: float) -> Slot:
        """One linearizable read of this key alone (two if it has two possible names)."""
        first = insist(self.http, "GET", names[0], {}, deadline).reply
        if _is_file(first) or len(names) == 1:
            return _slot(names, names[0], first, first.index)
        second = insist(self.http, "GET", names[1], {}, deadline).reply
        blocked = isinstance(second, Answer) if not _is_file(second) else False
        if blocked or (isinstance(second, Refusal) and second.code == NOT_A_DIRECTORY):
            return _slot(names, names[0], first, first.index)
        return _slot(names, names[1], second, first.index)

    def put(self, names: tuple[str, ...], value: bytes, deadline: float) -> None:
        """Write whatever is there. After a lost reply it does not overwrite what others wrote on top of it."""
        text = b64encode(value).decode()
        name = names[0] if len(names) == 1 else self.read(names, deadline).name
        since = self.http.index or insist(self.http, "GET", name, {}, deadline).reply.index

        def settled() -> Answer | None:
            try:
                return find_value(self.http, name, text, since, deadline)
            except HistoryLostError:
                return None  # written once more: a plain write promises no more than to be there at the end

        reply = insist(self.http, "PUT", name, {"value": text}, deadline, settled=settled).reply
        if isinstance(reply, Refusal):
            _check_refusal(reply, name)
            self.put(names, value, deadline)

    def update(
        self, names: tuple[str, ...], change: Callable[[bytes | None], bytes | None], deadline: float
    ) -> bytes | None:
        """Replace the value (None: absent) by ``change(value)``, atomically and once; None: leave it as it is.

        Returns what the key holds after that. Raises HistoryLostError if a reply was lost and, more than 1000 events
        later, nobody can tell what became of the write.
        """
        pause = 0.005
        while True:
            slot = self.read(names, deadline)
            new = change(slot.value)
            if new is None:
                return slot.value
            text = b64encode(new).decode() + os.urandom(8).hex().translate(_TO_MARKS)
            reply = write_once(self.http, slot.name, {"value": text}, (slot.modified, slot.index), deadline)
            if isinstance(reply, Answer):
                return new
            _check_refusal(reply, slot.name)
            time.sleep(random.uniform(0, pause))
            pause = min(0.1, 2 * pause)

    def remove(self, names: tuple[str, ...], deadline: float) -> bool:
        """Delete the key. True: it was there, and this call removed it."""
        while True:
            slot = self.read(names, deadline)
            if slot.value is None:
                return False
            if delete_once(self.http, slot.name, slot.modified, deadline):
                return True

    def await_change(self, slot: Slot, deadline: float) -> None:
        """Return when the key may differ from ``slot``, at the latest at the deadline. No event is missed."""
        index = slot.index + 1
        alone = len(slot.names) == 1
        while time.monotonic() < deadline:
            try:
                event = self.http.watch(slot.name if alone else self.root, index, deadline, recursive=not alone)
            except EtcdUnavailable:
                time.sleep(max(0.0, min(PAUSES[0], deadline - time.monotonic())))
                return
            if alone or not isinstance(event, Answer) or event.node.key in slot.names:
                return
            index = event.node.modified + 1

    def keys(self, deadline: float) -> list[bytes]:
        """All keys, in no particular order; queues are not keys."""
        return [key for key, _ in self._all(deadline)]

    def remove_older(self, wanted: Callable[[bytes], bool], index: int, deadline: float) -> None:
        """Delete the wanted keys that were last written at or before etcd's ``index``."""
        for key, node in self._all(deadline):
            if wanted(key) and node.modified <= index:
                delete_once(self.http, node.key, node.modified, deadline)

    def _all(self, deadline: float) -> Iterator[tuple[bytes, Node]]:
        reply = insist(self.http, "GET", self.root, {"recursive": "true"}, deadline).reply
        for node in _files(reply.node) if isinstance(reply, Answer) else ():
            key = _key_of(node.key[len(self.root) + 1 :])
            if key is not None:
                yield key, node


def _names(key: bytes) -> tuple[str, ...]:
    text = b64encode(key).decode()
    if text and "/" not in text:
        return (text,)
    escaped = "~" + urlsafe_b64encode(key).decode()
    path = "/".join(segment for segment in text.split("/") if segment)
    return (escaped, path) if path and _padded(path) == text else (escaped,)


def _padded(path: str) -> str:
    """The one base64 text that owns this path: slashes at its end were lost."""
    return path + "/" * (-len(path) % 4)


def _key_of(name: str) -> bytes | None:
    """The key that a name stands for; None for queues and for what is no store's."""
    text = name[1:].replace("-", "+").replace("_", "/") if name.startswith("~") else _padded(name)
    try:
        return b64decode(text, validate=True)
    except binascii.Error:
        return None


def _is_file(reply: Answer | Refusal) -> bool:
    return isinstance(reply, Answer) and not reply.node.is_dir


def _slot(names: tuple[str, ...], name: str, reply: Answer | Refusal, index: int) -> Slot:
    if isinstance(reply, Refusal):
        if reply.code != NOT_FOUND:
            _check_refusal(reply, name, final=True)
        return Slot(names, name, None, 0, index)
    if reply.node.value is None:
        raise UnusableError("a directory where a key should be", name, "use another prefix for the store")
    return Slot(names, name, _value_of(reply.node), reply.node.modified, reply.index)


def _value_of(node: Node) -> bytes:
    try:
        return b64decode((node.value or "").translate(_NO_MARKS), validate=True)
    except binascii.Error as error:
        raise UnreadableError(f"the value of {node.key} is not base64: {error}") from error


def _check_refusal(reply: Refusal, name: str, *, final: bool = False) -> None:
    """Raise UnusableError unless the refusal only says that the key has changed."""
    if reply.code == TOO_LARGE:
        raise UnusableError("the value is too large for etcd", name, "keep values below 10 MB, base64 included")
    if final or reply.code not in CHANGED:
        raise UnusableError(f"etcd refuses: {reply.cause}", name, "use another prefix for the store")


def _files(node: Node) -> Iterator[Node]:
    if not node.is_dir:
        yield node
    for child in node.children:
        yield from _files(child)
