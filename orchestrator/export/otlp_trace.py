"""The spans of one attempt, with the attributes of the GenAI conventions and our own."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from orchestrator.export.conversation import Said, added, before, chains, reply
from orchestrator.export.otlp_form import CLIENT, FAILED, INTERNAL, attributes, nanos
from orchestrator.export.otlp_messages import ATTRIBUTE_BYTES, messages, newest, short
from orchestrator.export.records import Attempt, Step, Tool

PROVIDER = "penstock"
NAME_BYTES = 256  # of a span's name, which a policy may have made up


class Trace:
    """The spans of one attempt; without `content`, none of its text."""

    def __init__(self, trace: Any, common: Any, attempt: Attempt, *, content: bool) -> None:
        self._trace, self._common, self._attempt, self._content = trace, common, attempt, content
        self._model = f"penstock/{attempt.run}"
        self._id = _digest(attempt, "")[:16]
        self._cut: set[str] = set()  # attributes of the span at work that are not whole

    def spans(self) -> Iterator[Any]:
        """The attempt's first."""
        yield self._agent()
        followers = {step.stored.parent: step for step in reversed(self._attempt.steps)}
        timed = {(tool.idx, tool.call): tool for tool in self._attempt.tools}
        for step in self._attempt.steps:
            yield self._chat(step)
            said = reply(step)
            following = followers.get(step.idx)
            results = {
                message.answers: message.text for message in (added(following, [said]) if following else [])
            }
            for number, call in enumerate(said.calls):
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
        whole, about = about, {}
        for attribute, value in whole.items():
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

    def _told(self, attribute: str, said: Sequence[Said], finish: str | None = None) -> str:
        """Messages for one attribute, as many of the newest as it holds."""
        found = messages(said, finish)
        if len(found.encode()) > ATTRIBUTE_BYTES:
            self._cut.add(attribute)
            found = newest(said, finish)
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
                "penstock.advantage": attempt.batch.advantage if attempt.batch else attempt.reward.advantage,
            }
        if self._content:
            asked = [Said("user", attempt.instruction)]
            about["gen_ai.input.messages"] = self._told("gen_ai.input.messages", asked)
            if last is not None:
                about["gen_ai.output.messages"] = self._told(
                    "gen_ai.output.messages", [reply(last)], last.finish
                )
        begun, ended = attempt.started.timestamp(), attempt.ended.timestamp()
        span = self._span("", None, f"invoke_agent {attempt.scaffold}", INTERNAL, begun, ended, about)
        if attempt.failure_class not in (None, "completed"):
            span.status.code = FAILED
            span.status.message = short(attempt.reason or attempt.failure_class or "", ATTRIBUTE_BYTES)
            span.attributes.extend(attributes(self._common, {"error.type": attempt.failure_class}))
        return span

    def _chat(self, step: Step) -> Any:
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
            "penstock.policy_version.spans": [number for span in stored.spans for number in span],
            "penstock.advantage": step.advantage,
            "penstock.queue.duration": step.t_queue,
            "penstock.first_token.duration": step.t_first,
            "penstock.generation.duration": step.t_gen,
            "penstock.times": "reconstructed",
        }
        if self._content:
            said = before(self._attempt.steps, step)
            system = [message.text for message in said if message.role == "system"]
            if system:
                about["gen_ai.system_instructions"] = json.dumps(
                    [{"type": "text", "content": text} for text in system], ensure_ascii=False
                )
            about["gen_ai.input.messages"] = self._told(
                "gen_ai.input.messages", [message for message in said if message.role != "system"]
            )
            about["gen_ai.output.messages"] = self._told("gen_ai.output.messages", [reply(step)], step.finish)
        return self._span(
            f"s{step.idx}", "", f"chat {self._model}", CLIENT, step.span.start, step.span.end, about
        )

    def _tool(
        self,
        step: Step,
        number: int,
        call: Any,
        tool: Tool | None,
        following: Step | None,
        result: str | None,
    ) -> Any:
        measured = tool is not None and tool.start_s is not None and tool.end_s is not None
        if measured:
            assert tool is not None and tool.start_s is not None and tool.end_s is not None
            begun = self._attempt.started.timestamp()
            start, end = begun + tool.start_s, begun + tool.end_s
        else:
            start = step.span.end
            end = following.span.start if following is not None else start
        about: dict[str, Any] = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": call.name,
            "gen_ai.tool.call.id": call.id,
            "gen_ai.tool.type": "function",
            "gen_ai.agent.name": step.stored.agent,
            "penstock.exit_code": tool.exit_code if tool else None,
            "penstock.bytes": tool.bytes if tool else None,
            "penstock.times": "measured" if measured else "gap",
        }
        if self._content:
            about["gen_ai.tool.call.arguments"] = json.dumps(call.arguments, ensure_ascii=False)
            about["gen_ai.tool.call.result"] = result
        key = f"s{step.idx}"
        return self._span(f"{key}t{number}", key, f"execute_tool {call.name}", INTERNAL, start, end, about)

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
        span = self._span(
            "verify", "", "penstock.verify", INTERNAL, end - (verdict.seconds or 0.0), end, about
        )
        told = [
            f"{test.get('name')}: {test.get('message')}" for test in verdict.tests if not test.get("passed")
        ]
        explanation = "\n".join(told) if self._content else ""
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


def _digest(attempt: Attempt, key: str) -> bytes:
    """32 bytes that name a span of an attempt; of a trace, its first 16."""
    began = attempt.started.isoformat()  # another database's run of that name is another one
    return hashlib.sha256(
        f"{attempt.run}/{attempt.rollout_id}/{attempt.attempt}/{began}/{key}".encode()
    ).digest()


def _float(value: Any) -> float | None:
    return None if value is None else float(value)
