"""Single mutations of the model's source and of the TLA+ text: which there are, and how to plant one.

May live here: the list, and the loading of a mutated model beside the right one. Must not live here: how a mutant is
recognised (``layers.py``).

A mutant of the model is named ``module.function kind n``: kind and number of the mutation within its function, so a
name outlives changes elsewhere. Every second function gives one mutant; the checksum of its name picks both. Functions
that are new, or that others lean on, give all of theirs (``THOROUGH``).
"""

from __future__ import annotations

import ast
import copy
import importlib.util
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import rallypoint.model
import rallypoint.spec.invariants
import rallypoint.tla.twin
from rallypoint.tla import SPEC_DIR

MODEL_DIR = Path(rallypoint.model.__path__[0])
CONTRACTS_DIR = Path(__file__).parent.parent / "model"
MUTATED = ("document", "etcd", "rules", "participant", "standing", "wants", "worker", "system", "fair")

THOROUGH = {
    "system._forget",  # the floor of the version numbers
    "participant.is_foreign",  # bounds
    "wants.await_address",
    "wants.closed_ttl",
    "worker._on_foreign",
    "worker._recount",
    "worker.cut_off",
    "worker.introduce",
    "worker.notice",  # a member that sees its version closed
    "worker.reenter",  # mixed groups
    "fair.told",
}

RELOADED = (
    "rallypoint.model.document",
    "rallypoint.model.etcd",
    "rallypoint.model.rules",
    "rallypoint.model.participant",
    "rallypoint.model.standing",
    "rallypoint.model.wants",
    "rallypoint.model.worker",
    "rallypoint.model.system",
    "rallypoint.model.fair",
    "rallypoint.model.explorer",
    "rallypoint.spec.invariants",
    "rallypoint.spec.liveness",
    "rallypoint.tla.twin",
    "document_contracts",
    "etcd_contracts",
    "running",
    "job_machine",
)
"""What depends on the mutated modules, in the order of their dependence."""

OPPOSITE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}


@dataclass(frozen=True)
class Mutant:
    """One change of one module. ``at``: the node's place in ``ast.walk``."""

    module: str
    function: str
    kind: str
    number: int
    at: int
    line: int

    @property
    def name(self) -> str:
        return f"{self.module}.{self.function} {self.kind} {self.number}"


def _negated(test: ast.expr) -> ast.expr:
    return ast.UnaryOp(ast.Not(), test)


def _compare(node: ast.Compare) -> None:
    node.ops[0] = OPPOSITE[type(node.ops[0])]()


def _bool_op(node: ast.BoolOp) -> None:
    node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()


def _not(node: ast.UnaryOp) -> None:
    node.operand = _negated(node.operand)


def _add(node: ast.BinOp) -> None:
    node.op = ast.Sub() if isinstance(node.op, ast.Add) else ast.Add()


def _constant(node: ast.Constant) -> None:
    node.value = not node.value if isinstance(node.value, bool) else node.value + 1  # type: ignore[operator]


def _swapped(node: ast.If | ast.IfExp) -> None:
    node.test = _negated(node.test)


def _dropped(node: ast.If) -> None:
    node.test = ast.Constant(False)


KINDS: tuple[tuple[str, Callable[[ast.AST], bool], Callable[..., None]], ...] = (
    ("comparison", lambda n: isinstance(n, ast.Compare) and type(n.ops[0]) in OPPOSITE, _compare),
    ("and-or", lambda n: isinstance(n, ast.BoolOp), _bool_op),
    ("not", lambda n: isinstance(n, ast.UnaryOp) and isinstance(n.op, ast.Not), _not),
    ("plus-minus", lambda n: isinstance(n, ast.BinOp) and isinstance(n.op, ast.Add | ast.Sub), _add),
    ("constant", lambda n: isinstance(n, ast.Constant) and isinstance(n.value, bool | int), _constant),
    ("branches", lambda n: isinstance(n, ast.IfExp) or (isinstance(n, ast.If) and bool(n.orelse)), _swapped),
    ("guard", lambda n: isinstance(n, ast.If) and not n.orelse, _dropped),
)


def _functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef):
            yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node, f"{node.name}.")


def candidates(module: str) -> list[Mutant]:
    """Every mutation of every function body of the module, in the order of the source."""
    tree = _tree(module)
    places = {id(node): at for at, node in enumerate(ast.walk(tree))}
    found = []
    for function, definition in _functions(tree):
        numbers: Counter[str] = Counter()
        for statement in definition.body:
            for node in ast.walk(statement):
                for kind, fits, _ in KINDS:
                    if fits(node):
                        numbers[kind] += 1
                        line = getattr(node, "lineno", 0)
                        found.append(Mutant(module, function, kind, numbers[kind], places[id(node)], line))
    return found


def every_mutant() -> list[Mutant]:
    return [mutant for module in MUTATED for mutant in candidates(module)]


def chosen() -> list[Mutant]:
    """One mutant of every second function that has any, and every mutant of the thorough ones."""
    by_function: dict[str, list[Mutant]] = {}
    for mutant in every_mutant():
        by_function.setdefault(f"{mutant.module}.{mutant.function}", []).append(mutant)
    sums = {function: zlib.crc32(function.encode()) for function in by_function}
    found = []
    for name, mutants in by_function.items():
        if name in THOROUGH:
            found.extend(mutants)
        elif sums[name] % 2:
            found.append(mutants[sums[name] // 2 % len(mutants)])
    return found


def _tree(module: str) -> ast.Module:
    return ast.parse((MODEL_DIR / f"{module}.py").read_text(encoding="utf-8"))


def mutated(mutant: Mutant) -> ast.Module:
    tree = copy.deepcopy(_tree(mutant.module))
    node = next(node for at, node in enumerate(ast.walk(tree)) if at == mutant.at)
    next(change for kind, _, change in KINDS if kind == mutant.kind)(node)
    return ast.fix_missing_locations(tree)


@contextmanager
def planted(mutant: Mutant | None) -> Iterator[dict[str, ModuleType]]:
    """Fresh modules by their last name, one of them mutated (None: none). The modules in use are put back."""
    kept = {name: sys.modules.pop(name, None) for name in RELOADED}
    fresh: dict[str, ModuleType] = {}
    try:
        for name in RELOADED:
            fresh[name.rpartition(".")[2]] = _load(name, mutant)
        yield fresh
    finally:
        for name, module in kept.items():
            _place(name, module)


def _load(name: str, mutant: Mutant | None) -> ModuleType:
    package, _, leaf = name.rpartition(".")
    folder = Path(sys.modules[package].__path__[0]) if package else CONTRACTS_DIR
    path = folder / f"{leaf}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    _place(name, module)
    is_mutated = mutant is not None and package == "rallypoint.model" and leaf == mutant.module
    source = mutated(mutant) if mutant is not None and is_mutated else ast.parse(path.read_text(encoding="utf-8"))
    exec(compile(source, str(path), "exec"), module.__dict__)
    return module


def _place(name: str, module: ModuleType | None) -> None:
    package, _, leaf = name.rpartition(".")
    if module is None:
        sys.modules.pop(name, None)
    else:
        sys.modules[name] = module
    if module is not None and package:
        setattr(sys.modules[package], leaf, module)


# ------------------------------------------------------------------------------------------------------------- TLA+


@dataclass(frozen=True)
class TlaMutant:
    """A text that occurs once in Rendezvous.tla, and what stands there instead."""

    name: str
    old: str
    new: str

    def text(self) -> str:
        source = (SPEC_DIR / "Rendezvous.tla").read_text(encoding="utf-8")
        assert source.count(self.old) == 1, f"{self.name}: {source.count(self.old)} places"
        return source.replace(self.old, self.new)


TLA_MUTANTS = (
    TlaMutant("Joined: freezes early", "j.size = MaxOf(x) THEN Frozen(j)", "j.size >= MinOf(x) THEN Frozen(j)"),
    TlaMutant(
        "ConfirmedBy: repetitions count", "IF IdempotentConfirm(x) /\\ key \\in Elements(@) THEN @", "IF FALSE THEN @"
    ),
    TlaMutant(
        "ConfirmedBy: count starts at 1", '!.status = "final", !.waiting = 0', '!.status = "final", !.waiting = 1'
    ),
    TlaMutant("Announced: not once", "ELSE IF x.id \\in Elements(d.waiters) THEN d\n", "ELSE IF FALSE THEN d\n"),
    TlaMutant("RankOf: one more", "id => k <= m) - 1", "id => k <= m)"),
    TlaMutant(
        "Covered: at least",
        "Covered(d) == Cardinality(Elements(d.keeps)) = d.size",
        "Covered(d) == Cardinality(Elements(d.keeps)) <= d.size",
    ),
    TlaMutant("Enter: keeps its lease", "ELSE IF LeaveAtOnce(x) THEN", "ELSE IF ~LeaveAtOnce(x) THEN"),
    TlaMutant("Dispatch: ignores the missing", "ELSE IF missing # {} THEN", "ELSE IF FALSE THEN"),
    TlaMutant("Apply: join without TTL", 'j.status = "frozen" \\/ j.size >= MinOf(x))', 'j.status = "frozen")'),
    TlaMutant("Apply: final keeps its TTL", 'Swap(x.seen, c, c.status # "final")', "Swap(x.seen, c, TRUE)"),
    TlaMutant("Apply: bump from anything", "IF store.count = x.version - 1", "IF store.count <= x.version"),
    TlaMutant(
        "Bump: fatal",
        'IF RacesNotFatal(w[i]) THEN "read" ELSE "fatal"',
        'IF RacesNotFatal(w[i]) THEN "fatal" ELSE "read"',
    ),
    TlaMutant("OwnsLastCall: the first", "x.rank = MinOf(x) - 1", "x.rank = 0"),
    TlaMutant("Refused: rereads", "ELSE IF store.doc = NoDoc THEN Enter(x)\n    ELSE Phase", "ELSE Phase"),
    TlaMutant("LoseReply: even if nothing changed", "    /\\ store' # store\n", ""),
    TlaMutant(
        "Held: no grace for a new key",
        'IF w[i].pc = "confirm" /\\ w[i].lease = None\n',
        'IF w[i].pc = "confirm" /\\ FALSE\n',
    ),
    TlaMutant(
        "DocumentExpires: keeps the mark", "[store EXCEPT !.doc = NoDoc, !.ttl = FALSE]", "[store EXCEPT !.doc = NoDoc]"
    ),
    TlaMutant("Foreign: never", "Foreign(x, d) == BoundsAgreed(x) /\\ d.bounds", "Foreign(x, d) == FALSE /\\ d.bounds"),
    TlaMutant(
        "OnForeign: waits on",
        'Seeing(x, "destroy", d) ELSE Dispatch(x, d, {})',
        "Seeing(x, x.pc, d) ELSE Dispatch(x, d, {})",
    ),
    TlaMutant("OthersHaveStayed: at any moment", "OthersHaveStayed(i) == Quiet /\\ ", "OthersHaveStayed(i) == "),
    TlaMutant("Opened: other bounds", "THEN <<MinOf(x), MaxOf(x)>> ELSE None]", "THEN <<Min, Max>> ELSE None]"),
    TlaMutant("Met: never mixed", "!.mixed = OwnedSlots(x) /\\ None", "!.mixed = FALSE /\\ None"),
    TlaMutant("Counted: the floor stays", "!.count = n, !.floor = IF n > @ THEN n ELSE @]", "!.count = n]"),
    TlaMutant("Recount: from zero", "!.version = store.floor]", "!.version = 0]"),
    TlaMutant("OnAddress: waits on", "/\\ missing = {} THEN [x EXCEPT !.seen = d]", "THEN [x EXCEPT !.seen = d]"),
    TlaMutant(
        "Apply: closed for ever",
        "Swap(x.seen, ClosedOf(x.seen), ClosedExpires(x))",
        "Swap(x.seen, ClosedOf(x.seen), FALSE)",
    ),
    TlaMutant("Remember: closed for ever", "THEN [hist EXCEPT !.closed = FALSE] ELSE hist", "THEN hist ELSE hist"),
    TlaMutant(
        "SeeClosed: in any version",
        'Expected(w[i], store.doc, "closed")\n    /\\ Become',
        'store.doc.status = "closed"\n    /\\ Become',
    ),
    TlaMutant(
        "Standing: spares disturb",
        "SparesParked(x) /\\ store.doc.size >= MaxOf(x)",
        "FALSE /\\ store.doc.size >= MaxOf(x)",
    ),
    TlaMutant("CutOff: goes on", "IF x.pc \\notin Ended /\\ Reread(x) THEN Enter(x)", "IF FALSE THEN Enter(x)"),
    TlaMutant("Reenter: leaves a mixed version at once", "!.lease = IF x.mixed THEN None ELSE @]", "!.lease = @]"),
    TlaMutant("RunOut: at any moment", "RunOut == Quiet /\\ ", "RunOut == "),
    TlaMutant("LastCallEnds: at any moment", "LastCallEnds(i) == Quiet /\\ ", "LastCallEnds(i) == "),
    TlaMutant("MeetAgain: untold", "Standing(w[i]) > 0 /\\ MeetsAgain(i)", "MeetsAgain(i)"),
)
