"""A crew of torchrun agents on this machine, with what their workers tell."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from typing_extensions import Self

TRAIN = Path(__file__).with_name("train.py")
ENDING = 15.0  # seconds from SIGTERM to SIGKILL
SHORT = {
    "rallypoint": "last_call_timeout=1,keep_alive_ttl=3",
    "rallypoint-etcd-v2": "last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=5",
    "etcd-v2": "last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=5",
}
"""Backend -> options that make a loss show within 3 or 5 s."""


class Step(NamedTuple):
    """One worker's all-reduce, as it saw it. ``restarts``: how often its agent has restarted after a failure."""

    node: str
    rank: int
    world: int
    total: int
    restarts: int


def becomes(condition: Callable[[], bool], seconds: float) -> bool:
    """The condition holds within ``seconds``."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.05)
    return True


class Crew:
    """Agents of one run with one worker each; a context manager that ends them, and kills what is left of them."""

    def __init__(self, backend: str, endpoint: str, *, nodes: str = "1:2", restarts: int = 5, conf: str = "") -> None:
        self._place = tempfile.TemporaryDirectory(prefix="rallypoint-crew-")
        self.path = Path(self._place.name)
        self.agents: dict[str, subprocess.Popen[bytes]] = {}
        self._command = [sys.executable, "-m", "torch.distributed.run", f"--nnodes={nodes}", "--nproc-per-node=1"]
        self._command += [f"--rdzv-backend={backend}", f"--rdzv-endpoint={endpoint}", f"--rdzv-id={self.path.name}"]
        self._command += [f"--rdzv-conf={conf or SHORT[backend]}", "--local-addr=127.0.0.1"]
        self._command += ["--monitor-interval=0.3", f"--max-restarts={restarts}", str(TRAIN)]

    def start(self, node: str) -> None:
        """One more agent, under a name that no running agent has."""
        environment = {**os.environ, "RALLYPOINT_PLACE": str(self.path), "RALLYPOINT_NODE": node}
        environment |= {"OMP_NUM_THREADS": "1", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
        with (self.path / f"{node}.log").open("ab") as log:
            self.agents[node] = subprocess.Popen(
                self._command, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )

    def steps(self) -> list[Step]:
        """Each change of what a worker saw, in order."""
        file = self.path / "progress"
        lines = file.read_text().splitlines() if file.exists() else []
        return [Step(fields[0], *map(int, fields[1:])) for fields in (line.split() for line in lines)]

    def mark(self) -> int:
        """How much the workers have told; for ``trains``."""
        return len(self.steps())

    def trains(self, nodes: str, since: int, seconds: float) -> bool:
        """After the mark, each of these nodes (one letter each) comes to step in a world of just them."""

        def there() -> bool:
            new = self.steps()[since:]
            return {step.node for step in new if step.world == step.total == len(nodes)} == set(nodes)

        return becomes(there, seconds)

    def steps_on(self, node: str, seconds: float = 5) -> bool:
        """The node's worker makes a step that began after this call."""
        now = time.monotonic()
        file = self.path / f"{node}.steps"
        return becomes(lambda: file.exists() and float(file.read_text() or 0) > now + 0.1, seconds)

    def terminate(self, node: str) -> int:
        """SIGTERM for the agent, which ends its worker; its exit code."""
        self.agents[node].terminate()
        return self.agents[node].wait(ENDING)

    def kill_worker(self, node: str) -> None:
        """SIGKILL for the node's worker."""
        os.kill(int((self.path / f"{node}.pid").read_text()), signal.SIGKILL)

    def finish(self, seconds: float = 30) -> dict[str, int]:
        """Let the workers end; the exit codes of the agents that were still there."""
        (self.path / "go").touch()
        running = {node: agent for node, agent in self.agents.items() if agent.poll() is None}
        deadline = time.monotonic() + seconds
        return {node: agent.wait(max(0.1, deadline - time.monotonic())) for node, agent in running.items()}

    def log(self) -> str:
        """The end of what each agent printed, for a failing test."""
        logs = sorted(self.path.glob("*.log"))
        return "\n".join(f"--- {log.name}\n{log.read_text(errors='replace')[-3000:]}" for log in logs)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        (self.path / "go").touch()
        for agent in self.agents.values():
            if agent.poll() is None:
                agent.terminate()
        for agent in self.agents.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                agent.wait(ENDING)
            if agent.poll() is None:
                os.killpg(agent.pid, signal.SIGKILL)
                agent.wait()
        self._place.cleanup()
