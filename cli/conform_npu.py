"""What torch_npu is loaded on for the tests: this machine's NPUs, the emulation of CANN, or nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rallypoint.model.errors import UnusableError
from rallypoint.npu.cann import find_cann, find_torch_npu

DEVICES = 2  # emulated ones; the tests use none, so that real ones are not needed either


@dataclass(frozen=True)
class Npu:
    """``text``: which CANN it is, or why torch_npu cannot be loaded. ``environment``: of a process that loads it; None
    if that cannot be done."""

    installed: bool
    text: str
    environment: Mapping[str, str] | None = field(default=None, repr=False)


def find_npu() -> Npu:
    """Builds the emulation where it is needed and not built yet (a minute)."""
    try:
        find_torch_npu()
    except UnusableError:
        return Npu(False, "torch_npu is not installed")
    try:
        cann = find_cann(DEVICES)
    except UnusableError as error:
        return Npu(True, f"torch_npu cannot be loaded: {error}")
    return Npu(True, cann.text, cann.environment)
