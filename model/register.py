"""EtcdRendezvousBackend's compare-and-set register as a machine: which request comes next, what a reply makes of it.

May live here: every decision of a client between a call of ``get_state`` or ``set_state`` and its result.
Must not live here: performing a request, faults, and who calls when (``register_system.py``).

The register is one key; a token is its modifiedIndex. ``start_get`` and ``start_set`` begin a call, ``want(rules,
client)`` is its next request, ``step(rules, client, answer)`` the client after its reply, ``lost(rules, client)``
after a reply that does not come, ``give_up(client)`` when the call's time is up.

``HARDENED`` are the rules of ``impl/etcd_rendezvous_backend.py``, ``UPSTREAM`` those of PyTorch's class. Not in the
model: etcd keeps 1000 events, and a client that asks for older ones gives up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

from rallypoint.model import etcd
from rallypoint.model.etcd import NOT_FOUND, CasIndex, Create, Done, Failed, Get

KEY = "/state"
TTL = 7200.0  # seconds


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules that differ. Each switch removes one upstream defect (named behind it).

    ``read_back``: a write that is refused after a lost reply is looked for in etcd's history.
    ``settle_first``: so is a creation before it is repeated; a key that vanished meanwhile would be created twice.
    ``strict_tokens``: a token that cannot be an index is a stale one, not a missing one.
    ``vanished_is_absent``: "not found" in reply to a token means that there is no state, not that etcd failed.
    """

    read_back: bool = True  # B-A
    settle_first: bool = True  # B-A, by way of a vanished key
    strict_tokens: bool = True  # B-B
    vanished_is_absent: bool = True  # B-H


HARDENED = Rules()
UPSTREAM = Rules(False, False, False, False)


@dataclass(frozen=True, slots=True)
class Find:
    """Did the key ever hold this value, and since which index? Etcd's history of the key tells."""

    value: str


Request: TypeAlias = Get | Create | CasIndex | Find


class Answer(NamedTuple):
    """A reply and the modifiedIndex that goes with its value (0: no value)."""

    reply: etcd.Reply
    modified: int


@dataclass(frozen=True, slots=True)
class Client:
    """One user of the register. ``token``: the last one it was given, None: it knows of no state.

    During a ``set_state``, ``value`` is the state to write and ``given`` the token that came with the call (None: none;
    0 stands for every token that is no index); ``unsure``: an earlier attempt may have been carried out.
    ``result`` is that of the last call, one of ``RESULTS``, "" before the first and during each.
    """

    pc: str = "idle"
    token: int | None = None
    value: str | None = None
    given: int | None = None
    unsure: bool = False
    result: str = ""


IDLE = "idle"
WRITTEN, FOUND, REFUSED, ABSENT, ERROR, UNKNOWN, READ = (
    "written",  # (state, token, True)
    "found",  # the same, by looking after a lost reply
    "refused",  # (current state, its token, False)
    "absent",  # None: there is no state
    "error",  # RendezvousConnectionError, although etcd answered
    "unknown",  # RendezvousConnectionError: etcd did not answer in time
    "read",  # (state, token) of get_state
)
RESULTS = (WRITTEN, FOUND, REFUSED, ABSENT, ERROR, UNKNOWN, READ)


# --- events -----------------------------------------------------------------------------------------------------


def start_get(client: Client) -> Client:
    """``get_state()`` is called."""
    return Client("get", client.token)


def start_set(rules: Rules, client: Client, value: str, given: int | None) -> Client:
    """``set_state(value, given)`` is called."""
    if given:
        pc = "swap"
    elif given == 0 and rules.strict_tokens:
        pc = "current"
    else:
        pc = "look" if rules.settle_first else "create"
    return Client(pc, client.token, value, given)


def lost(rules: Rules, client: Client) -> Client:
    """No reply to a write came, and the connection is gone: it may have been carried out, or may still be."""
    if client.pc == "create" and rules.settle_first:
        return replace(client, pc="settle", unsure=True)
    return replace(client, unsure=True)


def give_up(client: Client) -> Client:
    """The time for the call is up. The token is kept."""
    return _ended(client, UNKNOWN, client.token)


# --- one function per reply ---------------------------------------------------------------------------------------


def _ended(client: Client, result: str, token: int | None) -> Client:
    value = client.value if result != READ else None
    return Client(IDLE, token, value, client.given, result=result)


def _is_absent(answer: Answer) -> bool:
    return isinstance(answer.reply, Failed) and answer.reply.code == NOT_FOUND


def _get(rules: Rules, client: Client, answer: Answer) -> Client:
    return _ended(client, ABSENT, None) if _is_absent(answer) else _ended(client, READ, answer.modified)


def _look(rules: Rules, client: Client, answer: Answer) -> Client:
    return replace(client, pc="create" if _is_absent(answer) else "current")


def _write(rules: Rules, client: Client, answer: Answer) -> Client:
    if isinstance(answer.reply, Done):
        return _ended(client, WRITTEN, answer.modified)
    if _is_absent(answer) and not rules.vanished_is_absent:
        return _ended(client, ERROR, client.token)
    return replace(client, pc="find" if client.unsure and rules.read_back else "current")


def _settle(rules: Rules, client: Client, answer: Answer) -> Client:
    return replace(client, pc="create") if _is_absent(answer) else _ended(client, FOUND, answer.modified)


def _find(rules: Rules, client: Client, answer: Answer) -> Client:
    return replace(client, pc="current") if _is_absent(answer) else _ended(client, FOUND, answer.modified)


def _current(rules: Rules, client: Client, answer: Answer) -> Client:
    return _ended(client, ABSENT, None) if _is_absent(answer) else _ended(client, REFUSED, answer.modified)


# --- the table ------------------------------------------------------------------------------------------------------


class Row(NamedTuple):
    """One line of the table: the action's name, the request, the reaction to its reply, what the client is doing."""

    action: str
    want: Callable[[Client], Request]
    react: Callable[[Rules, Client, Answer], Client]
    about: str


def _value(client: Client) -> str:
    assert client.value is not None
    return client.value


def _want_get(client: Client) -> Request:
    return Get(KEY)


def _want_find(client: Client) -> Request:
    return Find(_value(client))


def _want_create(client: Client) -> Request:
    return Create(KEY, _value(client), TTL)


def _want_swap(client: Client) -> Request:
    assert client.given is not None
    return CasIndex(KEY, client.given, _value(client), TTL)


TABLE: dict[str, Row] = {
    "get": Row("Get", _want_get, _get, "reading the state"),
    "look": Row("Look", _want_get, _look, "looking whether there is a state"),
    "create": Row("Create", _want_create, _write, "creating the state"),
    "swap": Row("Swap", _want_swap, _write, "replacing the state that the token stands for"),
    "settle": Row("Settle", _want_find, _settle, "finding out whether the state was created"),
    "find": Row("Find", _want_find, _find, "finding out whether an earlier attempt did it"),
    "current": Row("Current", _want_get, _current, "reading the state that is there instead"),
}
"""The client's table: state of the machine -> request, reaction, description."""


def want(client: Client) -> Request:
    """The next request. The client must not be idle."""
    return TABLE[client.pc].want(client)


def step(rules: Rules, client: Client, answer: Answer) -> Client:
    """The client after the answer to ``want``."""
    return TABLE[client.pc].react(rules, client, answer)
