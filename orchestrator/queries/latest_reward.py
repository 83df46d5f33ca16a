"""The reward of a rollout that counts. The view `latest_rewards` has the same rule.

Rewards are append-only. A rescore may lose a rollout, or judge it again in a group that is then too small for rewards: an older revision stays
the newest, but its verdict does not hold any more.
"""


def counts(reward: str, rollout: str) -> str:
    """SQL: whether a row of `rewards`, one of the row of `rollouts`, builds on the newest verdict of a verified rollout."""
    newest = (
        f"(SELECT max(newest.revision) FROM verdicts newest WHERE newest.rollout_id = {rollout}.rollout_id)"
    )
    return f"{rollout}.state = 'verified' AND {reward}.verdict_revision = {newest}"


def reward_of(rollout: str) -> str:
    """A join, `w`: the reward that counts of a row of `rollouts`; null if it has none."""
    return f"""LEFT JOIN LATERAL (SELECT * FROM rewards w WHERE w.rollout_id = {rollout}.rollout_id AND {counts("w", rollout)}
      ORDER BY w.revision DESC LIMIT 1) w ON true"""
