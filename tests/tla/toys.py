"""Runs of the toy specifications in ``specs/``."""

from __future__ import annotations

from pathlib import Path

from rallypoint.tla.tlc import Job

SPECS = Path(__file__).parent / "specs"
CONSTANTS = 'CONSTANT Max = 3\nCONSTANT Wraps = {}\nCONSTANT Name = "toy"\n'


def job(specification: str = "Spec", checked: str = "", *, wraps: bool = True, module: str = "Counter") -> Job:
    cfg = f"SPECIFICATION {specification}\n{CONSTANTS.format(str(wraps).upper())}{checked}\n"
    return Job(SPECS, module, cfg)
