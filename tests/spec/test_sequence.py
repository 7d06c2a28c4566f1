"""The sequence diagram: well-formed whatever the words, every step told, faults and losses marked."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from rallypoint.spec.sequence import Event, Lost, svg

SVG = "{http://www.w3.org/2000/svg}"
JOIN = Event("worker 0", "Join", "cas /active_version", "joinable", "joinable, version 1")


def drawn(*events: Event, title: str = "a run") -> ElementTree.Element:
    return ElementTree.fromstring(svg(title, events))


def texts(picture: ElementTree.Element, kind: str | None = None) -> list[str]:
    return [text.text or "" for text in picture.iter(SVG + "text") if kind is None or text.get("class") == kind]


def paths(picture: ElementTree.Element, kind: str) -> list[str]:
    return [path.get("d", "") for path in picture.iter(SVG + "path") if path.get("class", "").strip() == kind]


def test_every_step_is_told_in_order() -> None:
    crash = Event("worker 1", "Crash", "", "", "joinable, version 1", fault=True)
    expiry = Event("", "ExpireKey", "/v_1/rank_0", "", "(absent)", fault=True)
    picture = drawn(JOIN, crash, expiry)
    assert texts(picture, "lane") == ["worker 0", "worker 1", "etcd", "the document"]
    assert texts(picture, "number") == ["1", "2", "3"]
    assert texts(picture, "action") == ["worker 0: Join"]
    assert texts(picture, "action fault") == ["worker 1: Crash", "ExpireKey"]
    assert texts(picture).count("joinable, version 1") == 1, "the document is shown when it changes"
    assert "(absent)" in texts(picture)
    assert "/v_1/rank_0" in texts(picture)
    assert len(paths(picture, "arrow")) == len(paths(picture, "arrow reply")) == 1


@pytest.mark.parametrize(
    ("lost", "requests", "replies", "lost_paths"), [("request", 0, 0, 2), ("reply", 1, 0, 1), ("", 1, 1, 0)]
)
def test_what_is_lost_does_not_arrive(lost: Lost, requests: int, replies: int, lost_paths: int) -> None:
    picture = drawn(JOIN._replace(fault=True, lost=lost))
    assert len(paths(picture, "arrow")) == requests
    assert len(paths(picture, "arrow reply")) == replies
    assert len(paths(picture, "arrow fault")) == lost_paths
    assert len(paths(picture, "arrow reply fault")) == (lost == "reply")


def test_any_words_are_well_formed_and_long_ones_are_wrapped() -> None:
    odd = "<&>\"' ]]> ü"
    picture = drawn(Event("w", odd, odd, odd, odd), title=odd)
    assert texts(picture).count(odd) == 4  # title, request, reply, document
    long = drawn(JOIN._replace(request="participants " * 40))
    assert all(len(text) < 70 for text in texts(long))
    width, height = (float(long.get(name, "")) for name in ("width", "height"))
    places = [(float(text.get("x", "")), float(text.get("y", ""))) for text in long.iter(SVG + "text")]
    assert all(0 <= x < width and 0 <= y < height for x, y in places)


def test_nothing_happened_is_a_picture_too() -> None:
    assert texts(drawn(), "lane") == ["etcd", "the document"]
