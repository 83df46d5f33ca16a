"""Clocks. Leases and orders use only PostgreSQL's clock, so a wrong clock breaks nothing here. But people compare times in logs, evaluations and
backups."""

from collections.abc import Callable
from datetime import datetime

from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.deploy.embedded.doctor import DoctorCheck
from orchestrator.queries.postgres_server import server_clock

TOLERATED_S = 1.0


def compared(whose: str, before: float, theirs: float, after: float) -> DoctorCheck:
    """Seconds since 1970: ours, theirs, ours. Half of the round trip is tolerated in addition to TOLERATED_S.

    >>> compared("NATS", 100.0, 100.3, 100.2).ok, compared("NATS", 100.0, 190.0, 100.2).ok
    (True, False)
    """
    offset_s = (before + after) / 2 - theirs
    synchronised = abs(offset_s) <= TOLERATED_S + (after - before) / 2
    detail = f"this host is {abs(offset_s):.2f} s {'ahead of' if offset_s > 0 else 'behind'} {whose}"
    return DoctorCheck(
        name=f"clock, {whose}",
        ok=synchronised,
        detail=detail,
        fix="" if synchronised else "start an NTP client on both hosts: timedatectl set-ntp true",
    )


async def of_postgres(connection: AsyncConnection, now: Callable[[], float]) -> DoctorCheck:
    """This host against the database's clock."""
    requested_at = now()
    server_time = await server_clock(connection)
    return compared("PostgreSQL", requested_at, server_time, now())


def of_nats(before: float, stamp: str, after: float) -> DoctorCheck:
    """This host against the time in a reply of JetStream (RFC 3339, nanoseconds)."""
    whole_seconds, _, fraction = stamp.removesuffix("Z").partition(".")
    server_time = datetime.fromisoformat(f"{whole_seconds}+00:00").timestamp() + float(f"0.{fraction or 0}")
    return compared("NATS", before, server_time, after)
