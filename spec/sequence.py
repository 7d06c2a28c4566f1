"""A run as a sequence diagram in SVG: workers and etcd as lifelines, the document beside them, time downwards.

May live here: drawing. Must not live here: where a run comes from (the model, a trace), or words for its parts.

The picture carries its own background, and a dark variant for viewers that ask for one.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias
from xml.sax.saxutils import escape

LANE, BAND, DOCUMENT = 110, 430, 330  # widths: between lifelines, of the texts beside the arrows, of a document
LEFT, TOP, LINE, PAD = 70, 84, 15, 14
CHARACTER = 6.7  # width of a character in the monospaced font of the texts

STYLE = """
text { font: 11px ui-monospace, Menlo, Consolas, monospace; fill: #24292f }
.title { font: bold 15px system-ui, sans-serif }
.lane { font: bold 12px system-ui, sans-serif; text-anchor: middle }
.action { font-weight: bold }
.number { fill: #6e7781; text-anchor: end }
.etcd { text-anchor: middle }
.back { fill: #ffffff }
.life { stroke: #8c959f; stroke-dasharray: 2 3 }
.arrow { stroke: #24292f; fill: none }
.reply { stroke-dasharray: 5 3 }
.head { fill: #24292f }
.box { fill: #f6f8fa; stroke: #8c959f }
.fault { fill: #cf222e }
.arrow.fault, .box.fault { stroke: #cf222e; fill: none }
@media (prefers-color-scheme: dark) {
text, .head { fill: #e6edf3 }
.number { fill: #9198a1 }
.back { fill: #0d1117 }
.life, .box { stroke: #656c76 }
.box { fill: #161b22 }
.arrow { stroke: #e6edf3 }
.fault { fill: #ff7b72 }
.arrow.fault, .box.fault { stroke: #ff7b72; fill: none }
}
"""


Lost: TypeAlias = Literal["", "request", "reply"]


class Event(NamedTuple):
    """One step of a run, in words.

    ``worker``: whose lifeline, "" for what happens to etcd by itself. ``request`` "": nothing was sent. ``document``:
    what stands after the step. ``fault``: told by its colour. ``lost``: what of the exchange did not arrive.
    """

    worker: str
    action: str
    request: str
    reply: str
    document: str
    fault: bool = False
    lost: Lost = ""


def svg(title: str, events: Sequence[Event]) -> str:
    """The diagram. The lifelines are in the order in which the workers first do something."""
    workers = list(dict.fromkeys(event.worker for event in events if event.worker))
    drawing = _Drawing(workers)
    for number, event in enumerate(events, start=1):
        drawing.add(number, event)
    return drawing.svg(title)


class _Drawing:
    def __init__(self, workers: Sequence[str]) -> None:
        self._at = {worker: LEFT + LANE // 2 + LANE * place for place, worker in enumerate(workers)}
        self._last = LEFT + LANE * max(len(workers), 1) - LANE // 2
        self._etcd = self._last + BAND
        self._width = self._etcd + 40 + DOCUMENT
        self._y = TOP
        self._document = ""
        self._parts: list[str] = []

    def add(self, number: int, event: Event) -> None:
        top = self._y
        self._text(LEFT - 16, top + LINE, str(number), "number")
        if event.worker and event.request:
            self._exchange(event)
        else:
            self._happening(event)
        if event.document != self._document:
            self._y = max(self._y, top + self._note(top, event.document))
            self._document = event.document
        self._y += PAD

    def _exchange(self, event: Event) -> None:
        """A request to etcd and what became of its reply."""
        worker, before_etcd = self._at[event.worker], self._last + 24
        self._action(event)
        self._lines(_wrapped(event.request, BAND - 30))
        if event.lost == "request":
            self._arrow(worker, before_etcd, "fault")
            return
        self._arrow(worker, self._etcd, "")
        self._lines(_wrapped(event.reply, BAND - 30))
        if event.lost == "reply":
            self._arrow(self._etcd, before_etcd, "reply fault")
        else:
            self._arrow(self._etcd, worker, "reply")

    def _happening(self, event: Event) -> None:
        """Something without a request: an event of a worker, or of etcd."""
        x = self._at.get(event.worker, self._etcd)
        self._parts.append(
            f'<circle class="{"box fault" if event.fault else "box"}" cx="{x}" cy="{self._y + LINE - 4}" r="5"/>'
        )
        self._action(event)
        self._lines(_wrapped(event.request or event.reply, BAND - 30))

    def _action(self, event: Event) -> None:
        words = f"{event.worker}: {event.action}" if event.worker else event.action
        self._y += LINE
        self._text(self._last + 14, self._y, words, "action fault" if event.fault else "action")

    def _lines(self, lines: Sequence[str]) -> None:
        for line in lines:
            self._y += LINE
            self._text(self._last + 14, self._y, line)
        if not lines:
            self._y += 5  # no words, and still room between two arrows

    def _arrow(self, start: int, end: int, kind: str) -> None:
        """A horizontal arrow below the text; one that is lost ends in a cross."""
        self._y += 7
        y, ahead = self._y, 1 if end > start else -1
        self._parts.append(f'<path class="arrow {kind}" d="M{start} {y}H{end}"/>')
        if "fault" in kind:
            self._parts.append(f'<path class="arrow fault" d="M{end - 5} {y - 5}l10 10m0 -10l-10 10"/>')
        else:
            self._parts.append(f'<path class="head" d="M{end} {y}l{-8 * ahead} -4v8z"/>')

    def _note(self, top: int, document: str) -> int:
        """The document in a box beside etcd; returns its height."""
        lines = _wrapped(document, DOCUMENT - 20)
        height = LINE * len(lines) + 10
        x = self._etcd + 24
        self._parts.append(f'<rect class="box" x="{x}" y="{top + 3}" width="{DOCUMENT}" height="{height}" rx="4"/>')
        for place, line in enumerate(lines, start=1):
            self._text(x + 8, top + LINE * place + 3, line)
        return height

    def _text(self, x: int, y: int, words: str, kind: str = "") -> None:
        marked = f' class="{kind}"' if kind else ""
        self._parts.append(f'<text{marked} x="{x}" y="{y}">{escape(words)}</text>')

    def svg(self, title: str) -> str:
        lanes = [*((x, worker) for worker, x in self._at.items()), (self._etcd, "etcd")]
        lifelines = [f'<path class="life" d="M{x} {TOP - 10}V{self._y}"/>' for x, _ in lanes]
        heads = [f'<text class="lane" x="{x}" y="{TOP - 20}">{escape(name)}</text>' for x, name in lanes]
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self._width} {self._y + PAD}" '
                f'width="{self._width}" height="{self._y + PAD}">',
                f"<title>{escape(title)}</title>",
                f"<style>{STYLE}</style>",
                f'<rect class="back" width="{self._width}" height="{self._y + PAD}"/>',
                f'<text class="title" x="{PAD}" y="28">{escape(title)}</text>',
                *heads,
                f'<text class="lane" x="{self._etcd + 24 + DOCUMENT // 2}" y="{TOP - 20}">the document</text>',
                *lifelines,
                *self._parts,
                "</svg>",
                "",
            ]
        )


def _wrapped(words: str, width: int) -> list[str]:
    return textwrap.wrap(words, int(width / CHARACTER))
