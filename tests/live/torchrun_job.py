"""A real torchrun job: real agents, real workers, one all-reduce. ``python -m`` runs the worker's side.

The job proves itself: every worker contributes 1, and writes down what the sum, its rank and its world size were.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

RESULTS = "RALLYPOINT_JOB_RESULTS"
DEVICE = "RALLYPOINT_JOB_DEVICE"


@dataclass(frozen=True, slots=True)
class JobResult:
    """``workers``: what each worker wrote; ``codes``: the agents' exit codes; ``log``: the end of their output."""

    workers: tuple[dict[str, int], ...]
    codes: tuple[int, ...]
    log: str
    seconds: float

    def complaint(self, agents: int) -> str:
        """What is wrong with a job of ``agents`` agents with one worker each, "" if nothing is."""
        if any(self.codes):
            return f"agents ended with exit codes {self.codes}: {self.log}"
        ranks = sorted(worker["rank"] for worker in self.workers)
        if ranks != list(range(agents)):
            return f"ranks {ranks} where 0 to {agents - 1} are due"
        wrong = [worker for worker in self.workers if worker["world"] != agents or worker["sum"] != agents]
        return f"world size or sum is not {agents}: {wrong}" if wrong else ""


def run_job(
    backend: str,
    endpoint: str,
    run_id: str,
    *,
    agents: int = 2,
    timeout: float = 60,
    device: str = "cpu",
    environment: Mapping[str, str] = os.environ,
) -> JobResult:
    """``agents`` torchrun agents with one worker each meet through ``backend``; all are ended by ``timeout`` s.

    ``device``: "cpu" (gloo) or "npu" (hccl); ``environment``: of the agents.
    """
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="rallypoint-job-") as place:
        environment = {
            **environment,
            RESULTS: place,
            DEVICE: device,
            "OMP_NUM_THREADS": "1",
            "TORCH_DEVICE_BACKEND_AUTOLOAD": environment.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "0"),
        }
        command = [sys.executable, "-m", "torch.distributed.run", f"--nnodes={agents}", "--nproc-per-node=1"]
        command += [f"--rdzv-backend={backend}", f"--rdzv-endpoint={endpoint}", f"--rdzv-id={run_id}"]
        command += ["--local-addr=127.0.0.1", "--monitor-interval=0.2", "-m", "rallypoint.live.torchrun_job"]
        logs = [Path(place, f"agent{number}.log") for number in range(agents)]
        processes: list[subprocess.Popen[bytes]] = []
        try:
            for log in logs:
                with log.open("wb") as output:
                    processes.append(
                        subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
                    )
            codes = tuple(_ended(process, started + timeout) for process in processes)
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
                process.wait()
        workers = tuple(json.loads(file.read_text()) for file in sorted(Path(place).glob("worker*.json")))
        said = " | ".join(log.read_text(errors="replace")[-600:] for log in logs)
    return JobResult(workers, codes, said, time.monotonic() - started)


def _ended(process: subprocess.Popen[bytes], deadline: float) -> int:
    """The exit code; an agent that overstays is asked to end (it ends its workers), then made to."""
    try:
        return process.wait(max(0.1, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    return -1


def main() -> None:
    import torch
    import torch.distributed as dist

    device = os.environ[DEVICE]
    if device == "npu":
        import torch_npu

        # By rank: each agent of this machine has a worker of local rank 0.
        torch_npu.npu.set_device(int(os.environ["RANK"]) % torch_npu.npu.device_count())
    dist.init_process_group({"cpu": "gloo", "npu": "hccl"}[device])
    total = torch.ones(1, device=device)
    dist.all_reduce(total)
    told = {"rank": dist.get_rank(), "world": dist.get_world_size(), "sum": int(total.item())}
    Path(os.environ[RESULTS], f"worker{told['rank']}.json").write_text(json.dumps(told))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
