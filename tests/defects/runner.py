"""Runs scenarios, each in a child process of its own that is ended with all that it started.

Upstream's side leaks threads, hangs and prints; so each scenario is a fork of one process that has imported torch. May
live here: processes and bounds. Must not live here: scenarios, and what their outcome means.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

from rallypoint.live.nursery import ENVIRONMENT, READY
from rallypoint.model.errors import UnusableError

if TYPE_CHECKING:
    from typing_extensions import Self

MARGIN = 20.0  # seconds that the runner's process may take beyond a scenario's own bound


@dataclass(frozen=True, slots=True)
class Outcome:
    """``ok`` None: the scenario itself failed, and ``seen`` says how."""

    ok: bool | None
    seen: str
    seconds: float


class Runner:
    """One scenario at a time; a context manager."""

    def __init__(self) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  (closed by ``close``)
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, **ENVIRONMENT},
        )
        try:
            self._line(READY)
        except UnusableError:
            self.close()
            raise

    def run(self, defect_id: str, side: str, bound: float) -> Outcome:
        """Play one scenario, for ``bound`` seconds at most."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([defect_id, side, bound]).encode() + b"\n")
        self._process.stdin.flush()
        return Outcome(*self._line(bound + MARGIN))

    def _line(self, seconds: float) -> Any:
        """The next report (whole lines only are written)."""
        assert self._process.stdout is not None
        if select.select([self._process.stdout], [], [], seconds)[0]:
            line = self._process.stdout.readline()
            if line:
                return json.loads(line)
        self._log.seek(0)
        tail = self._log.read()[-500:].decode(errors="replace").strip()
        raise UnusableError("the scenarios' process gave no answer", tail or f"{seconds} s", "see its output")

    def close(self) -> None:
        """End the process and what it runs."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(MARGIN)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# --- in the runner's process ----------------------------------------------------------------------------------------


def _child(defect_id: str, side: str, place: str, report: int) -> None:
    """Play the scenario and write the observation; never returns."""
    try:
        os.setsid()
        random.seed()  # else all children would draw the same ports
        os.environ["TMPDIR"] = tempfile.tempdir = place
        from rallypoint.defects.scenarios import DEFECTS
        from rallypoint.defects.stage import Side

        try:
            found = DEFECTS[defect_id].run(Side(side))
            answer: list[Any] = [found.ok, found.seen]
        except BaseException as error:
            answer = [None, f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"]
        os.write(report, json.dumps(answer).encode())
    finally:
        os._exit(0)


def _play(defect_id: str, side: str, bound: float, orders: IO[bytes]) -> list[Any]:
    """Fork, wait, sweep; what the child saw, and the seconds."""
    started = time.monotonic()
    reading, writing = os.pipe()
    place = tempfile.mkdtemp(prefix="rallypoint-defect-")
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        _child(defect_id, side, place, writing)
    os.close(writing)
    data = b""
    try:
        while (left := started + bound - time.monotonic()) > 0:
            readable = select.select([reading, orders.fileno()], [], [], left)[0]
            if orders.fileno() in readable:  # nothing is due: it has been closed
                break
            if reading in readable:
                piece = os.read(reading, 65536)
                data += piece
                if not piece or data.endswith(b"]"):
                    break
    finally:
        os.close(reading)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        _emptied(place)
    seconds = time.monotonic() - started
    return [*(json.loads(data) if data.endswith(b"]") else [None, f"ended after {seconds:.0f} s"]), seconds]


def _emptied(place: str) -> None:
    """What an etcd's reaper still removes there may make one removal fail; it does not take long."""
    end = time.monotonic() + 5
    while os.path.exists(place) and time.monotonic() < end:
        shutil.rmtree(place, ignore_errors=True)
        time.sleep(0.02)


def serve() -> None:
    """Play what is ordered on stdin until it is closed."""
    import rallypoint.defects.scenarios  # noqa: F401  (this and what follows: once for all children)
    from rallypoint.impl import etcd_rendezvous, etcd_rendezvous_backend  # noqa: F401
    from torch.distributed.elastic.rendezvous import etcd_rendezvous as theirs  # noqa: F401
    from torch.distributed.elastic.rendezvous import registry  # noqa: F401

    orders = open(0, "rb", buffering=0, closefd=False)  # noqa: SIM115
    reports = os.dup(1)
    os.dup2(2, 1)  # what scenarios print is no report
    os.write(reports, b"[]\n")
    while line := orders.readline():
        defect_id, side, bound = json.loads(line)
        os.write(reports, json.dumps(_play(defect_id, side, bound, orders)).encode() + b"\n")


if __name__ == "__main__":
    serve()
