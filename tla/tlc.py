"""Run TLC, several runs side by side if asked, and never leave a process or a file behind.

May live here: starting, watching and ending the JVM, and the directories it works in.
Must not live here: what TLC's output means (``output``), which configurations exist (``manifest``).
"""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from rallypoint.model.errors import UnusableError
from rallypoint.tla.graph import Graph, read_dot
from rallypoint.tla.output import (
    DEADLOCK,
    TEMPORAL,
    UNNAMED,
    Output,
    Progress,
    Step,
    TlcResult,
    Verdict,
    computed,
    with_transitions,
)
from rallypoint.tla.toolchain import Jar, Java, find_jar, find_java
from rallypoint.tla.values import UnreadableError

__all__ = [
    "DEADLOCK",
    "TEMPORAL",
    "UNNAMED",
    "Jar",
    "Java",
    "Job",
    "Progress",
    "Simulation",
    "Step",
    "TlcResult",
    "Verdict",
    "find_jar",
    "find_java",
    "run",
    "run_all",
    "state_graph",
]

_FINGERPRINT_POLYNOMIAL = "7"  # fixed, so that two runs give the same node ids and the same order
_SMALL = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx1g")
_LARGE = ("-XX:+UseParallelGC", "-XX:MaxRAMPercentage=50")
_NO_FILES = ("-XX:-UsePerfData", "-XX:-CreateCoredumpOnCrash")  # a killed JVM would leave them behind
_SPEAK_ENGLISH = ("-Duser.language=en", "-Duser.country=US", "-Dfile.encoding=UTF-8")


@dataclass(frozen=True, slots=True)
class Simulation:
    """Random behaviours instead of all: their number, the longest length in states, the seed."""

    behaviours: int
    depth: int
    seed: int


@dataclass(frozen=True, slots=True)
class Job:
    """One run of TLC.

    ``cfg`` is the text of the configuration file. ``dump`` names the dot file to write (it must end in ``.dot``).
    ``deadlock`` asks for deadlocks to be reported. ``large`` gives the JVM half of the memory and its optimising
    compiler, which pays from about a minute on. Traces are shortest, and depth exact, with one worker only.
    ``coverage`` counts how often each action is taken; without it, short runs take a third less time.
    ``processes``, if any, replace the ``workers`` threads: TLC's distributed server and so many of its worker
    processes, on this machine. It knows no dump, simulation, coverage or temporal property, and it shows only the end
    of a counterexample, without the name of what is violated (``output.UNNAMED``).
    """

    spec_dir: Path
    module: str
    cfg: str
    workers: int = 1
    dump: Path | None = None
    deadlock: bool = False
    simulation: Simulation | None = None
    timeout_s: float = 120.0
    large: bool = False
    coverage: bool = True
    processes: int = 0


OnProgress: TypeAlias = Callable[[int, Progress], None]
"""Called with the index of the job and what it reported."""


def run(job: Job, on_progress: OnProgress | None = None) -> TlcResult:
    """Run one job to its end or its timeout. Raises UnusableError if Java or the jar cannot be used."""
    return next(run_all([job], 1, on_progress))[1]


def run_all(
    jobs: Sequence[Job],
    parallel: int,
    on_progress: OnProgress | None = None,
    on_start: Callable[[int], None] | None = None,
) -> Iterator[tuple[int, TlcResult]]:
    """Run the jobs, at most ``parallel`` JVMs at a time; yields (index of the job, result) as each one ends.

    Closing the iterator, or an exception in the caller's loop (Ctrl-C), ends the JVMs that still run.
    Raises UnusableError if Java or the jar cannot be used.
    """
    java, jar = find_java(), find_jar()
    waiting = list(enumerate(jobs))
    running: list[_Run] = []
    try:
        with selectors.DefaultSelector() as selector:
            while waiting or running:
                while waiting and len(running) < parallel:
                    index, job = waiting.pop(0)
                    running.append((_DistributedRun if job.processes else _Run)(index, job, java, jar))
                    selector.register(running[-1], selectors.EVENT_READ, running[-1])
                    if on_start:
                        on_start(index)
                deadline = min(run.deadline for run in running)
                readable = selector.select(max(0.0, deadline - time.monotonic()))
                for key, _ in readable:
                    key.data.read(on_progress)
                for ended in [run for run in running if run.over()]:
                    selector.unregister(ended)
                    running.remove(ended)
                    yield ended.index, ended.finish()
    finally:
        for unfinished in running:
            unfinished.kill()


def state_graph(job: Job, on_progress: OnProgress | None = None) -> tuple[TlcResult, Graph | None]:
    """Run one job and read its whole state graph, as ``state_graphs`` does."""
    _, result, graph = next(state_graphs([job], 1, on_progress))
    return result, graph


def state_graphs(
    jobs: Sequence[Job], parallel: int, on_progress: OnProgress | None = None
) -> Iterator[tuple[int, TlcResult, Graph | None]]:
    """``run_all``, with the whole state graph of each job; None unless the verdict is ``holds``.

    TLC stops at the first violation and the dump with it: leave the properties out of the cfg to get the whole graph.
    With SYMMETRY or VIEW, the graph has one arbitrary state of each class and is good for nothing but counting.
    A dump with another number of states than TLC counted makes the verdict ``harness failed``.
    """
    with tempfile.TemporaryDirectory(prefix="rallypoint-graph-") as place:
        dumps = [Path(place) / f"{index}.dot" for index in range(len(jobs))]
        dumping = [replace(job, dump=dump, coverage=False) for job, dump in zip(jobs, dumps, strict=True)]
        for index, result in run_all(dumping, parallel, on_progress):
            yield index, *_with_graph(result, dumps[index])
            dumps[index].unlink(missing_ok=True)


def _with_graph(result: TlcResult, dump: Path) -> tuple[TlcResult, Graph | None]:
    if result.verdict != "holds":
        return result, None
    try:
        graph = read_dot(dump)
    except (OSError, UnreadableError) as error:
        return replace(result, verdict="harness failed", reason=f"the dump cannot be read: {error}"), None
    if len(graph.states) != result.states:
        reason = f"the dump holds {len(graph.states)} states where TLC counted {result.states}"
        return replace(result, verdict="harness failed", reason=reason), None
    return result, graph


class _Run:
    """One JVM with its directory. Ends by itself, by ``finish`` after the deadline, or by ``kill``."""

    def __init__(self, index: int, job: Job, java: Java, jar: Jar) -> None:
        self.index = index
        self.started = time.monotonic()
        self.deadline = self.started + job.timeout_s
        self._job = job
        self._output = Output(distributed=job.processes > 0)
        self._rest = b""
        self._closed = False
        self._place = Path(tempfile.mkdtemp(prefix="rallypoint-tlc-"))
        self._java, self._jar = java, jar
        try:
            self._process = subprocess.Popen(
                self._command(),
                cwd=_working_copy(job, self._place),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C goes to us, and we end the JVM
            )
        except BaseException:
            shutil.rmtree(self._place, ignore_errors=True)
            raise

    def _command(self) -> list[str]:
        return [*self._jvm("tmp", "tlc2.TLC"), *_options(self._job, self._place), f"{self._job.module}.tla"]

    def _jvm(self, temporary: str, main: str, *properties: str) -> list[str]:
        """The command line of a JVM up to its main class; ``temporary``: where its files go, below our place."""
        (self._place / temporary).mkdir()
        return [
            *_dies_with_us(),
            str(self._java.path),
            *(_LARGE if self._job.large else _SMALL),
            *_NO_FILES,
            *_SPEAK_ENGLISH,
            f"-Djava.io.tmpdir={self._place / temporary}",
            *properties,
            "-cp",
            str(self._jar.path),
            main,
        ]

    def fileno(self) -> int:
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def read(self, on_progress: OnProgress | None) -> None:
        chunk = os.read(self.fileno(), 1 << 16)
        self._closed = not chunk
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            progress = self._output.feed(line.decode("utf-8", "replace").rstrip("\r"))
            if progress and on_progress:
                on_progress(self.index, progress)

    def over(self) -> bool:
        return self._closed or time.monotonic() >= self.deadline

    def finish(self) -> TlcResult:
        """The result of a run that is over; ends the JVM if it is the deadline that came first."""
        stopped = ""
        try:
            if not self._closed:
                stopped = f"not finished after {self._job.timeout_s:g} s, ended"
            else:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(timeout=10)  # output closed: it is on its way out
        finally:
            self.kill()
        seconds = time.monotonic() - self.started
        return self._output.result(self._process.returncode, seconds, stopped)

    def kill(self) -> None:
        _end(self._process)
        assert self._process.stdout is not None
        self._process.stdout.close()
        shutil.rmtree(self._place, ignore_errors=True)


class _DistributedRun(_Run):
    """TLC's distributed server, and its worker processes as soon as it is ready for them."""

    def _command(self) -> list[str]:
        self._network = (
            f"-Dtlc2.tool.distributed.TLCServer.port={_free_port()}",
            "-Dtlc2.tool.distributed.TLCWorker.threadCount=1",
            "-Djava.rmi.server.hostname=127.0.0.1",
        )
        self._workers: list[subprocess.Popen[bytes]] = []
        server = self._jvm("tmp", "tlc2.tool.distributed.TLCServer", *self._network)
        return [*server, *_options(self._job, self._place), f"{self._job.module}.tla"]

    def read(self, on_progress: OnProgress | None) -> None:
        super().read(on_progress)
        if self._output.serving and not self._workers:
            for number in range(self._job.processes):
                self._workers.append(self._start(number))  # one by one: ``kill`` ends those that are started

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        command = self._jvm(f"worker-{number}", "tlc2.tool.distributed.TLCWorker", *self._network)
        with self._said(number).open("wb") as said:
            return subprocess.Popen(
                [*command, "127.0.0.1"],
                cwd=self._place,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _said(self, number: int) -> Path:
        return self._place / f"worker-{number}.out"

    def finish(self) -> TlcResult:
        transitions = self._computed() if self._closed else None
        return with_transitions(super().finish(), transitions)

    def _computed(self) -> int | None:
        """What the workers that took part computed, once they have said so; one that came too late never will."""
        deadline = time.monotonic() + 10
        while True:
            said = [self._said(number).read_text(errors="replace") for number in range(len(self._workers))]
            transitions = computed(said, self._output.registered)
            running = [worker for worker in self._workers if worker.poll() is None]
            if transitions is not None or not running or time.monotonic() >= deadline:
                return transitions
            with contextlib.suppress(subprocess.TimeoutExpired):
                running[0].wait(timeout=0.1)

    def kill(self) -> None:
        for worker in self._workers:
            _end(worker)
        super().kill()


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def _working_copy(job: Job, place: Path) -> Path:
    """A directory with the modules and the cfg: newer TLC versions write beside the module they check."""
    modules = sorted(job.spec_dir.glob("*.tla"))
    if not any(module.stem == job.module for module in modules):
        raise UnusableError(f"no module {job.module}", str(job.spec_dir), "name a module that is there as a .tla file")
    work = place / "spec"
    work.mkdir()
    for module in modules:
        shutil.copy(module, work)
    (work / f"{job.module}.cfg").write_text(job.cfg, encoding="utf-8")
    return work


def _options(job: Job, place: Path) -> list[str]:
    options = ["-tool", "-fp", _FINGERPRINT_POLYNOMIAL, "-checkpoint", "0", "-metadir", str(place / "meta")]
    options += ["-config", f"{job.module}.cfg"]
    if not job.deadlock:
        options.append("-deadlock")  # the flag switches the check off
    if job.processes:
        return options
    options += ["-lncheck", "final"]  # temporal properties once, at the end, not again and again on the way
    options += ["-workers", str(job.workers)]
    if job.coverage:
        options += ["-coverage", "9999"]  # minutes between reports: at the end only
    if job.dump:
        options += ["-dump", "dot,actionlabels", str(job.dump.absolute())]
    if job.simulation:
        options += ["-simulate", f"num={job.simulation.behaviours}", "-depth", str(job.simulation.depth)]
        options += ["-seed", str(job.simulation.seed)]
    return options


def _dies_with_us() -> list[str]:
    """Linux: let the kernel end the JVM if this process is killed and cannot do it itself."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "KILL"] if setpriv else []
