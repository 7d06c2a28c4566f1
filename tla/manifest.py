"""The manifest: which configurations TLC checks, with the verdict and the counts that each must have.

May live here: the manifest's format, the cfg text made from an entry, the comparison of a result with an entry.
Must not live here: how TLC is run, what is printed.

One ``[[config]]`` table per configuration of ``manifest.toml``; unknown keys are errors:

    name = "two-workers-lost-reply-upstream"
    about = "One paragraph: what happens here, and why it is worth a run."
    module = "MCRendezvous"            # the file MCRendezvous.tla
    time = "quick"                     # or "full", or "long"
    without = ["early_lease"]          # optional: members that the set constant Rules has not, after all
    constants = { Min = 2, Owned = false, Rules = "UPSTREAM", Ranks = [0, 1] }   # a list is a set
    model_values = { Workers = ["w1", "w2"], Nobody = "Nobody" }                 # optional
    invariants = ["TypeOK", "RankUnique"]
    properties = ["EventuallyFinal"]   # optional; to learn *which* one failed, list a liveness property alone
    specification = "Spec"             # optional, as are symmetry, view, constraint (names) and deadlock = true
    expected = { verdict = "violated", property = "RankUnique", steps = 17 }     # or { verdict = "holds" }
    counts = { states = 1201, edges = 4096, depth = 23 }                         # each optional

``[defaults]`` may hold any of these keys except name; an entry's own key wins, and constants are merged by name.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

from rallypoint.model.errors import UnusableError
from rallypoint.tla import SPEC_DIR
from rallypoint.tla.tlc import DEADLOCK, TEMPORAL, Job, TlcResult

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Constant: TypeAlias = "int | str | bool | list[Any]"
TimeClass: TypeAlias = Literal["quick", "full", "long"]

LARGE = 20_000
"""States from which on a JVM that compiles for speed is worth its start."""

TIMEOUT_S: Mapping[TimeClass, float] = {"quick": 300.0, "full": 300.0, "long": 3600.0}
"""How long a run of each class may take before it counts as a failed harness."""


@dataclass(frozen=True, slots=True)
class Expected:
    """The verdict that a run must have. ``steps``: transitions of the shortest counterexample, None for any."""

    verdict: Literal["holds", "violated"]
    property: str | None = None
    steps: int | None = None


@dataclass(frozen=True, slots=True)
class Counts:
    """Exact sizes of the state space, None where they are not pinned; meanings as in ``TlcResult``."""

    states: int | None = None
    edges: int | None = None
    depth: int | None = None


@dataclass(frozen=True, slots=True)
class Config:
    """One configuration of the manifest; the modules are those in ``spec_dir``."""

    spec_dir: Path
    name: str
    about: str
    module: str
    time: TimeClass
    constants: Mapping[str, Constant]
    model_values: Mapping[str, str | list[str]]
    invariants: tuple[str, ...]
    properties: tuple[str, ...]
    expected: Expected
    counts: Counts
    specification: str = "Spec"
    symmetry: str = ""
    view: str = ""
    constraint: str = ""
    deadlock: bool = False

    def cfg(self, *, checking: bool = True) -> str:
        """The text of TLC's cfg file; without ``checking``, no property is in it (to get the whole state graph)."""
        lines = [f"SPECIFICATION {self.specification}"]
        lines += [f"CONSTANT {name} = {_constant(value)}" for name, value in self.constants.items()]
        lines += [f"CONSTANT {name} = {_model_value(value)}" for name, value in self.model_values.items()]
        if checking:
            lines += [f"INVARIANT {name}" for name in self.invariants]
            lines += [f"PROPERTY {name}" for name in self.properties]
        named = {"SYMMETRY": self.symmetry, "VIEW": self.view, "CONSTRAINT": self.constraint}
        lines += [f"{keyword} {name}" for keyword, name in named.items() if name]
        return "\n".join(lines) + "\n"

    def job(self, *, workers: int = 1, checking: bool = True) -> Job:
        """The run of TLC for this configuration; ``state_graph(config.job(checking=False))`` gives its graph."""
        return Job(
            self.spec_dir,
            self.module,
            self.cfg(checking=checking),
            workers=workers,
            deadlock=self.deadlock and checking,
            timeout_s=TIMEOUT_S[self.time],
            large=self.time == "long" or (self.counts.states or 0) > LARGE,
        )

    def violated(self, result: TlcResult) -> str | None:
        """The name of what the result violates; a lone property gets its name although TLC does not say it."""
        if result.violates == TEMPORAL and len(self.properties) == 1:
            return self.properties[0]
        return result.violates

    def surprises(self, result: TlcResult, *, workers: int = 1) -> list[str]:
        """How the result differs from the manifest, one phrase each; empty if it is as expected.

        Depth and steps are compared for one worker only: with several, TLC does not promise the shortest trace.
        """
        if result.verdict == "harness failed":
            return [result.reason]
        want, have = self.expected, (result.verdict, self.violated(result))
        if have != (want.verdict, want.property):
            return [f"{_phrase(*have)} where {_phrase(want.verdict, want.property)} is expected"]
        pairs = {"states": (result.states, self.counts.states), "edges": (result.edges, self.counts.edges)}
        if workers == 1:
            pairs |= {"depth": (result.depth, self.counts.depth), "steps": (result.steps, want.steps)}
        return [
            f"{name} {found} where {pinned} is expected"
            for name, (found, pinned) in pairs.items()
            if pinned is not None and found != pinned
        ]


def load_manifest(path: Path = SPEC_DIR / "manifest.toml") -> tuple[Config, ...]:
    """The configurations in the order of the file. Raises UnusableError for a file that does not keep the format."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UnusableError(f"manifest cannot be read: {error.strerror}", str(path), "reinstall the package") from error
    except ValueError as error:
        raise UnusableError(f"manifest is not TOML: {error}", str(path), "correct it") from error
    top = _Table(document, path.name)
    defaults = top.table("defaults")
    configs = tuple(_config(entry, defaults, path) for entry in top.tables("config"))
    top.close()
    names = [config.name for config in configs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice or not configs:
        what = f"configurations of the same name: {', '.join(twice)}" if twice else "no configuration"
        raise UnusableError(what, path.name, "give each [[config]] a name of its own")
    return configs


def select(configs: Sequence[Config], names: Sequence[str]) -> list[Config]:
    """The named configurations, in the order of the manifest. Raises UnusableError for an unknown name."""
    known = [config.name for config in configs]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UnusableError(
            f"no configuration {', '.join(map(repr, unknown))}", "tla/manifest.toml", f"name one of {', '.join(known)}"
        )
    return [config for config in configs if config.name in names]


def _config(entry: Mapping[str, Any], defaults: Mapping[str, Any], path: Path) -> Config:
    place = f"{path.name}: config {entry.get('name', '?')!r}"
    constants = {**_Table(defaults, place).table("constants"), **_Table(entry, place).table("constants")}
    table = _Table({**defaults, **entry, "constants": constants}, place)
    for name in table.texts("without"):
        rules = constants.get("Rules")
        if not isinstance(rules, list) or name not in rules:
            raise table.wrong(f"without {name!r}, which Rules does not have")
        constants["Rules"] = [rule for rule in rules if rule != name]
    config = Config(
        spec_dir=path.parent,
        name=table.text("name"),
        about=" ".join(table.text("about").split()),
        module=table.text("module"),
        time=cast(TimeClass, table.text("time", one_of=tuple(TIMEOUT_S))),
        constants=table.table("constants"),
        model_values=table.table("model_values"),
        invariants=table.texts("invariants"),
        properties=table.texts("properties"),
        expected=_expected(table.inner("expected")),
        counts=_counts(table.inner("counts")),
        specification=table.text("specification", "Spec"),
        symmetry=table.text("symmetry", ""),
        view=table.text("view", ""),
        constraint=table.text("constraint", ""),
        deadlock=table.flag("deadlock"),
    )
    table.close()
    _refuse_nonsense(config, table)
    _refuse_unknown(config, {*_Table(entry, place).table("constants"), *config.model_values}, table)
    return config


def _expected(table: _Table) -> Expected:
    verdict = cast(Literal["holds", "violated"], table.text("verdict", one_of=("holds", "violated")))
    expected = Expected(verdict, table.text("property", "") or None, table.number("steps"))
    table.close()
    return expected


def _counts(table: _Table) -> Counts:
    counts = Counts(table.number("states"), table.number("edges"), table.number("depth"))
    table.close()
    return counts


def _refuse_nonsense(config: Config, table: _Table) -> None:
    """Combinations that TLC would run, and whose verdict would then mean nothing."""
    checked = [*config.invariants, *config.properties, *([DEADLOCK] if config.deadlock else [])]
    want = config.expected
    if not checked:
        raise table.wrong("nothing to check: no invariant, no property, no deadlock")
    if want.verdict == "violated" and want.property not in [*checked, TEMPORAL]:
        raise table.wrong(f"expected to violate {want.property!r}, which it does not check")
    if want.verdict == "holds" and (want.property is not None or want.steps is not None):
        raise table.wrong("expected to hold, yet with a property or steps of a violation")
    if config.symmetry and config.properties:
        raise table.wrong("symmetry together with properties: TLC's liveness check is unsound then")
    for name, value in config.constants.items():
        try:
            _constant(value)
        except TypeError:
            raise table.wrong(f"constant {name} = {value!r} is no number, text, truth value or list of these") from None
    for name, named in config.model_values.items():
        if not all(isinstance(value, str) for value in (named if isinstance(named, list) else [named])):
            raise table.wrong(f"model value {name} = {named!r} is neither a name nor a list of names")


def _refuse_unknown(config: Config, own: set[str], table: _Table) -> None:
    """TLC takes a constant that its module does not declare, and a text that occurs nowhere in it, without a word.

    ``own``: the constants that this entry names itself; the defaults are for several modules.
    """
    module = config.spec_dir / f"{config.module}.tla"
    if not module.is_file():  # TLC says so
        return
    source = re.sub(r"\\\*.*", "", module.read_text(encoding="utf-8"))
    declared = {
        name
        for block in re.findall(r"^CONSTANTS?\b([\w\s,]*?)^(?=\S)", source, re.M)
        for name in re.findall(r"\w+", block)
    }
    for name in sorted(own - declared):
        raise table.wrong(f"constant {name!r}, which {config.module} does not declare")
    for name, value in config.constants.items():
        for text in value if isinstance(value, list) and name in declared else ():
            if isinstance(text, str) and f'"{text}"' not in source:
                raise table.wrong(f"{name} has {text!r}, of which {config.module} knows nothing")


def _constant(value: Constant) -> str:
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str) and not set(value) & set('"\\\n'):
        return f'"{value}"'
    if isinstance(value, list):
        return "{" + ", ".join(map(_constant, value)) + "}"
    raise TypeError(value)


def _model_value(value: str | list[str]) -> str:
    return value if isinstance(value, str) else "{" + ", ".join(value) + "}"


def _phrase(verdict: str, named: str | None) -> str:
    return f"{named} {verdict}" if named else verdict


class _Table:
    """A TOML table that is read key by key with the types checked, and then must have no key left."""

    def __init__(self, items: Mapping[str, Any], where: str) -> None:
        self._items = dict(items)
        self._where = where

    def wrong(self, what: str) -> UnusableError:
        return UnusableError(what, self._where, "correct the manifest")

    def _take(self, key: str, kind: type, default: Any) -> Any:
        value = self._items.pop(key, default)
        if value is None:
            raise self.wrong(f"no {key!r}")
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise self.wrong(f"{key} = {value!r} is not of type {kind.__name__}")
        return value

    def text(self, key: str, default: str | None = None, one_of: Sequence[str] = ()) -> str:
        value: str = self._take(key, str, default)
        if one_of and value not in one_of:
            raise self.wrong(f"{key} = {value!r} is not one of {', '.join(one_of)}")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        values: list[Any] = self._take(key, list, [])
        if not all(isinstance(value, str) for value in values):
            raise self.wrong(f"{key} = {values!r} is not a list of texts")
        return tuple(values)

    def number(self, key: str) -> int | None:
        return self._take(key, int, None) if key in self._items else None

    def flag(self, key: str) -> bool:
        return bool(self._take(key, bool, False))

    def table(self, key: str) -> dict[str, Any]:
        return dict(self._take(key, dict, {}))

    def inner(self, key: str) -> _Table:
        return _Table(self.table(key), f"{self._where}, {key}")

    def tables(self, key: str) -> list[dict[str, Any]]:
        values: list[Any] = self._take(key, list, [])
        if not all(isinstance(value, dict) for value in values):
            raise self.wrong(f"{key} is not a list of tables")
        return values

    def close(self) -> None:
        if self._items:
            raise self.wrong(f"unknown keys: {', '.join(sorted(self._items))}")
