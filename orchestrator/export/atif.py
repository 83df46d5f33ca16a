"""ATIF, the Agent Trajectory Interchange Format of the Harbor project: one JSON document per attempt.

Source: Harbor's RFC 0001 "Agent Trajectory Interchange Format", version 1.7 (harborframework.com/docs/trajectory-format). The first conversation
is the document; every other one (a sub-agent's, one after a rewritten history, a second answer) is embedded in `subagent_trajectories` and
referred to from the step that it branches from, with its relation in `extra`. Messages that such a conversation repeats are
`is_copied_context`. Policy versions, marks, weights and timings are in each step's `metrics.extra`; everything about the rollout is in the
document's `extra`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from orchestrator.contracts.states import StepKind
from orchestrator.export.about import about
from orchestrator.export.conversation import Chain, Conversations, Relation, chains, tools_of
from orchestrator.export.drive import ExportSummary
from orchestrator.pool.runs import StoredRun
from orchestrator.queries.attempts import AttemptStep, RecordedAttempt
from orchestrator.queries.chat import ConversationMessage, reply

SCHEMA = "ATIF-v1.7"
PART = 100


class Atif:
    """`trajectories/<thousand>/rollout-R-attempt-A.json`. `prompt_ids`: each step also has the ids of its whole context."""

    name = "atif"
    part = PART

    def __init__(self, prompt_ids: bool = True) -> None:
        self._prompt_ids = prompt_ids
        self._directory = Path()
        self._names: list[str] = []

    def options(self) -> Mapping[str, Any]:
        return {"schema": SCHEMA, "prompt_ids": self._prompt_ids}

    def split(self) -> Sequence[str]:
        return ()

    def begin(self, directory: Path, number: int, section: Mapping[str, Any], run: StoredRun) -> None:
        self._directory, self._names = directory, []

    def add(self, attempt: RecordedAttempt) -> bool:
        name = f"trajectories/{attempt.rollout_id // 1000:06d}/{attempt.name}.json"
        file = self._directory / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(msgspec.json.encode(document(attempt, prompt_ids=self._prompt_ids)))
        self._names.append(name)
        return False

    def end(self) -> Sequence[str]:
        return self._names

    def close(self, directory: Path, done: ExportSummary) -> Sequence[str]:
        return ()


def document(attempt: RecordedAttempt, *, prompt_ids: bool = True) -> dict[str, Any]:
    """One attempt as an ATIF trajectory. In an attempt without steps, the instruction is the only step."""
    found = chains(attempt.steps)
    conversations = Conversations(attempt.steps)
    parts = [_chain(attempt, chain, found, conversations, prompt_ids=prompt_ids) for chain in found]
    main = parts[0] if parts else _empty(attempt)
    main["extra"] = {"penstock": {**main.get("extra", {}).get("penstock", {}), **_about(attempt)}}
    if len(parts) > 1:
        main["subagent_trajectories"] = parts[1:]
        main["notes"] = (
            "subagent_trajectories holds every conversation of the attempt but the first: those of sub-agents, and those that go on from a "
            "rewritten history; extra.penstock.relation says which"
        )
    return main


def _empty(attempt: RecordedAttempt) -> dict[str, Any]:
    return {
        **_head(attempt, 0, attempt.scaffold, []),
        "steps": [{"step_id": 1, "source": "user", "message": attempt.instruction}],
        "notes": "the attempt ended before the first request to the policy; the step is the task's instruction",
    }


def _head(
    attempt: RecordedAttempt, number: int, agent: str, tools: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA,
        "session_id": f"{attempt.run}:{attempt.name}",
        "trajectory_id": f"{attempt.name}-{number}",
        "agent": {
            "name": attempt.scaffold,
            "version": attempt.scaffold_version or "unknown",
            "model_name": f"penstock/{attempt.run}",
            **({"tool_definitions": [dict(tool) for tool in tools]} if tools else {}),
            "extra": {"agent": agent},
        },
    }


def _chain(
    attempt: RecordedAttempt,
    chain: Chain,
    others: Sequence[Chain],
    conversations: Conversations,
    *,
    prompt_ids: bool,
) -> dict[str, Any]:
    first = chain.steps[0]
    messages = conversations.before(first)
    known = _earlier(attempt.steps, chain, conversations)
    turns = _Turns()
    for message in messages:
        turns.say(message, copied=(message.role, message.text) in known)
    for step in chain.steps:
        if step is not first:
            for message in conversations.added(step):
                turns.say(message, copied=False)
        turns.act(step, prompt_ids=prompt_ids)
    for other in others[1:]:
        branch_step = _leaves(attempt.steps, other)
        if (
            other is not chain
            and branch_step is not None
            and any(step.idx == branch_step for step in chain.steps)
        ):
            turns.refer(branch_step, f"{attempt.name}-{other.number}", other)
    chain_steps = chain.steps
    actions = sum(len(step.stored.action) for step in chain_steps)
    return {
        **_head(attempt, chain.number, chain.agent, tools_of(chain_steps)),
        "steps": turns.steps,
        "final_metrics": {
            "total_prompt_tokens": sum(step.stored.state_len for step in chain_steps),
            "total_completion_tokens": actions,
            "total_steps": len(turns.steps),
        },
        "extra": {
            "penstock": {
                "relation": chain.relation,
                "branches_from_step": chain.parent,
                "branch_reason": first.branch_reason,
                "kept_tokens": first.stored.keep_len,
            }
        },
    }


def _earlier(
    steps: Sequence[AttemptStep], chain: Chain, conversations: Conversations
) -> set[tuple[str, str]]:
    """Messages of the conversation from which a rewrite or a sibling branches: where it repeats them, they are copied, not new."""
    parent = next((step for step in steps if step.idx == chain.parent), None)
    if parent is None or chain.relation is Relation.AGENT:
        return set()
    return {(message.role, message.text) for message in [*conversations.before(parent), reply(parent)]}


def _leaves(steps: Sequence[AttemptStep], chain: Chain) -> int | None:
    """The step from which a conversation branches: its parent, or for a new one the last step recorded before it."""
    if chain.parent is not None:
        return chain.parent
    return max((step.idx for step in steps if step.idx < chain.steps[0].idx), default=None)


class _Turns:
    """Steps of one document in order: a tool's message is an observation of the reply that called it."""

    def __init__(self) -> None:
        self.steps: list[dict[str, Any]] = []
        self._of: dict[int, dict[str, Any]] = {}

    def say(self, message: ConversationMessage, *, copied: bool) -> None:
        """Add a message that the policy was shown."""
        caller = self._caller(message) if message.role == "tool" else None
        if caller is not None:
            _observe(caller, {"source_call_id": message.answers, "content": message.text})
            return
        source = {"assistant": "agent", "user": "user"}.get(message.role, "system")
        step = self._new(source, "" if message.role == "tool" else message.text)
        if message.role == "tool":
            _observe(step, {"source_call_id": None, "content": message.text})
        if source == "agent":
            step |= _action(message)
        if copied or source == "agent":
            step["is_copied_context"] = True

    def _caller(self, message: ConversationMessage) -> dict[str, Any] | None:
        """The step with the call that a result answers, at any distance; a result whose call is unknown goes to the last step."""
        if message.answers is not None:
            for step in reversed(self.steps):
                if any(call["tool_call_id"] == message.answers for call in step.get("tool_calls", ())):
                    caller: dict[str, Any] = step
                    return caller
        if self.steps and self.steps[-1]["source"] == "agent":
            return self.steps[-1]
        return None

    def act(self, step: AttemptStep, *, prompt_ids: bool) -> None:
        """Add the policy's answer."""
        answer = reply(step)
        turn = self._new("agent", answer.text)
        turn |= {
            "timestamp": datetime.fromtimestamp(step.span.end, UTC).isoformat(),
            **_action(answer),
            "metrics": _metrics(step, prompt_ids=prompt_ids),
            "llm_call_count": 1,
        }
        self._of[step.idx] = turn

    def refer(self, idx: int, trajectory: str, chain: Chain) -> None:
        """Record that another conversation branches from this one."""
        about = {"relation": chain.relation, "agent": chain.agent}
        ref = {"trajectory_id": trajectory, "extra": {"penstock": about}}
        _observe(self._of[idx], {"source_call_id": None, "subagent_trajectory_ref": [ref]})

    def _new(self, source: str, text: str) -> dict[str, Any]:
        step = {"step_id": len(self.steps) + 1, "source": source, "message": text}
        self.steps.append(step)
        return step


def _observe(step: dict[str, Any], result: dict[str, Any]) -> None:
    step.setdefault("observation", {"results": []})["results"].append(result)


def _action(message: ConversationMessage) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if message.reasoning is not None:
        found["reasoning_content"] = message.reasoning
    if message.calls:
        found["tool_calls"] = [
            {"tool_call_id": call.id, "function_name": call.name, "arguments": dict(call.arguments)}
            for call in message.calls
        ]
    return found


def _metrics(step: AttemptStep, *, prompt_ids: bool) -> dict[str, Any]:
    stored = step.stored
    found: dict[str, Any] = {
        "prompt_tokens": stored.state_len,
        "completion_tokens": len(stored.action),
        "completion_token_ids": stored.action.tolist(),
        "logprobs": stored.logprobs.astype(float).tolist(),
    }
    if prompt_ids:
        found["prompt_token_ids"] = stored.full[: stored.state_len].tolist()
    versions = [{"version": version, "start": start, "end": end} for version, start, end in stored.spans]
    found["extra"] = {
        "penstock": {
            "step": step.idx,
            "kind": str(StepKind(stored.kind)),
            "parent_step": stored.parent,
            "kept_tokens": stored.keep_len,
            "policy_versions": versions,
            "sampling": dict(step.sampling),
            "finish": step.finish,
            "parse": stored.parse,
            "marks": list(step.marks),
            "text_left_out": not step.appended,  # its messages were too large for the bus; the ids are whole
            "train_weight": step.weight,
            "advantage": step.advantage,
            "queue_s": step.t_queue,
            "first_token_s": step.t_first,
            "generation_s": step.t_gen,
            "gap_s": step.t_gap,
        }
    }
    return found


def _about(attempt: RecordedAttempt) -> dict[str, Any]:
    verdict = asdict(attempt.verdict) if attempt.verdict else None
    if verdict is not None:
        verdict["at"] = verdict["at"].isoformat()
    return {
        **about(attempt),
        "policy_versions": list(attempt.versions) if attempt.versions else None,
        "started": attempt.started.isoformat(),
        "ended": attempt.ended.isoformat(),
        "reward": asdict(attempt.reward) if attempt.reward else None,
        "verdict": verdict,
        "batch": asdict(attempt.batch) if attempt.batch else None,
    }
