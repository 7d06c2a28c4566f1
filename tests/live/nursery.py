"""Worker processes that need not import torch: each is a fork of one process that has.

The nursery process has no thread, so that a fork of it is safe; it reaps its children, and ends them when its creator
is gone. multiprocessing's forkserver is not used: it is one for the whole program, cannot be stopped, and imports the
main program again in each child.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from rallypoint.model.errors import UnusableError

if TYPE_CHECKING:
    from typing_extensions import Self

READY = 120.0  # seconds for importing torch
PROMPT = 20.0  # seconds for a fork, and for the end
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
    "TORCH_CPP_LOG_LEVEL": "FATAL",
    "GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo",
}


class Nursery:
    """Starts and reaps workers; a context manager. ``threads``: how many the nursery process has.

    ``device``: what the workers prove their groups on, "cpu" or "npu"; ``environment``: theirs.
    """

    def __init__(self, device: str = "cpu", environment: Mapping[str, str] = os.environ) -> None:
        self.device = device
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  (closed by ``close``)
        self._control, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno()), device],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                env={**environment, **ENVIRONMENT},
            )
        self._lines = b""
        self.exits: dict[int, int] = {}
        self.threads = 0
        self._started: int | None = None
        try:
            self._await(lambda: self.threads > 0, READY, "the workers' process did not start")
        except UnusableError:
            self.close()
            raise

    def start(self, job: dict[str, Any], sock: socket.socket) -> int:
        """Start a worker that does ``job`` (see ``agent.main``) and talks on ``sock``; its process id."""
        self._started = None
        socket.send_fds(self._control, [json.dumps(job).encode() + b"\n"], [sock.fileno()])
        self._await(lambda: self._started is not None, PROMPT, "a worker was not started")
        assert self._started is not None
        return self._started

    def kill(self, pid: int) -> None:
        """SIGKILL to a worker, if it still lives; its end comes with ``look``."""
        self._control.sendall(json.dumps({"end": pid}).encode() + b"\n")

    def fileno(self) -> int:
        """Readable when there may be news for ``look``."""
        return self._control.fileno()

    def look(self) -> None:
        """Take in what there is: ``exits`` maps process ids to exit codes (-9: killed)."""
        data = self._control.recv(65536)
        if not data:
            raise UnusableError("the workers' process has ended", self.tail(), "see its output")
        *lines, self._lines = (self._lines + data).split(b"\n")
        for line in lines:
            word, *numbers = line.decode().split()
            if word == "exit":
                self.exits[int(numbers[0])] = int(numbers[1])
            elif word == "ready":
                self.threads = int(numbers[0])
            else:
                self._started = int(numbers[0])

    def tail(self) -> str:
        """The end of what all workers have printed."""
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, self._log.tell() - 2000))
        return self._log.read().decode(errors="replace").strip()

    def close(self) -> None:
        """End the nursery and every worker that is left."""
        self._control.close()
        try:
            self._process.wait(PROMPT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _await(self, there: Any, seconds: float, what: str) -> None:
        deadline = time.monotonic() + seconds
        while not there():
            if not select.select([self], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise UnusableError(what, f"{seconds} s", "see its output: " + self.tail())
            self.look()


# --- in the nursery process ---------------------------------------------------------------------------------------


def _threads() -> int:
    with contextlib.suppress(OSError):
        return len(os.listdir("/proc/self/task"))
    import threading

    return threading.active_count()


def _child(job: dict[str, Any], sock: socket.socket) -> NoReturn:
    from rallypoint.live import agent

    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        code = agent.main(job, sock)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _reap(control: socket.socket, children: set[int]) -> None:
    for pid in list(children):
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            children.remove(pid)
            control.sendall(b"exit %d %d\n" % (pid, os.waitstatus_to_exitcode(status)))


def _fork(
    control: socket.socket, job: dict[str, Any], descriptor: int, children: set[int], ours: tuple[int, int]
) -> None:
    with socket.socket(fileno=descriptor) as sock:
        pid = os.fork()
        if pid == 0:
            control.close()
            for one in ours:
                os.close(one)
            _child(job, sock)
        children.add(pid)
    control.sendall(b"pid %d\n" % pid)


def serve(control: socket.socket, device: str) -> None:
    """Fork and reap until the creator closes its end; then kill and reap what is left."""
    import rallypoint.live.agent  # noqa: F401  (torch, once for all)
    from rallypoint.npu.worker import prepare

    prepare(device)
    wake, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    children: set[int] = set()
    try:
        control.sendall(b"ready %d\n" % _threads())
        while True:
            sources: list[Any] = [control, wake]
            readable = select.select(sources, [], [])[0]
            if wake in readable:
                os.read(wake, 512)
                _reap(control, children)
            if control in readable:
                data, descriptors, _, _ = socket.recv_fds(control, 65536, 1)
                if not data:
                    return
                for job in map(json.loads, data.splitlines()):
                    if "end" not in job:
                        _fork(control, job, descriptors.pop(0), children, (wake, writing))
                    elif job["end"] in children:
                        os.kill(job["end"], signal.SIGKILL)
    except OSError:
        return
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2])
