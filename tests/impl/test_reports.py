"""What people have reported of PyTorch's ``etcd`` handler, each as a test of ours on a real etcd, named by the report.

Where PyTorch's class of today still fails in a short run there is a row of ``rallypoint defects`` instead, or as well.
"""

from __future__ import annotations

import logging
import re
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from rallypoint.defects.scenarios import DEFECTS
from rallypoint.defects.stage import OURS, Attempt, Side, Stage
from rallypoint.impl.etcd_http import EtcdHttp
from rallypoint.impl.etcd_rendezvous import EtcdRendezvousHandler, create_rdzv_handler
from rallypoint.impl.etcd_server import EtcdServer
from rallypoint.live.proxy import Fault, FaultProxy
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
)
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

Make = Callable[..., EtcdRendezvousHandler]

REPORTS = tuple(f"R{number:02}" for number in (1, 3, 4, 5, 6, 8, 9, 10, 11, 12, 13, 14, 18, 53, 55, 77, 81, 84))
"""The public reports about the handler."""
FOUND = tuple("ABCDEFHIJKLMNOPQRSTUVW")
"""The defects of the handler that were found by reading and trying: L-A, L-B and so on."""
READ = ("Y", "Z", "AB")
"""Those that were found by reading alone, and can be shown."""


def test_every_report_and_defect_has_a_row_or_a_test() -> None:
    sources = Path(__file__).parents[1].rglob("test_*.py")
    names = set(re.findall(r"def (test_\w+)", "\n".join(file.read_text(encoding="utf-8") for file in sources)))
    tested = {report for name in names for report in re.findall(r"R[0-9]{2}", name)}
    told = {report for row in DEFECTS.values() for report in row.reports}
    assert set(REPORTS) - tested - told == set()
    assert {f"L-{letter}" for letter in (*FOUND, *READ)} - set(DEFECTS) == set()


def meet(*handlers: EtcdRendezvousHandler) -> list[RendezvousInfo]:
    with ThreadPoolExecutor(len(handlers)) as pool:
        return list(pool.map(lambda handler: handler.next_rendezvous(), handlers))


def published(handler: RendezvousHandler) -> str:
    """The address that the members are told when they meet."""
    bootstrap = handler.next_rendezvous().bootstrap_store_info
    assert bootstrap is not None
    return str(bootstrap.master_addr)


def until(condition: Callable[[], bool], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_R01_R06_who_goes_ends_nothing_and_may_come_back(make: Make) -> None:
    """An agent that is deleted does not close the run: the others go on, and its successor is let in by the same id."""
    survivor, deleted = make(1, 2, last_call_timeout=0.5), make(1, 2, last_call_timeout=0.5)
    assert [info.world_size for info in meet(survivor, deleted)] == [2, 2]
    deleted._rdzv_impl.leave()
    until(lambda: survivor.num_nodes_waiting() == 1)
    assert not survivor.is_closed()
    successor = make(1, 2, last_call_timeout=5)
    survivor._rdzv_impl._last_call_timeout = 5
    infos = meet(survivor, successor)
    assert [info.world_size for info in infos] == [2, 2]
    assert survivor.num_nodes_waiting() == 0


def test_R04_R06_a_closed_run_id_can_be_used_again_after_a_stated_time(make: Make) -> None:
    first = make(1, 1, closed_ttl=1)
    first.next_rendezvous()
    assert first.shutdown()
    second = make(1, 1)
    with pytest.raises(RendezvousClosedError):
        second.next_rendezvous()
    until(lambda: not second.is_closed())
    assert second.next_rendezvous().world_size == 1


def test_R12_those_who_come_in_one_window_cost_one_restart(make: Make) -> None:
    member = make(1, 4)
    member.next_rendezvous()
    member._rdzv_impl._last_call_timeout = 10
    late = [make(1, 4, last_call_timeout=10) for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(handler.next_rendezvous) for handler in late]
        until(lambda: member.num_nodes_waiting() == 3)
        infos = [member.next_rendezvous(), *(one.result(10) for one in waiting)]
    assert sorted(info.rank for info in infos) == [0, 1, 2, 3]
    assert [handler.num_nodes_waiting() for handler in (member, *late)] == [0] * 4


def test_R14_R18_leases_live_on_keys_and_never_on_directories(
    make: Make, proxy: FaultProxy, http: EtcdHttp, prefix: str
) -> None:
    """etcd 3.5 cannot renew a directory's TTL, and no directory's TTL can be compared."""
    handler = make(1, 1, endpoint=proxy.endpoint, keep_alive_ttl=1)
    handler.next_rendezvous()
    proxy.await_seen(lambda one: one.form.get("refresh") == "true")
    with_ttl = [one for one in proxy.seen() if "ttl" in one.form]
    assert with_ttl
    assert [one for one in with_ttl if "dir" in one.form] == []
    place, names = "", f"{prefix}/run_job/rdzv/{handler._rdzv_impl._worker.version}".strip("/").split("/")[:-1]
    for name in names:
        place += f"/{name}"
        answer = http.call("GET", place, {}, time.monotonic() + 5)
        assert answer.node.is_dir  # type: ignore[union-attr]
        assert answer.node.ttl is None  # type: ignore[union-attr]


@pytest.mark.parametrize("backend", ["rallypoint", "rallypoint-etcd", "rallypoint-etcd-v2"])
def test_R53_R54_R55_the_local_address_is_published_as_it_was_given(
    etcd_server: EtcdServer, prefix: str, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By every handler, byte for byte, and no name of this host is looked up."""
    asked: list[object] = []

    def getfqdn(*name: str) -> str:
        asked.append(name)
        return "looked-up"

    monkeypatch.setattr(socket, "getfqdn", getfqdn)
    parameters = RendezvousParameters(
        backend, etcd_server.get_endpoint(), prefix[6:], 1, 1, "127.0.0.2", last_call_timeout=1
    )
    handler = get_rendezvous_handler(parameters)
    assert published(handler) == "127.0.0.2"
    assert asked == []
    handler.shutdown()


def test_R11_R53_a_name_that_leads_nowhere_is_not_published(
    etcd_server: EtcdServer, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a local address it is the host's name, and without a name the address by which it reaches etcd."""
    monkeypatch.setattr(socket, "getfqdn", lambda *name: "no-such-host.invalid")
    config: dict[str, Any] = {"etcd_prefix": prefix, "last_call_timeout": 0}
    endpoint = f"127.0.0.1:{etcd_server.get_port()}"
    handler = create_rdzv_handler(RendezvousParameters("etcd", endpoint, "job", 1, 1, **config))
    assert published(handler) == "127.0.0.1"
    monkeypatch.setattr(socket, "getfqdn", lambda *name: "localhost")
    assert published(handler) == "localhost"
    handler.shutdown()


def test_R77_after_the_end_no_lease_complains(
    make: Make, own_etcd: EtcdServer, caplog: pytest.LogCaptureFixture
) -> None:
    handler = make(1, 1, endpoint=own_etcd.get_endpoint(), keep_alive_ttl=1)
    handler.next_rendezvous()
    assert handler.shutdown()
    own_etcd.kill()
    caplog.clear()
    time.sleep(0.8)  # a renewal would have been due twice
    assert [record.getMessage() for record in caplog.records if record.name.startswith("rallypoint")] == []


def test_R81_a_watch_whose_history_is_gone_misses_nothing(
    make: Make, proxy: FaultProxy, http: EtcdHttp, prefix: str
) -> None:
    """More events elsewhere than etcd remembers, between a worker's look and its watch."""
    early = make(2, 2, endpoint=proxy.endpoint)
    gate = proxy.order(Fault.DELAY_REQUEST, lambda one: one.form.get("wait") == "true", seconds=30)
    meeting = Attempt(early.next_rendezvous)
    proxy.await_seen(lambda one: one.fault is not None)
    other = Attempt(make(2, 2).next_rendezvous)
    until(lambda: b'"keep_alives": ["' in _document(http, prefix))
    for number in range(1050):
        http.call("PUT", f"{prefix}/elsewhere", {"value": str(number)}, time.monotonic() + 5)
    gate.set()
    assert meeting.returned(5), meeting.told()
    assert other.returned(5), other.told()


def _document(http: EtcdHttp, prefix: str) -> bytes:
    answer = http.call("GET", f"{prefix}/run_job/rdzv/active_version", {}, time.monotonic() + 5)
    return str(getattr(getattr(answer, "node", None), "value", "")).encode()


def test_a_killed_member_is_replaced_within_its_ttl_and_a_second() -> None:
    """R13, R01: SIGKILL, a replacement that waits already, and a survivor that asks as an agent does."""
    with Stage(Side(OURS), participants=1) as stage:
        victim = stage.participants[0]
        options: dict[str, Any] = {"keep_alive_ttl": 2, "last_call_timeout": 0}
        victim.order("rendezvous_barrier", stage.direct, 2, 2, **options)
        survivor = stage.handler(2, 2, **options)
        met = Attempt(survivor._rdzv_impl.rendezvous_barrier)
        assert met.returned(10), met.told()
        victim.answer(5)
        replacement = Attempt(stage.handler(2, 2, **options)._rdzv_impl.rendezvous_barrier)
        until(lambda: stage.document().get("num_workers_waiting") == 1)
        victim.kill()
        started = time.monotonic()
        until(lambda: bool(survivor.num_nodes_waiting() > 0))
        again = Attempt(survivor._rdzv_impl.rendezvous_barrier)
        assert again.returned(10), again.told()
        assert replacement.returned(10), replacement.told()
        assert time.monotonic() - started < 2 + 1
        assert again.value[0] == replacement.value[0] > met.value[0]


def test_no_log_line_is_needed_to_be_quiet(make: Make, capfd: pytest.CaptureFixture[str]) -> None:
    """L-Z: nothing is printed by a program that has not set up its logging, but for warnings."""
    assert logging.getLogger("rallypoint").handlers == []
    handler = make(1, 1)
    handler.next_rendezvous()
    handler.shutdown()
    assert "rallypoint" not in capfd.readouterr().err


def test_R63_a_spare_takes_a_place_only_when_one_is_free(make: Make) -> None:
    member, spare = make(1, 1), make(1, 1)
    first = meet(member)[0]
    waiting = Attempt(spare.next_rendezvous)
    assert not waiting.returned(1)
    assert member.num_nodes_waiting() == 0
    member._rdzv_impl.leave()
    assert waiting.returned(5), waiting.told()
    assert (waiting.value.rank, waiting.value.world_size) == (first.rank, first.world_size) == (0, 1)
