"""Labelled state graphs: read TLC's dump, and find the first place where two graphs differ.

May live here: the graph, TLC's dot file, the comparison and its explanation.
Must not live here: how either graph came about.

What TLC 2.15 writes with ``-dump dot,actionlabels`` (tried):

* one edge per *instance* of an action: two parameters, or two disjuncts, that lead to the same state give two lines.
  So edges form a multiset, and are compared as one;
* edges into states that are known already, and self loops, are there;
* the label is the name of the action without its parameters, or of the definition around an unnamed disjunct;
* initial states carry ``style = filled``;
* a state that a CONSTRAINT cuts is absent, with every edge into it. Invariants are still checked in it;
* with a liveness property each state gets a dashed stuttering loop, which is no transition of the specification
  and is left out here;
* with SYMMETRY or VIEW one arbitrary state stands for its class: such graphs must not be compared;
* after a violation the dump is incomplete.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import TypeAlias

from rallypoint.tla.values import (
    State,
    UnreadableError,
    Value,
    changes,
    in_order,
    parse_assignment,
    show,
    split_state,
)

Edge: TypeAlias = tuple[State, str, State]
Moves: TypeAlias = Counter[tuple[str, State]]
"""What can be done in one state: (action, next state) -> number of instances."""


@dataclass(frozen=True, slots=True)
class Graph:
    """A labelled state graph. ``edges`` counts instances of (state, action, next state)."""

    states: frozenset[State]
    initial: frozenset[State]
    edges: Counter[Edge]

    @classmethod
    def from_edges(cls, initial: Iterable[State], edges: Iterable[Edge] | Mapping[Edge, int]) -> Graph:
        """The graph with these initial states and these edges, repeated edges counted."""
        starts = frozenset(initial)
        counted = Counter(edges)
        states = {state for source, _, target in counted for state in (source, target)}
        return cls(starts | states, starts, counted)

    def moves(self) -> dict[State, Moves]:
        """state -> what can be done in it; a state without moves is missing."""
        moves: dict[State, Moves] = defaultdict(Counter)
        for (source, action, target), count in self.edges.items():
            moves[source][action, target] += count
        return dict(moves)


# ------------------------------------------------------------------------------------------------------ TLC's dump

_NODE = re.compile(r'(-?\d+) \[label="(.*)"(,style = filled)?\];?$')
_EDGE = re.compile(r'(-?\d+) -> (-?\d+) \[label="([^"]*)",color="[^"]*",fontcolor="[^"]*"\];$')
_DASHED = re.compile(r'-?\d+ -> -?\d+ \[style="dashed"\];$')
_FRAME = re.compile(r'(strict )?digraph \w+ \{|nodesep=.*|subgraph .*|color="white";|\{rank = same; .*\}|\}|$')
_ESCAPED = re.compile(r"\\(.)")


def read_dot(path: Path) -> Graph:
    """The graph that TLC dumped. Raises UnreadableError for any unknown line, a missing state or a missing end."""
    names: dict[str, State] = {}
    initial: list[State] = []
    edges: Counter[tuple[str, str, str]] = Counter()
    line = ""
    with path.open(encoding="utf-8") as lines:
        for number, raw in enumerate(lines, start=1):
            line = raw.rstrip("\n")
            if edge := _EDGE.match(line):
                edges[edge[1], edge[3], edge[2]] += 1
            elif node := _NODE.match(line):
                names[node[1]] = _state(node[2])
                if node[3]:
                    initial.append(names[node[1]])
            elif not (_FRAME.match(line) or _DASHED.match(line)):
                raise UnreadableError(f"line {number} of {path.name}: {line[:80]!r}")
    if line != "}":
        raise UnreadableError(f"{path.name} has no end: the dump is incomplete")
    try:
        named = Counter({(names[source], action, names[target]): n for (source, action, target), n in edges.items()})
    except KeyError as missing:
        raise UnreadableError(f"{path.name} has an edge but no state for node {missing}") from missing
    return Graph(frozenset(names.values()), frozenset(initial), named)


def _state(label: str) -> State:
    """States differ in few variables, so variables are read once per distinct text, escapes and all."""
    return State(dict(_assignment(chunk) for chunk in split_state(label, r"\n/\\ ", r"/\\ ")))


@lru_cache(maxsize=1 << 18)
def _assignment(chunk: str) -> tuple[str, Value]:
    return parse_assignment(_ESCAPED.sub(lambda match: "\n" if match[1] == "n" else match[1], chunk))


# ------------------------------------------------------------------------------------------------------- comparison


@dataclass(frozen=True, slots=True)
class Difference:
    """The first difference of two graphs on a shortest path, and how much differs in all.

    ``path`` leads from an initial state to the last common state, as (action, state) with an empty first action; it is
    empty if the initial states differ already, or if the difference is in a part that no initial state leads to.
    ``left_moves`` and ``right_moves`` are what each side can do there.
    """

    left_name: str
    right_name: str
    headline: str
    path: tuple[tuple[str, State], ...]
    left_moves: Moves
    right_moves: Moves
    totals: str

    def text(self) -> str:
        """The explanation as plain lines."""
        lines = [self.headline, self.totals]
        if self.path:
            lines += ["", "Path to the last common state:"]
            lines += _path_lines(self.path)
            here = self.path[-1][1]
            for name, moves, others in (
                (self.left_name, self.left_moves, self.right_moves),
                (self.right_name, self.right_moves, self.left_moves),
            ):
                lines += ["", f"Enabled there in {name}:", *_moves_lines(here, moves, others)]
        return "\n".join(lines)


def compare(left: Graph, right: Graph, left_name: str, right_name: str) -> Difference | None:
    """None if the graphs are equal (states, initial states, edges with their numbers), else the first difference."""
    right = _sharing(left, right)
    if left == right:
        return None
    one, other = _Side(left_name, left, left.moves()), _Side(right_name, right, right.moves())
    totals = _totals(one, other)
    nothing: Moves = Counter()
    if left.initial != right.initial:
        odd = min(left.initial ^ right.initial, key=show)
        headline = f"Only {left_name if odd in left.initial else right_name} starts in: {show(odd)}"
        return Difference(left_name, right_name, headline, (), nothing, nothing, totals)
    came_from: dict[State, tuple[str, State] | None] = dict.fromkeys(sorted(left.initial, key=show))
    queue = deque(came_from)
    while queue:
        state = queue.popleft()
        mine, theirs = one.moves.get(state, nothing), other.moves.get(state, nothing)
        if mine != theirs:
            headline = _headline(state, one, other)
            return Difference(left_name, right_name, headline, _path(state, came_from), mine, theirs, totals)
        for action, target in mine:
            if target not in came_from:
                came_from[target] = (action, state)
                queue.append(target)
    headline = "The graphs agree wherever an initial state leads, and differ elsewhere"
    return Difference(left_name, right_name, headline, (), nothing, nothing, totals)


def _sharing(left: Graph, right: Graph) -> Graph:
    """The right graph made of the left one's state objects where they are equal: what follows compares by identity."""
    known = {state: state for state in left.states}
    same = {state: known.get(state, state) for state in right.states}
    edges = {(same[source], action, same[target]): count for (source, action, target), count in right.edges.items()}
    return Graph(frozenset(same.values()), frozenset(same[state] for state in right.initial), Counter(edges))


@dataclass(frozen=True, slots=True)
class _Side:
    name: str
    graph: Graph
    moves: dict[State, Moves]


def _headline(state: State, one: _Side, other: _Side) -> str:
    """Names one move that the sides do not share, preferring one that leads to a state of one side only."""
    nothing: Moves = Counter()
    mine, theirs = one.moves.get(state, nothing), other.moves.get(state, nothing)
    shared = one.graph.states & other.graph.states
    odd = [move for move in mine.keys() | theirs.keys() if mine[move] != theirs[move]]
    move = min(odd, key=lambda move: (move[1] in shared, move[0], show(move[1])))
    more, fewer = (one, other) if mine[move] > theirs[move] else (other, one)
    most, least = max(mine[move], theirs[move]), min(mine[move], theirs[move])
    action, to = move[0], _effect(state, move[1])
    if least:
        return f"{more.name} has {action} {most} times and {fewer.name} {least} times, to: {to}"
    unknown = "" if move[1] in shared else f" (a state that {fewer.name} never reaches)"
    return f"Only {more.name} has {action}, to: {to}{unknown}"


def _effect(before: State, after: State) -> str:
    return ", ".join(changes(before, after)) or "the same state"


def _path(state: State, came_from: Mapping[State, tuple[str, State] | None]) -> tuple[tuple[str, State], ...]:
    path = []
    here: State | None = state
    while here is not None:
        step = came_from[here]
        path.append((step[0] if step else "", here))
        here = step[1] if step else None
    return tuple(reversed(path))


def _path_lines(path: tuple[tuple[str, State], ...]) -> list[str]:
    start = path[0][1]
    lines = ["  0. start:", *(f"       {name} = {show(start[name])}" for name in in_order(start))]
    for number, ((_, before), (action, after)) in enumerate(pairwise(path), start=1):
        lines.append(f"  {number}. {action}: {_effect(before, after)}")
    return lines


def _moves_lines(here: State, moves: Moves, others: Moves) -> list[str]:
    lines = []
    for (action, target), count in sorted(moves.items(), key=lambda item: (item[0][0], show(item[0][1]))):
        mark = " " if others[action, target] == count else "*"
        times = f" ({count} times)" if count > 1 else ""
        lines.append(f"  {mark} {action}{times}: {_effect(here, target)}")
    return lines or ["    nothing"]


def _totals(one: _Side, other: _Side) -> str:
    def only(this: Graph, that: Graph) -> str:
        return f"{len(this.states - that.states)} states and {(this.edges - that.edges).total()} edges"

    return f"Only in {one.name}: {only(one.graph, other.graph)}. Only in {other.name}: {only(other.graph, one.graph)}."
