"""The canonical form: what TLC prints and what Python holds meet in it."""

from __future__ import annotations

from collections.abc import Hashable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rallypoint.tla.values import (
    Fn,
    ModelValue,
    UnreadableError,
    canonical,
    changes,
    function,
    parse,
    parse_state,
    show,
)

atoms = st.integers() | st.booleans() | st.text() | st.sampled_from(["w1", "Nobody"]).map(ModelValue)
keys = st.integers(-3, 5) | st.sampled_from(["status", "_x", "not an identifier", ""])
values: st.SearchStrategy[Hashable] = st.recursive(
    atoms,
    lambda inner: (
        st.lists(inner, max_size=4).map(tuple)
        | st.frozensets(inner, max_size=4)
        | st.dictionaries(keys, inner, max_size=4).map(function)
    ),
    max_leaves=12,
)


@settings(derandomize=True, database=None, deadline=None)
@given(values)
def test_what_is_shown_is_read_back(value: Hashable) -> None:
    assert parse(show(value)) == value
    assert show(parse(show(value))) == show(value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("TRUE", True),
        ("-5", -5),
        (r'"a\"b\\c\n\td"', 'a"b\\c\n\td'),
        ("w1", ModelValue("w1")),
        ("2..4", frozenset({2, 3, 4})),
        ("-1..-2", frozenset()),
        ("{{}, {1}}", frozenset({frozenset(), frozenset({1})})),
        ("<<>>", ()),
        ("<<1, <<2>>>>", (1, (2,))),
        ("[a |-> 1, b |-> [c |-> {}]]", Fn({"a": 1, "b": Fn({"c": frozenset()})})),
        ("(w1 :> 0 @@ w2 :> <<>>)", Fn({ModelValue("w1"): 0, ModelValue("w2"): ()})),
        ("(1 :> 2 @@ 2 :> 3)", (2, 3)),
        ("(0 :> 2 @@ 1 :> 3)", Fn({0: 2, 1: 3})),
        ('[ long |->\n      "[x]",\n  b |->\n      { [k |-> "]"],\n        [k |-> "\\""] } ]', None),
    ],
)
def test_what_tlc_prints(text: str, value: object) -> None:
    if value is None:
        value = Fn({"long": "[x]", "b": frozenset({Fn({"k": "]"}), Fn({"k": '"'})})})
    assert parse(text) == value
    assert hash(parse(text)) == hash(value)


@pytest.mark.parametrize(
    "text", ["", "{1 2}", "<<1,", "[a -> 1]", '"x', "1 2", "@", "{1,}", "-", "[1 |-> 2]", "1..w", "٣ |"]
)
def test_unknown_text_is_refused(text: str) -> None:
    with pytest.raises(UnreadableError):
        parse(text)


@pytest.mark.parametrize("text", ["x", "/\\ x", "x == 1", "/\\ x = 1\n/\\ y", "= 1"])
def test_an_unknown_state_is_refused(text: str) -> None:
    with pytest.raises(UnreadableError):
        parse_state(text)


def test_states() -> None:
    assert parse_state("x = 4\n") == Fn({"x": 4})
    assert parse_state("/\\ x = 4\n/\\ y = [ a |->\n   <<1>> ]\n\n") == Fn({"x": 4, "y": Fn({"a": (1,)})})


def test_a_model_value_is_no_string() -> None:
    assert parse("w1") != parse('"w1"')


def test_python_containers_become_canonical() -> None:
    python = {"doc": {"ranks": [0, 1], "by": {1: {"x"}, 2: set()}}, "none": {}, "w": ModelValue("w")}
    state = parse_state('/\\ doc = [ranks |-> <<0, 1>>, by |-> <<{"x"}, {}>>]\n/\\ none = <<>>\n/\\ w = w')
    assert canonical(python) == state
    with pytest.raises(TypeError, match="None"):
        canonical([None])


def test_changes_name_the_smallest_part() -> None:
    before = parse_state(
        '/\\ worker = <<[pc |-> "a", v |-> 1], [pc |-> "a", v |-> 1]>>\n/\\ keys = {}\n/\\ f = (w :> 1)'
    )
    after = parse_state(
        '/\\ worker = <<[pc |-> "a", v |-> 1], [pc |-> "b", v |-> 2]>>\n/\\ keys = {1}\n/\\ f = (w :> 2)'
    )
    assert changes(before, after) == ["f[w] = 2", "keys = {1}", 'worker[2].pc = "b"', "worker[2].v = 2"]
    assert changes(before, before) == []
    assert changes(Fn({"x": 1, "y": (1, 2)}), Fn({"y": (1,), "z": 2})) == ["y = <<1>>", "z = 2", "x is gone"]
