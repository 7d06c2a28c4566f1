"""What torchrun finds by the entry points of group ``torchrun.handlers``.

torch loads every entry point of the group at start-up, whichever backend is asked for, calls it, and registers the
creator that it returns. So nothing heavy is imported before a creator is called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from torch.distributed.elastic.rendezvous.api import RendezvousHandler, RendezvousParameters

    Creator: TypeAlias = Callable[[RendezvousParameters], RendezvousHandler]

# What upstream's dynamic handler reads, and what our create_backend reads.
HANDLER_OPTIONS = frozenset(
    {
        "join_timeout",
        "last_call_timeout",
        "close_timeout",
        "heartbeat_timeout",
        "keep_alive_interval",
        "keep_alive_max_attempt",
    }
)
BACKEND_OPTIONS = frozenset(
    {
        "read_timeout",
        "protocol",
        "ssl_cert",
        "cert",
        "ssl_cert_key",
        "key",
        "ca_cert",
        "cacert",
        "username",
        "password",
        "password_file",
        "ttl",
    }
)
# The names that torchrun itself and the documentation use, and those that the handler reads (defect B-J).
OTHER_NAMES = {"timeout": "join_timeout", "heartbeat": "heartbeat_timeout"}


def rallypoint() -> Creator:
    """``--rdzv-backend=rallypoint``."""
    return rallypoint_etcd()


def rallypoint_etcd() -> Creator:
    """``--rdzv-backend=rallypoint-etcd``: our handler on etcd's v2 API."""

    def create(params: RendezvousParameters) -> RendezvousHandler:
        from rallypoint.impl.etcd_rendezvous import create_rdzv_handler

        return create_rdzv_handler(with_own_id(params))

    return create


def rallypoint_etcd_v2() -> Creator:
    """``--rdzv-backend=rallypoint-etcd-v2``: upstream's dynamic handler on our backend and store."""

    def create(params: RendezvousParameters) -> RendezvousHandler:
        from rallypoint.impl.dynamic_handler import create_dynamic_handler

        return create_dynamic_handler(with_known_options(with_own_id(params)))

    return create


def with_own_id(params: RendezvousParameters) -> RendezvousParameters:
    """The parameters; a job of one node that was given no id gets one of its own (R05).

    Raises ValueError for one of several nodes: all jobs without an id would meet.
    """
    from rallypoint.impl.etcd_options import own_run_id

    return _changed(params, own_run_id(params.run_id, params.max_nodes), params.config)


def with_known_options(params: RendezvousParameters) -> RendezvousParameters:
    """The parameters under the names that upstream's handler reads. Raises ValueError for an option nobody reads."""
    known = HANDLER_OPTIONS | BACKEND_OPTIONS
    unknown = sorted(set(params.config) - known - set(OTHER_NAMES))
    if unknown:
        names = ", ".join(sorted(known | set(OTHER_NAMES)))
        raise ValueError(f"unknown rendezvous option {', '.join(unknown)}; the known ones are {names}")
    config = {name: value for name, value in params.config.items() if name in known}
    for name, meaning in OTHER_NAMES.items():
        if name in params.config:
            config.setdefault(meaning, params.config[name])
    return _changed(params, params.run_id, config)


def _changed(params: RendezvousParameters, run_id: str, config: dict[str, Any]) -> RendezvousParameters:
    return type(params)(
        params.backend,
        params.endpoint,
        run_id,
        params.min_nodes,
        params.max_nodes,
        params.local_addr,
        **config,
    )
