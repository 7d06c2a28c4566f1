"""Judges a played schedule by what its processes really got, without the model.

Every function returns the first thing that is wrong, in words, or None.
"""

from __future__ import annotations

from collections.abc import Iterator

from rallypoint.live.play import TOLD, Met, Played


def judge(played: Played) -> str | None:
    """All of the below."""
    for check in (_members, _groups, _told, _behaviour):
        fault = check(played)
        if fault is not None:
            return fault
    return None


def met(played: Played) -> Iterator[tuple[int, Met]]:
    """Everything that next_rendezvous has returned, with the number of the worker."""
    for number, history in enumerate(played.histories):
        for item in history:
            if isinstance(item, Met):
                yield number, item


def _behaviour(played: Played) -> str | None:
    """Bounded calls, documented exceptions, the heal phase; and nobody died but by plan."""
    for seat in played.seats:
        for complaint in seat.complaints:
            return f"worker {seat.number}: {complaint}"
    if played.trouble is not None:
        return played.trouble
    for seat in played.seats:
        planned = seat.killed and seat.entry.kill is not None
        if seat.exit_code != 0 and not planned:
            return f"worker {seat.number} ended with exit code {seat.exit_code}"
    return None


def _members(played: Played) -> str | None:
    """RankUnique, RanksDense, WorldAgree, WorldBounds, and one address, per version."""
    first: dict[int, tuple[int, Met]] = {}
    holders: dict[tuple[int, int], int] = {}
    for number, one in met(played):
        what = f"worker {number} met in version {one.version} as rank {one.rank} of {one.world}"
        if not played.schedule.min_workers <= one.world <= played.schedule.max_workers:
            bounds = f"{played.schedule.min_workers} to {played.schedule.max_workers}"
            return f"WorldBounds: {what}, not of {bounds}"
        if not 0 <= one.rank < one.world:
            return f"RanksDense: {what}"
        holder = holders.setdefault((one.version, one.rank), number)
        if holder != number:
            return f"RankUnique: {what}, and so did worker {holder}"
        other, theirs = first.setdefault(one.version, (number, one))
        if theirs.world != one.world:
            return f"WorldAgree: {what}, worker {other} as one of {theirs.world}"
        if theirs.address != one.address:
            return f"one address per version: {what} at {one.address}, worker {other} at {theirs.address}"
    return None


def _groups(played: Played) -> str | None:
    """Each group gathered what its members had been told: every rank once, one version, one world size."""
    sizes = {(number, one.version): one.world for number, one in met(played)}
    for seat in played.seats:
        for version, rows in seat.groups.items():
            world = sizes[seat.number, version]
            expected = [[version, rank, world] for rank in range(world)]
            if rows != expected:
                return f"worker {seat.number} gathered {rows} in version {version}, not {expected}"
    return None


def _told(played: Played) -> str | None:
    """EventuallyTold: a member whose group broke since another one was killed is told within its bound."""
    for seat in played.seats:
        for version in seat.untold:
            for number, one in met(played):
                if one.version == version and number != seat.number and played.seats[number].killed:
                    return (
                        f"EventuallyTold: worker {seat.number} was not told within {TOLD} s that version {version} "
                        f"has lost worker {number}"
                    )
    return None
