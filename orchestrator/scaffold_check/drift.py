"""Call by call: the ids that the rollout server received and returned, compared with the stored steps."""

from collections import Counter
from collections.abc import Iterable

from orchestrator.scaffold_check.bench import Played


def compare(played: Iterable[Played]) -> tuple[int, str]:
    """(calls compared, what is wrong or empty). A stored step without its call is drift, and so is a call without its step, unless its
    connection was cut on purpose: other faults never reach the rollout server."""
    calls = 0
    for attempt in played:
        sent = Counter((exchange.input_ids, exchange.output_ids) for exchange in attempt.sent)
        for index, step in enumerate(attempt.steps):
            full = tuple(step.full.tolist())
            pair = full[: step.state_len], full[step.state_len :]
            if not sent[pair]:
                return calls, f"step {index} holds ids that were never sent or sampled"
            sent[pair] -= 1
            calls += 1
        unrecorded = sum(sent.values()) - sum(request.fault == "cut" for request in attempt.requests)
        if unrecorded > 0:
            return calls, f"{unrecorded} calls of the rollout server left no step"
    return calls, "" if calls else "no call was compared"
