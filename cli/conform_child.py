"""One test file of PyTorch's, in a process of its own: the modules that it gets, and what came of each test.

May live here: what is imported for the test file, and unittest. Must not live here: what a failure means
(``conform_tests``). The findings go to a file, a JSON object a line, so that a crash or a hang loses none of them.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import traceback
import unittest
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, TracebackType
from typing import IO, Any, TypeAlias

UPSTREAM, OURS = "upstream", "ours"
PACKAGE = "torch.distributed.elastic.rendezvous"
REPLACED = ("etcd_server", "etcd_store", "etcd_rendezvous", "etcd_rendezvous_backend")

Raised: TypeAlias = "tuple[type[BaseException], BaseException, TracebackType] | tuple[None, None, None]"


class Recorder(unittest.TestResult):
    """Writes a line for each test that starts and for each that ends."""

    def __init__(self, report: IO[str]) -> None:
        super().__init__()
        self._report = report
        self._began = 0.0
        self._found: dict[str, str] = {}

    def startTest(self, test: unittest.TestCase) -> None:  # noqa: N802  (unittest's names)
        super().startTest(test)
        self._found = {"outcome": "ok"}
        say(self._report, "started", test=test.id())
        self._began = time.monotonic()

    def stopTest(self, test: unittest.TestCase) -> None:  # noqa: N802
        super().stopTest(test)
        say(self._report, "ended", test=test.id(), seconds=round(time.monotonic() - self._began, 3), **self._found)

    def addError(self, test: unittest.TestCase, err: Raised) -> None:  # noqa: N802
        super().addError(test, err)
        if isinstance(test, unittest.TestCase):
            self._note("error", err)
        else:  # unittest's stand-in for a class or module whose preparation failed: its tests never start
            say(self._report, "unprepared", test=test.id(), **told(err))

    def addFailure(self, test: unittest.TestCase, err: Raised) -> None:  # noqa: N802
        super().addFailure(test, err)
        self._note("failed", err)

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: Raised | None) -> None:  # noqa: N802
        super().addSubTest(test, subtest, err)
        if err is not None:
            self._note("failed" if isinstance(err[1], test.failureException) else "error", err)

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:  # noqa: N802
        super().addSkip(test, reason)
        self._found = {"outcome": "skipped", "error": reason}

    def addUnexpectedSuccess(self, test: unittest.TestCase) -> None:  # noqa: N802
        super().addUnexpectedSuccess(test)
        self._found = {"outcome": "failed", "error": "expected to fail, and did not"}

    def _note(self, outcome: str, err: Raised) -> None:
        """The first thing that went wrong in a test is the one that counts."""
        if self._found.get("outcome") == "ok":
            self._found = {"outcome": outcome, **told(err)}


def told(err: Raised) -> dict[str, str]:
    """An exception, with those that led to it, and the traceback."""
    error: BaseException | None = err[1]
    chain: list[str] = []
    while error is not None and len(chain) < 10:
        chain.append(f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
        error = error.__cause__ or error.__context__
    trace = "".join(traceback.format_exception(err[1])) if err[1] is not None else ""
    return {"error": chain[0] if chain else "", "causes": " <- ".join(chain[1:]), "trace": trace[-4000:]}


def say(report: IO[str], kind: str, **more: object) -> None:
    report.write(json.dumps({"kind": kind, **more}) + "\n")
    report.flush()


def redirect() -> None:
    """From now on an import of torch's etcd modules gives rallypoint's."""
    package = importlib.import_module(PACKAGE)
    for name in REPLACED:
        module = importlib.import_module(f"rallypoint.impl.{name}")
        sys.modules[f"{PACKAGE}.{name}"] = module
        setattr(package, name, module)


def sources(module: ModuleType) -> dict[str, str]:
    """The classes and functions of the etcd rendezvous that a test file sees, each with the module it is from."""
    found = {name: str(getattr(value, "__module__", "")) for name, value in vars(module).items()}
    return {name: where for name, where in found.items() if where.startswith((f"{PACKAGE}.etcd", "rallypoint.impl."))}


def tests_of(suite: unittest.TestSuite) -> Iterator[unittest.TestCase]:
    for one in suite:
        if isinstance(one, unittest.TestSuite):
            yield from tests_of(one)
        else:
            yield one


def versions(with_npu: bool) -> dict[str, Any]:
    torch = importlib.import_module("torch")
    found: dict[str, Any] = {"torch": torch.__version__}
    if with_npu:
        extension = importlib.import_module("torch_npu")
        found |= {"torch_npu": extension.__version__, "devices": extension.npu.device_count()}
    return found


def main(side: str, file: str, with_npu: bool, report: IO[str]) -> None:
    """Run the tests of ``file`` against the modules of ``side``; torch_npu is imported before them, or not at all."""
    try:
        found = versions(with_npu)
        if side == OURS:
            redirect()
    except Exception as error:  # importing foreign code can raise anything
        say(report, "no environment", **told((type(error), error, error.__traceback__)))  # type: ignore[arg-type]
        return
    sys.path.insert(0, str(Path(file).parent))
    try:
        module = importlib.import_module(Path(file).stem)
    except BaseException as error:  # a test file may also leave by sys.exit
        say(report, "unloadable", **told((type(error), error, error.__traceback__)))  # type: ignore[arg-type]
        return
    loaded = unittest.defaultTestLoader.loadTestsFromModule(module)
    npu_seen = "torch_npu" in sys.modules
    tests = [test.id() for test in tests_of(loaded)]
    say(report, "loaded", versions=found, sources=sources(module), torch_npu_loaded=npu_seen, tests=tests)
    loaded.run(Recorder(report))
    say(report, "done")


if __name__ == "__main__":
    with open(sys.argv[4], "w", encoding="utf-8") as lines:
        main(sys.argv[1], sys.argv[2], sys.argv[3] == "with", lines)
    sys.stdout.flush()
    os._exit(0)  # what a test left running (threads, timers) must not hold the end up
