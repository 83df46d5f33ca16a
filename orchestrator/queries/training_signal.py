"""Whether the newest groups carry a training signal, and how many of their rollouts have no verdict. If all members of each group score alike,
a run trains nothing but looks healthy otherwise; a share of the judged rollouts says nothing about the others."""

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.states import FilterReason

NEWEST = 10  # groups that are read, by queue position
MIN_GROUPS = 5  # with fewer groups nothing is stated yet

# A group is over when it waits for a batch, is in one, or was filtered because its rewards are alike.
_OVER = "run_id = :run AND seq IS NOT NULL AND (state IN ('ready', 'taken', 'trained') OR (state = 'filtered' AND reason = :alike))"
_NEWEST = text(
    f"""
    WITH newest AS (SELECT group_id, state, seq FROM groups WHERE {_OVER} ORDER BY seq DESC LIMIT :n)
    SELECT count(DISTINCT n.group_id) AS groups, count(DISTINCT n.group_id) FILTER (WHERE n.state = 'filtered') AS alike,
           min(w.performance) AS lowest, max(w.performance) AS highest,
           EXISTS (SELECT FROM groups WHERE {_OVER} AND seq < (SELECT min(seq) FROM newest)) AS older
      FROM newest n LEFT JOIN rollouts r ON r.group_id = n.group_id AND r.state = 'verified'
      LEFT JOIN LATERAL (SELECT performance FROM rewards w WHERE w.rollout_id = r.rollout_id ORDER BY revision DESC LIMIT 1) w ON true
    """
)
_LOST = text(
    """
    WITH newest AS (SELECT group_id, size FROM groups WHERE run_id = :run AND seq IS NOT NULL AND (ready IS NOT NULL OR done)
                     ORDER BY seq DESC LIMIT :n)
    SELECT coalesce(r.failure_class::text, 'unknown') AS reason, count(*) AS rollouts,
           (SELECT sum(size) FROM newest) AS wanted, (SELECT count(*) FROM newest) AS groups
      FROM newest n JOIN rollouts r ON r.group_id = n.group_id WHERE r.state = 'lost' GROUP BY 1 ORDER BY 2 DESC, 1
    """
)


async def without_verdict(connection: AsyncConnection, run_id: int) -> str | None:
    """One sentence about the rollouts of the newest ended groups that have no verdict, with counts by failure class; None if there are none."""
    rows = (await connection.execute(_LOST, {"run": run_id, "n": NEWEST})).all()
    if not rows:
        return None
    reasons = ", ".join(f"{row.rollouts} {row.reason}" for row in rows)
    return (
        f"{sum(row.rollouts for row in rows)} of {rows[0].wanted} rollouts in the newest {rows[0].groups} groups "
        f"have no verdict and are in no share: {reasons}"
    )


async def no_signal(connection: AsyncConnection, run_id: int) -> str | None:
    """One sentence when every one of the newest groups scored alike, with what to do; else None."""
    values = {"run": run_id, "n": NEWEST, "alike": FilterReason.ZERO_SIGNAL.value}
    row = (await connection.execute(_NEWEST, values)).one()
    if row.groups < MIN_GROUPS or row.alike < row.groups or row.lowest is None:
        return None
    return sentence(row.groups, float(row.lowest), float(row.highest), older=row.older)


def sentence(groups: int, lowest: float, highest: float, *, older: bool = False) -> str:
    """The sentence for `groups` groups that each scored alike. `lowest` and `highest`: performance of their rollouts; `older`: older groups
    exist too.

    >>> sentence(10, 0.0, 0.0)
    'all 10 groups scored alike (0 %): easier tasks or a better first policy'
    >>> sentence(10, 1.0, 1.0, older=True)
    'all 10 newest groups scored alike (100 %): harder tasks'
    >>> sentence(8, 0.0, 1.0)
    'all 8 groups scored alike (each within itself, 0 % to 100 %): tasks of medium difficulty or larger groups'
    >>> sentence(8, 0.3, 0.3)
    'all 8 groups scored alike (30 %): tests that tell better answers from worse ones, or larger groups'
    """
    scope = f"all {groups} {'newest ' if older else ''}groups scored alike"
    if lowest != highest:
        return f"{scope} (each within itself, {_percent(lowest)} to {_percent(highest)}): tasks of medium difficulty or larger groups"
    if lowest <= 0:
        return f"{scope} ({_percent(lowest)}): easier tasks or a better first policy"
    if lowest >= 1:
        return f"{scope} ({_percent(lowest)}): harder tasks"
    return f"{scope} ({_percent(lowest)}): tests that tell better answers from worse ones, or larger groups"


def _percent(share: float) -> str:
    """
    >>> _percent(1.0), _percent(0.998), _percent(0.5), _percent(0.99999)
    ('100 %', '99.8 %', '50 %', 'above 99.9 %')
    """
    for digits in (0, 1):
        text = f"{100 * share:.{digits}f}"
        if share >= 1 or float(text) < 100:
            return f"{text} %"
    return "above 99.9 %"
