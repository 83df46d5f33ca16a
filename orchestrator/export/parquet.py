"""Parquet for HF `datasets`: a row per step and a row per attempt, in parts; row groups are written as they fill, so memory is bounded.

data/steps/part-00000.parquet, data/trajectories/part-00000.parquet, README.md (the dataset card: configurations and features)
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from orchestrator.export.about import about
from orchestrator.export.card import card
from orchestrator.export.conversation import TOOLS, Said, before, reply
from orchestrator.export.drive import Done
from orchestrator.export.packages import need
from orchestrator.export.records import Attempt, Step
from orchestrator.pool.runs import Run

PART = 5_000  # attempts
GROUP_BYTES = 32 * 2**20  # of tokens and text that wait for their row group
GROUP_ROWS = 10_000

# name: (Arrow type, what it is). The order is that of the columns.
STEPS: dict[str, tuple[str, str]] = {
    "run": ("string", "name of the run"),
    "rollout": ("int64", "the rollout; with attempt and step the key of the row"),
    "attempt": ("int16", "infrastructure try of the rollout, 1-based"),
    "step": ("int32", "idx of the step in its attempt, from 0, in the order in which they were recorded"),
    "group": ("int64", "the group: the unit of the queue"),
    "task": ("string", "name of the task"),
    "domain": ("string", "domain of the task"),
    "purpose": ("string", "train, eval or record"),
    "agent": ("string", "which of the scaffold's agents asked"),
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
    "loss_mask": ("list<int8>", "train weight of each of action_ids: 1, or 0 in a marked step"),
    "versions": ("list<int32>", "policy version of each of action_ids"),
    "input_ids": ("list<int32>", "state and action; null unless --full was given"),
    "advantage": ("float64", "of the newest reward; null where there is none"),
    "marks": ("list<string>", "why the step does not train; empty where it does"),
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
    "gap_s": ("float32", "seconds since the reply before it: tools and the agent's own work"),
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
    "pinned_version": ("int32", "policy version that an evaluation asked for"),
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
    "speed": ("float64", "part of the reward for speed"),
    "process": ("float64", "part of the reward for process, -1 to 0"),
    "alpha": ("float64", "weight of process"),
    "beta": ("float64", "weight of speed"),
    "reward": ("float64", "performance + beta * speed + alpha * process"),
    "baseline": ("float64", "of its group: as trained, else of the newest reward"),
    "advantage": ("float64", "of its first step: as trained, else of the newest reward"),
    "batch": ("int32", "number of the committed batch that trained it"),
    "tests": ("string", "JSON: the verifier's tests"),
    "agent_s": ("float64", "seconds of the agent without the platform's queues"),
    "queued_s": ("float64", "seconds in the platform's queues"),
    "verify_s": ("float64", "seconds of verification"),
    "started": ("timestamp[us, tz=UTC]", "when the attempt was leased"),
    "ended": ("timestamp[us, tz=UTC]", "when it ended"),
}


class Parquet:
    """Both tables, part by part. `full`: each step also with its whole context, as ids and as messages (quadratic in the turns)."""

    name = "parquet"

    def __init__(self, full: bool = False, part: int = PART) -> None:
        self._arrow = need("pyarrow", "pyarrow", self.name)
        self._writers = need("pyarrow.parquet", "pyarrow", self.name)
        self._full = full
        self.part = part
        self._tables: list[_Table] = []

    def options(self) -> Mapping[str, Any]:
        return {"full": self._full, "part": self.part}

    def split(self) -> Sequence[str]:
        return ()

    def begin(self, directory: Path, number: int, section: Mapping[str, Any], run: Run) -> None:
        self._tables = [
            _Table(self._arrow, self._writers, directory, f"data/{name}/part-{number:05d}.parquet", columns)
            for name, columns in (("steps", STEPS), ("trajectories", TRAJECTORIES))
        ]

    def add(self, attempt: Attempt) -> bool:
        steps, trajectories = self._tables
        for step in attempt.steps:
            steps.add(_step(attempt, step, full=self._full))
        trajectories.add(_trajectory(attempt))
        return False

    def end(self) -> Sequence[str]:
        return [table.end() for table in self._tables]

    def close(self, directory: Path, done: Done) -> Sequence[str]:
        (directory / "README.md").write_text(
            card(done, {"steps": STEPS, "trajectories": TRAJECTORIES}), encoding="utf-8"
        )
        return ["README.md"]


class _Table:
    """One file: rows wait until they make a row group."""

    def __init__(
        self, arrow: Any, parquet: Any, directory: Path, name: str, columns: Mapping[str, tuple[str, str]]
    ) -> None:
        self._arrow, self._name = arrow, name
        self._schema = arrow.schema(
            [
                arrow.field(column, _type(arrow, kind), metadata={"description": what})
                for column, (kind, what) in columns.items()
            ]
        )
        file = directory / name
        file.parent.mkdir(parents=True, exist_ok=True)
        self._writer = parquet.ParquetWriter(file, self._schema, compression="zstd")
        self._columns: dict[str, list[Any]] = {column: [] for column in columns}
        self._rows = self._bytes = 0

    def add(self, row: Mapping[str, Any]) -> None:
        for column, values in self._columns.items():
            value = row[column]
            values.append(value)
            if isinstance(value, np.ndarray):
                self._bytes += value.nbytes
            elif isinstance(value, str):
                self._bytes += len(value)
        self._rows += 1
        if self._rows >= GROUP_ROWS or self._bytes >= GROUP_BYTES:
            self._flush()

    def end(self) -> str:
        if self._rows:
            self._flush()
        self._writer.close()
        return self._name

    def _flush(self) -> None:
        arrays = [self._arrow.array(self._columns[field.name], type=field.type) for field in self._schema]
        self._writer.write_table(
            self._arrow.Table.from_arrays(arrays, schema=self._schema), row_group_size=self._rows
        )
        for values in self._columns.values():
            values.clear()
        self._rows = self._bytes = 0


def _type(arrow: Any, kind: str) -> Any:
    if kind.startswith("list<"):
        return arrow.list_(_type(arrow, kind[5:-1]))
    if kind.startswith("timestamp"):
        return arrow.timestamp("us", tz="UTC")
    return getattr(arrow, {"bool": "bool_"}.get(kind, kind))()


def _step(attempt: Attempt, step: Step, *, full: bool) -> dict[str, Any]:
    stored = step.stored
    action = stored.action
    ids = stored.full if full or stored.parent is None else None
    versions = np.zeros(len(action), np.int32)
    for version, start, end in stored.spans:
        versions[start:end] = version
    said = before(attempt.steps, step)
    new = said[len(said) - sum(message.get("role") != TOOLS for message in step.appended) :]
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
        "messages": _messages([*new, reply(step)]),
        "conversation": _messages([*said, reply(step)]) if full else None,
        "finish": step.finish,
        "parse": stored.parse,
        "temperature": stored.temperature,
        "queue_s": step.t_queue,
        "first_token_s": step.t_first,
        "generation_s": step.t_gen,
        "gap_s": step.t_gap,
    }


def _messages(said: Sequence[Said]) -> str:
    return json.dumps([_message(each) for each in said], ensure_ascii=False)


def _message(said: Said) -> dict[str, Any]:
    """OpenAI's chat form, with the reasoning beside the content."""
    message: dict[str, Any] = {"role": said.role, "content": said.text}
    if said.reasoning is not None:
        message["reasoning"] = said.reasoning
    if said.calls:
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)},
            }
            for call in said.calls
        ]
    if said.answers is not None:
        message["tool_call_id"] = said.answers
    return message


def _trajectory(attempt: Attempt) -> dict[str, Any]:
    reward, batch, verdict = attempt.reward, attempt.batch, attempt.verdict
    low, high = attempt.versions or (None, None)
    pinned = batch or reward  # what was trained with, else the newest
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
        "baseline": pinned.baseline if pinned else None,
        "advantage": pinned.advantage if pinned else None,
        "batch": batch.batch_no if batch else None,
        "tests": json.dumps(verdict.tests, ensure_ascii=False) if verdict else None,
        "verify_s": verdict.seconds if verdict else None,
        "started": attempt.started,
        "ended": attempt.ended,
    }
