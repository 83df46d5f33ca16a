"""ATIF 1.7, restated: the requirements of Harbor's RFC 0001 "Agent Trajectory Interchange Format" (harborframework.com/docs/trajectory-format).

Unknown fields are refused everywhere but in `extra`. Content is text here: Penstock records none of the format's images and audio.
"""

from datetime import datetime
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Agent(_Closed):
    name: str
    version: str
    model_name: str | None = None
    tool_definitions: list[dict[str, Any]] | None = None
    extra: dict[str, Any] | None = None


class ToolCall(_Closed):
    tool_call_id: str
    function_name: str
    arguments: dict[str, Any]
    extra: dict[str, Any] | None = None


class SubagentRef(_Closed):
    trajectory_id: str | None = None
    trajectory_path: str | None = None
    session_id: str | None = None
    extra: dict[str, Any] | None = None

    @model_validator(mode="after")
    def resolves(self) -> Self:
        assert self.trajectory_id is not None or self.trajectory_path is not None
        return self


class Result(_Closed):
    source_call_id: str | None = None
    content: str | None = None
    subagent_trajectory_ref: list[SubagentRef] | None = None
    extra: dict[str, Any] | None = None


class Observation(_Closed):
    results: list[Result]


class Metrics(_Closed):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    cost_usd: float | None = None
    prompt_token_ids: list[int] | None = None
    completion_token_ids: list[int] | None = None
    logprobs: list[float] | None = None
    extra: dict[str, Any] | None = None

    @model_validator(mode="after")
    def lengths(self) -> Self:
        assert self.completion_token_ids is None or len(self.completion_token_ids) == self.completion_tokens
        assert self.prompt_token_ids is None or len(self.prompt_token_ids) == self.prompt_tokens
        assert self.logprobs is None or len(self.logprobs) == self.completion_tokens
        return self


AGENT_ONLY = ("model_name", "reasoning_effort", "reasoning_content", "tool_calls", "metrics")


class Step(_Closed):
    step_id: int = Field(ge=1)
    timestamp: str | None = None
    source: Literal["system", "user", "agent"]
    model_name: str | None = None
    reasoning_effort: str | float | None = None
    message: str
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None
    observation: Observation | None = None
    metrics: Metrics | None = None
    extra: dict[str, Any] | None = None
    llm_call_count: int | None = Field(default=None, ge=0)
    is_copied_context: bool | None = None

    @model_validator(mode="after")
    def rules(self) -> Self:
        if self.timestamp is not None:
            datetime.fromisoformat(self.timestamp)
        if self.source != "agent":
            assert all(getattr(self, name) is None for name in AGENT_ONLY)
        if self.llm_call_count == 0:
            assert self.metrics is None and self.reasoning_content is None
        called = {call.tool_call_id for call in self.tool_calls or []}
        assert len(called) == len(self.tool_calls or [])
        for result in self.observation.results if self.observation and self.tool_calls else []:
            assert result.source_call_id is None or result.source_call_id in called
        return self


class FinalMetrics(_Closed):
    total_prompt_tokens: int | None = None
    total_completion_tokens: int | None = None
    total_cached_tokens: int | None = None
    total_cost_usd: float | None = None
    total_steps: int | None = None
    extra: dict[str, Any] | None = None


class Trajectory(_Closed):
    schema_version: Literal["ATIF-v1.7"]
    session_id: str | None = None
    trajectory_id: str | None = None
    agent: Agent
    steps: list[Step] = Field(min_length=1)
    notes: str | None = None
    final_metrics: FinalMetrics | None = None
    continued_trajectory_ref: str | None = None
    extra: dict[str, Any] | None = None
    subagent_trajectories: list["Trajectory"] | None = None

    @model_validator(mode="after")
    def whole(self) -> Self:
        assert [step.step_id for step in self.steps] == list(range(1, len(self.steps) + 1))
        names = [each.trajectory_id for each in self.subagent_trajectories or []]
        assert None not in names and len(set(names)) == len(names)
        every: list[Trajectory] = [self, *(self.subagent_trajectories or [])]
        described = {
            ref.trajectory_id
            for each in every
            for step in each.steps
            for result in (step.observation.results if step.observation else [])
            for ref in result.subagent_trajectory_ref or []
        }
        assert not names or described == set(names), (
            "every embedded trajectory is referred to, and nothing else is"
        )
        return self
