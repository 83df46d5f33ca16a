"""Which messages towards Postgres their senders need not keep any longer: their effect is committed, or they are refused for good."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection


@dataclass(frozen=True, slots=True)
class MessageKey:
    """A message id `rollout:epoch:idx:kind`; kind is step, result or verdict (idx is 0 for the last two)."""

    rollout_id: int
    epoch: int
    idx: int
    kind: str

    @classmethod
    def parse(cls, msg_id: str) -> "MessageKey":
        """Read a message id; ValueError when it is not of that form."""
        rollout, epoch, idx, kind = msg_id.split(":")
        return cls(int(rollout), int(epoch), int(idx), kind)

    def __str__(self) -> str:
        return f"{self.rollout_id}:{self.epoch}:{self.idx}:{self.kind}"


_SETTLED = text(
    """
    SELECT k.n
    FROM unnest(CAST(:rollouts AS bigint[]), CAST(:epochs AS int[]), CAST(:idxs AS int[]), CAST(:kinds AS text[]),
                CAST(:msg_ids AS text[]))
         WITH ORDINALITY AS k(rollout_id, epoch, idx, kind, msg_id, n)
    LEFT JOIN rollouts r ON r.rollout_id = k.rollout_id
    WHERE r.rollout_id IS NULL
       OR r.lease_epoch <> k.epoch
       OR NOT (CASE k.kind WHEN 'step' THEN r.state IN ('running', 'reported')
                           WHEN 'result' THEN r.state = 'running'
                           ELSE r.state = 'verifying' END)
       OR (k.kind = 'step' AND EXISTS (
            SELECT 1 FROM steps s WHERE s.run_id = r.run_id AND s.run_id = :run AND s.rollout_id = k.rollout_id
                                    AND s.attempt = r.attempt AND s.idx = k.idx))
       OR k.msg_id IN (SELECT d.msg_id FROM dead_letters d WHERE d.run_id = :run AND d.stream IN ('STEPS', 'RESULTS')
                                                             AND d.msg_id IS NOT NULL)
    """
)


async def settled(connection: AsyncConnection, run_id: int, keys: Sequence[MessageKey]) -> set[MessageKey]:
    """The subset of `keys` that the data pool has, has refused (a dead letter), or will refuse (its lease epoch is over).

    A refused result is no longer kept alive by its runner: its lease runs out, and the rollout runs again.
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
