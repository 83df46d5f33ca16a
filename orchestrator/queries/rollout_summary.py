"""Summary of a rollout, shared by the list of rollouts and the members of a group."""

from dataclasses import dataclass

from orchestrator.contracts.states import FailureClass, RolloutState


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutSummary:
    """Of the attempt that counts: `action_tokens` sampled; `longest`: state and action of its longest step, in tokens; `v_lo`, `v_hi`: the
    range of its policy versions, None: it has no step."""

    rollout_id: int
    member: int
    state: RolloutState
    failure_class: FailureClass | None
    reason: str | None
    attempt: int
    steps: int
    action_tokens: int
    longest: int
    v_lo: int | None
    v_hi: int | None


def steps_of(row: str) -> str:
    """A join, `s`, that counts the steps of the attempt of `row`, a row of rollouts in the run `:run`."""
    return f"""LEFT JOIN LATERAL (
      SELECT count(*) AS steps, coalesce(sum(full_len - state_len), 0) AS action_tokens, coalesce(max(full_len), 0) AS longest,
             min(v_lo) AS v_lo, max(v_hi) AS v_hi
        FROM steps s WHERE s.run_id = :run AND s.rollout_id = {row}.rollout_id AND s.attempt = {row}.attempt) s ON true"""
