"""History of a rollout: changes of state, resumes, verdicts. Times are seconds since the epoch, durations seconds."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.states import Replay, RolloutState
from orchestrator.pool.rows import from_row
from orchestrator.queries.texts import Cut, cut_or_none

LOG_SHOWN = 40_000  # characters of a log in the page


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change of state."""

    at: float
    from_state: RolloutState | None
    to_state: RolloutState
    epoch: int | None
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """An attempt that continued under a new lease, with its recorded steps replayed."""

    attempt: int
    epoch: int
    steps: int
    reason: str
    replay: Replay | None
    replayed: int | None
    at: float


@dataclass(frozen=True, slots=True)
class VerifierTest:
    """One test of the verifier."""

    name: str
    passed: bool
    message: Cut | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A verifier's result. `components`: the named numbers of the task's reward.json."""

    revision: int
    attempt: int
    reward: float
    components: dict[str, float] | None
    exit_code: int | None
    verify_s: float | None
    at: float
    checks: list[VerifierTest]
    log: Cut | None


def seconds_of(*columns: str) -> str:
    """SQL of timestamp columns as seconds since the epoch, under the columns' names."""
    return ", ".join(f"extract(epoch FROM {c})::float8 AS {c.rpartition('.')[2]}" for c in columns)


_HISTORY = text(
    f"""SELECT {seconds_of("at")}, from_state, to_state, epoch, reason FROM transitions
         WHERE kind = 'rollout' AND entity_id = :rollout AND run_id = :run ORDER BY transition_id"""
)
_RESUMES = text(
    f"""SELECT attempt, epoch, steps, reason, replay, replayed, {seconds_of("at")}
          FROM resumes WHERE rollout_id = :rollout ORDER BY epoch"""
)
_VERDICTS = text(
    f"""SELECT revision, attempt, reward, components, exit_code, verify_s::float8 AS verify_s, tests, log, {seconds_of("at")}
          FROM verdicts WHERE rollout_id = :rollout ORDER BY revision DESC"""
)


async def history(connection: AsyncConnection, run_id: int, rollout_id: int) -> list[Change]:
    """Every change of a rollout's state, in order."""
    return [
        from_row(Change, row)
        for row in await connection.execute(_HISTORY, {"run": run_id, "rollout": rollout_id})
    ]


async def resumes(connection: AsyncConnection, rollout_id: int) -> list[Resume]:
    """The resumes of a rollout's attempts, in order."""
    return [from_row(Resume, row) for row in await connection.execute(_RESUMES, {"rollout": rollout_id})]


async def verdicts(connection: AsyncConnection, rollout_id: int) -> list[Verdict]:
    """The verdicts, newest revision first."""
    return [_verdict(row) for row in await connection.execute(_VERDICTS, {"rollout": rollout_id})]


def _verdict(row: Row[Any]) -> Verdict:
    checks = [
        VerifierTest(
            str(test.get("name", "")), bool(test.get("passed")), cut_or_none(test.get("message") or None)
        )
        for test in row.tests or []
        if isinstance(test, dict)
    ]
    return from_row(Verdict, row, without=("tests",), checks=checks, log=cut_or_none(row.log, LOG_SHOWN))
