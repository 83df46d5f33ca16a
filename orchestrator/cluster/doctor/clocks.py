"""Clocks. Leases and orders are on PostgreSQL's alone, so a clock that is off breaks nothing here: but times in logs, evaluations and
backups are compared by people."""

from collections.abc import Callable
from datetime import datetime

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.embedded.doctor import Check

TOLERATED_S = 1.0


def compared(whose: str, before: float, theirs: float, after: float) -> Check:
    """Seconds since 1970: ours, theirs, ours. Half of the round trip is tolerated beside TOLERATED_S.

    >>> compared("NATS", 100.0, 100.3, 100.2).ok, compared("NATS", 100.0, 190.0, 100.2).ok
    (True, False)
    """
    off = (before + after) / 2 - theirs
    fine = abs(off) <= TOLERATED_S + (after - before) / 2
    said = f"this host is {abs(off):.2f} s {'ahead of' if off > 0 else 'behind'} {whose}"
    return Check(
        f"clock, {whose}",
        fine,
        said,
        "" if fine else "start an NTP client on both hosts: timedatectl set-ntp true",
    )


async def of_postgres(connection: AsyncConnection, now: Callable[[], float]) -> Check:
    """This host against the database's clock."""
    before = now()
    theirs = await connection.scalar(text("SELECT extract(epoch FROM clock_timestamp())::float8"))
    assert theirs is not None
    return compared("PostgreSQL", before, float(theirs), now())


def of_nats(before: float, stamp: str, after: float) -> Check:
    """This host against the time in a reply of JetStream (RFC 3339, nanoseconds)."""
    whole, _, fraction = stamp.removesuffix("Z").partition(".")
    theirs = datetime.fromisoformat(f"{whole}+00:00").timestamp() + float(f"0.{fraction or 0}")
    return compared("NATS", before, theirs, after)
