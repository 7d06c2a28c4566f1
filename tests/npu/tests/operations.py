"""The operations that are emulated, each as a function of the device. As a script: what they give on an NPU, as JSON.

docs/npu.md lists them by these names.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import torch

WHOLE = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
REAL = (torch.float16, torch.bfloat16, torch.float32)  # torch_npu makes float32 of a float64 on these devices
EVERY = (*WHOLE, *REAL, torch.bool)
VALUES = [0, 1, 2, 3, 5, 100]


def tensor(device: str, dtype: torch.dtype, values: list[Any] = VALUES) -> torch.Tensor:
    return torch.tensor(values).to(dtype).to(device)


def copies(device: str) -> Any:
    return [tensor(device, dtype).clone().cpu() for dtype in (*EVERY, torch.complex64)]


def strided_copies(device: str) -> Any:
    square = torch.arange(12).reshape(3, 4).to(device)
    target = torch.zeros(4, 3, dtype=torch.int64).to(device)
    target[1:, ::2] = square.t()[1:, ::2]
    return [square.t().contiguous(), square[:, 1:3].contiguous(), square[1].expand(2, 4).contiguous(), target]


def casts(device: str) -> Any:
    pairs = [(a, b) for a in EVERY for b in EVERY]
    return [tensor(device, a).to(b) for a, b in pairs]


def roundings(device: str) -> Any:
    awkward = [1 + 2**-11, 1 + 3 * 2**-11, 65519.0, 65520.0, 6e-8, 2.9e-8, 3e-8, -1e-5, 1e38, 3.4e38, float("inf")]
    return [torch.tensor(awkward).to(device).to(dtype).float() for dtype in REAL]


def fills(device: str) -> Any:
    made = [torch.zeros(2, 3, dtype=d, device=device) for d in EVERY]
    made += [torch.ones(2, 3, dtype=d, device=device) for d in EVERY]
    made += [torch.full((5,), 3, dtype=d, device=device) for d in (*WHOLE, *REAL)]
    made += [torch.zeros_like(tensor(device, d)) for d in EVERY]
    made += [torch.empty(4, dtype=d, device=device).fill_(7) for d in (*WHOLE, *REAL)]
    return made + [tensor(device, d).zero_() for d in EVERY]


def arithmetic(device: str) -> Any:
    made = []
    for dtype in (*WHOLE, *REAL):
        a, b = tensor(device, dtype), tensor(device, dtype, [1, 2, 3, 100, 0, 100])
        made += [a + b, a - b, a * b, a + 3, a - 3, a * 3, torch.add(a, b, alpha=2), torch.sub(a, b, alpha=2)]
        c = a.clone()
        c += b
        c *= b
        c -= 1
        made.append(c)
    return made


def broadcasts(device: str) -> Any:
    column, row = torch.arange(3).reshape(3, 1).to(device), torch.arange(4).to(device)
    return [column + row, column * row, column - row, (column.float() * 0.5) + row.float(), column < row]


def numbers(device: str) -> Any:
    """Python's numbers are 64 bits wide, and torch rounds them first."""
    made = []
    for dtype in REAL:
        a = torch.tensor([0.1, 1.0, 2.5, -3.3], dtype=dtype).to(device)
        made += [a + 0.1, a * 0.1, a - 0.1, a == 0.1, a > 0.1, a <= 1]
    return made


def comparisons(device: str) -> Any:
    made = []
    for dtype in EVERY:
        a, b = tensor(device, dtype), tensor(device, dtype, [1, 1, 2, 0, 5, 99])
        made += [a == b, a != b, a < b, a <= b, a > b, a >= b, a == 1, a > 2]
    return made


def concatenations(device: str) -> Any:
    a, b = torch.arange(6).reshape(2, 3).to(device), torch.arange(6, 12).reshape(2, 3).to(device)
    return [torch.cat([a, b]), torch.cat([a, b], dim=1), torch.cat([a[:, :1], b, a], dim=-1)]


def paddings(device: str) -> Any:
    a = torch.arange(6).reshape(2, 3).to(device)
    pad = torch.nn.functional.pad
    return [pad(a, (0, 2)), pad(a, (1, 2, 3, 0), value=9), pad(a.float(), (0, 29), value=0.5)]


def sums(device: str) -> Any:
    made = []
    for dtype in (*WHOLE, *REAL):
        a = tensor(device, dtype, [[1, 2, 3], [4, 5, 6]])
        made += [a.sum(), a.sum(0), a.sum(1), a.sum(-1, keepdim=True), a.sum((0, 1))]
    return made


OPERATIONS: dict[str, Callable[[str], Any]] = {
    "copy": copies,
    "copy of views": strided_copies,
    "cast": casts,
    "rounding": roundings,
    "zeros, ones, full, fill_, zero_": fills,
    "+, -, *": arithmetic,
    "broadcasting": broadcasts,
    "Python numbers": numbers,
    "==, !=, <, <=, >, >=": comparisons,
    "cat": concatenations,
    "pad": paddings,
    "sum": sums,
}


def results(name: str, device: str) -> list[str]:
    """Each tensor with its type and shape, bit for bit."""
    tensors = [one.cpu() for one in OPERATIONS[name](device)]
    return [f"{one.dtype} {list(one.shape)} {one.tolist()}" for one in tensors]


def main() -> None:
    """Each in a fork: what is refused in one leaves the others alone."""
    import torch_npu  # noqa: F401

    found = {}
    for name in OPERATIONS:
        reading, writing = os.pipe()
        if os.fork() == 0:
            try:
                answer: Any = results(name, "npu:1")
            except RuntimeError as error:
                answer = str(error).splitlines()[0]
            with os.fdopen(writing, "w") as pipe:
                json.dump(answer, pipe)
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            found[name] = json.load(pipe)
        os.wait()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
