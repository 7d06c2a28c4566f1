"""As a script: what each collective gives three ranks, and what becomes of a rank whose peer fails; as JSON."""

from __future__ import annotations

import json
import os
import signal
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

RANKS = 3
LARGE = 300_000  # elements: more than fit into shared memory at once
Op = dist.ReduceOp


def numbers(rank: int, device: str, dtype: torch.dtype = torch.int64, count: int = 4) -> torch.Tensor:
    return (torch.arange(count) % 100 + 10 * rank).to(dtype).to(device)


def all_reduces(rank: int, device: str) -> Any:
    made = []
    for dtype in (torch.int32, torch.int64, torch.float32, torch.float16, torch.uint8):
        for op in (Op.SUM, Op.MAX, Op.MIN):
            made.append(numbers(rank, device, dtype))
            dist.all_reduce(made[-1], op)
    made.append(numbers(rank, device, torch.float32))
    dist.all_reduce(made[-1], Op.PRODUCT)
    return made


def all_gathers(rank: int, device: str) -> Any:
    made = [torch.zeros(4, dtype=torch.int64).to(device) for _ in range(RANKS)]
    dist.all_gather(made, numbers(rank, device))
    return made


def large_gathers(rank: int, device: str) -> Any:
    made = [torch.zeros(LARGE, dtype=torch.int64).to(device) for _ in range(RANKS)]
    dist.all_gather(made, numbers(rank, device, count=LARGE))
    return [one.cpu()[::9999].contiguous() for one in made]


def broadcasts(rank: int, device: str) -> Any:
    made = []
    for root in range(RANKS):
        made.append(numbers(rank, device))
        dist.broadcast(made[-1], root)
    return made


def reduces(rank: int, device: str) -> Any:
    made = numbers(rank, device)
    dist.reduce(made, 1)
    return [made] if rank == 1 else []


def scatters(rank: int, device: str) -> Any:
    made = torch.zeros(4, dtype=torch.int64).to(device)
    dist.scatter(made, [numbers(10 * r, device) for r in range(RANKS)] if rank == 0 else None, 0)
    return [made]


def messages(rank: int, device: str) -> Any:
    made = numbers(rank, device, count=LARGE)
    if rank == 0:
        dist.send(made, 2)
    elif rank == 2:
        dist.recv(made, 0)
    return [made.cpu()[::9999].contiguous()]


def objects(rank: int, device: str) -> Any:
    made: list[Any] = [None] * RANKS
    dist.all_gather_object(made, {"rank": rank})
    dist.barrier()
    return [torch.tensor([one["rank"] for one in made])]


COLLECTIVES: dict[str, Callable[[int, str], Any]] = {
    "all_reduce": all_reduces,
    "all_gather": all_gathers,
    "all_gather, large": large_gathers,
    "broadcast": broadcasts,
    "reduce": reduces,
    "scatter": scatters,
    "send, recv": messages,
    "all_gather_object, barrier": objects,
}


def all_collectives(rank: int, device: str) -> dict[str, list[str]]:
    return {
        name: [f"{one.dtype} {one.tolist()}" for one in collective(rank, device)]
        for name, collective in COLLECTIVES.items()
    }


def gathered(rank: int) -> list[int]:
    """The sum of each rank's numbers, by all_gather."""
    return [int(one.cpu().sum()) for one in all_gathers(rank, "npu")]


def killed(rank: int, _: str) -> Any:
    gathered(rank)
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return gathered(rank)


def refusing(rank: int, _: str) -> Any:
    """One rank asks for what is not emulated: its part never reaches the others."""
    gathered(rank)
    made = numbers(rank, "npu")
    if rank == 2:
        made = (made.float().exp() * 0 + 1).to(torch.int64)
    dist.all_reduce(made)
    return made.cpu().tolist()


def different(rank: int, _: str) -> Any:
    gathered(rank)
    return gathered(rank) if rank else all_reduces(rank, "npu")[0].cpu().tolist()


def stopped(rank: int, _: str) -> Any:
    """A peer that only stands still: HCCL's time limit."""
    gathered(rank)
    if rank == 2:
        signal.alarm(4)
        signal.pause()
    return gathered(rank)


TROUBLE: dict[str, Callable[[int, str], Any]] = {
    "a rank is killed": killed,
    "a rank's operator is refused": refusing,
    "ranks differ": different,
    "a rank stands still": stopped,
}


def rank_main(what: Callable[[int, str], Any], backend: str, rank: int, meeting: str) -> Any:
    if backend == "hccl":
        torch.npu.set_device(rank)  # type: ignore[attr-defined]
    dist.init_process_group(backend, f"file://{meeting}", timedelta(seconds=60), RANKS, rank)
    started = time.monotonic()
    try:
        return what(rank, "npu" if backend == "hccl" else "cpu")
    except RuntimeError as error:
        return {"error": str(error).splitlines()[0], "seconds": time.monotonic() - started}


def play(what: Callable[[int, str], Any], backend: str) -> list[Any]:
    """What each rank brings back; None for one that was killed. Each is a fork."""
    children = []
    with tempfile.TemporaryDirectory() as place:
        for rank in range(RANKS):
            reading, writing = os.pipe()
            pid = os.fork()
            if pid == 0:
                with os.fdopen(writing, "w") as pipe:
                    json.dump(rank_main(what, backend, rank, os.path.join(place, "meeting")), pipe)
                os._exit(0)
            os.close(writing)
            children.append((pid, reading))
        found = []
        for pid, reading in children:
            with os.fdopen(reading) as pipe:
                found.append(json.loads(pipe.read() or "null"))
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return found


def main() -> None:
    import torch_npu  # noqa: F401

    results = {backend: play(all_collectives, backend) for backend in ("gloo", "hccl")}
    os.environ["HCCL_EXEC_TIMEOUT"] = "1"
    trouble = {name: play(what, "hccl") for name, what in TROUBLE.items()}
    print(json.dumps({**results, "trouble": trouble}))


if __name__ == "__main__":
    main()
