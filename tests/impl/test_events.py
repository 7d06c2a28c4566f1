"""What an operator gets to see of a handler: torch's rendezvous events, and log lines, each once per change."""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import pytest
from rallypoint.impl import etcd_run
from rallypoint.impl.etcd_http import EtcdHttp, joined_key
from rallypoint.impl.etcd_rendezvous import EtcdRendezvousHandler
from rallypoint.impl.etcd_server import EtcdServer
from torch.distributed.elastic import events
from torch.distributed.elastic.events import handlers as event_handlers
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousStateError,
    RendezvousTimeoutError,
)

Make = Callable[..., EtcdRendezvousHandler]
TORCHS_LOGGER = "torchelastic-events-dynamic_rendezvous"


class Listener(logging.Handler):
    """Keeps the events, as dictionaries."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.heard.append(json.loads(record.getMessage()))

    def told(self) -> list[tuple[str, str, str]]:
        """(call, state, message) of each event."""
        return [(one["name"].rpartition(".")[2], one["node_state"], one["message"]) for one in self.heard]


@pytest.fixture
def listener(monkeypatch: pytest.MonkeyPatch) -> Iterator[Listener]:
    """Listens where torch sends its rendezvous events, which is nowhere by default."""
    one = Listener()
    monkeypatch.setitem(event_handlers._log_handlers, "dynamic_rendezvous", one)
    monkeypatch.setattr(events, "_events_loggers", {})
    yield one
    logging.getLogger(TORCHS_LOGGER).removeHandler(one)


def test_a_run_from_start_to_close_is_recorded(make: Make, listener: Listener) -> None:
    handler = make()
    bootstrap = handler.next_rendezvous().bootstrap_store_info
    assert bootstrap is not None
    assert handler.num_nodes_waiting() == 0
    assert handler.is_closed() is False
    handler.shutdown()
    [start, met, closed] = listener.heard
    assert [one["node_state"] for one in listener.heard] == ["RUNNING", "RUNNING", "SUCCEEDED"]
    assert start["name"] == "etcd_rendezvous.py:EtcdRendezvousHandler.next_rendezvous"
    assert start["message"] == "trying to meet in run 'job'"
    assert re.match(r"met as rank 0 of 1 in version \d+, after 0\.\d\d s", met["message"])
    assert (met["rank"], met["hostname"], met["run_id"]) == (0, "127.0.0.1", "job")
    assert met["master_endpoint"] == f"127.0.0.1:{bootstrap.master_port}"
    assert closed["message"] == "closed run 'job'"


def test_every_way_to_fail_is_recorded(make: Make, listener: Listener, http: EtcdHttp, prefix: str) -> None:
    with pytest.raises(RendezvousTimeoutError):
        make(2, 2, timeout=0.5).next_rendezvous()
    document = joined_key(prefix, "run_job/rdzv/active_version")
    http.call("PUT", document, {"value": "no json"}, time.monotonic() + 5)
    for call in ("next_rendezvous", "is_closed", "num_nodes_waiting", "set_closed"):
        with pytest.raises(RendezvousStateError):
            getattr(make(), call)()
    http.call("DELETE", document, {}, time.monotonic() + 5)
    make().set_closed()
    with pytest.raises(RendezvousClosedError):
        make().next_rendezvous()
    with pytest.raises(RendezvousConnectionError):
        make(endpoint="127.0.0.1:1", timeout=0.3)
    with pytest.raises(ValueError, match="unknown"):
        make(nonsense=1)
    failed = [(call, message.partition(":")[0]) for call, state, message in listener.told() if state == "FAILED"]
    assert failed == [
        ("next_rendezvous", "RendezvousTimeoutError"),
        ("next_rendezvous", "RendezvousStateError"),
        ("is_closed", "RendezvousStateError"),
        ("num_nodes_waiting", "RendezvousStateError"),
        ("set_closed", "RendezvousStateError"),
        ("next_rendezvous", "RendezvousClosedError"),
        ("py:create_rdzv_handler", "RendezvousConnectionError"),
        ("py:create_rdzv_handler", "ValueError"),
    ]
    assert all("Traceback" in one["error_trace"] for one in listener.heard if one["node_state"] == "FAILED")


def test_why_members_are_to_meet_again_is_recorded_once(make: Make, listener: Listener) -> None:
    member, lost = make(2, 2), make(2, 2)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda handler: handler.next_rendezvous(), (member, lost)))
    listener.heard.clear()
    lost._rdzv_impl.leave()
    for _ in range(3):
        assert member.num_nodes_waiting() == 1
    [(call, state, message)] = listener.told()
    assert (call, state) == ("num_nodes_waiting", "RUNNING")
    assert re.search(r"version \d+ has lost a member", message)


def test_events_cost_next_to_nothing_while_nobody_listens(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """No event is built, and no name of this host is looked up for one."""
    handler = make()
    built: list[object] = []
    monkeypatch.setattr(events, "RdzvEvent", lambda **event: built.append(event))
    monkeypatch.setattr("socket.getfqdn", lambda: built.append("getfqdn"))
    handler.next_rendezvous()
    handler.shutdown()
    assert built == []


# --- log lines --------------------------------------------------------------------------------------------------------


def lines(caplog: pytest.LogCaptureFixture, text: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if text in record.getMessage()]


def test_each_not_yet_is_said_once_per_change(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="rallypoint")
    first, second = make(2, 3, last_call_timeout=0.5), make(2, 3, last_call_timeout=0.5)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda handler: handler.next_rendezvous(), (first, second)))
    assert len(lines(caplog, "waiting for peers: 1 of 2")) <= 1, "only the first one can see that"
    assert len(lines(caplog, "waiting for peers: 2 of 2")) == 2, "one line per worker"
    assert len(lines(caplog, "in version")) == 2
    said = [(record.threadName, record.getMessage()) for record in caplog.records]
    for name in {name for name, _ in said}:
        own = [text for thread, text in said if thread == name]
        assert all(one != other for one, other in pairwise(own)), own


def test_a_waiting_worker_says_once_what_it_waits_for(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="rallypoint")
    member, late = make(1, 2), make(1, 2, timeout=1.5)
    member.next_rendezvous()
    with pytest.raises(RendezvousTimeoutError, match="waiting for the running version to end"):
        late.next_rendezvous()
    assert len(lines(caplog, "waiting for the running version to end")) == 1


def test_a_member_is_told_once_why_it_must_meet_again(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="rallypoint")
    member = make(1, 2)
    member.next_rendezvous()
    late = make(1, 2, timeout=5)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(late.next_rendezvous)
        deadline = time.monotonic() + 5
        while member.num_nodes_waiting() == 0:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        for _ in range(5):
            assert member.num_nodes_waiting() == 1
        assert len(lines(caplog, "1 workers wait to be let in")) == 1
        member.shutdown()
        with pytest.raises(RendezvousClosedError):
            waiting.result(10)


def test_an_outage_is_said_at_its_begin_and_at_its_end(
    make: Make, own_etcd: EtcdServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_run, "POLL", 0.3)
    member = make(endpoint=own_etcd.get_endpoint(), keep_alive_ttl=10)
    member.next_rendezvous()
    own_etcd.kill()
    for _ in range(2):
        assert member.num_nodes_waiting() == 0
    assert not member.is_closed()
    assert len(lines(caplog, "going on without etcd")) == 1
    own_etcd.start()
    assert member.num_nodes_waiting() == 0
    assert len(lines(caplog, "etcd is back")) == 1
    member.shutdown()


def test_loggers_have_no_handlers_and_pass_on(make: Make) -> None:
    """L-Z: upstream's module adds a handler and stops propagation when it is imported."""
    names = [name for name in logging.root.manager.loggerDict if name.partition(".")[0] == "rallypoint"]
    assert "rallypoint.impl.etcd_rendezvous" in names
    for name in names:
        logger = logging.getLogger(name)
        assert (logger.handlers, logger.propagate, logger.level) == ([], True, logging.NOTSET), name


def test_no_thread_of_an_event_is_left(make: Make, listener: Listener) -> None:
    before = threading.active_count()
    handler = make()
    handler.next_rendezvous()
    handler.shutdown()
    deadline = time.monotonic() + 3
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.02)
    assert threading.active_count() <= before
