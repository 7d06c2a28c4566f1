"""``rallypoint conform`` on test files of our own in the shape of PyTorch's."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from rallypoint.cli import conform, patches
from rallypoint.cli.conform_child import OURS, PACKAGE, UPSTREAM
from rallypoint.cli.conform_npu import Npu
from rallypoint.cli.conform_run import HARNESS_FAILED, HOLDS, NOT_CHECKED, VIOLATED, Run, _bounded, judged, run
from rallypoint.cli.conform_tests import API, ENVIRONMENT, TEST_BUG, Failure, TestFile, find_tests, reason_of
from rallypoint.cli.main import main
from rallypoint.model.errors import UnusableError

OLD_SERVER = """
import unittest
from torch.distributed.elastic.rendezvous.etcd_rendezvous import EtcdRendezvous, EtcdRendezvousHandler

class OldTest(unittest.TestCase):
    def test_meets(self):
        met = EtcdRendezvous(prefix="é", run_id="1")
        again = EtcdRendezvous(prefix="/absolute", run_id="1")
        handler = EtcdRendezvousHandler(met); other = EtcdRendezvousHandler(
            again)
        complete = EtcdRendezvousHandler(met, None)
"""

MIXED = """
import unittest
from helper_test import Helper
from torch.distributed.elastic.rendezvous.etcd_server import EtcdServer
from torch.distributed.elastic.rendezvous.etcd_store import EtcdStore

class GoodTest(unittest.TestCase, Helper):
    @classmethod
    def setUpClass(cls):
        cls.server = EtcdServer()
        cls.server.start()

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def test_client(self):
        self.assertTrue(self.server.get_client().version)

    @unittest.skip("not here")
    def test_skipped(self):
        raise AssertionError

class BadTest(unittest.TestCase):
    def test_failed(self):
        self.assertEqual(1, 2)

    def test_error(self):
        raise KeyError("gone") from OSError("because")

    def test_parts(self):
        for number in range(3):
            with self.subTest(number=number):
                self.assertNotEqual(number, 1)

class UnpreparedTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        raise OSError(98, "Address already in use")

    def test_never(self):
        pass
"""

ABSENT = Npu(False, "torch_npu is not installed")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with one test file and its helper, as PyTorch's backend test has one."""
    folder = tmp_path / "tests"
    folder.mkdir()
    (folder / "etcd_mixed_test.py").write_text(MIXED)
    (folder / "helper_test.py").write_text("class Helper:\n    def test_inherited(self):\n        pass\n")
    return folder


def test_the_record_tells_each_test_apart(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(conform, "find_npu", lambda: ABSENT)
    report, record = tmp_path / "report.json", tmp_path / "record.md"
    asked = ["conform", "--tests", str(folder), "--json", str(report), "--record", str(record), "--lang", "zh"]
    assert main(asked) == 1
    told = json.loads(report.read_text())
    runs = {(one["side"], one["torch_npu"]): one for one in told["runs"]}
    for side, package in ((UPSTREAM, PACKAGE), (OURS, "rallypoint.impl")):
        of_side = runs[side, False]
        assert of_side["verdict"] == VIOLATED, "the failures of BadTest are the API's, as far as anybody can tell"
        assert of_side["modules"] == [f"{package}.etcd_server", f"{package}.etcd_store"]
        outcomes = {one["test"].rpartition(".")[2]: one for one in of_side["tests"]}
        assert {name: one["outcome"] for name, one in outcomes.items()} == {
            "test_client": "ok",
            "test_inherited": "ok",
            "test_skipped": "skipped",
            "test_failed": "failed",
            "test_error": "error",
            "test_parts": "failed",
            "test_never": "error",
        }
        assert outcomes["test_error"]["error"] == "KeyError: 'gone'"
        assert outcomes["test_never"]["reason"]["kind"] == ENVIRONMENT
        assert (of_side["ran"], of_side["ok"]) == (6, 2)
        assert runs[side, True]["verdict"] == NOT_CHECKED
    text = record.read_text()
    assert "| etcd_mixed_test | 2/6 不成立 | 2/6 不成立 | 未检查 | 未检查 |" in text
    assert "未安装 torch_npu" in text
    assert str(tmp_path) not in text
    assert "端口：无法绑定" in capsys.readouterr().out


def test_a_checkout_or_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "test" / "distributed" / "elastic" / "rendezvous"
    folder.mkdir(parents=True)
    for name in ("etcd_server_test.py", "dynamic_rendezvous_test.py", "rendezvous_backend_test.py", "api_test.py"):
        (folder / name).write_text("")
    for named in (tmp_path, folder):
        assert [file.name for file in find_tests(named)] == ["dynamic_rendezvous_test", "etcd_server_test"]
    with pytest.raises(UnusableError, match="name a checkout"):
        find_tests(tmp_path / "test")


def test_a_server_test_without_local_addr_is_repaired_in_a_copy(tmp_path: Path) -> None:
    path = tmp_path / "etcd_server_test.py"
    path.write_text(OLD_SERVER)
    before, after = find_tests(tmp_path)
    assert (before.text, before.repaired) == (OLD_SERVER, False)
    assert path.read_text() == OLD_SERVER
    expected = OLD_SERVER.replace('prefix="é"', "prefix='/é'").replace(
        "Handler(met);", 'Handler(met, local_addr="127.0.0.1");'
    )
    assert after.text == expected.replace("again)\n", 'again, local_addr="127.0.0.1")\n')
    assert after.name == "etcd_server_test (repaired)"
    assert after.incomplete_calls == []


def failure(error: str, text: str = "", trace: str = "", causes: str = "", name: str = "etcd_server_test") -> Failure:
    return Failure(UPSTREAM, TestFile(Path(f"{name}.py"), text), error, causes, trace)


@pytest.mark.parametrize(
    ("failed", "kind", "said"),
    [
        (failure("FileNotFoundError: [Errno 2] No such file or directory: '/x/etcd'"), ENVIRONMENT, "missing binary"),
        (
            failure("RuntimeError: x", causes="EtcdException: 404 page not found"),
            ENVIRONMENT,
            "no v2 API",
        ),
        (failure("ModuleNotFoundError: No module named 'etcd'"), ENVIRONMENT, "python-etcd is missing"),
        (failure("ModuleNotFoundError: No module named 'expecttest'"), ENVIRONMENT, "a Python package"),
        (failure("OSError: [Errno 98] Address already in use"), ENVIRONMENT, "port"),
        (failure("TypeError: missing 1 argument: 'local_addr'", OLD_SERVER), TEST_BUG, "without local_addr"),
        (failure("TypeError: missing 1 argument: 'local_addr'"), API, "local_addr"),
        (
            failure("AssertionError: x", 'patch("dynamic_rendezvous.datetime").utcnow.return_value = 1', "<MagicMock "),
            TEST_BUG,
            "utcnow",
        ),
        (
            failure(
                "InvalidSpecError: x", 'patch("dynamic_rendezvous.datetime").utcnow.return_value = 1', "<MagicMock "
            ),
            TEST_BUG,
            "the spec of a mock",
        ),
        (failure("UnboundLocalError: s", name="etcd_find_free_port_test"), API, "R74"),
        (failure("AssertionError: 1 != 2"), API, "1 != 2"),
    ],
)
def test_the_reason_of_a_failure(failed: Failure, kind: str, said: str) -> None:
    reason = reason_of(failed)
    assert reason.kind == kind
    assert said in reason.text


EMPTY = Run(TestFile(Path("etcd_x_test.py"), ""), OURS, False)
LOADED: dict[str, Any] = {
    "kind": "loaded",
    "versions": {},
    "sources": {"EtcdServer": "rallypoint.impl.etcd_server"},
    "torch_npu_loaded": False,
    "tests": ["m.C.test_a", "m.C.test_b", "m.C.test_c"],
}
ENDED_A: dict[str, Any] = {"kind": "ended", "test": "m.C.test_a", "outcome": "ok", "seconds": 1.0}


def test_findings_that_break_off_are_no_pass() -> None:
    lines = [LOADED, {"kind": "started", "test": "m.C.test_a"}, ENDED_A, {"kind": "started", "test": "m.C.test_b"}]
    result = judged(EMPTY, lines, "ended after 400 s")
    assert [one.outcome for one in result.outcomes] == ["ok", "error", "not run"]
    assert (result.verdict, result.ran, result.ok) == (VIOLATED, 2, 1)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], "died of SIGSEGV"),
        ([{**LOADED, "sources": {"EtcdServer": f"{PACKAGE}.etcd_server"}}, {"kind": "done"}], "wrong modules"),
        ([{**LOADED, "torch_npu_loaded": True}, {"kind": "done"}], "torch_npu was loaded"),
        ([{**LOADED, "tests": []}, {"kind": "done"}], "no test"),
    ],
)
def test_findings_that_are_no_evidence(lines: list[dict[str, Any]], said: str) -> None:
    result = judged(EMPTY, lines, "the process died of SIGSEGV")
    assert result.verdict == HARNESS_FAILED
    assert said in result.broken


def test_only_what_ran_holds() -> None:
    skipped = [{"kind": "ended", "test": test, "outcome": "skipped"} for test in LOADED["tests"]]
    assert judged(EMPTY, [LOADED, *skipped, {"kind": "done"}], "").verdict == NOT_CHECKED
    passed = [{**ENDED_A, "test": test} for test in LOADED["tests"]]
    assert judged(EMPTY, [LOADED, *passed, {"kind": "done"}], "").verdict == HOLDS


def test_a_child_that_hangs_is_ended_with_what_it_started(tmp_path: Path) -> None:
    pause = "import signal; signal.pause()"
    code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', '{pause}']); {pause}"
    log, began = tmp_path / "log", time.monotonic()
    said = _bounded([sys.executable, "-c", code, str(tmp_path)], tmp_path, {}, log, 2)
    assert said == "ended after 2 s"
    assert time.monotonic() - began < 15
    dead = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
    assert signal.SIGSEGV.name in _bounded([sys.executable, "-c", dead], tmp_path, {}, log, 20)


def test_a_torch_npu_that_cannot_be_loaded_is_not_checked(folder: Path) -> None:
    result = run(find_tests(folder)[0], OURS, Npu(True, "torch_npu cannot be loaded: no C compiler"))
    assert result.verdict == NOT_CHECKED
    assert result.odd is not None
    assert "no C compiler" in result.odd.text


def test_what_was_patched_is_told_by_identity() -> None:
    same, before, after = object(), [1], [1]
    told = patches.changes({"m.a": same, "m.b": before, "m.c": 1}, {"m.a": same, "m.b": after, "m.d": 1})
    assert told == ["added m.d", "removed m.c", "replaced m.b"]


def test_a_new_patch_is_a_finding(tmp_path: Path) -> None:
    """The real comparison, of the real torch, with an extension that replaces one method more."""
    (tmp_path / "torch_npu.py").write_text(
        "import torch.distributed.elastic.rendezvous.etcd_store as store, torch.distributed as dist\n"
        "__version__ = '2.13.0'\nstore.EtcdStore.get = lambda self, key: b''\ndist.gather = None\n"
    )
    found = patches.find_patches({**os.environ, "PYTHONPATH": str(tmp_path)})
    assert found.unexpected == [f"replaced {PACKAGE}.etcd_store.EtcdStore.get"]
    assert found.beside == 1
    assert set(found.gone) == patches.SEEN


def test_patches_without_torch_npu_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(patches, "find_npu", lambda: ABSENT)
    assert main(["doctor", "--patches"]) == 2
    assert "torch_npu is not installed" in capsys.readouterr().err
