"""How long nothing has happened to the rollouts that a client waits for.

Progress: a rollout changes its state or records a step. While one of them still waits for a worker, progress of the rollouts that workers hold
counts too, because it gets the place of one of these.
"""

from dataclasses import dataclass, field

import anyio
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from orchestrator.contracts.states import Purpose

STUCK_S = 600.0
"""Seconds without progress beyond the time in which an attempt may record nothing."""
_SILENT = text(
    """
    WITH wanted AS (
      SELECT r.rollout_id, r.attempt, r.state, r.changed, r.not_before FROM groups g JOIN rollouts r ON r.group_id = g.group_id
       WHERE g.run_id = :run AND g.purpose = :purpose AND coalesce(g.label, '') = :label
         AND (cast(:version AS int) IS NULL OR g.pinned_version = :version)),
    seen AS (
      SELECT * FROM wanted
      UNION ALL
      SELECT rollout_id, attempt, state, changed, not_before FROM rollouts
       WHERE run_id = :run AND state IN ('running', 'reported', 'verifying')
         AND EXISTS (SELECT FROM wanted WHERE state IN ('waiting', 'queued', 'finished')))
    SELECT extract(epoch FROM clock_timestamp() - max(greatest(seen.changed, seen.not_before, s.at)))::float8
      FROM seen LEFT JOIN LATERAL (
        SELECT at FROM steps WHERE steps.run_id = :run AND steps.rollout_id = seen.rollout_id AND steps.attempt = seen.attempt
         ORDER BY idx DESC LIMIT 1) s ON true
    """
)


async def silent_s(
    connection: AsyncConnection, run_id: int, purpose: Purpose, label: str, version: int | None = None
) -> float:
    """Seconds since the last progress of the rollouts of a label (on `version`, if given); negative while a new try is still delayed."""
    wanted = {"run": run_id, "purpose": purpose, "label": label, "version": version}
    found = await connection.scalar(_SILENT, wanted)
    return float("inf") if found is None else float(found)


@dataclass(slots=True, kw_only=True)
class Patience:
    """When a client that waits for the rollouts of a label gives up. `longest_s`: for how long an attempt of its tasks may record nothing.

    The data pool is read only after `STUCK_S` in which nothing ended.
    """

    engine: AsyncEngine
    run_id: int
    purpose: Purpose
    label: str
    version: int | None = None
    longest_s: float
    _ended: int = field(default=-1, init=False)
    _ask_at: float = field(default=0.0, init=False)

    async def over(self, ended: int) -> float | None:
        """Seconds without progress, once they are too many; None before. `ended`: how much of the work has ended by now."""
        now = anyio.current_time()
        if ended != self._ended:
            self._ended, self._ask_at = ended, now + STUCK_S
        if now < self._ask_at:
            return None
        async with self.engine.connect() as connection:
            silent = await silent_s(connection, self.run_id, self.purpose, self.label, self.version)
        left = STUCK_S + self.longest_s - silent
        if left < 0:
            return silent
        self._ask_at = now + min(left, STUCK_S)
        return None
