"""What NPU processes run on: real devices if there are any, else the emulation; and what every report says about it.

May live here: finding torch_npu and the driver, and the environment of an NPU process. Must not live here: how the
emulation is built (``build.py``), and what a worker does on a device (``worker.py``).

This module imports neither torch nor torch_npu: their processes get an environment of their own.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from rallypoint.model.errors import UnusableError
from rallypoint.npu import build

DRIVER = Path("/dev/davinci_manager")  # there where Ascend's driver is loaded
PLACE = "RALLYPOINT_NPU"
REMEDY = f"pip install --no-deps --target DIRECTORY torch-npu pyyaml, and set {PLACE}=DIRECTORY"
IMPORTING = 120.0  # seconds for torch and torch_npu on a busy machine
# A group with a dead member must break soon, and as an error of its call; torch_npu would end the process.
GROUPS = {
    "HCCL_CONNECT_TIMEOUT": "120",
    "HCCL_EXEC_TIMEOUT": "120",
    "TORCH_HCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
}
ASK = """
import json, torch, torch_npu
devices = torch.npu.device_count()
print("NPU " + json.dumps([devices, torch.npu.get_device_name(0) if devices else ""]))
"""


@dataclass(frozen=True, slots=True)
class Cann:
    """``text``: what reports say. ``environment``: of a process that uses the devices; only for such a process."""

    emulated: bool
    devices: int
    text: str
    environment: dict[str, str] = field(repr=False)


def find_cann(devices: int) -> Cann:
    """At least ``devices`` NPUs: real ones where Ascend's driver is loaded, else emulated ones, as many as asked for.

    Raises UnusableError without torch_npu, without a C compiler where the emulation must be built, and when there are
    fewer real devices.
    """
    torch_npu = find_torch_npu()
    if DRIVER.exists():
        return _real(devices, torch_npu)
    torch = _package("torch", "install torch")
    if clashes_with_cuda(torch):
        raise UnusableError(
            "this torch_npu does not import beside CUDA's part of torch", str(torch), "install torch's CPU build"
        )
    libraries = build.built(torch, torch_npu, version_of(torch_npu))
    surroundings = build.environment(libraries, torch_npu) | GROUPS | {"RALLYPOINT_EMULATED_NPUS": str(devices)}
    return Cann(True, devices, f"CANN: emulated ({devices} devices)", surroundings)


def clashes_with_cuda(torch: Path) -> bool:
    """From 2.12 on both register one option of their allocators, and the second one ends the process."""
    text = (torch / "version.py").read_text(encoding="utf-8")
    number = re.search(r"^__version__ = '(\d+)\.(\d+)", text, re.M)
    cuda = re.search(r"^cuda\b.*= '", text, re.M)
    return bool(cuda and number and (int(number[1]), int(number[2])) >= (2, 12))


def find_torch_npu() -> Path:
    """The folder of the package torch_npu: under ``$RALLYPOINT_NPU``, ``sys.path``, or the folder ``npu`` of this
    Python's environment. Raises UnusableError if it is in none of them."""
    for place in (os.environ.get(PLACE), os.path.join(sys.prefix, "npu")):
        if place and Path(place, "torch_npu", "__init__.py").is_file():
            return Path(place, "torch_npu").resolve()
    return _package("torch_npu", REMEDY)


def version_of(torch_npu: Path) -> str:
    """The version that its distribution has; "unknown" without one."""
    names = [folder.name for folder in torch_npu.parent.glob("torch_npu-*.dist-info")]
    return names[0].removeprefix("torch_npu-").removesuffix(".dist-info") if names else "unknown"


def _package(name: str, remedy: str) -> Path:
    found = importlib.util.find_spec(name)
    if found is None or not found.submodule_search_locations:
        raise UnusableError(f"no {name}", sys.executable, remedy)
    return Path(found.submodule_search_locations[0]).resolve()


def _real(devices: int, torch_npu: Path) -> Cann:
    path = os.pathsep.join(filter(None, [str(torch_npu.parent), os.environ.get("PYTHONPATH")]))
    surroundings = {**os.environ, **GROUPS, "PYTHONPATH": path}
    ran = subprocess.run(
        [sys.executable, "-c", ASK], env=surroundings, capture_output=True, text=True, timeout=IMPORTING, check=False
    )
    answers = [line for line in ran.stdout.splitlines() if line.startswith("NPU ")]
    if ran.returncode or not answers:
        last = (ran.stderr.strip().splitlines() or ["no output"])[-1]
        raise UnusableError("the NPU cannot be used", last, "source CANN's set_env.sh, then try again")
    count, name = json.loads(answers[-1].removeprefix("NPU "))
    if count < devices:
        raise UnusableError(f"{count} NPUs where {devices} are needed", name, "ask for fewer with --nproc")
    return Cann(False, count, f"CANN {_cann_version()}, {count} x {name}", surroundings)


def _cann_version() -> str:
    """From the file that CANN's installer writes; "of unknown version" if there is none."""
    home = os.environ.get("ASCEND_HOME_PATH") or os.environ.get("ASCEND_TOOLKIT_HOME") or ""
    for file in sorted(Path(home).glob("*-linux/ascend_toolkit_install.info")) if home else []:
        for line in file.read_text(errors="replace").splitlines():
            if line.startswith("version="):
                return line.removeprefix("version=")
    return "of unknown version"
