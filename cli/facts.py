"""What a record says about the environment: versions and kinds, never names of machines, users or places."""

from __future__ import annotations

import importlib.metadata
import os
import platform

from rallypoint.impl.etcd_server import find_etcd
from rallypoint.model.errors import UnusableError

PACKAGES = ("rallypoint", "torch", "torch-npu", "python-etcd", "urllib3")


def facts() -> dict[str, str]:
    """Name and version, or "not installed"; nothing of it is imported."""
    found = {
        "system": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
        "Python": platform.python_version(),
    }
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    try:
        found["etcd"] = find_etcd().version
    except UnusableError as error:
        found["etcd"] = f"none: {error.what}"
    return found
