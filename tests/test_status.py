"""``rallypoint status`` on a live run, and the two judgements behind it: what can happen next, and what cannot be."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from rallypoint.cli.main import main
from rallypoint.impl.etcd_http import EtcdHttp
from rallypoint.impl.etcd_rendezvous import EtcdRendezvousHandler, create_rdzv_handler
from rallypoint.impl.etcd_server import EtcdServer, find_free_port
from rallypoint.model import document as docs
from rallypoint.model.etcd import Create, Store, apply, expire
from rallypoint.model.explorer import Explorer
from rallypoint.model.outlook import actors, awaited, outlook, rules_for
from rallypoint.model.system import Budget, Config, State
from rallypoint.model.worker import Rules, active, counter, directory, upstream
from rallypoint.spec.shape import doubts
from torch.distributed.elastic.rendezvous import RendezvousClosedError, RendezvousParameters

COMMAND = str(Path(sys.executable).with_name("rallypoint"))
Make = Callable[..., EtcdRendezvousHandler]


# --- what cannot be ---------------------------------------------------------------------------------------------------

ELASTIC, FIXED = Rules(1, 2), Rules(2, 2)


@pytest.mark.parametrize(
    "config",
    [
        Config(ELASTIC, 2, Budget(crashes=1, restarts=1)),
        Config(ELASTIC, 2, Budget(rejoins=1, closes=1)),
        Config(FIXED, 2, Budget(deadlines=1, lost_leases=1)),
        Config(FIXED, 2, Budget(lost_replies=1, expiries=1)),
        Config(ELASTIC, 2, Budget(lost_runs=1)),
        Config(FIXED, 2, Budget(rejoins=1, closes=1), theirs=(0,)),
        Config(Rules(2, 3), 3, Budget()),
    ],
    ids=["crash", "rejoin-close", "deadline", "lost-reply", "lost-run", "mixed", "three"],
)
def test_nothing_speaks_against_a_state_that_the_model_reaches(config: Config) -> None:
    """And the outlook is told for each of them, with nobody going round in circles."""
    known: set[Store] = set()

    def sound(config: Config, state: State) -> bool:
        if state.store not in known:
            known.add(state.store)
            outlook(config.rules, state.store)
            awaited(config.rules, state.store)
        return not doubts(config.rules, state.store)

    found = Explorer(config).explore({"sound": sound})
    assert found.complete
    assert found.violations == {}
    assert len(known) > 50


def test_what_PyTorchs_rules_reach_after_a_lost_reply_is_doubted() -> None:
    config = Config(upstream(FIXED), 2, Budget(lost_replies=1))
    found = Explorer(config).explore({"sound": lambda config, state: not doubts(config.rules, state.store)})
    assert set(found.violations) == {"sound"}


def stored(text: str, *more: str, ttl: bool = False, count: str = "1", rules: Rules = FIXED) -> Store:
    store = Store()
    for key in (directory(rules, 1) + "/x", *more):
        store, _ = apply(store, Create(key, "", 1))
    store, _ = apply(store, Create(counter(rules), count))
    store, _ = apply(store, Create(active(rules), text, 1 if ttl else None))
    return store


FINAL = (
    '{"status":"final","version":"1","participants":[0,1],"keep_alives":["/v_1/a","/v_1/b"],"num_workers_waiting":0}'
)


@pytest.mark.parametrize(
    ("text", "ttl", "count", "doubt"),
    [
        ("no json", False, "1", "no JSON"),
        ('{"status":"setup"}', False, "1", "setup without a TTL"),
        ('{"status":"joinable","version":"1","participants":[0]}', True, "1", "joinable with a TTL"),
        ('{"status":"joinable","version":"1","participants":[0,1]}', True, "1", "although all 2 are in"),
        ('{"status":"joinable","version":"1","participants":[],"keep_alives":["/v_1/a"]}', False, "1", "has confirmed"),
        ('{"status":"joinable","version":"1","participants":[],"num_workers_waiting":1}', False, "1", "waits"),
        ('{"status":"frozen","version":"1","participants":[0,1],"keep_alives":[]}', False, "1", "frozen without a TTL"),
        ('{"status":"frozen","version":"1","participants":[0],"keep_alives":[]}', True, "1", "WorldBounds"),
        (FINAL.replace("final", "frozen"), True, "1", "frozen although everybody"),
        (FINAL, True, "1", "final with a TTL"),
        (FINAL, False, "0", "above the version counter"),
        (FINAL, False, "x", "version counter is 'x'"),
        (FINAL.replace('"1"', '"7"'), False, "9", "directory of version 7 is missing"),
        (FINAL.replace("/v_1/b", "/v_1/a"), False, "1", "1 of 2 have confirmed"),
        (FINAL.replace("/v_1/b", "/v_2/b"), False, "1", "of another version"),
        (FINAL[:-1] + ',"owners":{"0":"w","1":"w"}}', False, "1", "owns two slots"),
        (FINAL[:-1] + ',"owners":{"2":"w"}}', False, "1", "a slot has an owner"),
        (FINAL[:-1] + ',"waiters":["w"]}', False, "1", "1 waiting workers are listed, 0 are counted"),
    ],
)
def test_what_the_model_cannot_reach_is_named(text: str, ttl: bool, count: str, doubt: str) -> None:
    found = doubts(FIXED, stored(text, ttl=ttl, count=count))
    assert any(doubt in one for one in found), found


def test_a_healthy_final_state_is_not_doubted() -> None:
    assert doubts(FIXED, stored(FINAL)) == ()
    store, _ = apply(stored(FINAL), Create(directory(FIXED, 1) + "/alive_w", ""))
    assert doubts(FIXED, store) == ("the lease alive_w has no TTL: it never runs out",)


# --- what can happen next ---------------------------------------------------------------------------------------------


def test_the_outlook_of_a_version_that_is_filling() -> None:
    text = '{"status":"joinable","version":"1","participants":[0],"owners":{"0":"w"}}'
    store = stored(text, "/v_1/alive_w")
    assert awaited(FIXED, store) == "1 more worker to join"
    assert [one.role for one in actors(FIXED, store)] == ["participant 0"]
    told = {(one.who, one.what): one.after for one in outlook(FIXED, store)}
    assert told["w", "waiting for peers: 1 of 2 to 2 are in"] == text
    joined = told["a newcomer", "joining"]
    assert joined is not None
    assert docs.parse(joined).status == docs.FROZEN
    closed = told["anybody", "closes the run"]
    assert closed is not None
    assert docs.parse(closed).status == docs.CLOSED
    lost = expire(store, "/v_1/alive_w")
    assert not actors(FIXED, lost)[0].alive


def test_who_is_awaited_in_a_final_version() -> None:
    waiting = FINAL.replace('waiting":0', 'waiting":1')
    elastic = Rules(2, 3)
    assert awaited(elastic, stored(waiting, rules=elastic)) == "the members, to meet again and let 1 in"
    assert awaited(FIXED, stored(waiting)) == "", "it is full: who waits is a spare"
    assert awaited(FIXED, stored(FINAL)) == ""


def test_the_numbers_of_workers_come_from_the_document() -> None:
    document = docs.parse('{"status":"joinable","version":"1","participants":[0],"bounds":[2,5]}')
    read = rules_for(Rules(1, 1), document, expires=False)
    assert (read.min_workers, read.max_workers) == (2, 5)
    guessed = rules_for(Rules(1, 1), docs.parse(FINAL), expires=False)
    assert (guessed.min_workers, guessed.max_workers) == (1, 3)


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture
def make(etcd_server: EtcdServer, prefix: str) -> Iterator[Make]:
    made: list[EtcdRendezvousHandler] = []

    def one(lowest: int = 1, highest: int = 2, **config: Any) -> EtcdRendezvousHandler:
        config = {"timeout": 20, "last_call_timeout": 0, "etcd_prefix": prefix, **config}
        parameters = RendezvousParameters("etcd", etcd_server.get_endpoint(), "job", lowest, highest, "::1", **config)
        made.append(create_rdzv_handler(parameters))
        return made[-1]

    yield one
    for handler in made:
        handler._rdzv_impl.leave()


@pytest.fixture
def status(
    etcd_server: EtcdServer, prefix: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., tuple[int, dict[str, Any], str]]:
    """The exit code, what is in the JSON file, and what was printed."""

    def call(*arguments: str, endpoint: str = etcd_server.get_endpoint()) -> tuple[int, dict[str, Any], str]:
        file = tmp_path / "status.json"
        file.write_text("{}")
        command = ["status", "--endpoint", endpoint, "--run-id", "job", "--prefix", prefix, "--json", str(file)]
        code = main([*command, *arguments])
        printed = capsys.readouterr()
        assert "Traceback" not in printed.out + printed.err
        return code, json.loads(file.read_text()), " ".join((printed.out + printed.err).split())

    return call


Status = Callable[..., tuple[int, dict[str, Any], str]]


def becomes(condition: Callable[[], bool], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_run_from_its_first_worker_to_its_close(make: Make, status: Status) -> None:
    member, late = make(1, 2), make(1, 2)
    member.next_rendezvous()
    code, told, printed = status()
    assert (code, told["reachable"], told["broken"], told["doubts"]) == (0, True, False, [])
    [one] = told["members"]
    assert one["who"] == member._rdzv_impl._worker.id
    assert (one["role"], one["alive"]) == ("member 0", True)
    assert 8 <= one["ttl_left"] <= 10
    assert one["renewed_ago"] == 10 - one["ttl_left"]
    assert one["who"] in printed
    assert "the model can be in this state" in printed
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(late.next_rendezvous)
        becomes(lambda: member.num_nodes_waiting() == 1)
        code, told, printed = status()
        assert [one["role"] for one in told["members"]] == ["member 0", "waiting"]
        assert "the members, to meet again and let 1 in" in printed
        assert {"a newcomer", "anybody", "time"} <= {one["who"] for one in told["next"]}
        member.shutdown()
        with pytest.raises(RendezvousClosedError):
            waiting.result(10)
    code, told, printed = status()
    assert (code, told["reachable"]) == (0, True)
    assert "a newcomer │ is turned away: closed" in printed
    assert "document closed" in printed


def test_a_run_that_waits_for_a_worker(make: Make, status: Status) -> None:
    first, second = make(2, 2), make(2, 2)
    with ThreadPoolExecutor(1) as pool:
        meeting = pool.submit(first.next_rendezvous)
        becomes(lambda: "1 more worker to join" in status()[1].get("awaited", ""))
        second.next_rendezvous()
        assert meeting.result(10).world_size == 2
    assert status()[1]["awaited"] == ""


def test_a_broken_document_is_explained(make: Make, status: Status, http: EtcdHttp, prefix: str) -> None:
    make()
    key = f"{prefix}/run_job/rdzv/active_version"
    http.call("PUT", key, {"value": "x\x1b[31m{"}, time.monotonic() + 5)
    code, told, printed = status()
    assert (code, told["broken"], told["reachable"]) == (1, True, False)
    assert "broken: not a rendezvous document: no JSON" in printed
    assert "once no worker is left, remove that key" in printed
    assert "\x1b" not in printed
    http.call("DELETE", key, {}, time.monotonic() + 5)
    http.call("PUT", key, {"dir": "true"}, time.monotonic() + 5)
    code, told, printed = status()
    assert (code, told["broken"]) == (1, True)
    assert "a directory is in the document's place" in printed


def test_a_state_that_the_model_cannot_reach_is_told(make: Make, status: Status, http: EtcdHttp, prefix: str) -> None:
    member = make()
    member.next_rendezvous()
    key = f"{prefix}/run_job/rdzv/version_counter"
    http.call("PUT", key, {"value": "0"}, time.monotonic() + 5)
    code, told, printed = status()
    assert (code, told["reachable"]) == (1, False)
    assert "is above the version counter, 0" in printed


def test_what_cannot_be_shown_is_one_line_and_exit_2(status: Status, make: Make) -> None:
    with find_free_port() as reserved:
        port = reserved.getsockname()[1]
    code, _, printed = status(endpoint=f"127.0.0.1:{port}")
    assert code == 2
    assert printed.startswith("rallypoint: no answer from etcd (etcd at http://127.0.0.1:")
    make(1, 1).next_rendezvous()
    code, _, printed = status("--run-id", "other")
    assert code == 2
    assert "no run 'other'" in printed
    assert "there are job" in printed
    for wrong, said in (
        (("--endpoint", "h:port"), "not HOST:PORT: 'h:port'"),
        (("--run-id", ""), "must not be empty"),
        (("--prefix", "/a/../b"), "etcd_prefix"),
        (("--keep-alive-ttl", "soon"), "keep_alive_ttl"),
        (("--protocol", "gopher"), "protocol"),
        (("--username", "me"), "password"),
        (("--username", "me", "--password-file", "/nonexistent"), "password_file=/nonexistent: cannot be read"),
    ):
        code, _, printed = status(*wrong)
        assert code == 2, wrong
        assert said in printed


def test_it_gets_in_by_client_certificate(
    tls_etcd: EtcdServer, tls_files: Path, prefix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {
        name: str(tls_files / f"{file}.pem") for name, file in (("cacert", "ca"), ("cert", "cert"), ("key", "key"))
    }
    endpoint = tls_etcd.get_endpoint()
    parameters = RendezvousParameters(
        "etcd", endpoint, "job", 1, 1, "::1", etcd_prefix=prefix, protocol="https", **files
    )
    handler = create_rdzv_handler(parameters)
    handler.next_rendezvous()
    options = [word for name, file in files.items() for word in (f"--{name}", file)]
    command = ["status", "--endpoint", endpoint, "--run-id", "job", "--prefix", prefix, "--protocol", "https"]
    assert main([*command, *options]) == 0
    assert "member 0" in capsys.readouterr().out
    assert main(command) == 2
    assert "certificate" in capsys.readouterr().err
    handler.shutdown()


def test_watch_follows_a_run_and_ctrl_c_ends_it(own_etcd: EtcdServer) -> None:
    """From before there is a run, through its changes and an outage of etcd."""
    endpoint = own_etcd.get_endpoint()
    command = [COMMAND, "status", "--endpoint", endpoint, "--run-id", "job", "--watch"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, start_new_session=True
    ) as process:
        try:
            output = process.stdout
            assert output is not None
            _read_until(output.fileno(), "waiting for a run 'job'")
            parameters = RendezvousParameters("etcd", endpoint, "job", 1, 2, "::1", last_call_timeout=0)
            handler = create_rdzv_handler(parameters)
            handler.next_rendezvous()
            _read_until(output.fileno(), "document  final")
            own_etcd.kill()
            _read_until(output.fileno(), "no answer from etcd")
            own_etcd.start()
            _read_until(output.fileno(), "document  final")
            handler.shutdown()
            _read_until(output.fileno(), "document  closed")
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=10)
        finally:
            process.kill()
    assert process.returncode == 0
    assert errors == b""


def _read_until(file: int, text: str, seconds: float = 20) -> None:
    deadline, seen = time.monotonic() + seconds, b""
    while text.encode() not in seen:
        assert select.select([file], [], [], max(0.0, deadline - time.monotonic()))[0], (
            f"{text!r} did not come: {seen!r}"
        )
        piece = os.read(file, 65536)
        assert piece, seen
        seen += piece
