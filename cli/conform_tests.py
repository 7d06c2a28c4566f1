"""What is known about PyTorch's own rendezvous tests: where they are, what is wrong with them, what a failure means.

May live here: the names of the files, the repair of one of them, and the sorting of failures. Must not live here: how
a test is run (``conform_child``, ``conform_run``), or a word of PyTorch's files: they are read where the user has them.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from rallypoint.cli.conform_child import OURS
from rallypoint.model.errors import UnusableError

FOLDER = "test/distributed/elastic/rendezvous"
PATTERNS = ("etcd_*test.py", "dynamic_rendezvous_test.py")
API, TEST_BUG, ENVIRONMENT = "API", "test's own bug", "environment"

NO_LOCAL_ADDR = (
    "it builds EtcdRendezvousHandler without local_addr, which has no default value in the handler (the files of "
    "2.7.1 to 2.10.0; repaired in that of 2.11.0)"
)


@dataclass(frozen=True)
class TestFile:
    """A test file of the user's; ``text``: what is run, for a repaired file not what is in ``path``."""

    __test__ = False  # no class of tests, whatever pytest thinks of the name

    path: Path
    text: str
    repaired: bool = False

    @property
    def name(self) -> str:
        """The file's name without its suffix; a repaired file's says so."""
        return f"{self.path.stem} (repaired)" if self.repaired else self.path.stem

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    @cached_property
    def tree(self) -> ast.Module | None:
        """None if this is no Python."""
        try:
            return ast.parse(self.text)
        except (SyntaxError, ValueError):
            return None

    @property
    def relative_prefixes(self) -> list[ast.Constant]:
        """The values of ``prefix`` given to EtcdRendezvous that have no leading slash."""
        return [
            word.value
            for node in ast.walk(self.tree or ast.Module([], []))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "EtcdRendezvous"
            for word in node.keywords
            if word.arg == "prefix" and isinstance(word.value, ast.Constant)
            if isinstance(word.value.value, str) and not word.value.value.startswith("/")
        ]

    @property
    def incomplete_calls(self) -> list[ast.Call]:
        """The calls of EtcdRendezvousHandler that lack its second argument."""
        calls = [node for node in ast.walk(self.tree or ast.Module([], [])) if isinstance(node, ast.Call)]
        return [
            call
            for call in calls
            if isinstance(call.func, ast.Name)
            and call.func.id == "EtcdRendezvousHandler"
            and len(call.args) == 1
            and not call.keywords
        ]


def find_tests(path: Path) -> list[TestFile]:
    """The test files in a checkout of PyTorch, or in a folder. A server test without local_addr comes twice, the
    second time repaired. Raises UnusableError if there is none, or one cannot be read."""
    folder = next((place for place in (path / FOLDER, path) if any(place.glob(PATTERNS[0]))), None)
    if folder is None:
        raise UnusableError(
            f"no {PATTERNS[0]} in {path} or its {FOLDER}",
            "--tests",
            "name a checkout of PyTorch, in the version of the installed torch, or that folder of it",
        )
    files = []
    for found in sorted({one for pattern in PATTERNS for one in folder.glob(pattern)}):
        try:
            file = TestFile(found, found.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise UnusableError("a test file cannot be read", f"{found}: {error}", "see the file") from error
        files.append(file)
        if file.incomplete_calls:
            files.append(repair(file))
    return files


def repair(file: TestFile) -> TestFile:
    """The same file with the missing argument, and with a leading slash where a prefix has none.

    The argument alone is not enough: on PyTorch's modules the test then waits for 300 s and fails, because their store
    finds no key below such a prefix (defect L-H). Nothing else is changed.
    """
    places = [
        ((value.lineno, value.col_offset), repr("/" + str(value.value)), (value.end_lineno, value.end_col_offset))
        for value in file.relative_prefixes
    ]
    for call in file.incomplete_calls:
        end = (call.args[0].end_lineno, call.args[0].end_col_offset)
        places.append(((end[0] or 0, end[1] or 0), ', local_addr="127.0.0.1"', end))
    lines = file.text.encode().splitlines(keepends=True)
    for (row, start), new, (_, end_column) in sorted(places, reverse=True):
        line = lines[row - 1]
        lines[row - 1] = line[:start] + new.encode() + line[end_column:]
    return TestFile(file.path, b"".join(lines).decode(), repaired=True)


@dataclass(frozen=True)
class Failure:
    """How a test failed: the exception, the exceptions that led to it, the traceback; the side, and the file."""

    side: str
    file: TestFile
    error: str
    causes: str
    trace: str

    @property
    def said(self) -> str:
        return f"{self.error} <- {self.causes}"


@dataclass(frozen=True)
class Reason:
    """Why a test failed: one of API, TEST_BUG, ENVIRONMENT, and what it is."""

    kind: str
    text: str


def reason_of(failure: Failure) -> Reason:
    """The first reason that fits; what nothing explains is the API's."""
    for kind, text, fits in REASONS:
        if fits(failure):
            return Reason(kind, text)
    return Reason(API, failure.error)


def _says(pattern: str) -> Callable[[Failure], bool]:
    return lambda failure: re.search(pattern, failure.said) is not None


def _lacks_local_addr(failure: Failure) -> bool:
    return bool(failure.file.incomplete_calls) and "local_addr" in failure.error and "TypeError" in failure.error


def _mocks_utcnow(failure: Failure) -> bool:
    """The file replaces the clock's ``utcnow``; the module that it tests asks ``now(timezone.utc)``."""
    replaced = "dynamic_rendezvous.datetime" in failure.file.text and "utcnow.return_value" in failure.file.text
    return replaced and "MagicMock" in failure.trace


def _of_documented_defect(failure: Failure) -> bool:
    return failure.side != OURS and failure.file.path.stem == "etcd_find_free_port_test"


# In this order: a cause that explains the failure whatever else is said comes first.
REASONS: tuple[tuple[str, str, Callable[[Failure], bool]], ...] = (
    (ENVIRONMENT, "a Python package that the test needs is missing", _says(r"^ModuleNotFoundError: (?!.*etcd)")),
    (ENVIRONMENT, "no client: python-etcd is missing", _says(r"No module named 'etcd'|name 'etcd' is not defined")),
    (ENVIRONMENT, "the client does not fit: another etcd module, or urllib3 2.6.0", _says(r"'Client'|getheaders?'")),
    (
        ENVIRONMENT,
        "missing binary: no etcd in PATH or TORCHELASTIC_ETCD_BINARY_PATH",
        _says(
            r"(FileNotFoundError|PermissionError|NotADirectoryError): .*etcd"
            r"|no etcd found|cannot run etcd|no such program|is no etcd"
        ),
    ),
    (
        ENVIRONMENT,
        "no v2 API: the server lacks it",
        _says(r"404 page not found|enable-v2|no v2 API|exited with the code"),
    ),
    (ENVIRONMENT, "port: it cannot be bound", _says(r"[Aa]ddress already in use|Cannot assign requested address")),
    (ENVIRONMENT, "no room or no permission for files and processes", _says(r"No space left|Resource temporarily")),
    (TEST_BUG, NO_LOCAL_ADDR, _lacks_local_addr),
    (TEST_BUG, "it gives a mock as the spec of a mock, which Python 3.11 refuses", _says(r"^InvalidSpecError")),
    (TEST_BUG, "it replaces datetime.utcnow; the code calls datetime.now(timezone.utc)", _mocks_utcnow),
    (API, "defect R74: the real error is hidden in this version of torch", _of_documented_defect),
)
