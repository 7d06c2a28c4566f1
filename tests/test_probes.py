"""The probes of ``rallypoint doctor`` against environments that are broken in one way each."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest
from rallypoint.cli import probes
from rallypoint.cli.conditions import Finding, Probe, Verdict, examine, run


def healthy() -> Finding:
    print("this is not the answer")
    return Finding(Verdict.OK, "fine — ünïcode", "")


def crashing() -> Finding:
    os.kill(os.getpid(), signal.SIGSEGV)
    return healthy()


def failing() -> Finding:
    raise RuntimeError("no such thing")


def hanging(pid_file: str) -> Finding:
    Path(pid_file).write_text(str(os.getpid()))
    signal.pause()
    return healthy()


def missing() -> Finding:
    return Finding(Verdict.MISSING, "not there", "get one")


def test_a_finding_comes_back_whole() -> None:
    assert run(Probe("healthy", healthy)) == Finding(Verdict.OK, "fine — ünïcode", "")


def test_a_crash_is_a_finding() -> None:
    finding = run(Probe("crashing", crashing))
    assert finding.verdict is Verdict.BROKEN
    assert "SIGSEGV" in finding.found


def test_an_exception_is_a_finding() -> None:
    finding = run(Probe("failing", failing))
    assert (finding.verdict, finding.found) == (Verdict.BROKEN, "RuntimeError: no such thing")


def test_a_hang_is_ended_in_time(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    began = time.monotonic()
    finding = run(Probe("hanging", hanging, seconds=5, arguments=(str(pid_file),)))
    assert (finding.verdict, finding.found) == (Verdict.BROKEN, "no answer in 5 s")
    assert time.monotonic() - began < 9
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text()), 0)


def test_no_child_process_means_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    assert run(Probe("healthy", healthy)).verdict is Verdict.NOT_CHECKED


def test_what_needs_an_unmet_condition_is_not_checked() -> None:
    chain = [
        Probe("first", missing),
        Probe("second", healthy, needs=("first",)),
        Probe("third", healthy, needs=("second",)),
    ]
    found = {condition.name: condition for condition in examine(chain)}
    assert found["second"].verdict is Verdict.NOT_CHECKED
    assert found["second"].found == "needs: first"
    assert found["third"].found == "needs: second"
    assert not any(condition.met for condition in found.values())


def test_what_only_an_option_needs_is_absent_not_missing() -> None:
    (condition,) = examine([Probe("npu", missing, only_for="NPU workers")])
    assert condition.todo == missing().todo
    assert condition.verdict is Verdict.ABSENT
    assert condition.found == "not there; needed only for NPU workers"
    assert condition.met


def probe(name: str) -> Probe:
    return next(probe for probe in probes.ENVIRONMENT if probe.name == name)


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose modules come before the installed ones."""
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_another_package_named_etcd_is_not_python_etcd(modules: Path) -> None:
    (modules / "etcd.py").write_text("VERSION = 2\n")
    finding = run(probe("python-etcd"))
    assert finding.verdict is Verdict.BROKEN
    assert str(modules / "etcd.py") in finding.found


def test_no_module_etcd_is_missing(modules: Path) -> None:
    (modules / "etcd.py").write_text("raise ModuleNotFoundError('gone', name='etcd')\n")
    assert run(probe("python-etcd")) == Finding(Verdict.MISSING, "no module etcd", "pip install python-etcd")


def test_a_urllib3_that_python_etcd_cannot_use_is_found(modules: Path) -> None:
    (modules / "etcd.py").write_text("class Client: pass\n")
    (modules / "urllib3.py").write_text("__version__ = '2.6.0'\nclass HTTPResponse: pass\n")
    finding = run(probe("python-etcd"))
    assert finding.verdict is Verdict.BROKEN
    assert finding.todo == "pip install 'urllib3!=2.6.0'"


@pytest.mark.parametrize(
    ("code", "verdict", "said"),
    [
        ("raise ModuleNotFoundError('gone', name='torch')", Verdict.MISSING, "no module torch"),
        ("raise ModuleNotFoundError('sympy is gone', name='sympy')", Verdict.BROKEN, "sympy is gone"),
        ("raise OSError('libgomp.so: cannot open')", Verdict.BROKEN, "import torch: OSError: libgomp.so: cannot open"),
        ("__version__ = '2.6.1+cpu'", Verdict.BROKEN, "2.6.1+cpu is older than 2.7"),
        (
            "__version__ = '2.13.0'\nclass distributed:\n is_available = staticmethod(lambda: False)",
            Verdict.BROKEN,
            "2.13.0 is a build without gloo process groups",
        ),
    ],
)
def test_a_torch_that_cannot_be_used(modules: Path, code: str, verdict: Verdict, said: str) -> None:
    (modules / "torch.py").write_text(code + "\n")
    finding = run(probe("torch"))
    assert finding.verdict is verdict
    assert said in finding.found


def test_torch_npu_without_cann(modules: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = "raise ImportError('libascendcl.so: cannot open shared object file')\n"
    (modules / "torch_npu.py").write_text(refusal)
    (modules / "torch.py").write_text(
        f"import os\nif os.environ.get('{probes.AUTOLOAD}', '1') == '1':\n    import torch_npu\n"
        "__version__ = '2.13.0'\nclass distributed:\n is_available = is_gloo_available = staticmethod(lambda: True)\n"
    )
    not_a_library(modules, monkeypatch)
    monkeypatch.delenv(probes.AUTOLOAD, raising=False)
    for name in ("torch", "device autoload"):
        finding = run(probe(name))
        assert finding.verdict is Verdict.BROKEN
        assert f"export {probes.AUTOLOAD}=0" in finding.todo
    (condition,) = examine([probe("torch_npu")])
    assert condition.verdict is Verdict.BROKEN
    assert "libascendcl.so" in condition.found
    assert condition.met
    monkeypatch.setenv(probes.AUTOLOAD, "0")
    for name in ("torch", "device autoload"):
        assert run(probe(name)).verdict is Verdict.OK


def not_a_library(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "libascendcl.so").write_bytes(b"not an ELF file" * 100)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(folder))


def test_a_cann_library_that_cannot_be_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    not_a_library(tmp_path, monkeypatch)
    finding = run(probe("CANN"))
    assert finding.verdict is Verdict.BROKEN
    assert "libascendcl.so" in finding.found


def test_a_temporary_directory_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "write_bytes", refuse_to_write)
    assert probes.temporary_directory().verdict is Verdict.BROKEN


def refuse_to_write(path: Path, data: bytes) -> int:
    raise OSError(28, "No space left on device")


def test_a_localhost_that_cannot_be_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    outside = [(2, 1, 6, "", ("192.0.2.1", 0))]
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: outside)
    finding = probes.localhost_port()
    assert finding.verdict is Verdict.BROKEN
    assert finding.found.startswith("192.0.2.1: ")


@pytest.mark.parametrize(
    ("absent", "verdict", "todo"),
    [
        ({"libatb.so"}, Verdict.BROKEN, "NNAL"),
        ({"libopapi.so", "libhccl.so"}, Verdict.BROKEN, "kernels"),
        (set(probes.CANN_LIBRARIES), Verdict.MISSING, "the CANN toolkit"),
    ],
)
def test_a_cann_library_that_is_missing_is_named_with_its_remedy(
    monkeypatch: pytest.MonkeyPatch, absent: set[str], verdict: Verdict, todo: str
) -> None:
    def load(name: str) -> None:
        if name in absent:
            raise OSError(f"{name}: cannot open shared object file: No such file or directory")

    monkeypatch.setattr("ctypes.CDLL", load)
    monkeypatch.delenv("ASCEND_TOOLKIT_HOME", raising=False)
    monkeypatch.delenv("ASCEND_HOME_PATH", raising=False)
    finding = probes.cann()
    assert finding.verdict is verdict
    assert {name for name in probes.CANN_LIBRARIES if name in finding.found} == absent
    assert todo in finding.todo


def test_a_torch_npu_apart_from_other_packages_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch_npu").mkdir()
    (tmp_path / "torch_npu" / "__init__.py").touch()
    (tmp_path / "torch_npu-2.13.0.dist-info").mkdir()
    monkeypatch.setenv("RALLYPOINT_NPU", str(tmp_path))
    finding = probes._torch_npu_apart()
    assert finding.verdict is Verdict.OK
    assert finding.found.startswith("2.13.0, apart")


def test_without_a_compiler_there_is_no_emulation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "/nonexistent/cc")
    (condition,) = examine([probe("CANN emulation")])
    assert condition.verdict is Verdict.ABSENT
    assert "/nonexistent/cc" in condition.found
    assert "CC=" in condition.todo
    assert condition.met
