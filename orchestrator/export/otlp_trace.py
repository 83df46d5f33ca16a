"""The spans of one attempt, with the attributes of the GenAI conventions and our own."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from orchestrator.contracts.spans import flat
from orchestrator.contracts.states import FailureClass
from orchestrator.export.conversation import Conversations, chains
from orchestrator.export.otlp_form import CLIENT, FAILED, INTERNAL, attributes, nanos
from orchestrator.export.otlp_messages import ATTRIBUTE_BYTES, messages, newest, short
from orchestrator.queries.attempts import AttemptStep, RecordedAttempt, ToolExecution
from orchestrator.queries.chat import ConversationMessage, reply

PROVIDER = "penstock"
NAME_BYTES = 256  # of a span's name, which may come from a policy


class Trace:
    """The spans of one attempt; without `content`, none of its text."""

    def __init__(self, trace: Any, common: Any, attempt: RecordedAttempt, *, content: bool) -> None:
        self._trace, self._common, self._attempt, self._content = trace, common, attempt, content
        self._model = f"penstock/{attempt.run}"
        self._conversations = Conversations(attempt.steps)
        self._id = _digest(attempt, "")[:16]
        self._cut: set[str] = set()  # cut attributes of the current span

    def spans(self) -> Iterator[Any]:
        """All spans, the attempt's first."""
        yield self._agent()
        followers = {step.stored.parent: step for step in reversed(self._attempt.steps)}
        timed = {(tool.idx, tool.call): tool for tool in self._attempt.tools}
        results: dict[str, str] = {}  # from the first request with the result, which need not be the next one
        for step in self._attempt.steps:
            for message in self._conversations.added(step):
                if message.answers is not None:
                    results.setdefault(message.answers, message.text)
        for step in self._attempt.steps:
            yield self._chat(step)
            answer = reply(step)
            following = followers.get(step.idx)
            for number, call in enumerate(answer.calls):
                tool = timed.get((step.idx, number))
                yield self._tool(step, number, call, tool, following, results.get(call.id))
        if self._attempt.verdict is not None:
            yield self._verify()

    def _span(
        self,
        key: str,
        parent: str | None,
        name: str,
        kind: int,
        start: float,
        end: float,
        about: Mapping[str, Any],
    ) -> Any:
        given, about = about, {}
        for attribute, value in given.items():
            about[attribute] = self._short(attribute, value) if isinstance(value, str) else value
        if self._cut:
            about["penstock.truncated"] = sorted(self._cut)
            self._cut = set()
        return self._trace.Span(
            trace_id=self._id,
            span_id=_digest(self._attempt, key)[:8],
            parent_span_id=_digest(self._attempt, parent)[:8] if parent is not None else b"",
            name=short(name, NAME_BYTES),
            kind=kind,
            start_time_unix_nano=nanos(start),
            end_time_unix_nano=max(nanos(start), nanos(end)),
            attributes=attributes(self._common, about),
        )

    def _short(self, attribute: str, value: str) -> str:
        found = short(value, ATTRIBUTE_BYTES)
        if found != value:
            self._cut.add(attribute)
        return found

    def _messages(
        self, attribute: str, conversation: Sequence[ConversationMessage], finish: str | None = None
    ) -> str:
        """Messages for one attribute, as many of the newest as fit."""
        found = messages(conversation, finish)
        if len(found.encode()) > ATTRIBUTE_BYTES:
            self._cut.add(attribute)
            found = newest(conversation, finish)
        return found

    def _agent(self) -> Any:
        attempt = self._attempt
        versions = attempt.versions
        last = chains(attempt.steps)[0].steps[-1] if attempt.steps else None
        about: dict[str, Any] = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.provider.name": PROVIDER,
            "gen_ai.agent.name": attempt.scaffold,
            "gen_ai.request.model": self._model,
            "gen_ai.conversation.id": f"{attempt.run}:{attempt.name}",
            "gen_ai.usage.input_tokens": sum(step.stored.state_len for step in attempt.steps),
            "gen_ai.usage.output_tokens": sum(len(step.stored.action) for step in attempt.steps),
            "penstock.run": attempt.run,
            "penstock.group": attempt.group_id,
            "penstock.rollout": attempt.rollout_id,
            "penstock.attempt": attempt.attempt,
            "penstock.member": attempt.member,
            "penstock.task": attempt.task,
            "penstock.domain": attempt.domain,
            "penstock.purpose": attempt.purpose,
            "penstock.label": attempt.label,
            "penstock.scaffold.version": attempt.scaffold_version,
            "penstock.group.state": attempt.group_state,
            "penstock.failure_class": attempt.failure_class,
            "penstock.reason": attempt.reason,
            "penstock.policy_version.low": versions[0] if versions else None,
            "penstock.policy_version.high": versions[1] if versions else None,
            "penstock.batch": attempt.batch.batch_no if attempt.batch else None,
        }
        if attempt.reward is not None:
            about |= {
                "penstock.reward": attempt.reward.total,
                "penstock.reward.performance": attempt.reward.performance,
                "penstock.reward.t_base_origin": attempt.reward.t_base_origin,
                "penstock.reward.silent": attempt.reward.silent,
                "penstock.advantage": attempt.batch.advantage if attempt.batch else attempt.reward.advantage,
            }
        if self._content:
            prompt = [ConversationMessage(role="user", text=attempt.instruction)]
            about["gen_ai.input.messages"] = self._messages("gen_ai.input.messages", prompt)
            if last is not None:
                about["gen_ai.output.messages"] = self._messages(
                    "gen_ai.output.messages", [reply(last)], last.finish
                )
        started, ended = attempt.started.timestamp(), attempt.ended.timestamp()
        span = self._span("", None, f"invoke_agent {attempt.scaffold}", INTERNAL, started, ended, about)
        if attempt.failure_class not in (None, FailureClass.COMPLETED):
            span.status.code = FAILED
            span.status.message = short(attempt.reason or attempt.failure_class or "", ATTRIBUTE_BYTES)
            span.attributes.extend(attributes(self._common, {"error.type": attempt.failure_class}))
        return span

    def _chat(self, step: AttemptStep) -> Any:
        stored, sampling = step.stored, step.sampling
        about: dict[str, Any] = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": PROVIDER,
            "gen_ai.request.model": self._model,
            "gen_ai.response.model": f"{self._model}@{step.v_hi}",
            "gen_ai.response.id": f"{self._attempt.name}-step-{step.idx}",
            "gen_ai.agent.name": stored.agent,
            "gen_ai.conversation.id": f"{self._attempt.run}:{self._attempt.name}",
            "gen_ai.request.temperature": _float(sampling.get("temperature")),
            "gen_ai.request.top_p": _float(sampling.get("top_p")),
            "gen_ai.request.top_k": _float(sampling.get("top_k")) if sampling.get("top_k", -1) > 0 else None,
            "gen_ai.request.seed": sampling.get("seed"),
            "gen_ai.request.max_tokens": sampling.get("max_new_tokens"),
            "gen_ai.response.finish_reasons": [step.finish],
            "gen_ai.usage.input_tokens": stored.state_len,
            "gen_ai.usage.output_tokens": len(stored.action),
            "penstock.step": step.idx,
            "penstock.step.kind": str(stored.kind),
            "penstock.step.parent": stored.parent,
            "penstock.step.marks": list(step.marks),
            "penstock.step.train_weight": step.weight,
            "penstock.policy_version.spans": flat(stored.spans),
            "penstock.advantage": step.advantage,
            "penstock.queue.duration": step.t_queue,
            "penstock.first_token.duration": step.t_first,
            "penstock.generation.duration": step.t_gen,
            "penstock.times": "measured" if step.span.measured else "reconstructed",
        }
        if self._content:
            history = self._conversations.before(step)
            system = [message.text for message in history if message.role == "system"]
            if system:
                about["gen_ai.system_instructions"] = json.dumps(
                    [{"type": "text", "content": text} for text in system], ensure_ascii=False
                )
            about["gen_ai.input.messages"] = self._messages(
                "gen_ai.input.messages", [message for message in history if message.role != "system"]
            )
            about["gen_ai.output.messages"] = self._messages(
                "gen_ai.output.messages", [reply(step)], step.finish
            )
        return self._span(
            f"s{step.idx}", "", f"chat {self._model}", CLIENT, step.span.start, step.span.end, about
        )

    def _tool(
        self,
        step: AttemptStep,
        number: int,
        call: Any,
        tool: ToolExecution | None,
        following: AttemptStep | None,
        result: str | None,
    ) -> Any:
        measured = tool is not None and tool.start_s is not None and tool.end_s is not None
        if measured:
            assert tool is not None and tool.start_s is not None and tool.end_s is not None
            attempt_started = self._attempt.started.timestamp()
            start, end = attempt_started + tool.start_s, attempt_started + tool.end_s
        else:
            start = step.span.end
            end = following.span.start if following is not None else start
        about: dict[str, Any] = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": call.name,
            "gen_ai.tool.call.id": call.id,
            "gen_ai.tool.type": "function",
            "gen_ai.agent.name": step.stored.agent,
            "penstock.step": step.idx,
            "penstock.exit_code": tool.exit_code if tool else None,
            "penstock.bytes": tool.bytes if tool else None,
            "penstock.times": "measured" if measured else "gap",
        }
        if self._content:
            about["gen_ai.tool.call.arguments"] = json.dumps(call.arguments, ensure_ascii=False)
            about["gen_ai.tool.call.result"] = result
        key = f"s{step.idx}t{number}"  # below the agent: it runs after the call that requested it
        return self._span(key, "", f"execute_tool {call.name}", INTERNAL, start, end, about)

    def _verify(self) -> Any:
        verdict = self._attempt.verdict
        assert verdict is not None
        end = verdict.at.timestamp()
        about = {
            "penstock.verdict.revision": verdict.revision,
            "penstock.exit_code": verdict.exit_code,
            "penstock.tests": len(verdict.tests),
            "penstock.tests.passed": sum(bool(test.get("passed")) for test in verdict.tests),
        }
        # It starts after the agent has ended: not a span below the agent's, but linked to it.
        started = max(end - (verdict.seconds or 0.0), self._attempt.ended.timestamp())
        span = self._span("verify", None, "penstock.verify", INTERNAL, started, end, about)
        span.links.add(trace_id=self._id, span_id=_digest(self._attempt, "")[:8])
        test_lines = [
            f"{test.get('name')}: {test.get('message')}" for test in verdict.tests if not test.get("passed")
        ]
        explanation = "\n".join(test_lines) if self._content else ""
        span.events.add(
            name="gen_ai.evaluation.result",
            time_unix_nano=nanos(end),
            attributes=attributes(
                self._common,
                {
                    "gen_ai.evaluation.name": "performance",
                    "gen_ai.evaluation.score.value": verdict.reward,
                    "gen_ai.evaluation.score.label": "pass" if verdict.reward >= 1 else "fail",
                    "gen_ai.evaluation.explanation": short(explanation, ATTRIBUTE_BYTES) or None,
                    "penstock.truncated": ["gen_ai.evaluation.explanation"]
                    if len(explanation.encode()) > ATTRIBUTE_BYTES
                    else None,
                },
            ),
        )
        return span


def _digest(attempt: RecordedAttempt, key: str) -> bytes:
    """32 bytes that identify a span of an attempt; the first 16 identify a trace."""
    started = attempt.started.isoformat()  # a run of that name in another database is a different one
    return hashlib.sha256(
        f"{attempt.run}/{attempt.rollout_id}/{attempt.attempt}/{started}/{key}".encode()
    ).digest()


def _float(value: Any) -> float | None:
    return None if value is None else float(value)
