"""Trajectories as a library user reads them: frozen values made of what the data pool recorded."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any

from orchestrator.contracts.ids import Ids, Logprobs
from orchestrator.contracts.marks import Finish, ParseStatus
from orchestrator.contracts.spans import versions_per_token
from orchestrator.contracts.states import FailureClass, GroupState, Purpose, RolloutState, StepKind
from orchestrator.export import chat
from orchestrator.export.conversation import Conversations, chains, tools_of
from orchestrator.queries.attempts import (
    AttemptStep,
    RecordedAttempt,
    RecordedReward,
    RecordedVerdict,
    ToolExecution,
    TrainedBatch,
)
from orchestrator.queries.chat import chat_message, reply


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Step:
    """One recorded completion: its action of A tokens after a state.

    `action_ids`: int32[A], the sampled ids. `logprobs`: float32[A], behavior logprobs as the rollout server gave them. `versions`: int32[A],
    policy version of each token. `sampling`: the parameters of the request. `trains`: whether its tokens have train weight 1; otherwise
    `marks` may have the reason. `advantage`: of the newest reward, None without one.
    """

    idx: int  # in the order in which the steps were recorded, from 0
    agent: str  # which of the scaffold's agents made the request
    kind: StepKind  # root | continues (the parent and more) | rewrites (a part of the parent and more)
    parent: int | None  # idx of the step that this one continues or rewrites; None for a root
    action_ids: Ids = field(repr=False)
    logprobs: Logprobs = field(repr=False)
    versions: Ids = field(repr=False)
    trains: bool
    marks: tuple[str, ...]
    advantage: float | None
    finish: Finish
    parse: ParseStatus
    sampling: Mapping[str, Any]
    queue_s: float | None  # seconds, like the three below
    first_token_s: float | None
    generation_s: float | None
    gap_s: float | None  # without any call in flight, since the step before
    state_len: int  # tokens of the state
    _recorded: AttemptStep = field(repr=False)
    _conversations: Conversations = field(repr=False)

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The messages that the request added to the conversation, in the form of `Trajectory.messages`: all of them for a root or a
        rewritten history; built on each access."""
        return chat.added_messages(self._conversations, self._recorded)

    @property
    def reply(self) -> dict[str, Any]:
        """The parsed action, in the form of `Trajectory.messages`; built on each access."""
        return chat_message(reply(self._recorded))

    @property
    def conversation(self) -> list[dict[str, Any]]:
        """The whole conversation that the policy was shown, and the reply last, in the form of `Trajectory.messages`; built on each access."""
        return chat.conversation(self._conversations, self._recorded)

    @property
    def input_ids(self) -> Ids:
        """int32[state_len + A]: the state, then the action; built on each access."""
        return self._recorded.stored.full

    @property
    def state_ids(self) -> Ids:
        """int32[state_len]: the whole context that the policy was shown; built on each access."""
        return self._recorded.stored.full[: self.state_len]

    @property
    def content(self) -> str:
        """The text of the reply, without reasoning and tool calls."""
        return reply(self._recorded).text


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Trajectory:
    """One attempt at a task, with all its steps. `counts`: it is the verified attempt of its rollout, or the last one.

    `failure_class`: how the attempt ended (completed, policy_failure, timeout, infra_failure …), `reason` in a few words. `verdict`: the
    verifier's newest result, if the rollout is verified. `reward`: of that verdict, with the advantage of the first step. `batch`: the
    committed batch that trained it. Each of the three is None where there is none (yet). `tool_executions`: the timed executions of tools, as
    far as the scaffold reports them.
    """

    run: str
    rollout_id: int
    attempt: int  # 1-based
    counts: bool
    group_id: int
    member: int
    submission: str
    task: str
    instruction: str
    domain: str
    purpose: Purpose
    label: str | None
    scaffold: str
    scaffold_version: str | None
    seed: int
    seq: int | None  # queue position of the group; None where it trains nothing
    pinned_version: int | None
    versions: tuple[int, int] | None  # the oldest and the newest policy version of its tokens
    group_state: GroupState
    group_reason: str | None
    rollout_state: RolloutState
    failure_class: FailureClass | None
    reason: str | None
    answer: str | None
    agent_s: float | None  # seconds of the agent, without the platform's queues
    queued_s: float | None
    started: datetime
    ended: datetime
    reward: RecordedReward | None
    verdict: RecordedVerdict | None
    batch: TrainedBatch | None
    steps: tuple[Step, ...]
    tool_executions: tuple[ToolExecution, ...]
    _recorded: Sequence[AttemptStep] = field(repr=False)

    @property
    def succeeded(self) -> bool:
        """Whether the verifier's reward is 1."""
        return self.verdict is not None and self.verdict.reward == 1

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The first conversation of the attempt, from its first message to its last reply, as chat messages; built on each access.

        They have OpenAI's form, that of `scaffolds.base.Message`: dicts with `role` (system, user, assistant, tool) and `content` (text, ""
        without any). A reply may also have `reasoning_content` (text) and `tool_calls` (`id`, `type` "function", `function` with `name` and
        `arguments`, a JSON text). A result of a tool has `tool_call_id`, unless its call is unknown.

        A scaffold with one agent and a history that only grows has one conversation, so this is all of it. What branches off is not in
        it: the conversations of sub-agents, further conversations of the same agent, the steps after a rewritten history (compaction),
        second answers to one history. `steps[i].conversation` has each of them. Of a black-box agent these are the messages of its
        requests, with its own system prompt, and its program decides how many conversations there are. Messages that were too large to be
        recorded are missing; their token ids are in the steps. Empty if the attempt ended before its first reply.
        """
        found = chains(self._recorded)
        return chat.conversation(Conversations(self._recorded), found[0].steps[-1]) if found else []

    @property
    def tools(self) -> list[Mapping[str, Any]]:
        """The tools that the policy was shown, as definitions in OpenAI's function form: those of the first prompt with any. Empty if no
        prompt shows tools, because no request offered any or the policy's chat template leaves them out."""
        return tools_of(self._recorded)


def trajectory_of(attempt: RecordedAttempt) -> Trajectory:
    """The public form of a recorded attempt."""
    conversations = Conversations(attempt.steps)
    made: dict[str, Any] = {
        "steps": tuple(_step(step, conversations) for step in attempt.steps),
        "tool_executions": tuple(attempt.tools),
        "_recorded": attempt.steps,
    }
    same = {each.name: getattr(attempt, each.name) for each in fields(Trajectory) if each.name not in made}
    return Trajectory(**same, **made)


def _step(step: AttemptStep, conversations: Conversations) -> Step:
    stored = step.stored
    return Step(
        idx=step.idx,
        agent=stored.agent,
        kind=stored.kind,
        parent=stored.parent,
        action_ids=stored.action,
        logprobs=stored.logprobs,
        versions=versions_per_token(stored.spans),
        trains=bool(step.weight),
        marks=step.marks,
        advantage=step.advantage,
        finish=step.finish,
        parse=stored.parse,
        sampling=step.sampling,
        queue_s=step.t_queue,
        first_token_s=step.t_first,
        generation_s=step.t_gen,
        gap_s=step.t_gap,
        state_len=stored.state_len,
        _recorded=step,
        _conversations=conversations,
    )
