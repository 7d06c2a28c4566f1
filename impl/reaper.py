"""Keeps one program, and one directory, no longer than the process that asked for them. Run as a script.

May live here: the standard library only, and little of it: this file is started with ``python -I -S`` and has to be up
in some milliseconds. Must not live here: anything about etcd.

Why a process of its own: an exit handler does not run when its process is killed, and Linux' parent-death signal
follows the *thread* that started the child. This process is the parent of the program. It ends it when told, when the
creator's end of the pipe closes, or when the creator is gone although a fork of it still holds the pipe.

Arguments: CREATOR-PID PATIENCE DIRECTORY OUTPUT COMMAND...
  PATIENCE   seconds between SIGTERM and SIGKILL; 0: SIGKILL at once
  DIRECTORY  made before the start and removed after the end; "" for none
  OUTPUT     "tail": keep the end of what the program prints and report it; "inherit": it prints where we print
Standard input, one byte each: K kill the program; R end and leave the directory; Q (or end of file) end and remove it.
Standard output, one JSON object a line: {"pid": 1} on the start, {"code": 0, "tail": "..."} on the end of the program.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys

TAIL = 16_000  # bytes; less than a pipe holds, so that reporting it never blocks
LOOK_AROUND = 500  # ms between two looks at whether the creator still lives
PR_SET_PDEATHSIG = 1


def _report(**fields: object) -> None:
    with contextlib.suppress(OSError):
        os.write(1, json.dumps(fields).encode() + b"\n")


def _die_with_parent() -> None:
    """In the child, before exec: this process has one thread, so its end is the end of the thread."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Program:
    """The program that is looked after, and the end of its output."""

    def __init__(self, command: list[str], *, keep_tail: bool) -> None:
        output = subprocess.PIPE if keep_tail else 2
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            preexec_fn=_die_with_parent,  # noqa: PLW1509  (this process has one thread)
        )
        pipes = [pipe.fileno() for pipe in (self.process.stdout, self.process.stderr) if pipe]
        for pipe in pipes:
            os.set_blocking(pipe, False)
        self.pipes = pipes
        self.tail = b""
        self.reported = False

    def read(self, pipe: int) -> None:
        """Take what is there: an unread pipe would stop the program."""
        with contextlib.suppress(BlockingIOError):
            data = os.read(pipe, 65536)
            self.tail = (self.tail + data)[-TAIL:]
            if not data:
                self.pipes.remove(pipe)

    def look(self) -> None:
        """Report the end once."""
        if not self.reported and self.process.poll() is not None:
            for pipe in list(self.pipes):
                self.read(pipe)
            self.reported = True
            _report(code=self.process.returncode, tail=self.tail.decode(errors="replace"))

    def end(self, patience: float) -> None:
        """SIGTERM (a stopped program is woken up for it), then SIGKILL."""
        if self.process.poll() is None and patience > 0:
            self.process.terminate()
            self.process.send_signal(signal.SIGCONT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(patience)
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


def _wake_on_signals() -> int:
    """A descriptor that becomes readable when the program ends (or when somebody asks us to)."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    return reading


def _supervise(program: Program, creator: int, wake: int) -> bool:
    """Until told to end. True: the directory stays."""
    while os.getppid() == creator:
        readable = select.select([0, wake, *program.pipes], [], [], LOOK_AROUND / 1000)[0]
        for pipe in [pipe for pipe in program.pipes if pipe in readable]:
            program.read(pipe)
        if wake in readable and set(os.read(wake, 64)) - {signal.SIGCHLD}:
            return False
        program.look()
        if 0 in readable:
            order = os.read(0, 1)
            if order == b"K":
                program.end(0)
                program.look()
            else:
                return order == b"R"
    return False


def main(arguments: list[str]) -> int:
    creator, patience, directory, output = int(arguments[0]), float(arguments[1]), arguments[2], arguments[3]
    wake = _wake_on_signals()
    stays = False
    try:
        if directory:
            os.makedirs(directory, mode=0o700, exist_ok=True)
        try:
            program = Program(arguments[4:], keep_tail=output == "tail")
        except OSError as error:
            _report(code=None, tail=str(error))
            return 1
        _report(pid=program.process.pid)
        stays = _supervise(program, creator, wake)
        program.end(patience)
        program.look()
    finally:
        if directory and not stays:
            shutil.rmtree(directory, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
