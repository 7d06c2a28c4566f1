"""The transport: the model's requests on a real etcd, one attempt each, and honest about what it does not know."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from rallypoint.impl.etcd_http import (
    Access,
    Answer,
    EtcdHttp,
    EtcdUnavailable,
)
from rallypoint.impl.etcd_server import EtcdServer, find_etcd
from rallypoint.impl.etcd_v2 import EtcdV2
from rallypoint.live.proxy import Fault, FaultProxy
from rallypoint.model import etcd as model
from rallypoint.model.etcd import (
    NOT_A_FILE,
    Await,
    Cad,
    Cas,
    CasIndex,
    Create,
    Delete,
    Done,
    Failed,
    Get,
    List,
    Mkdir,
    Put,
    Refresh,
    Request,
    Snapshot,
    Store,
)


def soon(seconds: float = 10.0) -> float:
    return time.monotonic() + seconds


@pytest.fixture
def v2(http: EtcdHttp, prefix: str) -> EtcdV2:
    return EtcdV2(http, prefix)


@pytest.fixture
def through(proxy: FaultProxy, prefix: str) -> Iterator[EtcdV2]:
    """The same root, by way of the proxy."""
    http = EtcdHttp(Access(((proxy.host, proxy.port),)))
    yield EtcdV2(http, prefix)
    http.close()


# Each request does what the model says


KEYS = ("/a", "/b", "/d", "/d/x", "/d/y", "/d/x/z")
TEXTS = ("", "1", "2", 'é {"a b": "%&=+"}')


def draw_request(dice: random.Random) -> Request:
    # Etcd refuses an empty prevValue (error 201): a comparison with "" cannot be asked for.
    key, value, other = dice.choice(KEYS), dice.choice(TEXTS), dice.choice(TEXTS[1:])
    ttl = dice.choice((None, 1000.0))
    choices: tuple[Request, ...] = (
        Get(key),
        Create(key, value, ttl),
        Put(key, value, ttl),
        Cas(key, other, value, ttl),
        Cad(key, other),
        Delete(key),
        Mkdir(key),
        Refresh(key, 1000.0),
        List(key),
        Await(key, other, tuple(dice.sample(KEYS, dice.randrange(3)))),
    )
    return dice.choice(choices)


@pytest.mark.parametrize("seed", range(6))
def test_replies_are_the_models(v2: EtcdV2, seed: int) -> None:
    dice, store = random.Random(seed), Store()
    v2.perform(Mkdir("/root-exists"), soon())
    start, done = v2.last_index, 0
    for _ in range(150):
        request = draw_request(dice)
        node = store.get(request.key)
        renews_directory = isinstance(request, Refresh) and node is not None and node.is_dir  # see the test below
        if model.enabled(store, request) and not renews_directory:
            before = store
            store, expected = model.apply(store, request)
            if expected == Failed(model.NOT_FOUND) and model._blocked(before, request.key):
                expected = Failed(model.NOT_A_DIRECTORY)
            assert v2.perform(request, soon()) == expected, (seed, request, before)
            if store.index != before.index:
                assert v2.last_index - start == store.index, (seed, request)
            done += 1
    assert done >= 100
    assert store.index >= 5


def test_L_A_renewing_a_directory_depends_on_the_version(v2: EtcdV2) -> None:
    """Etcd 3.5 refuses what 3.4 does: the model, and the rendezvous, count on no directory lease at all."""
    v2.perform(Mkdir("/d"), soon())
    reply = v2.perform(Refresh("/d", 100), soon())
    assert reply == (Done(None) if find_etcd().version.startswith("3.4") else Failed(model.NOT_A_FILE))


def test_keys_lie_below_the_root(http: EtcdHttp, etcd_server: EtcdServer, prefix: str) -> None:
    v2 = EtcdV2(http, f"{prefix[1:]}//run/")
    v2.perform(Put("/v_1/rank_0", "x"), soon())
    assert etcd_server.get_client().read(f"{prefix}/run/v_1/rank_0").value == "x"
    assert v2.perform(List("/v_1"), soon()) == model.Listing(("/v_1/rank_0",))


def test_a_ttl_is_rounded_up_and_ends(v2: EtcdV2, etcd_server: EtcdServer) -> None:
    v2.perform(Create("/k", "v", 0.1), soon())
    assert etcd_server.get_client().read(f"{v2.root}/k").ttl == 1
    assert v2.perform(Await("/k", "v"), soon()) == Snapshot(None, ())
    v2.perform(Put("/k", "v", 5), soon())
    v2.perform(Cas("/k", "v", "w"), soon())
    assert etcd_server.get_client().read(f"{v2.root}/k").ttl is None
    with pytest.raises(ValueError, match="positive"):
        v2.perform(Put("/k", "v", 0), soon())


def test_the_observer_sees_each_reply_with_its_index(http: EtcdHttp, prefix: str) -> None:
    seen: list[tuple[Request, model.Reply, int]] = []
    v2 = EtcdV2(http, prefix, observer=lambda *what: seen.append(what))
    requests = (Put("/k", "1"), Cas("/k", "0", "2"), Get("/k"), Delete("/k"), Await("/k", "1"))
    for request in requests:
        v2.perform(request, soon())
    assert [what[0] for what in seen] == list(requests)
    assert [what[1] for what in seen] == [Done("1"), Failed(101), Done("1"), Done(None), Snapshot(None, ())]
    first = seen[0][2]
    assert [what[2] - first for what in seen] == [0, 0, 0, 1, 1]
    assert v2.last_index == first + 1


# Waiting


@pytest.mark.parametrize(
    ("cause", "expected"),
    [
        (Put("/k", "2"), Snapshot("2", ())),
        (Delete("/k"), Snapshot(None, ())),
        (Delete("/v_1/rank_1"), Snapshot("1", ("/v_1/rank_1",))),
        (Put("/v_1/rank_1", "x", 1), Snapshot("1", ("/v_1/rank_1",))),
        (Put("/v_1/address", "x"), Snapshot("1", (), True)),
    ],
    ids=["changed", "deleted", "alive-deleted", "alive-expired", "until-there"],
)
def test_await_wakes_up_for_each_cause(v2: EtcdV2, cause: Request, expected: Snapshot) -> None:
    for request in (Put("/k", "1"), Put("/v_1/rank_0", "x"), Put("/v_1/rank_1", "x")):
        v2.perform(request, soon())
    with ThreadPoolExecutor() as pool:
        wait = pool.submit(v2.perform, Await("/k", "1", ("/v_1/rank_0", "/v_1/rank_1"), "/v_1/address"), soon())
        v2.perform(Put("/v_1/kv/noise", "x"), soon())
        v2.perform(cause, soon())
        assert wait.result(4) == expected


def test_await_wakes_up_when_the_directory_goes(v2: EtcdV2, etcd_server: EtcdServer) -> None:
    for request in (Put("/k", "1"), Put("/v_1/rank_0", "x")):
        v2.perform(request, soon())
    client = etcd_server.get_client()
    with ThreadPoolExecutor() as pool:
        wait = pool.submit(v2.perform, Await("/k", "1", ("/v_1/rank_0",)), soon())
        client.delete(f"{v2.root}/v_1", recursive=True)
        assert wait.result(4) == Snapshot("1", ("/v_1/rank_0",))
        wait = pool.submit(v2.perform, Await("/k", "1"), soon())
        client.delete(v2.root, recursive=True)
        assert wait.result(4) == Snapshot(None, ())


def test_await_ends_at_its_deadline_with_no_reply(v2: EtcdV2) -> None:
    v2.perform(Put("/k", "1"), soon())
    before = time.monotonic()
    assert v2.perform(Await("/k", "1"), before + 0.3) is None
    assert 0.3 <= time.monotonic() - before < 1.3
    assert v2.perform(Await("/k", "1"), time.monotonic() - 1) is None


def test_S_G_an_event_between_read_and_watch_is_not_lost(through: EtcdV2, v2: EtcdV2, proxy: FaultProxy) -> None:
    v2.perform(Put("/k", "1"), soon())
    gate = proxy.order(Fault.DELAY_REQUEST, lambda one: "wait" in one.form)
    with ThreadPoolExecutor() as pool:
        wait = pool.submit(through.perform, Await("/k", "1"), soon(30))
        proxy.await_seen(lambda one: "wait" in one.form)
        v2.perform(Put("/k", "2"), soon())
        v2.perform(Put("/k", "1"), soon())
        v2.perform(Put("/k", "3"), soon())
        gate.set()
        assert wait.result(4) == Snapshot("3", ())


def test_R81_a_cleared_history_is_read_again(through: EtcdV2, v2: EtcdV2, proxy: FaultProxy) -> None:
    v2.perform(Put("/k", "1"), soon())
    gate = proxy.order(Fault.DELAY_REQUEST, lambda one: "wait" in one.form)
    with ThreadPoolExecutor() as pool:
        wait = pool.submit(through.perform, Await("/k", "1"), soon(30))
        proxy.await_seen(lambda one: "wait" in one.form)
        v2.perform(Put("/k", "2"), soon())
        list(pool.map(lambda number: v2.perform(Put("/noise", str(number)), soon()), range(1005)))
        gate.set()
        assert wait.result(4) == Snapshot("2", ())


def test_other_keys_do_not_make_a_waiter_read(through: EtcdV2, v2: EtcdV2, proxy: FaultProxy) -> None:
    for request in (Put("/k", "1"), Put("/v_1/rank_0", "x")):
        v2.perform(request, soon())
    with ThreadPoolExecutor() as pool:
        wait = pool.submit(through.perform, Await("/k", "1", ("/v_1/rank_0",)), soon())
        proxy.await_seen(lambda one: "wait" in one.form)
        for number in range(10):
            v2.perform(Put(f"/v_1/kv/{number}", "x"), soon())
        v2.perform(Put("/k", "2"), soon())
        assert wait.result(4) == Snapshot("2", ())
    reads = [one for one in proxy.seen() if "wait" not in one.form]
    assert len(reads) == 3  # the key and the directory before, the key after


def test_R82_a_watch_that_is_cut_is_followed_by_a_read(through: EtcdV2, v2: EtcdV2, proxy: FaultProxy) -> None:
    v2.perform(Put("/k", "1"), soon())
    proxy.order(Fault.DROP_REQUEST, lambda one: "wait" in one.form)
    with pytest.raises(EtcdUnavailable):
        through.perform(Await("/k", "1"), soon())
    with ThreadPoolExecutor() as pool:
        wait = pool.submit(through.perform, Await("/k", "1"), soon())
        v2.perform(Put("/k", "2"), soon())
        assert wait.result(4) == Snapshot("2", ())


def test_R82_a_quiet_watch_is_renewed_within_the_bound_of_an_attempt(proxy: FaultProxy, v2: EtcdV2) -> None:
    v2.perform(Put("/k", "1"), soon())
    short = EtcdV2(EtcdHttp(Access(((proxy.host, proxy.port),)), attempt_timeout=0.2), v2.root)
    assert short.perform(Await("/k", "1"), soon(0.7)) is None
    assert sum("wait" in one.form for one in proxy.seen()) >= 3


def test_R80_a_renewal_keeps_the_value(v2: EtcdV2) -> None:
    v2.perform(Put("/k", "v", 100), soon())
    assert v2.perform(Refresh("/k", 200), soon()) == Done("v")
    assert v2.perform(Get("/k"), soon()) == Done("v")
    found = v2.http.call("GET", f"{v2.root}/k", {}, soon())
    assert isinstance(found, Answer)
    assert 100 < (found.node.ttl or 0) <= 200


def test_R14_R18_a_directory_is_no_lease(v2: EtcdV2, through: EtcdV2, proxy: FaultProxy) -> None:
    """etcd neither renews its TTL (3.5) nor compares its index: so no request of ours gives a directory one."""
    v2.perform(Mkdir("/dir"), soon())
    index = v2.last_index
    on_directories: tuple[Request, ...] = (Refresh("/dir", 100), CasIndex("/dir", index, "v"))
    for request in on_directories:
        reply = v2.perform(request, soon())
        assert isinstance(reply, Failed)
        assert reply.code == NOT_A_FILE
    for request in WRITES:
        through.perform(request, soon())
    directories = [one.form for one in proxy.seen() if "dir" in one.form]
    assert directories
    assert not any("ttl" in form for form in directories)


# One attempt, and nothing behind the caller's back


WRITES: tuple[Request, ...] = (
    Create("/new", "v"),
    Put("/k", "v"),
    Cas("/k", "1", "2"),
    Cad("/k", "1"),
    Delete("/k"),
    Mkdir("/dir"),
    Refresh("/k", 100),
)


@pytest.mark.parametrize("request_", [*WRITES, Get("/k"), List("/")], ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("fault", [Fault.DROP_REPLY, Fault.DROP_REQUEST], ids=lambda one: one.name)
def test_S_B_a_lost_reply_is_told_and_nothing_is_repeated(
    through: EtcdV2, v2: EtcdV2, proxy: FaultProxy, request_: Request, fault: Fault
) -> None:
    v2.perform(Put("/k", "1"), soon())
    before = v2.last_index
    proxy.order(fault, lambda one: True)
    with pytest.raises(EtcdUnavailable) as caught:
        through.perform(request_, soon())
    assert caught.value.maybe_applied
    assert len(proxy.seen()) == 1
    v2.perform(Get("/k"), soon())
    applied = fault is Fault.DROP_REPLY and isinstance(request_, WRITES_OF_MODEL)
    assert v2.last_index - before == int(applied)


WRITES_OF_MODEL = tuple(type(one) for one in WRITES)


def test_a_refused_connection_is_known_not_to_have_been_carried_out(through: EtcdV2, proxy: FaultProxy) -> None:
    proxy.refuse()
    with pytest.raises(EtcdUnavailable, match="cannot be reached") as caught:
        through.perform(Put("/k", "v"), soon())
    assert not caught.value.maybe_applied
    proxy.admit()
    assert through.perform(Put("/k", "v"), soon()) == Done("v")


@pytest.mark.parametrize("request_", [Get("/k"), Put("/k", "v"), Await("/k", "v")], ids=lambda one: type(one).__name__)
def test_D_I_a_hung_etcd_costs_one_attempt(own_etcd: EtcdServer, request_: Request) -> None:
    v2 = EtcdV2(EtcdHttp.of_client(own_etcd.get_client(), attempt_timeout=0.5), "/r")
    own_etcd.pause()
    before = time.monotonic()
    with pytest.raises(EtcdUnavailable) as caught:
        v2.perform(request_, soon())
    assert 0.4 < time.monotonic() - before < 1.2
    assert caught.value.maybe_applied
    patient = EtcdV2(EtcdHttp.of_client(own_etcd.get_client(), attempt_timeout=5), "/r")
    before = time.monotonic()
    if isinstance(request_, Await):
        assert patient.perform(request_, before + 0.2) is None
    else:
        with pytest.raises(EtcdUnavailable):
            patient.perform(request_, before + 0.2)
    assert time.monotonic() - before < 0.9


def test_after_the_deadline_nothing_is_sent(through: EtcdV2, proxy: FaultProxy) -> None:
    with pytest.raises(EtcdUnavailable, match="deadline") as caught:
        through.perform(Put("/k", "v"), time.monotonic() - 1)
    assert not caught.value.maybe_applied
    assert proxy.seen() == []
