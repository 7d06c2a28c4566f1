"""The parameters of a run, the rules that differ between variants, and the names of the run's keys.

May live here: what a run is given and which switches are on. Must not live here: what a worker does with them
(``worker.py``).

``Rules(min, max)`` are the HARDENED rules, which run; ``upstream(rules)`` is what PyTorch's own class does, defects
included; ``without(rules, switch)`` has single hardenings off, to show that each is needed.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields


@dataclass(frozen=True, slots=True)
class Rules:
    """The parameters of a run and the rules that differ between variants.

    ``root``: the etcd directory of the run's rendezvous, without trailing slash. TTLs in seconds; ``closed_ttl`` is
    how long a closed run stays closed.
    ``bootstrap``: a rendezvous is over when the members have the address of their rank 0, too.
    ``reread`` is PyTorch's habit to read the document again before each compare-and-swap and after each own write, to
    make the version counter in the constructor, and to start over after a failed request.
    The switches from ``owned_slots`` on are hardenings: each removes upstream defects (named behind it).
    """

    min_workers: int
    max_workers: int
    root: str = ""
    setup_ttl: float = 5
    joinable_ttl: float = 10
    frozen_ttl: float = 10
    keep_alive_ttl: float = 10
    closed_ttl: float = 7200
    bootstrap: bool = False
    reread: bool = False
    owned_slots: bool = True  # L-J
    idempotent_confirm: bool = True  # L-K
    counted_once: bool = True  # L-B, L-C, L-M
    races_not_fatal: bool = True  # L-L, L-O
    leave_at_once: bool = True  # L-P
    early_lease: bool = True  # L-N
    told_when_stale: bool = True  # L-W
    spares_parked: bool = True  # R63
    tireless_leases: bool = True  # L-V
    counter_restored: bool = True  # L-A
    bounds_agreed: bool = True  # L-Q, L-R
    address_watched: bool = True  # L-S
    closing_always_closes: bool = True  # L-D
    closed_expires: bool = True  # L-E

    def __post_init__(self) -> None:
        for name in ("min_workers", "max_workers"):
            if type(getattr(self, name)) is not int:
                raise ValueError(f"{name}={getattr(self, name)!r}: must be a whole number")
        if not 1 <= self.min_workers <= self.max_workers:
            raise ValueError(f"min_workers={self.min_workers}, max_workers={self.max_workers}: must be 1 <= min <= max")
        if self.early_lease and not self.owned_slots:
            raise ValueError("early_lease needs owned_slots: the keep-alive is found through the slot's owner")


HARDENING = tuple(
    field.name for field in fields(Rules) if field.type == "bool" and field.name not in ("bootstrap", "reread")
)


def without(rules: Rules, *switches: str) -> Rules:
    """The same rules with some hardenings switched off."""
    return Rules(**{**asdict(rules), **dict.fromkeys(switches, False)})


def upstream(rules: Rules) -> Rules:
    """The same parameters under PyTorch's rules."""
    return Rules(**{**asdict(rules), **dict.fromkeys(HARDENING, False), "reread": True})


def active(rules: Rules) -> str:
    return rules.root + "/active_version"


def counter(rules: Rules) -> str:
    return rules.root + "/version_counter"


def directory(rules: Rules, version: int | None) -> str:
    return f"{rules.root}/v_{version}"
