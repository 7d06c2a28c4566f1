"""Whole torchrun agents, with a worker that only waits to be let go."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rallypoint.defects.record import Observation
from rallypoint.defects.stage import Side, Stage, becomes

WORKER = """
import os, time
from pathlib import Path
place = Path(os.environ["RALLYPOINT_PLACE"])
world, node = os.environ["WORLD_SIZE"], os.environ["RALLYPOINT_NODE"]
with (place / "starts").open("a") as file:
    file.write(f"{node} in a world of {world}\\n")
agent = os.getppid()
while not (place / "go").exists() and os.getppid() == agent:
    time.sleep(0.1)
"""


class Agents:
    """torchrun agents for one to two nodes; a context manager that ends them."""

    def __init__(self, backend: str, endpoint: str) -> None:
        self._place = tempfile.TemporaryDirectory(prefix="agents-")
        self.path = Path(self._place.name)
        (self.path / "worker.py").write_text(WORKER)
        command = [sys.executable, "-m", "torch.distributed.run", "--nnodes=1:2", "--nproc-per-node=1"]
        command += [f"--rdzv-backend={backend}", f"--rdzv-endpoint={endpoint}", "--rdzv-id=job"]
        command += ["--local-addr=127.0.0.1", "--monitor-interval=0.2", "--max-restarts=3"]
        self._command = [*command, "--rdzv-conf=last_call_timeout=1", str(self.path / "worker.py")]
        self.processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Agents:
        return self

    def start(self, node: str) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "RALLYPOINT_PLACE": str(self.path), "RALLYPOINT_NODE": node}
        process = subprocess.Popen(self._command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.processes.append(process)
        return process

    def starts(self) -> list[str]:
        """The workers that have started, with the size of their world."""
        file = self.path / "starts"
        return file.read_text().splitlines() if file.exists() else []

    def let_go(self) -> None:
        (self.path / "go").touch()

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._place.cleanup()


def outage(side: Side) -> Observation:
    """G-A: etcd is away for 2 s under an agent whose worker is healthy."""
    with Stage(side) as stage, Agents(side.backend_name, stage.direct) as agents:
        agent = agents.start("A")
        assert becomes(lambda: bool(agents.starts()), 40)
        time.sleep(1)
        stage.restart(2)
        if becomes(lambda: agent.poll() is not None, 8):
            return Observation(False, f"the agent ends with exit code {agent.returncode}, its worker was healthy")
        agents.let_go()
        code = agent.wait(20)
        return Observation(code == 0, f"agent and worker live on, exit code {code}")


def joins_later(side: Side) -> Observation:
    """D-A: a second agent joins a job that runs with one."""
    with Stage(side) as stage, Agents(side.dynamic_name, stage.direct) as agents:
        agents.start("A")
        assert becomes(lambda: bool(agents.starts()), 40)
        agents.start("B")
        started = time.monotonic()
        met = becomes(lambda: {"A in a world of 2", "B in a world of 2"} <= set(agents.starts()), 30)
        seconds = time.monotonic() - started
        if not met:
            return Observation(False, f"30 s later these have started: {'; '.join(agents.starts())}")
        agents.let_go()
        codes = [agent.wait(20) for agent in agents.processes]
        return Observation(codes == [0, 0], f"both in a world of 2 after {seconds:.1f} s, exit codes {codes}")
