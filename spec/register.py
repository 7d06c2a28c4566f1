"""What must hold of the rendezvous backend's register, under the names that TLA+, tests and reports use.

Each invariant is judged on one state; the statement is its docstring. ``REACHABLE`` are the opposite: claims that must
be violated, because the situation that each denies is one that the invariants are about.
"""

from __future__ import annotations

from rallypoint.model import register
from rallypoint.model.register_system import Check, Config, State, given


def type_ok(config: Config, state: State) -> bool:
    """Every client is idle with a known result or at a line of its table; indices of effects grow."""
    indices = [effect.modified for effect in state.effects]
    return indices == sorted(set(indices)) and all(
        client.result in ("", *register.RESULTS) if client.pc == register.IDLE else client.pc in register.TABLE
        for client in state.clients
    )


def no_lost_update(config: Config, state: State) -> bool:
    """A write takes effect once, and only on what its author saw: the state of its token, or none."""
    values = [effect.value for effect in state.effects]
    return len(values) == len(set(values)) and all(
        effect.over == (given(effect.value) or 0) for effect in state.effects
    )


def token_never_creates(config: Config, state: State) -> bool:
    """A write that carries a token, however wrong, never makes a state where there is none."""
    return all(effect.over != 0 or given(effect.value) is None for effect in state.effects)


def own_write_is_success(config: Config, state: State) -> bool:
    """A client is told that its write took effect if and only if it did, unless it gave up."""
    done = {effect.value for effect in state.effects}
    return all(
        (client.value in done) == (client.result in (register.WRITTEN, register.FOUND))
        for client in state.clients
        if client.value is not None and client.result not in ("", register.UNKNOWN)
    )


def vanished_is_told(config: Config, state: State) -> bool:
    """A state that vanished is told as such: no client sees a connection error where etcd has answered."""
    return all(client.result != register.ERROR for client in state.clients)


INVARIANTS: dict[str, Check] = {
    "TypeOK": type_ok,
    "NoLostUpdate": no_lost_update,
    "TokenNeverCreates": token_never_creates,
    "OwnWriteIsSuccess": own_write_is_success,
    "VanishedIsTold": vanished_is_told,
}


def never_stale(config: Config, state: State) -> bool:
    """Nobody's token is ever out of date."""
    return not any(client.result == register.REFUSED and client.given for client in state.clients)


def never_vanished(config: Config, state: State) -> bool:
    """No state vanishes while its token is used."""
    return not any(client.result == register.ABSENT and client.given for client in state.clients)


def never_found(config: Config, state: State) -> bool:
    """No write is ever found by looking back."""
    return all(client.result != register.FOUND for client in state.clients)


def never_late(config: Config, state: State) -> bool:
    """No write takes effect whose author has given up."""
    done = {effect.value for effect in state.effects}
    return not any(client.result == register.UNKNOWN and client.value in done for client in state.clients)


REACHABLE: dict[str, Check] = {
    "NeverStale": never_stale,
    "NeverVanished": never_vanished,
    "NeverFound": never_found,
    "NeverLate": never_late,
}
