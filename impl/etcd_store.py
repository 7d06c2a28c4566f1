"""``torch.distributed.Store`` on etcd: drop-in for ``torch.distributed.elastic.rendezvous.etcd_store``.

Same keys and values in etcd as upstream's (see ``etcd_kv``), the whole of torch's Store interface, and one read per
``get`` instead of a listing of the directory (defect S-I). May live here: what torch's interface asks for, and torch's
exceptions. Must not live here: how etcd is talked to.
"""

from __future__ import annotations

import datetime
import operator
import random
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, SupportsIndex, TypeAlias

import torch.distributed as dist
from rallypoint.impl.etcd_http import EtcdHttp
from rallypoint.impl.etcd_kv import KeyValue, Slot, UnreadableError
from rallypoint.impl.etcd_sure import HistoryLostError, OutOfTimeError
from rallypoint.model.errors import UnusableError
from torch.distributed.distributed_c10d import Store

if TYPE_CHECKING:
    import etcd

Text: TypeAlias = str | bytes | bytearray

GRACE = 0.5  # seconds that a request may take even if the store's timeout is shorter
INT64 = 1 << 63

# torch's PrefixStore keeps the C++ half of a store, but not the Python half that does the work: without this list, the
# expression PrefixStore("p", EtcdStore(...)) is a store whose every call fails an internal assertion (defect S-J).
# Nobody can tell when the C++ half is given up, so a store stays until its process ends: 1 kB, and its connections
# unless it was made of an EtcdHttp or by clone(). torchrun's agents make one for each run or version.
_kept_for_torch: list[EtcdStore] = []

_QueueEmptyError: type[Exception] = getattr(dist, "QueueEmptyError", dist.DistStoreError)


class StoreTimeoutError(dist.DistStoreError, LookupError):
    """Not done within the timeout. Other stores raise DistStoreError here, upstream's EtcdStore LookupError."""


class _Wait:
    """One wait: how long it was to take, and when it ends. Its requests may take GRACE even when it is over."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.end = time.monotonic() + seconds

    def deadline(self) -> float:
        return max(self.end, time.monotonic() + GRACE)


def cas_delay() -> None:
    """Sleep up to 0.1 s, as upstream does between two compare-and-swaps. Our own store does not need it."""
    time.sleep(random.uniform(0, 0.1))


class EtcdStore(Store):
    """A store below ``etcd_store_prefix`` (with or without slashes at its ends, defect S-A).

    ``etcd_client``: an ``etcd.Client``, whose address, certificates and user are taken, or an ``EtcdHttp``.
    ``timeout``: how long a call may take, waiting or not; None: torch's default of 300 s. Keys and values are str,
    bytes or bytearray. ``add``, ``append``, ``compare_set``, ``delete_key`` and the queues take effect once, even when
    a reply is lost. ``check`` and ``wait`` see keys, not queues. Under a PrefixStore, torch forwards all calls to a
    store that is written in Python but ``list_keys`` and those of queues.

    Raises, in all methods: StoreTimeoutError (a DistStoreError and a LookupError); DistNetworkError if etcd cannot be
    used (no v2 API, TLS, user refused); DistStoreError if a value is not base64, or if nobody can tell any more whether
    a write took effect; TypeError for keys and values of other types; ValueError for an ``add`` on no number.
    """

    timeout: datetime.timedelta  # torch's, set by set_timeout

    def __init__(
        self,
        etcd_client: etcd.Client | EtcdHttp,
        etcd_store_prefix: str,
        timeout: datetime.timedelta | None = None,
    ) -> None:
        super().__init__()
        http = etcd_client if isinstance(etcd_client, EtcdHttp) else EtcdHttp.of_client(etcd_client)
        self.client = etcd_client
        self._kv = KeyValue(http, etcd_store_prefix)
        self.prefix = self._kv.root + "/"
        if timeout is not None:
            self.set_timeout(timeout)
        _kept_for_torch.append(self)

    def set(self, key: Text, value: Text) -> None:
        """Write a value, whatever the key held."""
        with self._call("set", key):
            self._kv.put(self._names(key), _bytes(value), self._deadline())

    def get(self, key: Text) -> bytes:
        """The value of the key, waiting for it if need be."""
        with self._call("get", key):
            return self._await(key, _Wait(self._seconds()))

    def add(self, key: Text, num: SupportsIndex) -> int:
        """Add to the decimal number that the key holds (0 if absent) and return the sum, as a signed 64-bit number."""
        amount = operator.index(num)
        if not -INT64 <= amount < INT64:
            raise TypeError(f"the amount to add must be a 64-bit integer, not {num!r}")
        return int(self._update("add", key, lambda old: b"%d" % _wrapped(int(old or b"0") + amount)))

    def append(self, key: Text, value: Text) -> None:
        """Append to the value (empty if absent)."""
        tail = _bytes(value)
        self._update("append", key, lambda old: (old or b"") + tail)

    def compare_set(self, key: Text, expected_value: Text, desired_value: Text) -> bytes:
        """Write ``desired_value`` if the key holds ``expected_value``; absent keys match the empty one.

        Returns what the key holds then; if it is absent, ``expected_value``.
        """
        expected, desired = _bytes(expected_value), _bytes(desired_value)

        def change(old: bytes | None) -> bytes | None:
            return desired if (old == expected if old is not None else not expected) else None

        with self._call("compare_set", key):
            value = self._kv.update(self._names(key), change, self._deadline())
            return expected if value is None else value

    def wait(self, keys: Iterable[Text], override_timeout: datetime.timedelta | None = None) -> None:
        """Wait until all keys are there."""
        if not isinstance(override_timeout, datetime.timedelta | None):
            raise TypeError(f"a timeout must be a timedelta, not {override_timeout!r}")
        seconds = self._seconds() if override_timeout is None else override_timeout.total_seconds()
        wanted = _listed(keys)
        with self._call("wait", *wanted):
            wait = _Wait(seconds)
            for key in wanted:
                self._await(key, wait)

    def check(self, keys: Iterable[Text]) -> bool:
        """Are all keys there now?"""
        wanted = _listed(keys)
        with self._call("check", *wanted):
            deadline = self._deadline()
            return all(self._kv.read(self._names(key), deadline).value is not None for key in wanted)

    def delete_key(self, key: Text) -> bool:
        """Delete the key. True if it was there."""
        with self._call("delete_key", key):
            return self._kv.remove(self._names(key), self._deadline())

    def num_keys(self) -> int:
        """How many keys there are, queues not counted. Reads the whole store."""
        with self._call("num_keys"):
            return len(self._kv.keys(self._deadline()))

    def list_keys(self) -> list[str]:
        """The names of all keys, queues not counted. Reads the whole store."""
        with self._call("list_keys"):
            return [key.decode() for key in self._kv.keys(self._deadline())]

    def multi_get(self, keys: Iterable[Text]) -> list[bytes]:
        """The values of several keys, waiting for all of them."""
        wanted = _listed(keys)
        with self._call("multi_get", *wanted):
            wait = _Wait(self._seconds())
            return [self._await(key, wait) for key in wanted]

    def multi_set(self, keys: Iterable[Text], values: Iterable[Text]) -> None:
        """Write several keys, one after the other."""
        names, texts = _listed(keys), _listed(values)
        if len(names) != len(texts):
            raise dist.DistStoreError(f"multi_set of {len(names)} keys and {len(texts)} values")
        for name, text in zip(names, texts, strict=True):
            self.set(name, text)

    def queue_push(self, key: Text, value: Text) -> None:
        """Append an item to a queue; queues and keys of the same name are different things."""
        item = b64encode(_bytes(value)) + b","
        with self._call("queue_push", key):
            self._kv.update(self._kv.queue_names(_bytes(key)), lambda old: (old or b"") + item, self._deadline())

    def queue_pop(self, key: Text, block: bool = True) -> bytes:
        """Take the oldest item, waiting for one if need be; without ``block`` an empty queue is a QueueEmptyError."""
        names = self._kv.queue_names(_bytes(key))
        taken: list[bytes] = []

        def change(old: bytes | None) -> bytes | None:
            item, comma, rest = (old or b"").partition(b",")
            taken[:] = [item] if comma else []
            return rest if comma else None

        with self._call("queue_pop", key):
            wait = _Wait(self._seconds())
            while True:
                slot = self._kv.read(names, wait.deadline())
                if slot.value and self._kv.update(names, change, wait.deadline()) is not None and taken:
                    return b64decode(taken[0])
                if not block:
                    raise _QueueEmptyError("queue is empty")
                self._wait_on(slot, wait, key)

    def queue_len(self, key: Text) -> int:
        """How many items a queue holds."""
        with self._call("queue_len", key):
            return (self._kv.read(self._kv.queue_names(_bytes(key)), self._deadline()).value or b"").count(b",")

    def has_extended_api(self) -> bool:
        """``append``, ``multi_get`` and ``multi_set`` are there."""
        return True

    def clone(self) -> EtcdStore:
        """Another store on the same keys and connections, with a timeout of its own."""
        twin = EtcdStore(self._kv.http, self.prefix, self.timeout)
        twin.client = self.client
        return twin

    # torch's C++ side asks a Python store for these two by their C++ names.
    deleteKey = delete_key  # noqa: N815
    getNumKeys = num_keys  # noqa: N815

    def _names(self, key: Text) -> tuple[str, ...]:
        return self._kv.names(_bytes(key))

    def _seconds(self) -> float:
        return float(self.timeout.total_seconds())

    def _deadline(self) -> float:
        return time.monotonic() + max(GRACE, self._seconds())

    def _update(self, what: str, key: Text, change: Callable[[bytes | None], bytes | None]) -> bytes:
        with self._call(what, key):
            value = self._kv.update(self._names(key), change, self._deadline())
            return b"" if value is None else value

    def _await(self, key: Text, wait: _Wait) -> bytes:
        names = self._names(key)
        while True:
            slot = self._kv.read(names, wait.deadline())
            if slot.value is not None:
                return slot.value
            self._wait_on(slot, wait, key)

    def _wait_on(self, slot: Slot, wait: _Wait, key: Text) -> None:
        if time.monotonic() >= wait.end:
            raise StoreTimeoutError(f"wait timeout after {wait.seconds * 1000:.0f}ms, keys: {_shown(key)}")
        self._kv.await_change(slot, wait.end)

    @contextmanager
    def _call(self, what: str, *keys: Text) -> Iterator[None]:
        """Turn what etcd's side raises into what stores raise."""
        try:
            yield
        except OutOfTimeError as error:
            raise StoreTimeoutError(f"{what} of {_shown(*keys)} not done in time: {error}") from error
        except HistoryLostError as error:
            raise dist.DistStoreError(f"{what} of {_shown(*keys)} may or may not have taken effect: {error}") from error
        except UnreadableError as error:
            raise dist.DistStoreError(str(error)) from error
        except UnusableError as error:
            raise dist.DistNetworkError(str(error)) from error


def _bytes(text: Text) -> bytes:
    if isinstance(text, str):
        try:
            return text.encode()
        except UnicodeEncodeError as error:
            raise TypeError(f"keys and values must have a UTF-8 form: {text[:40]!r}") from error
    if isinstance(text, bytes | bytearray):
        return bytes(text)
    raise TypeError(f"keys and values must be str, bytes or bytearray, not {type(text).__name__}")


def _listed(keys: Iterable[Text]) -> list[Text]:
    if isinstance(keys, str | bytes | bytearray):
        raise TypeError("a sequence of keys is needed, not a single one")
    return list(keys)


def _wrapped(number: int) -> int:
    return (number + INT64) % (2 * INT64) - INT64


def _shown(*keys: Text) -> str:
    return ", ".join(key if isinstance(key, str) else repr(bytes(key)) for key in keys[:5])
