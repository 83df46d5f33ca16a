"""Summary of a rollout, shared by the list of rollouts and the members of a group."""

from dataclasses import dataclass

from orchestrator.contracts.states import FailureClass, RolloutState


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutSummary:
    """Of the attempt that counts: `action_tokens` sampled; `longest`: state and action of its longest step, in tokens; `v_lo`, `v_hi`: the
    range of its policy versions, None: it has no step. In a pruned run `steps` are as the attempt announced them, the others None."""

    rollout_id: int
    member: int
    state: RolloutState
    failure_class: FailureClass | None
    reason: str | None
    attempt: int
    steps: int | None
    action_tokens: int | None
    longest: int | None
    v_lo: int | None
    v_hi: int | None


PRUNED = "EXISTS (SELECT FROM runs WHERE run_id = :run AND pruned IS NOT NULL)"
"""SQL: whether the steps, messages, tool calls and files of the run `:run` were dropped."""


def steps_of(row: str) -> str:
    """A join, `s`, that counts the steps of the attempt of `row`, a row of rollouts in the run `:run`."""
    announced = f"(SELECT a.steps FROM attempts a WHERE a.rollout_id = {row}.rollout_id AND a.attempt = {row}.attempt)"
    return f"""LEFT JOIN LATERAL (
      SELECT CASE WHEN {PRUNED} THEN {announced} ELSE count(*) END AS steps,
             CASE WHEN NOT {PRUNED} THEN coalesce(sum(full_len - state_len), 0)::bigint END AS action_tokens,
             CASE WHEN NOT {PRUNED} THEN coalesce(max(full_len), 0) END AS longest, min(v_lo) AS v_lo, max(v_hi) AS v_hi
        FROM steps s WHERE s.run_id = :run AND s.rollout_id = {row}.rollout_id AND s.attempt = {row}.attempt) s ON true"""
