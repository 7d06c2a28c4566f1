"""The emulation is built once, whole or not at all, and what it needs is said in one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from rallypoint.model.errors import UnusableError
from rallypoint.npu import build, cann
from rallypoint.npu.cann import Cann

BUILD = "from rallypoint.npu.cann import find_cann; print(find_cann(2).environment['LD_LIBRARY_PATH'])"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cann: Cann) -> Path:
    """An empty cache, where the emulation would be built."""
    if not cann.emulated:
        pytest.skip("not checked: the build of the emulation: there is a real NPU")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_without_a_compiler_one_line_says_so(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "COMPILER", "/nowhere/cc")
    with pytest.raises(UnusableError, match=r"^no C compiler.*\(/nowhere/cc\): install gcc.*$"):
        cann.find_cann(2)
    assert list(cache.rglob("*.so")) == []


def test_a_text_that_does_not_compile_is_shown(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "FLAGS", [*build.FLAGS, "-no-such-flag"])
    with pytest.raises(UnusableError, match="does not compile"):
        cann.find_cann(2)
    assert list(cache.rglob("*.so")) == []


def test_a_cache_that_cannot_be_written_is_named(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = cache / "file"
    file.touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(file))
    with pytest.raises(UnusableError, match="set XDG_CACHE_HOME"):
        cann.find_cann(2)


def test_without_torch_npu_one_line_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cann.PLACE, str(tmp_path))
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(UnusableError, match=r"^no torch_npu .*: pip install --no-deps --target"):
        cann.find_cann(2)


@pytest.mark.slow
def test_two_that_build_at_once_end_with_one_build(cache: Path) -> None:
    running = [subprocess.Popen([sys.executable, "-c", BUILD], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate(timeout=240)[0] for process in running]
    assert [process.returncode for process in running] == [0, 0]
    assert said[0] == said[1]
    assert len(list((cache / "rallypoint" / "npu").iterdir())) == 1
