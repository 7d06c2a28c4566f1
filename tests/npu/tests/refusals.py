"""As a script: what torch operations beyond the emulated ones give on an NPU, each in a fork, as JSON.

An outcome is "same" (as on a CPU), "refused", or what else came back: that would be made-up data.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from typing import Any

import torch

Operation = Callable[[torch.Tensor, torch.Tensor], Any]

OPERATIONS: dict[str, Operation] = {
    "matmul": lambda a, b: a @ b,
    "linear": torch.nn.functional.linear,
    "exp": lambda a, b: a.exp(),
    "abs": lambda a, b: a.abs(),
    "neg": lambda a, b: -a,
    "div": lambda a, b: a / b,
    "pow": lambda a, b: a**2,
    "sqrt": lambda a, b: a.sqrt(),
    "mean": lambda a, b: a.mean(),
    "max": lambda a, b: a.max(),
    "argmax": lambda a, b: a.argmax(),
    "sort": lambda a, b: a.sort().values,
    "topk": lambda a, b: a.topk(2).values,
    "cumsum": lambda a, b: a.cumsum(0),
    "softmax": lambda a, b: a.softmax(0),
    "relu": lambda a, b: a.relu(),
    "where": lambda a, b: torch.where(a > b, a, b),
    "masked": lambda a, b: a[a > 1],
    "index": lambda a, b: a[torch.tensor([1, 0], device=a.device)],
    "index_put": lambda a, b: a.index_put((torch.tensor([1], device=a.device),), torch.tensor(9.0, device=a.device)),
    "gather": lambda a, b: a.gather(0, torch.zeros(1, 3, dtype=torch.int64, device=a.device)),
    "arange": lambda a, b: torch.arange(5, device=a.device),
    "linspace": lambda a, b: torch.linspace(0, 1, 5, device=a.device),
    "eye": lambda a, b: torch.eye(3, device=a.device),
    "stack": lambda a, b: torch.stack([a, b]),
    "equal": lambda a, b: torch.tensor(float(torch.equal(a, b))),
    "all": lambda a, b: (a > 0).all(),
    "any": lambda a, b: (a > 0).any(),
    "nonzero": lambda a, b: a.nonzero(),
    "tril": lambda a, b: a.tril(),
    "norm": lambda a, b: a.norm(),
    "flip": lambda a, b: a.flip(0),
    "repeat": lambda a, b: a.repeat(2, 2),
    "isnan": lambda a, b: a.isnan(),
    "clamp": lambda a, b: a.clamp(1, 2),
    "round": lambda a, b: a.round(),
    "complex product": lambda a, b: (a.to(torch.complex64) * b.to(torch.complex64)).real,
    "gradient": lambda a, b: torch.autograd.grad((a.requires_grad_() * b).sum(), a)[0],
}


def refused_before(a: torch.Tensor, b: torch.Tensor) -> Any:
    """What is on the device already is out of reach, too, once something was refused and nobody looked."""
    with contextlib.suppress(RuntimeError):
        (a @ b).cpu()
    return a.cpu()


def refused_again(a: torch.Tensor, b: torch.Tensor) -> Any:
    """torch_npu raises an error of its queue once; then it skips what is queued, and would return what memory held."""
    with contextlib.suppress(RuntimeError):
        (a @ b).cpu()
    return (a + b).cpu()


def refused_unseen(a: torch.Tensor, b: torch.Tensor) -> Any:
    """A queued operator that is refused spoils those behind it."""
    c = a @ b
    return (c * 0 + a).cpu()


OPERATIONS["after a refusal"] = refused_before
OPERATIONS["an operation after a refusal"] = refused_again
OPERATIONS["behind a refusal"] = refused_unseen


def operands(device: str) -> tuple[torch.Tensor, torch.Tensor]:
    a = torch.tensor([[3.0, 1.0, 2.0], [0.5, 2.0, 8.0], [1.0, 1.0, 4.0]])
    return a.to(device), a.t().contiguous().to(device)


def outcome(operation: Operation) -> str:
    expected = operation(*operands("cpu")).detach()
    try:
        given = operation(*operands("npu:0")).detach().cpu()
    except RuntimeError:
        return "refused"
    same = given.dtype == expected.dtype and given.tolist() == expected.tolist()
    return "same" if same else f"{given} where {expected} is due"


def main() -> None:
    import torch_npu  # noqa: F401

    found = {}
    for name, operation in OPERATIONS.items():
        reading, writing = os.pipe()
        if os.fork() == 0:
            with os.fdopen(writing, "w") as pipe:
                pipe.write(outcome(operation))
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            found[name] = pipe.read()
        _, status = os.wait()
        if not found[name]:
            found[name] = f"ended with {status}"
    print(json.dumps(found))


if __name__ == "__main__":
    main()
