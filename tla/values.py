"""TLA+ values as canonical, hashable Python values: what TLC prints and what the model holds become comparable.

May live here: the canonical form, the reader of TLC's text, the writer, and the difference of two values.
Must not live here: anything about TLC's messages, files or graphs.

==================================  ====================================================================
TLA+                                canonical Python value
==================================  ====================================================================
``TRUE``, ``5``, ``"a"``            ``bool``, ``int``, ``str``
model value ``w1``                  ``ModelValue("w1")``, never equal to the string ``"w1"``
set ``{1, 2}``, interval ``1..2``   ``frozenset``
sequence ``<<1, 2>>``               ``tuple``
record ``[a |-> 1]``                ``Fn`` over the field names
function ``(3 :> 1 @@ 5 :> 2)``     ``Fn``; one whose domain is ``1..n`` *is* a sequence, so ``tuple``
empty record, function, sequence    ``()``
==================================  ====================================================================

Python takes ``True == 1``, so a value that is a truth value on one side and a number on the other is not seen as a
difference. ``TypeOK`` is there for that.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

Value: TypeAlias = Hashable
"""A canonical value, see the table above."""


@dataclass(frozen=True, slots=True)
class ModelValue:
    """A TLC model value: equal to itself only."""

    name: str


class Fn(Mapping[Any, Value]):
    """A function or record whose domain is not ``1..n``: an immutable, hashable mapping.

    Build one with ``function`` or ``canonical``, which turn the domain ``1..n`` into a tuple.
    """

    __slots__ = ("_hash", "_items")

    def __init__(self, items: Mapping[Any, Value]) -> None:
        self._items: dict[Any, Value] = dict(items)
        self._hash = hash(frozenset(self._items.items()))

    def __getitem__(self, key: Any) -> Value:
        return self._items[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, Fn) and self._hash == other._hash and self._items == other._items

    def __repr__(self) -> str:
        return f"Fn({show(self)})"


State: TypeAlias = Fn
"""A state of a specification: variable name -> value."""


def function(items: Mapping[Any, Value]) -> Value:
    """The canonical value of a function given by its pairs: a tuple where the domain is ``1..n``, else ``Fn``."""
    if all(type(key) is int and 1 <= key <= len(items) for key in items):
        return tuple(items[index] for index in range(1, len(items) + 1))
    return Fn(items)


def canonical(value: object) -> Value:
    """Turn plain Python containers, nested to any depth, into the canonical form.

    ``dict`` (any mapping) is a function or record, ``list`` and ``tuple`` a sequence, ``set`` and ``frozenset`` a set.
    Raises TypeError for a value that TLA+ has no word for (``None``, ``float``, an object).
    """
    if isinstance(value, (bool, int, str, ModelValue)):
        return value
    if isinstance(value, (list, tuple)):
        return tuple(canonical(item) for item in value)
    if isinstance(value, (set, frozenset)):
        return frozenset(canonical(item) for item in value)
    if isinstance(value, Mapping):
        return function({canonical(key): canonical(item) for key, item in value.items()})
    raise TypeError(f"no TLA+ value stands for {value!r}")


# ---------------------------------------------------------------------------------------------------------- reading

_TOKEN = r"""
          "(?:[^"\\]|\\.)*"
        | -?\d+
        | [A-Za-z_]\w*
        | << | >> | \|-> | :> | @@ | \.\. | [\[\]{}(),]
        | \S  # nothing that a value may hold: refused where it turns up
    """
_TOKENS = re.compile(_TOKEN, re.VERBOSE | re.ASCII)
_RECORDS_AND_TOKENS = re.compile(r'\[ [^\[\]"]* (?: "[^"\\\[\]]*" [^\[\]"]* )* \] |' + _TOKEN, re.VERBOSE | re.ASCII)
"""Takes a record that holds no other record as one token: few such texts come again and again, and are read once."""
_ESCAPED = re.compile(r"\\(.)")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}
_TRUTH = {"TRUE": True, "FALSE": False}
_END = ""


class UnreadableError(ValueError):
    """TLC printed something that this reader does not know; nothing is ever skipped."""


def parse(text: str) -> Value:
    """The canonical value of TLC's printed text. Raises UnreadableError."""
    return _parse(text, _RECORDS_AND_TOKENS)


@lru_cache(maxsize=1 << 16)
def _parse_record(text: str) -> Value:
    return _parse(text, _TOKENS)


def _parse(text: str, tokens: re.Pattern[str]) -> Value:
    reader = _Reader(text, tokens)
    value = reader.value()
    reader.expect(_END)
    return value


def parse_state(text: str) -> State:
    r"""The state that TLC prints as ``/\ x = 1`` lines, or as ``x = 1`` where there is one variable.

    Raises UnreadableError.
    """
    return Fn(dict(parse_assignment(chunk) for chunk in split_state(text, "\n/\\ ", "/\\ ")))


def split_state(text: str, separator: str, prefix: str) -> list[str]:
    """The ``name = value`` pieces of a printed state. A value never holds the separator: TLC escapes its line ends."""
    return text.strip().removeprefix(prefix).split(separator)


def parse_assignment(chunk: str) -> tuple[str, Value]:
    """The variable and value of one ``name = value`` piece. Raises UnreadableError."""
    name, equals, text = chunk.partition(" = ")
    if not equals or not name.isidentifier():
        raise UnreadableError(f"not a variable and its value: {chunk!r}")
    return name, parse(text)


class _Reader:
    """Recursive descent over the tokens of one value."""

    def __init__(self, text: str, tokens: re.Pattern[str]) -> None:
        self._text = text
        self._tokens = tokens.findall(text)
        self._tokens.append(_END)
        self._at = 0

    def _take(self) -> str:
        token: str = self._tokens[self._at]
        self._at += 1
        return token

    def _wrong(self, token: str, due: str) -> UnreadableError:
        return UnreadableError(f"{token or 'the end'!r} where {due or 'the end'!r} was due: {self._text!r}")

    def expect(self, mark: str) -> None:
        token = self._take()
        if token != mark:
            raise self._wrong(token, mark)

    def value(self) -> Value:
        token = self._take()
        first = token[:1]
        if first.isdecimal() or (first == "-" and len(token) > 1):
            return self._number(int(token))
        if first == '"' and len(token) > 1:
            return _ESCAPED.sub(_unescape, token[1:-1]) if "\\" in token else token[1:-1]
        if first.isidentifier():
            return _TRUTH[token] if token in _TRUTH else ModelValue(token)
        if token == "<<":
            return tuple(self._list(">>", self.value))
        if token == "{":
            return frozenset(self._list("}", self.value))
        if token == "[":
            fields = self._list("]", self._field)
            return Fn(dict(fields)) if fields else ()
        if first == "[":
            return _parse_record(token)
        if token == "(":
            return function(dict(self._list(")", self._pair, between="@@")))
        raise self._wrong(token, "a value")

    def _number(self, first: int) -> Value:
        if self._tokens[self._at] != "..":
            return first
        self._take()
        last = self._take()
        if not last.removeprefix("-").isdecimal():
            raise self._wrong(last, "the end of an interval")
        return frozenset(range(first, int(last) + 1))

    def _list(self, closing: str, item: Callable[[], Any], between: str = ",") -> list[Any]:
        items: list[Any] = []
        while self._tokens[self._at] != closing:
            if items:
                self.expect(between)
            items.append(item())
        self._at += 1
        return items

    def _field(self) -> tuple[str, Value]:
        name = self._take()
        if not name.isidentifier():
            raise self._wrong(name, "a field name")
        self.expect("|->")
        return name, self.value()

    def _pair(self) -> tuple[Value, Value]:
        key = self.value()
        self.expect(":>")
        return key, self.value()


def _unescape(match: re.Match[str]) -> str:
    return _ESCAPES.get(match[1], match[1])


# ---------------------------------------------------------------------------------------------------------- writing


def show(value: Value) -> str:
    """The value as TLA+ text on one line; equal values give equal text."""
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t") + '"'
    if isinstance(value, ModelValue):
        return value.name
    if isinstance(value, tuple):
        return "<<" + ", ".join(map(show, value)) + ">>"
    if isinstance(value, frozenset):
        return "{" + ", ".join(map(show, in_order(value))) + "}"
    if isinstance(value, Fn):
        keys = in_order(value)
        if all(isinstance(key, str) and key.isidentifier() for key in keys):
            return "[" + ", ".join(f"{key} |-> {show(value[key])}" for key in keys) + "]"
        return "(" + " @@ ".join(f"{show(key)} :> {show(value[key])}" for key in keys) + ")"
    return str(value)


def in_order(values: frozenset[Value] | Fn) -> list[Value]:
    """Numbers by size, everything else by its text."""
    return sorted(values, key=lambda value: (0, value, "") if isinstance(value, int) else (1, 0, show(value)))


def changes(before: State, after: State) -> list[str]:
    """What differs, one ``path = new value`` line per smallest changed part: ``worker[2].phase = "joined"``.

    Shared by counterexamples and graph differences; a variable that only one side has is shown whole.
    """
    lines: list[str] = []
    for name in in_order(after):
        if name not in before:
            lines.append(f"{name} = {show(after[name])}")
        else:
            _changed(str(name), before[name], after[name], lines)
    lines += [f"{name} is gone" for name in in_order(before) if name not in after]
    return lines


def _changed(path: str, old: Value, new: Value, lines: list[str]) -> None:
    if old == new:
        return
    if isinstance(old, tuple) and isinstance(new, tuple) and len(old) == len(new):
        for index, (left, right) in enumerate(zip(old, new, strict=True), start=1):
            _changed(f"{path}[{index}]", left, right, lines)
    elif isinstance(old, Fn) and isinstance(new, Fn) and set(old) == set(new):
        for key in in_order(new):
            step = f".{key}" if isinstance(key, str) and key.isidentifier() else f"[{show(key)}]"
            _changed(path + step, old[key], new[key], lines)
    else:
        lines.append(f"{path} = {show(new)}")
