"""The requirements as data (``clauses.toml``), and where each name in them leads.

May live here: reading the clauses, finding what they name. Must not live here: how they are shown (``cli/review.py``).
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path

import rallypoint.model
from rallypoint.model.errors import UnusableError
from rallypoint.spec import liveness
from rallypoint.spec.invariants import INVARIANTS
from rallypoint.spec.register import INVARIANTS as OF_THE_REGISTER
from rallypoint.tla import SPEC_DIR

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CLAUSES = Path(__file__).with_name("clauses.toml")
ROOT = Path(rallypoint.model.__path__[0]).parent
"""The folder that holds ``model/``, ``impl/`` and, in a checkout, ``tests/``."""


@dataclass(frozen=True, slots=True)
class Clause:
    """One requirement. ``properties``: names in TLA+ and in ``spec/``; ``code``: FILE:NAME; ``tests``: FILE::TEST;
    ``defects``: ids of the track record."""

    id: str
    api: str
    statement: str
    why: str
    sources: tuple[str, ...]
    properties: tuple[str, ...] = ()
    code: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()
    defects: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a file, the file below ``ROOT``."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def load_clauses(file: Path = CLAUSES) -> list[Clause]:
    """The clauses in their order. Raises UnusableError for a file that is none, and for an id that comes twice."""
    todo = "see spec/clauses.py for what a clause has"
    try:
        entries = tomllib.loads(file.read_text(encoding="utf-8"))["clause"]
        clauses = [_clause(entry) for entry in entries]
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, KeyError, TypeError, ValueError) as error:
        raise UnusableError("no clauses", f"{file}: {error}", todo) from error
    ids = [clause.id for clause in clauses]
    if twice := {name for name in ids if ids.count(name) > 1}:
        raise UnusableError("a clause comes twice", f"{file}: {', '.join(sorted(twice))}", todo)
    return clauses


def _clause(entry: dict[str, object]) -> Clause:
    known = {field.name: field.type for field in fields(Clause)}
    for name, value in entry.items():
        if name not in known:
            raise ValueError(f"unknown field {name!r}")
        wanted = str if known[name] == "str" else list
        if not isinstance(value, wanted) or (wanted is list and not all(isinstance(item, str) for item in value)):
            raise ValueError(f"{name} is {value!r}")
    return Clause(**{name: tuple(value) if isinstance(value, list) else value for name, value in entry.items()})  # type: ignore[arg-type]


def predicate(name: str) -> Place | None:
    """Where ``spec/`` states this property; None: nowhere."""
    for file, known in (
        ("spec/invariants.py", INVARIANTS),
        ("spec/liveness.py", liveness.LIVENESS),
        ("spec/register.py", OF_THE_REGISTER),
    ):
        if name in known:
            text = (ROOT / file).read_text(encoding="utf-8")
            return Place(file, text[: text.index(f'"{name}"')].count("\n") + 1)
    return None


def in_tla(name: str) -> Place | None:
    """Where TLA+ defines it."""
    for module in sorted(SPEC_DIR.glob("*.tla")):
        found = re.search(rf"^{re.escape(name)} ==", module.read_text(encoding="utf-8"), re.M)
        if found:
            return Place(f"tla/{module.name}", found.string[: found.start()].count("\n") + 1)
    return None


def code(reference: str) -> Place | None:
    """FILE:NAME, or FILE::TEST: where the function, class, method or constant is."""
    file, _, name = reference.partition(":")
    line = _names(file).get(name.lstrip(":"))
    return None if line is None else Place(file, line)


@cache
def _names(file: str) -> dict[str, int]:
    """Qualified name -> line, of everything that a module defines."""
    if not (ROOT / file).is_file():
        return {}
    return dict(_defined(ast.parse((ROOT / file).read_text(encoding="utf-8")), ""))


def _defined(tree: ast.AST, prefix: str) -> Iterator[tuple[str, int]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef):
            yield prefix + node.name, node.lineno
        elif isinstance(node, ast.ClassDef):
            yield prefix + node.name, node.lineno
            yield from _defined(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.Assign):
            yield from ((prefix + target.id, node.lineno) for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield prefix + node.target.id, node.lineno
