"""A program under the reaper, and how an etcd is told from its replies to be ready."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import IO

from rallypoint.impl.etcd_http import bracketed
from rallypoint.model.errors import UnusableError

PATIENCE = 5.0  # seconds between SIGTERM and SIGKILL
REAPER = str(Path(__file__).with_name("reaper.py"))


@dataclass(frozen=True, slots=True)
class End:
    """How a program ended: ``code`` as subprocess gives it (None: it never ran), the end of its output."""

    code: int | None
    tail: str


class Supervised:
    """A running program that does not outlive this process, however this process ends.

    In a fork of its creator ``kill``, ``release`` and ``close`` do nothing, and ``ended`` tells what was known before.
    ``directory``: made for it and removed after it ("": none). ``stderr``: None or DEVNULL keeps the end of the output
    for ``End.tail``; anything else that subprocess accepts sends it there.
    """

    def __init__(self, command: Sequence[str], *, directory: str, stderr: int | IO[str] | None = None) -> None:
        keep_tail = stderr is None or stderr == subprocess.DEVNULL
        patience = 0.0 if directory else PATIENCE  # nothing to save when the data goes too
        head = [sys.executable, "-I", "-S", REAPER, str(os.getpid()), str(patience), directory]
        self._reaper = subprocess.Popen(
            [*head, "tail" if keep_tail else "inherit", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if keep_tail else stderr,
            start_new_session=True,  # Ctrl-C is for the creator to handle
        )
        self._creator = os.getpid()
        self._directory = directory
        self._lock = threading.Lock()
        self._unread = b""
        self._end: End | None = None
        self.pid: int | None = None
        with self._lock:
            self._read(time.monotonic() + PATIENCE, until_started=True)

    @property
    def stderr(self) -> IO[bytes] | None:
        """The reading end, when ``stderr`` was PIPE."""
        return self._reaper.stderr

    def ended(self, timeout: float = 0.0) -> End | None:
        """How it ended, waiting at most ``timeout`` seconds; None while it runs."""
        if self.in_fork():
            return self._end  # what the reaper reports is for the creator to read
        with self._lock:
            if self._end is None:
                self._read(time.monotonic() + timeout, until_started=False)
            return self._end

    def kill(self) -> None:
        """SIGKILL, and wait for its end (at most PATIENCE seconds). The directory stays."""
        if self.in_fork():
            return
        self._order(b"K")
        self.ended(PATIENCE)

    def release(self) -> None:
        """End it, and leave the directory to a successor."""
        if not self.in_fork():
            self._finish(b"R")

    def close(self) -> None:
        """End it and remove the directory; bounded by twice PATIENCE. A second call does nothing."""
        if self.in_fork():
            return
        self._finish(b"Q")
        if self._directory:
            shutil.rmtree(self._directory, ignore_errors=True)  # the reaper has done it, unless it was killed

    def in_fork(self) -> bool:
        """This process is a fork of the one that started the program."""
        return os.getpid() != self._creator

    def _order(self, order: bytes) -> None:
        if self._reaper.stdin is not None and not self._reaper.stdin.closed:
            with contextlib.suppress(OSError):
                os.write(self._reaper.stdin.fileno(), order)

    def _finish(self, order: bytes) -> None:
        self._order(order)
        try:
            self._reaper.wait(2 * PATIENCE)
        except subprocess.TimeoutExpired:
            self._reaper.kill()  # its program dies with it
            self._reaper.wait()
        self.ended()
        for pipe in (self._reaper.stdin, self._reaper.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def _read(self, deadline: float, *, until_started: bool) -> None:
        """Take the reaper's reports until the program ended (or started), or the deadline."""
        pipe = self._reaper.stdout
        assert pipe is not None
        while self._end is None and not (until_started and self.pid is not None):
            if pipe.closed or not select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))[0]:
                return
            data = os.read(pipe.fileno(), 65536)
            if not data:
                self._end = End(None, "the process that supervised it was ended")
                return
            *lines, self._unread = (self._unread + data).split(b"\n")
            for line in lines:
                report = json.loads(line)
                if "pid" in report:
                    self.pid = int(report["pid"])
                else:
                    self._end = End(report["code"], report["tail"])


def await_ready(process: Supervised, host: str, port: int, deadline: float) -> bool:
    """Wait until the etcd answers that it is healthy (it has a leader). False: the deadline came first.

    Raises UnusableError, with etcd's own last words, if it ends before.
    """
    while time.monotonic() < deadline:
        end = process.ended(0.02)
        if end is not None:
            raise start_failure(end, f"{bracketed(host)}:{port}")
        if is_healthy(host, port, min(1.0, max(0.05, deadline - time.monotonic()))):
            return True
    return False


def is_healthy(host: str, port: int, timeout: float) -> bool:
    """Does an etcd answer on this (plain HTTP) address, and does it know a leader?"""
    connection = HTTPConnection(host, port, timeout=timeout)
    try:
        connection.request("GET", "/health")
        return b'"true"' in connection.getresponse().read()
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


def start_failure(end: End, where: str) -> UnusableError:
    """Why an etcd ended instead of serving, in one line."""
    if "address already in use" in end.tail:
        return UnusableError("port in use", where, "stop the program that listens there, or let another port be chosen")
    if "enable-v2" in end.tail and end.code == 2:
        return UnusableError(
            "this etcd has no v2 API", where, "use 3.5 or older (TORCHELASTIC_ETCD_BINARY_PATH), or the v3 transport"
        )
    if end.code is None:
        return UnusableError("etcd cannot be run", where, end.tail)
    lines = [line for line in end.tail.splitlines() if line.strip()]
    return UnusableError(
        f"etcd ended with exit code {end.code}", where, f"it said: {lines[-1][-300:]}" if lines else "it said nothing"
    )
