"""One look at a run on a live etcd: its document and its keys, as the model has them, and what is left of each TTL.

May live here: which keys are read, and how. Must not live here: what they mean, or how they are shown.
"""

from __future__ import annotations

from typing import NamedTuple

from rallypoint.impl.etcd_http import Answer, EtcdHttp, Node
from rallypoint.model import document as docs
from rallypoint.model import etcd
from rallypoint.model.etcd import Store

TRIES = 5  # looks until one of them saw no change of the document


class Look(NamedTuple):
    """``text``: the document (None: absent). ``left``: key -> seconds of its TTL that are left, rounded up by etcd.

    ``written`` and ``at``: etcd's index when the document was written, and now. ``run_left``: what is left of the
    TTL of the run's directory; only PyTorch's workers give it one.
    """

    store: Store
    text: str | None
    left: dict[str, int]
    written: int
    at: int
    run_left: int | None


def look(http: EtcdHttp, directory: str, deadline: float) -> Look | None:
    """The run below ``directory``; None if there is none. Raises EtcdUnavailable, UnusableError."""
    for _ in range(TRIES):
        run = _read(http, directory, deadline)
        if run is None:
            return None
        found = _look(http, directory + "/rdzv", run, deadline)
        now = _read(http, directory + "/rdzv/active_version", deadline)
        if (None if now is None else now.node.value) == found.text:
            break
    return found


def runs(http: EtcdHttp, prefix: str, deadline: float) -> list[str]:
    """The names of the runs below a prefix, as they stand in etcd."""
    found = _read(http, prefix, deadline)
    names = [] if found is None else [node.key.rpartition("/")[2] for node in found.node.children]
    return sorted(name.removeprefix("run_") for name in names if name.startswith("run_"))


def _look(http: EtcdHttp, root: str, run: Answer, deadline: float) -> Look:
    nodes: dict[str, Node] = {}
    answer = _read(http, root, deadline)
    if answer is not None:
        nodes |= {node.key: node for node in answer.node.children}
    document = nodes.get(root + "/active_version")
    text = None if document is None else document.value
    version = _version(text)
    members = None if version is None else _read(http, f"{root}/v_{version}", deadline)
    if members is not None:
        nodes |= {node.key: node for node in members.node.children}
    known = sorted((key, etcd.Node(node.value, node.ttl is not None, node.modified)) for key, node in nodes.items())
    index = max(run.index, answer.index if answer else 0)
    return Look(
        store=Store(tuple(known), index),
        text=text,
        left={key: node.ttl for key, node in nodes.items() if node.ttl is not None},
        written=document.modified if document else 0,
        at=index,
        run_left=run.node.ttl,
    )


def _read(http: EtcdHttp, key: str, deadline: float) -> Answer | None:
    answer = http.call("GET", key, {}, deadline)
    return answer if isinstance(answer, Answer) else None


def _version(text: str | None) -> int | None:
    try:
        return None if text is None else docs.parse(text).version
    except docs.BrokenDocumentError:
        return None
