"""Recorded attempts as flat rows, for Parquet and data frames: the columns of both tables, and the rows of steps and of an attempt."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from orchestrator.export.about import about
from orchestrator.export.chat import added_messages, conversation
from orchestrator.export.conversation import Conversations
from orchestrator.queries.attempts import AttemptStep, RecordedAttempt
from orchestrator.queries.chat import chat_message, reply

# name: (Arrow type, description). The order is that of the columns.
STEPS: dict[str, tuple[str, str]] = {
    "run": ("string", "name of the run"),
    "rollout": ("int64", "the rollout; with attempt and step the key of the row"),
    "attempt": ("int16", "infrastructure try of the rollout, 1-based"),
    "step": ("int32", "idx of the step in its attempt, from 0, in the order in which they were recorded"),
    "group": ("int64", "the group: the unit of the queue"),
    "task": ("string", "name of the task"),
    "domain": ("string", "domain of the task"),
    "purpose": ("string", "train, eval or record"),
    "agent": ("string", "which of the scaffold's agents made the request"),
    "kind": ("string", "root, continues (the parent and more) or rewrites (part of the parent and more)"),
    "parent": ("int32", "idx of the step that this one goes on from; null for a root"),
    "kept": (
        "int32",
        "tokens of the parent's state and action (of its prompt, for a root) with which the state begins",
    ),
    "state_len": ("int32", "tokens of the state: the whole context that the policy was shown"),
    "prompt_ids": ("list<int32>", "of a root: the kept tokens; null elsewhere"),
    "delta_ids": ("list<int32>", "token ids that the state adds to the kept ones"),
    "action_ids": ("list<int32>", "token ids that the policy sampled"),
    "logprobs": ("list<float32>", "behavior logprobs of action_ids, as the rollout server gave them"),
    "loss_mask": ("list<int8>", "train weight of each of action_ids, 0 or 1"),
    "versions": ("list<int32>", "policy version of each of action_ids"),
    "input_ids": ("list<int32>", "state and action; null unless --full was given"),
    "advantage": ("float64", "of the newest reward; null where there is none"),
    "marks": (
        "list<string>",
        "why the step does not train, with cut_off alone only where its advantage is not negative; empty: no marks",
    ),
    "messages": (
        "string",
        "JSON: the messages that the request added to the conversation of a continued parent, and the reply last",
    ),
    "conversation": (
        "string",
        "JSON: the whole conversation, and the reply last; null unless --full was given",
    ),
    "finish": ("string", "why generation ended"),
    "parse": ("string", "whether the action could be read as a message"),
    "temperature": ("float32", "of the sampling"),
    "queue_s": ("float32", "seconds of waiting, for admission and in queues of rollout servers"),
    "first_token_s": ("float32", "seconds until the first token, waiting left out: a part of generation_s"),
    "generation_s": ("float32", "seconds of generation, waiting left out"),
    "gap_s": (
        "float32",
        "seconds without any call in flight, since the step before: tools and the agent's own work",
    ),
}
TRAJECTORIES: dict[str, tuple[str, str]] = {
    "run": ("string", "name of the run"),
    "rollout": ("int64", "the rollout; with attempt the key of the row"),
    "attempt": ("int16", "infrastructure try of the rollout, 1-based"),
    "counts": ("bool", "whether this attempt is the one that counts"),
    "group": ("int64", "the group: the unit of the queue"),
    "member": ("int16", "number of the rollout in its group, from 0"),
    "submission": ("string", "the task message that made the group"),
    "task": ("string", "name of the task"),
    "instruction": ("string", "what the task asks for"),
    "domain": ("string", "domain of the task"),
    "purpose": ("string", "train, eval or record"),
    "label": ("string", "label of the submission"),
    "scaffold": ("string", "the agent program"),
    "scaffold_version": ("string", "its version"),
    "queue_position": ("int64", "seq of the group; null where it trains nothing"),
    "pinned_version": ("int32", "policy version that an evaluation requested"),
    "version_low": ("int32", "oldest policy version of its tokens"),
    "version_high": ("int32", "newest policy version of its tokens"),
    "group_state": ("string", "state of the group"),
    "group_reason": ("string", "why the group was filtered or is dead"),
    "failure_class": ("string", "how the attempt ended"),
    "reason": ("string", "why it failed"),
    "answer": ("string", "what the agent gave as its answer"),
    "steps": ("int32", "recorded steps"),
    "action_tokens": ("int64", "sampled tokens"),
    "performance": ("float64", "the verifier's reward, 0 to 1"),
    "speed": ("float64", "performance * h(t_agent / t_base); counts beta times"),
    "process": ("float64", "sum of the weighted process signals; counts alpha times"),
    "alpha": ("float64", "1, or less where process would exceed its cap"),
    "beta": ("float64", "weight of speed"),
    "reward": ("float64", "performance + beta * speed + alpha * process"),
    "process_by_signal": ("string", "JSON: what each process signal added to the reward"),
    "t_base": ("float64", "seconds that speed is measured against"),
    "t_base_origin": ("string", "where t_base comes from: reference, siblings or itself"),
    "silent": ("string", "why its group gives no training signal; null: it trains, or is not for training"),
    "baseline": ("float64", "of its group: as trained, else of the newest reward"),
    "advantage": ("float64", "of its first step: as trained, else of the newest reward"),
    "batch": ("int32", "number of the committed batch that trained it"),
    "tests": ("string", "JSON: the verifier's tests"),
    "agent_s": ("float64", "seconds of the agent without the platform's queues"),
    "queued_s": (
        "float64",
        "seconds in the platform's queues and for its sandbox; calls that wait at once count once",
    ),
    "verify_s": ("float64", "seconds of verification"),
    "started": ("timestamp[us, tz=UTC]", "when the attempt was leased"),
    "ended": ("timestamp[us, tz=UTC]", "when it ended"),
}


def step_rows(attempt: RecordedAttempt, *, full: bool) -> Iterator[dict[str, Any]]:
    """A row of STEPS for each step. `full`: with `input_ids` and `conversation`, which are quadratic in the turns."""
    found = Conversations(attempt.steps)
    return (_step_row(attempt, step, found, full=full) for step in attempt.steps)


def _step_row(
    attempt: RecordedAttempt, step: AttemptStep, found: Conversations, *, full: bool
) -> dict[str, Any]:
    stored = step.stored
    action = stored.action
    ids = stored.full if full or stored.parent is None else None
    versions = np.zeros(len(action), np.int32)
    for version, start, end in stored.spans:
        versions[start:end] = version
    new = [*added_messages(found, step), chat_message(reply(step))]
    return {
        "run": attempt.run,
        "rollout": attempt.rollout_id,
        "attempt": attempt.attempt,
        "step": step.idx,
        "group": attempt.group_id,
        "task": attempt.task,
        "domain": attempt.domain,
        "purpose": attempt.purpose,
        "agent": stored.agent,
        "kind": str(stored.kind),
        "parent": stored.parent,
        "kept": stored.keep_len,
        "state_len": stored.state_len,
        "prompt_ids": ids[: stored.keep_len] if ids is not None and stored.parent is None else None,
        "delta_ids": stored.tokens.tail(stored.keep_len)[: stored.state_len - stored.keep_len],
        "action_ids": action,
        "logprobs": stored.logprobs,
        "loss_mask": np.full(len(action), step.weight, np.int8),
        "versions": versions,
        "input_ids": ids if full else None,
        "advantage": step.advantage,
        "marks": list(step.marks),
        "messages": json.dumps(new, ensure_ascii=False),
        "conversation": json.dumps(conversation(found, step), ensure_ascii=False) if full else None,
        "finish": step.finish,
        "parse": stored.parse,
        "temperature": stored.temperature,
        "queue_s": step.t_queue,
        "first_token_s": step.t_first,
        "generation_s": step.t_gen,
        "gap_s": step.t_gap,
    }


def trajectory_row(attempt: RecordedAttempt) -> dict[str, Any]:
    """One row of TRAJECTORIES."""
    reward, batch, verdict = attempt.reward, attempt.batch, attempt.verdict
    low, high = attempt.versions or (None, None)
    pinned = batch or reward  # the values used for training, else the newest
    return {
        **about(attempt),
        "instruction": attempt.instruction,
        "scaffold": attempt.scaffold,
        "scaffold_version": attempt.scaffold_version,
        "version_low": low,
        "version_high": high,
        "steps": len(attempt.steps),
        "action_tokens": sum(len(step.stored.action) for step in attempt.steps),
        **{
            name: getattr(reward, name, None) for name in ("performance", "speed", "process", "alpha", "beta")
        },
        "reward": reward.total if reward else None,
        "process_by_signal": json.dumps(reward.process_by_signal)
        if reward and reward.process_by_signal is not None
        else None,
        **{name: getattr(reward, name, None) for name in ("t_base", "t_base_origin", "silent")},
        "baseline": pinned.baseline if pinned else None,
        "advantage": pinned.advantage if pinned else None,
        "batch": batch.batch_no if batch else None,
        "tests": json.dumps(verdict.tests, ensure_ascii=False) if verdict else None,
        "verify_s": verdict.seconds if verdict else None,
        "started": attempt.started,
        "ended": attempt.ended,
    }
