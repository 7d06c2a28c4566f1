"""Graphs: TLC's dump against an independent twin of the toy, and planted differences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rallypoint.tla.graph import Edge, Graph, compare, read_dot
from rallypoint.tla.values import Fn, State, UnreadableError, canonical

TEXT = 'say "hi"\\'
START = (0, 0)


def state(count: int, by: int) -> State:
    value = canonical({"count": count, "last": {"by": by, "text": TEXT}})
    assert isinstance(value, Fn)
    return value


def moves(count: int, by: int, top: int = 3) -> Iterator[tuple[str, tuple[int, int]]]:
    """What Counter.tla says, once more and by hand."""
    if count < top:
        yield "Up", (count + 1, 1)
        yield "Up", (count + 1, 2)
        yield "Tick", (count + 1, 1)
    if count == top:
        yield "Wrap", (0, by)
    if count == 2:
        yield "Idle", (count, by)
        yield "Idle", (count, by)


Moves = Callable[[int, int], Iterator[tuple[str, tuple[int, int]]]]


def twin(moves: Moves = moves, start: tuple[int, int] = START) -> Graph:
    seen, queue = {start}, [start]
    edges: list[Edge] = []
    for here in queue:
        for action, there in moves(*here):
            edges.append((state(*here), action, state(*there)))
            if there not in seen:
                seen.add(there)
                queue.append(there)
    return Graph.from_edges([state(*start)], edges)


def test_the_dump_is_the_graph(dumped: Callable[[str], Graph]) -> None:
    tlc, python = dumped(""), twin()
    assert (len(tlc.states), tlc.edges.total(), len(tlc.initial)) == (9, 27, 1)
    assert compare(tlc, python, "TLC", "model") is None
    assert tlc == python


def test_one_edge_per_instance_of_an_action(dumped: Callable[[str], Graph]) -> None:
    edges = dumped("").edges
    assert edges[state(0, 0), "Up", state(1, 1)] == edges[state(0, 0), "Tick", state(1, 1)] == 1
    assert edges[state(2, 1), "Idle", state(2, 1)] == 2


def test_liveness_adds_no_edges(dumped: Callable[[str], Graph]) -> None:
    assert dumped("PROPERTY ReachesMax") == twin()


def test_a_constraint_leaves_out_states_and_edges(dumped: Callable[[str], Graph]) -> None:
    def small(count: int, by: int) -> Iterator[tuple[str, tuple[int, int]]]:
        return (move for move in moves(count, by) if move[1][0] < 2)

    assert dumped("CONSTRAINT Small") == twin(small)


def test_a_state_too_many_is_found_and_explained() -> None:
    def off_by_one(count: int, by: int) -> Iterator[tuple[str, tuple[int, int]]]:
        yield from moves(count, by, 4)

    difference = compare(twin(), twin(off_by_one), "TLC", "model")
    assert difference is not None
    assert len(difference.path) == 4
    text = difference.text()
    assert text.splitlines()[0] == "Only model has Tick, to: count = 4 (a state that TLC never reaches)"
    assert "Only in TLC: 0 states and 2 edges. Only in model: 2 states and 8 edges." in text
    assert "  3. Up: count = 3" in text
    assert "Enabled there in TLC:\n  * Wrap: count = 0\n" in text
    assert "Enabled there in model:\n  * Tick: count = 4\n  * Up: count = 4\n  * Up: count = 4, last.by = 2" in text


def test_a_missing_edge_is_found_and_explained() -> None:
    def never_idle(count: int, by: int) -> Iterator[tuple[str, tuple[int, int]]]:
        return (move for move in moves(count, by) if move[0] != "Idle" or by == 1)

    difference = compare(twin(), twin(never_idle), "TLC", "model")
    assert difference is not None
    assert difference.text().splitlines()[0] == "Only TLC has Idle, to: the same state"
    assert [action for action, _ in difference.path] == ["", "Up", "Up"]
    assert difference.path[-1][1] == state(2, 2)
    assert difference.left_moves - difference.right_moves == Counter({("Idle", state(2, 2)): 2})


def test_an_edge_counted_differently_is_found() -> None:
    def twice(count: int, by: int) -> Iterator[tuple[str, tuple[int, int]]]:
        yield from moves(count, by)
        if count == 3:
            yield "Wrap", (0, by)

    difference = compare(twin(), twin(twice), "TLC", "model")
    assert difference is not None
    assert difference.headline == "model has Wrap 2 times and TLC 1 times, to: count = 0"
    assert "* Wrap (2 times): count = 0" in difference.text()


def test_a_renamed_action_is_found_on_the_shortest_path() -> None:
    def renamed(count: int, by: int) -> Iterator[tuple[str, tuple[int, int]]]:
        return (("Tock" if action == "Tick" and count == 1 else action, there) for action, there in moves(count, by))

    difference = compare(twin(), twin(renamed), "TLC", "model")
    assert difference is not None
    assert len(difference.path) == 2
    assert difference.headline == "Only TLC has Tick, to: count = 2"


def test_another_initial_state_is_found() -> None:
    difference = compare(twin(), twin(start=(0, 1)), "TLC", "model")
    assert difference is not None
    assert difference.headline.startswith("Only ")
    assert "starts in: [count |-> 0, last |-> [by |-> " in difference.headline
    assert difference.path == ()


def test_a_difference_that_nothing_leads_to_is_no_equality() -> None:
    island = (state(7, 7), "Swim", state(7, 8))
    graph = twin()
    difference = compare(graph, Graph.from_edges(graph.initial, graph.edges + Counter([island])), "TLC", "model")
    assert difference is not None
    assert "differ elsewhere" in difference.headline
    assert "Only in model: 2 states and 1 edges." in difference.text()


# ------------------------------------------------------------------------------------------------- unreadable dumps

NODE = '1 [label="x = 1",style = filled]'
HEAD = "strict digraph DiskGraph {\n"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "incomplete"),
        (f"{HEAD}{NODE}\n", "incomplete"),
        (f"{HEAD}{NODE}\nsomething new\n}}\n", "line 3 of graph.dot: 'something new'"),
        (f'{HEAD}{NODE}\n1 -> 2 [label="Up",color="black",fontcolor="black"];\n}}\n', "no state for node '2'"),
        (f'{HEAD}1 [label="x = @"];\n}}\n', "'@' where 'a value' was due"),
        (f'{HEAD}1 -> 1 [label="Up"];\n}}\n', "line 2 of graph.dot"),
    ],
)
def test_an_unknown_dump_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "graph.dot"
    path.write_text(text)
    with pytest.raises(UnreadableError, match=reason):
        read_dot(path)


def test_a_smallest_dump(tmp_path: Path) -> None:
    path = tmp_path / "graph.dot"
    path.write_text(
        f'{HEAD}{NODE}\n1 -> 1 [label="Up",color="black",fontcolor="black"];\n1 -> 1 [style="dashed"];\n}}\n'
    )
    one = Fn({"x": 1})
    assert read_dot(path) == Graph.from_edges([one], [(one, "Up", one)])
