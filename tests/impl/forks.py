"""A call in a fork of the test's process."""

from __future__ import annotations

import os
import select
import signal
import warnings
from collections.abc import Callable

BOUND = 10.0  # seconds for what a child does


def start(call: Callable[[], object]) -> tuple[int, int]:
    """Fork; the child calls and ends without any clean-up. The child's pid, and where its result will be."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that there are other threads is the point
        pid = os.fork()
    if pid == 0:
        try:
            result = repr(call())
        except BaseException as error:
            result = repr(error)
        os.write(writing, result.encode())
        os._exit(0)
    os.close(writing)
    return pid, reading


def result(child: tuple[int, int]) -> str:
    """What the child's call returned or raised, as text. A child that does not end in time is ended."""
    pid, reading = child
    try:
        if not select.select([reading], [], [], BOUND)[0]:
            os.kill(pid, signal.SIGKILL)
            return "no end"
        return os.read(reading, 65536).decode()
    finally:
        os.close(reading)
        os.waitpid(pid, 0)


def in_fork(call: Callable[[], object]) -> str:
    return result(start(call))
