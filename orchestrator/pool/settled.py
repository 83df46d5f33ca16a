"""Which journalled messages are settled, so that their senders may drop them: committed, or refused for good."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from orchestrator.pool.rows import member
from orchestrator.pool.transact import transact


class MessageKind(StrEnum):
    """The subject of a message with a key."""

    STEP = "step"
    RESULT = "result"
    VERDICT = "verdict"


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageKey:
    """A message id `rollout:epoch:idx:kind`; idx is 0 for results and verdicts."""

    rollout_id: int
    epoch: int
    idx: int
    kind: MessageKind

    @classmethod
    def parse(cls, msg_id: str) -> "MessageKey":
        """Parse a message id; ValueError if it has another form."""
        rollout, epoch, idx, kind = msg_id.split(":")
        return cls(rollout_id=int(rollout), epoch=int(epoch), idx=int(idx), kind=member(MessageKind, kind))

    def __str__(self) -> str:
        return f"{self.rollout_id}:{self.epoch}:{self.idx}:{self.kind}"


_SETTLED = text(
    """
    SELECT k.n
    FROM unnest(CAST(:rollouts AS bigint[]), CAST(:epochs AS int[]), CAST(:idxs AS int[]), CAST(:kinds AS text[]),
                CAST(:msg_ids AS text[]))
         WITH ORDINALITY AS k(rollout_id, epoch, idx, kind, msg_id, n)
    LEFT JOIN rollouts r ON r.rollout_id = k.rollout_id AND r.run_id = :run
    WHERE r.rollout_id IS NULL
       OR r.lease_epoch <> k.epoch
       OR NOT (CASE k.kind WHEN 'step' THEN r.state IN ('running', 'reported')
                           WHEN 'result' THEN r.state = 'running'
                           ELSE r.state = 'verifying' END)
       OR (k.kind = 'step' AND EXISTS (
            SELECT 1 FROM steps s WHERE s.run_id = :run AND s.rollout_id = k.rollout_id
                                    AND s.attempt = r.attempt AND s.idx = k.idx))
       OR k.msg_id IN (SELECT d.msg_id FROM dead_letters d WHERE d.run_id = :run AND d.stream IN ('STEPS', 'RESULTS')
                                                             AND d.msg_id IS NOT NULL)
    """
)


async def settled(connection: AsyncConnection, run_id: int, keys: Sequence[MessageKey]) -> set[MessageKey]:
    """The subset of `keys` that the data pool has stored, has refused (a dead letter), or will refuse (its lease epoch is over,
    or the run has no such rollout).

    The runner no longer renews the lease of a refused result: it expires, and the rollout runs again.
    """
    if not keys:
        return set()
    rows = await connection.execute(
        _SETTLED,
        {
            "run": run_id,
            "rollouts": [key.rollout_id for key in keys],
            "epochs": [key.epoch for key in keys],
            "idxs": [key.idx for key in keys],
            "kinds": [key.kind for key in keys],
            "msg_ids": [str(key) for key in keys],
        },
    )
    return {keys[row.n - 1] for row in rows}


async def settled_messages(engine: AsyncEngine, run_id: int, msg_ids: Sequence[str], *, at: str) -> list[str]:
    """The subset of `msg_ids` whose messages are `settled`, read in a transaction of its own: how couriers confirm."""
    keys = {MessageKey.parse(msg_id): msg_id for msg_id in msg_ids}
    found = await transact(engine, lambda connection: settled(connection, run_id, list(keys)), at=at)
    return [keys[key] for key in found]
