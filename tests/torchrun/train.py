"""The worker of the torchrun tests: all-reduces until one of them has seen the file ``go``, and says what came out.

Each line of ``progress`` is NODE RANK WORLD SUM RESTARTS: who, and the sum of the ones that all members contributed.
"""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

STEP = 0.05  # seconds between two steps; a stand-in for work


def main() -> None:
    place, node, agent = Path(os.environ["RALLYPOINT_PLACE"]), os.environ["RALLYPOINT_NODE"], os.getppid()
    (place / f"{node}.pid").write_text(str(os.getpid()))
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    said, done = "", False
    while not done and os.getppid() == agent:
        told = torch.tensor([1, int((place / "go").exists())])
        dist.all_reduce(told)
        total, done = int(told[0]), bool(told[1])
        restarts = os.environ["TORCHELASTIC_RESTART_COUNT"]
        line = f"{node} {dist.get_rank()} {dist.get_world_size()} {total} {restarts}\n"
        if line != said:
            with (place / "progress").open("a") as file:
                file.write(line)
            said = line
        (place / f"{node}.steps").write_text(str(time.monotonic()))
        time.sleep(STEP)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
