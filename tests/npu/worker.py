"""A worker's proof of its group: it gathers what every member was given, on its device.

May live here: the group and its collective, on a CPU (gloo) and on an NPU (hccl). Must not live here: judgement, and
which NPU it is (``cann.py``). torch_npu is imported only for a proof on an NPU.
"""

from __future__ import annotations

import ctypes
import datetime
import json
import os
import select
import signal
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

DEATH_SIGNAL = 1  # prctl's option PR_SET_PDEATHSIG


class Given(NamedTuple):
    """What the rendezvous gave to one member."""

    version: int
    rank: int
    world: int


def prepare(device: str) -> None:
    """Import what a proof on this device needs, once for a process and its forks."""
    if device == "npu":
        import torch_npu  # noqa: F401


def prove(device: str, store: Store, rank: int, world: int, version: int, timeout: float) -> list[Given]:
    """All-gather (version, rank, world size) over the members of a version; what each of them gave, by rank.

    ``device``: "cpu" or "npu"; on NPUs rank r uses device r, modulo the devices of its machine. ``store``: the one that
    the rendezvous returned; for NPUs it must serve in a fork, as ours does. ``timeout``: seconds for all of it.
    On an NPU a fork of this process does it, as torchrun's agent leaves devices to its workers: a device on which a
    collective failed is of no more use to its process, and HCCL's own time limits are minutes.
    Raises RuntimeError (torch's own errors are), LookupError or ValueError when it fails, as when a member ended.
    """
    if device == "cpu":
        return _gathered(_gloo, store, Given(version, rank, world), timeout)
    prepare(device)
    return _in_fork(lambda: _gathered(_hccl, store, Given(version, rank, world), timeout), timeout)


Form = Callable[[Store, Given, datetime.timedelta], "tuple[Any, torch.device]"]


def _gathered(form: Form, store: Store, mine: Given, timeout: float) -> list[Given]:
    # Not by init_process_group: it names groups by a count of the process, which a group that broke leaves behind, so
    # that this process and a fresh one would never meet in the next.
    group, place = form(PrefixStore("group", store), mine, datetime.timedelta(seconds=timeout))
    given = torch.tensor(mine).to(place)
    rows = [torch.zeros_like(given) for _ in range(mine.world)]
    group.allgather([rows], [given]).wait()
    return [Given(*row.cpu().tolist()) for row in rows]


def _gloo(store: Store, mine: Given, timeout: datetime.timedelta) -> tuple[Any, torch.device]:
    return dist.ProcessGroupGloo(store, mine.rank, mine.world, timeout), torch.device("cpu")


def _hccl(store: Store, mine: Given, timeout: datetime.timedelta) -> tuple[Any, torch.device]:
    import torch_npu

    place = torch.device("npu", mine.rank % torch_npu.npu.device_count())
    torch_npu.npu.set_device(place)
    kind = torch_npu._C._distributed_c10d.ProcessGroupHCCL
    options = kind.Options()
    options._timeout = timeout
    options.global_ranks_in_group = list(range(mine.world))
    options.group_id = f"version {mine.version}"
    # HCCL is asked only once all members are there.
    store.set(f"here/{mine.rank}", "yes")
    store.wait([f"here/{rank}" for rank in range(mine.world)], timeout)
    return kind(store, mine.rank, mine.world, options), place


def _in_fork(call: Callable[[], list[Given]], timeout: float) -> list[Given]:
    """What the call returns, made in a child that is ended after ``timeout`` seconds. Raises RuntimeError."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the child uses nothing that another thread may hold
        parent, pid = os.getpid(), os.fork()
    if pid == 0:
        _child(call, writing, parent)
    os.close(writing)
    try:
        answer = _read(reading, time.monotonic() + timeout)
    finally:
        os.close(reading)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    if answer is None:
        raise RuntimeError(f"no proof within {timeout} s")
    if not answer:
        raise RuntimeError("the process that uses the device has ended")
    result = json.loads(answer)
    if isinstance(result, str):
        raise RuntimeError(result)
    return [Given(*row) for row in result]


def _child(call: Callable[[], list[Given]], writing: int, parent: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(DEATH_SIGNAL, signal.SIGKILL)
    try:
        result: Any = call()
    except BaseException as error:
        result = f"{type(error).__name__}: {error}"
    if os.getppid() == parent:
        os.write(writing, json.dumps(result).encode())
    os._exit(0)


def _read(descriptor: int, deadline: float) -> bytes | None:
    """All until the other end is closed; None if that is after the deadline."""
    data = b""
    while select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))[0]:
        more = os.read(descriptor, 65536)
        if not more:
            return data
        data += more
    return None
