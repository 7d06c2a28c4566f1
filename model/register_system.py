"""Register, clients, network and faults as one labelled transition relation, and its breadth-first search.

May live here: which steps exist, what each costs, and searching them. Must not live here: what a client decides
(``register.py``), what etcd answers (``etcd.py``), what must hold (``spec/``).

A write either meets etcd at once and is answered (the client's step), or is carried out and the reply is lost, or is
late: it stays in ``flying`` after its sender went on, and arrives at any later moment. The state may vanish at any
moment, because it expired or somebody deleted it. Every fault and every call has a budget, so indices stay finite.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias

from rallypoint.model import etcd, register
from rallypoint.model.etcd import NOT_FOUND, CasIndex, Create, Done, Failed, Store
from rallypoint.model.register import IDLE, KEY, Answer, Client, Find, Request, Rules


@dataclass(frozen=True, slots=True)
class Budget:
    """How many calls and faults a run may contain."""

    sets: int = 0
    gets: int = 0
    lost_replies: int = 0
    delays: int = 0
    vanishings: int = 0
    give_ups: int = 0


@dataclass(frozen=True, slots=True)
class Config:
    """One bounded system. ``late_creates``: the state may vanish while a delayed creation is under way.

    Etcd cannot tell one absence of a key from the next, so a creation that comes that late is a second effect, or one
    that was denied, under any rules. Without ``late_creates`` it is assumed away: no request is under way for as long
    as the TTL, and whoever deletes the state by hand sees to it that nobody is starting.
    """

    rules: Rules
    clients: int
    budget: Budget
    late_creates: bool = False


class Effect(NamedTuple):
    """A write that was carried out: its index, its value, and the index of what it replaced (0: nothing)."""

    modified: int
    value: str
    over: int


class Late(NamedTuple):
    """A request that is still under way. ``number`` tells it from its repetitions."""

    number: int
    request: Request


class State(NamedTuple):
    store: Store
    effects: tuple[Effect, ...]
    clients: tuple[Client, ...]
    flying: tuple[Late, ...]
    left: Budget


class Step(NamedTuple):
    """A labelled transition: who (slot number, None for etcd and the network), what, and the state after it."""

    action: str
    slot: int | None
    state: State
    request: Request | None = None
    answer: Answer | None = None


def initial(config: Config) -> State:
    """No state, nobody knows of one."""
    return State(Store(), (), (Client(),) * config.clients, (), config.budget)


def given(value: str) -> int | None:
    """The token that came with the write of this value."""
    text = value.split(".")[2]
    return None if text == "-" else int(text)


def apply(state: State, request: Request) -> tuple[State, Answer]:
    """What etcd does with one request, at one instant, and what goes down in its history."""
    if isinstance(request, Find):
        found = next((effect for effect in state.effects if effect.value == request.value), None)
        return state, Answer(Failed(NOT_FOUND), 0) if found is None else Answer(Done(found.value), found.modified)
    before = state.store.get(KEY)
    store, reply = etcd.apply(state.store, request)
    node = store.get(KEY)
    modified = node.modified if node is not None and isinstance(reply, Done) else 0
    if store == state.store or node is None:
        return state, Answer(reply, modified)
    effect = Effect(store.index, node.value or "", before.modified if before else 0)
    return state._replace(store=store, effects=(*state.effects, effect)), Answer(reply, modified)


def pay(state: State, what: str) -> State | None:
    """The state with one less of ``what`` to come, None if there is none left."""
    have: int = getattr(state.left, what)
    return state._replace(left=replace(state.left, **{what: have - 1})) if have else None


def _with(state: State, slot: int, client: Client) -> State:
    return state._replace(clients=(*state.clients[:slot], client, *state.clients[slot + 1 :]))


def steps(config: Config, state: State) -> Iterator[Step]:
    """All transitions from ``state``."""
    for slot, client in enumerate(state.clients):
        yield from (_calls if client.pc == IDLE else _requests)(config, state, slot, client)
    for late in state.flying:
        after, answer = apply(state, late.request)
        yield Step(
            "Arrive",
            None,
            after._replace(flying=tuple(other for other in state.flying if other != late)),
            late.request,
            answer,
        )
    if (paid := pay(state, "vanishings")) and state.store.get(KEY) and (config.late_creates or not _creating(state)):
        yield Step("Vanish", None, paid._replace(store=etcd.expire(state.store, KEY)))


def _creating(state: State) -> bool:
    """A creation that was delayed may still have an effect."""
    return any(isinstance(late.request, Create) for late in state.flying) or any(
        client.pc == "create" and client.unsure for client in state.clients
    )


def _calls(config: Config, state: State, slot: int, client: Client) -> Iterator[Step]:
    if paid := pay(state, "gets"):
        yield Step("StartGet", slot, _with(paid, slot, register.start_get(client)))
    if paid := pay(state, "sets"):
        for token in (None, 0) if client.token is None else (None, 0, client.token):
            value = f"{slot}.{state.left.sets}.{'-' if token is None else token}"
            yield Step("StartSet", slot, _with(paid, slot, register.start_set(config.rules, client, value, token)))


def _requests(config: Config, state: State, slot: int, client: Client) -> Iterator[Step]:
    request = register.want(client)
    after, answer = apply(state, request)
    action = register.TABLE[client.pc].action
    yield Step(action, slot, _with(after, slot, register.step(config.rules, client, answer)), request, answer)
    if paid := pay(state, "give_ups"):
        yield Step("GiveUp", slot, _with(paid, slot, register.give_up(client)))
    if not isinstance(request, Create | CasIndex):
        return
    unsure = register.lost(config.rules, client)
    if paid := pay(after, "lost_replies"):
        yield Step("LoseReply", slot, _with(paid, slot, unsure), request, answer)
    if paid := pay(state, "delays"):
        flying = (*state.flying, Late(state.left.delays, request))
        yield Step("Delay", slot, _with(paid._replace(flying=flying), slot, unsure), request)


# --- search -------------------------------------------------------------------------------------------------------

Check: TypeAlias = Callable[[Config, State], bool]


@dataclass
class Exploration:
    """What a search found. ``depth``: levels, the initial state being level 1.

    ``violations``: per violated invariant, a shortest run to a state in which it does not hold. ``complete``: every
    reachable state was visited.
    """

    states: int = 0
    edges: int = 0
    depth: int = 0
    complete: bool = True
    violations: dict[str, tuple[Step, ...]] = field(default_factory=dict)
    actions: dict[str, int] = field(default_factory=dict)


def explore(
    config: Config,
    checks: Mapping[str, Check] | None = None,
    *,
    max_states: int = 500_000,
    on_edge: Callable[[State, str, State], None] | None = None,
) -> Exploration:
    """Visit every reachable state, breadth first. More than ``max_states`` end the search, ``complete`` False."""
    found, unbroken = Exploration(), dict(checks or {})
    start = initial(config)
    came: dict[State, tuple[State, Step] | None] = {start: None}
    level = {start: 1}
    queue = deque([start])
    while queue:
        if len(came) > max_states:
            found.complete = False
            break
        state = queue.popleft()
        found.depth = max(found.depth, level[state])
        for name in [name for name, check in unbroken.items() if not check(config, state)]:
            del unbroken[name]
            found.violations[name] = _run(came, state)
        for step in steps(config, state):
            found.edges += 1
            found.actions[step.action] = found.actions.get(step.action, 0) + 1
            if on_edge is not None:
                on_edge(state, step.action, step.state)
            if step.state not in came:
                came[step.state] = (state, step)
                level[step.state] = level[state] + 1
                queue.append(step.state)
    found.states = len(came)
    return found


def _run(came: Mapping[State, tuple[State, Step] | None], state: State) -> tuple[Step, ...]:
    run: list[Step] = []
    while (origin := came[state]) is not None:
        state, step = origin
        run.append(step)
    return tuple(reversed(run))
