"""Fixtures for what needs torch_npu: on real NPUs if there are any, else on the emulation."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rallypoint.model.errors import UnusableError
from rallypoint.npu.cann import Cann, clashes_with_cuda, find_cann

HERE = Path(__file__).parent
DEVICES = 4
PATIENCE = 120.0  # seconds for one script: it imports torch_npu on a busy machine

Script = Callable[..., Any]


@pytest.fixture(scope="session")
def cann() -> Cann:
    """What NPU workers run on. Where nothing can: not checked, and in CI a failure, but for a torch that cannot."""
    try:
        found = find_cann(DEVICES)
    except UnusableError as error:
        if os.environ.get("CI") and not clashes_with_cuda(Path(torch.__path__[0])):
            pytest.fail(str(error))
        pytest.skip(f"not checked: NPU workers: {error}")
    warnings.warn(pytest.PytestWarning(found.text), stacklevel=1)  # in the summary of every run
    return found


@pytest.fixture(scope="session")
def script(cann: Cann) -> Script:
    """Run a script of this folder where NPUs are; what it printed last, read as JSON."""

    def run(name: str, *arguments: str, **variables: str) -> Any:
        command = [sys.executable, str(HERE / name), *arguments]
        surroundings = cann.environment | variables
        ran = subprocess.run(command, env=surroundings, capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert ran.returncode == 0, ran.stderr[-3000:]
        if cann.emulated:
            assert cann.text in ran.stderr  # always announced
        return json.loads(ran.stdout.splitlines()[-1])

    return run
