"""Inspect's own logs: `.eval` files for Inspect View. One sample per attempt, with its conversation, model and tool events and scores.

Groups of one purpose, label and domain form one Inspect task, cut into logs of at most `PART` samples. The logs are written with inspect_ai's
public API. Values that it draws at random or takes from the clock (ids, times of the archive's members) are derived from the data here, so that a
repeated export gives the same bytes.
"""

import hashlib
import os
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from typing import Any

from orchestrator.contracts.marks import Finish
from orchestrator.export.conversation import Chain, Conversations, chains
from orchestrator.export.drive import ExportSummary
from orchestrator.export.packages import need
from orchestrator.pool.runs import StoredRun
from orchestrator.queries.attempts import AttemptStep, RecordedAttempt, ToolExecution
from orchestrator.queries.chat import ConversationCall, ConversationMessage, reply
from orchestrator.queries.tries import spread

PART = 200
# Messages in the samples of one log, counting every repetition in an event: Inspect holds a log in memory.
PART_MESSAGES = 100_000
PART_TOKENS = 200_000  # sampled tokens in the samples of one log: about 550 bytes each as Inspect's Logprob
EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time in a zip archive
SCORES = ("performance", "reward")
STOPS = {Finish.LENGTH: "max_tokens", Finish.STOP: "stop", Finish.ABORT: "unknown"}

TimedEvent = tuple[float, int, Any]
"""(seconds since 1970, order among events of one time, the event)"""


class Inspect:
    """`<purpose>-<label>-<domain>-00000.eval`."""

    name = "inspect"

    def __init__(self, part: int = PART) -> None:
        os.environ.setdefault("INSPECT_TELEMETRY", "false")
        self._log = need("inspect_ai.log", "inspect-ai", self.name)
        self._model = need("inspect_ai.model", "inspect-ai", self.name)
        self._event = need("inspect_ai.event", "inspect-ai", self.name)
        self._scorer = need("inspect_ai.scorer", "inspect-ai", self.name)
        self._tool = need("inspect_ai.tool", "inspect-ai", self.name)
        self.part = part
        self._file = Path()
        self._samples: list[Any] = []
        self._attempts: list[RecordedAttempt] = []
        self._task = self._run = self._origin = ""
        self._number = self._messages_written = self._tokens_written = 0
        # Messages of the current attempt: each event of a long one repeats most of them.
        self._known: dict[str, Any] = {}

        # By step, of the current attempt: the last is also the sample's own.
        self._outputs: dict[int, Any] = {}
        self._conversations = Conversations(())

    def options(self) -> Mapping[str, Any]:
        return {"part": self.part}

    def split(self) -> Sequence[str]:
        return ("purpose", "label", "domain")

    def begin(self, directory: Path, number: int, section: Mapping[str, Any], run: StoredRun) -> None:
        self._task = "-".join(str(value) for value in section.values() if value)
        stem = "".join(letter if letter.isalnum() or letter in "-_" else "_" for letter in self._task)
        self._file = directory / f"{stem[:100]}-{number:05d}.eval"
        self._samples, self._attempts, self._messages_written, self._tokens_written = [], [], 0, 0
        self._run, self._number = run.name, number
        assert run.created is not None
        self._origin = f"penstock-{run.name}-{run.created.astimezone(UTC):%Y%m%dT%H%M%S%f}"

    def add(self, attempt: RecordedAttempt) -> bool:
        self._known.clear()
        self._outputs.clear()
        self._conversations = Conversations(attempt.steps)
        self._samples.append(self._sample(attempt))
        self._attempts.append(attempt)
        return self._messages_written >= PART_MESSAGES or self._tokens_written >= PART_TOKENS

    def end(self) -> Sequence[str]:
        raw = self._file.with_suffix(".raw")
        self._log.write_eval_log(self._whole(), raw.as_posix(), format="eval")
        timeless(raw, self._file)
        self._samples, self._attempts = [], []
        return [self._file.name]

    def close(self, directory: Path, done: ExportSummary) -> Sequence[str]:
        return ()

    def _whole(self) -> Any:
        log, found = self._log, self._attempts
        started = min(attempt.started for attempt in found).astimezone(UTC).isoformat()
        ended = max(attempt.ended for attempt in found).astimezone(UTC).isoformat()
        key = f"{self._origin}-{self._task}-{self._number}"
        model = model_of(self._run)
        ids = sorted({sample.id for sample in self._samples})  # Inspect counts epochs separately
        rated = [attempt for attempt in found if attempt.reward is not None]
        versions = [attempt.versions for attempt in found if attempt.versions is not None]
        about = {
            "run": self._run,
            "policy_versions": [min(low for low, _ in versions), max(high for _, high in versions)]
            if versions
            else None,
        }
        usage = self._usage(step for attempt in found for step in attempt.steps)
        return log.EvalLog(
            version=2,
            status="success",
            eval=log.EvalSpec(
                eval_id=key,
                run_id=self._origin,
                task_id=key,
                created=started,
                task=self._task,
                dataset=log.EvalDataset(name=self._task, samples=len(ids), sample_ids=ids),
                model=model,
                config=log.EvalConfig(epochs=max(sample.epoch for sample in self._samples)),
                packages={"penstock": version("penstock")},
                metadata=about,
            ),
            results=log.EvalResults(
                total_samples=len(found),
                completed_samples=len(rated),
                scores=[
                    _metrics(
                        log,
                        name,
                        [(attempt.group_id, _values(attempt)[name]) for attempt in rated],
                        len(found),
                    )
                    for name in SCORES
                ]
                if rated
                else [],
            ),
            stats=log.EvalStats(started_at=started, completed_at=ended, model_usage={model: usage}),
            samples=self._samples,
        )

    def _sample(self, attempt: RecordedAttempt) -> Any:
        found = chains(attempt.steps)
        main = found[0].steps[-1] if found else None
        messages = [*self._conversations.before(main), reply(main)] if main else []
        scores = self._scores(attempt)
        error = None
        if attempt.reward is None:
            reason = attempt.reason or attempt.group_reason or attempt.failure_class or "not rated"
            error = self._log.EvalError(
                message=f"{attempt.failure_class}: {reason}", traceback="", traceback_ansi=""
            )
        counts = "" if attempt.counts else f" attempt {attempt.attempt}"
        return self._log.EvalSample(
            id=f"{attempt.task} g{attempt.group_id}{counts}",
            epoch=attempt.member + 1,
            uuid=attempt.name,
            input=attempt.instruction,
            target="",
            messages=self._messages(attempt, messages),
            output=self._output(attempt, main) if main else self._model.ModelOutput(),
            scores=scores or None,
            metadata=_about(attempt),
            events=self._events(attempt, found),
            model_usage={model_of(attempt.run): self._usage(attempt.steps)},
            started_at=attempt.started.astimezone(UTC).isoformat(),
            completed_at=attempt.ended.astimezone(UTC).isoformat(),
            total_time=(attempt.ended - attempt.started).total_seconds(),
            working_time=attempt.agent_s,
            error=error,
        )

    def _scores(self, attempt: RecordedAttempt) -> dict[str, Any]:
        if attempt.reward is None:
            return {}
        tests = attempt.verdict.tests if attempt.verdict else ()
        test_lines = "\n".join(
            f"{'passed' if test.get('passed') else 'failed'} {test.get('name')}: {test.get('message') or ''}".rstrip(
                ": "
            )
            for test in tests
        )
        answer = attempt.answer or ""
        parts = {name: value for name, value in asdict(attempt.reward).items() if value is not None}
        values = _values(attempt)
        return {
            "performance": self._scorer.Score(
                value=values["performance"], answer=answer, explanation=test_lines, history=[]
            ),
            "reward": self._scorer.Score(value=values["reward"], answer=answer, metadata=parts, history=[]),
        }

    def _events(self, attempt: RecordedAttempt, found: Sequence[Chain]) -> list[Any]:
        """Ordered by time: each conversation but the first is a span of its own."""
        events: list[TimedEvent] = []
        timed = {(tool.idx, tool.call): tool for tool in attempt.tools}
        # From the first request after a call: a sibling's may contain another result.
        answered: dict[str, str] = {}
        for step in attempt.steps:
            for message in self._conversations.added(step):
                if message.answers:
                    answered.setdefault(message.answers, message.text)
        for chain in found:
            span = f"{attempt.name}-{chain.number}" if chain.number else None
            if span is not None:
                events += self._span(chain, span)
            for step in chain.steps:
                events.append((step.span.start, 1, self._generated(attempt, step, span)))
                for number, call in enumerate(reply(step).calls):
                    tool = timed.get((step.idx, number))
                    events.append(
                        self._called(attempt, step, call, tool, span=span, result=answered.get(call.id, ""))
                    )
        for number, (name, score) in enumerate(self._scores(attempt).items()):
            assert attempt.verdict is not None
            at = attempt.verdict.at.timestamp()
            scored = self._event.ScoreEvent(
                uuid=f"{attempt.name}-{name}",
                timestamp=_at(at),
                working_start=0.0,
                score=score,
                scorer=name,
            )
            events.append((at, 10 + number, scored))
        return [event for _, _, event in sorted(events, key=lambda entry: entry[:2])]

    def _span(self, chain: Chain, span: str) -> list[TimedEvent]:
        first, last = chain.steps[0].span.start, chain.steps[-1].span.end
        begin = self._event.SpanBeginEvent(
            uuid=f"{span}-begin",
            id=span,
            name=f"{chain.relation} {chain.agent}",
            type="agent",
            parent_id=None,
            timestamp=_at(first),
            working_start=0.0,
            span_id=span,
        )
        end = self._event.SpanEndEvent(
            uuid=f"{span}-end", id=span, timestamp=_at(last), working_start=0.0, span_id=span
        )
        return [(first, 0, begin), (last, 9, end)]

    def _generated(self, attempt: RecordedAttempt, step: AttemptStep, span: str | None) -> Any:
        start, end = step.span.start, step.span.end
        return self._event.ModelEvent(
            uuid=f"{attempt.name}-s{step.idx}", span_id=span, timestamp=_at(start), completed=_at(end),
            working_start=max(0.0, start - attempt.started.timestamp()), working_time=step.t_gen, model=model_of(attempt.run),
            input=self._messages(attempt, self._conversations.before(step)), tools=[], tool_choice="auto",
            config=self._config(step), output=self._output(attempt, step), metadata=_of_step(step),
        )  # fmt: skip

    def _called(
        self,
        attempt: RecordedAttempt,
        step: AttemptStep,
        call: ConversationCall,
        tool: ToolExecution | None,
        *,
        span: str | None,
        result: str,
    ) -> TimedEvent:
        """A tool call. Without times of its own it takes none, at the end of its step."""
        began = attempt.started.timestamp()
        start = began + tool.start_s if tool and tool.start_s is not None else step.span.end
        end = began + tool.end_s if tool and tool.end_s is not None else start
        event = self._event.ToolEvent(
            uuid=f"{attempt.name}-{call.id}", span_id=span, timestamp=_at(start), completed=_at(end), id=call.id,
            working_start=max(0.0, start - began), function=call.name, arguments=dict(call.arguments), result=result, events=[],
            metadata={"exit_code": tool.exit_code, "bytes": tool.bytes} if tool else None,
        )  # fmt: skip
        return (start, 2, event)

    def _messages(self, attempt: RecordedAttempt, conversation: Sequence[ConversationMessage]) -> list[Any]:
        self._messages_written += len(conversation)
        return [self._message(attempt, each) for each in conversation]

    def _message(self, attempt: RecordedAttempt, message: ConversationMessage) -> Any:
        """One object per content: the id of a message comes from its step, or from its content."""
        content = f"{message.role}\0{message.answers}\0{message.text}\0{message.calls}"
        if message.reasoning is not None:
            content += f"\0{message.reasoning}"
        digest = hashlib.sha256(content.encode()).hexdigest()
        key = f"{attempt.name}-{f's{message.step}' if message.step is not None else digest[:16]}"
        if key not in self._known:
            self._known[key] = self._read(attempt, key, message)
        return self._known[key]

    def _read(self, attempt: RecordedAttempt, key: str, message: ConversationMessage) -> Any:
        model = self._model
        if message.role == "system":
            return model.ChatMessageSystem(id=key, content=message.text)
        if message.role == "tool":
            return model.ChatMessageTool(id=key, content=message.text, tool_call_id=message.answers)
        if message.role != "assistant":
            return model.ChatMessageUser(id=key, content=message.text)
        content: Any = message.text
        if message.reasoning is not None:
            content = [
                model.ContentReasoning(reasoning=message.reasoning),
                model.ContentText(text=message.text),
            ]
        calls = [
            self._tool.ToolCall(id=call.id, function=call.name, arguments=dict(call.arguments))
            for call in message.calls
        ]
        return model.ChatMessageAssistant(
            id=key, content=content, tool_calls=calls or None, source="generate", model=model_of(attempt.run)
        )

    def _output(self, attempt: RecordedAttempt, step: AttemptStep) -> Any:
        """One object per step."""
        if step.idx not in self._outputs:
            self._tokens_written += len(step.stored.action)
            self._outputs[step.idx] = self._answer(attempt, step)
        return self._outputs[step.idx]

    def _answer(self, attempt: RecordedAttempt, step: AttemptStep) -> Any:
        model, stored = self._model, step.stored
        message = reply(step)
        stop = "tool_calls" if message.calls else STOPS.get(step.finish, "unknown")
        logprobs = model.Logprobs(
            content=[
                model.Logprob(token=str(token), logprob=float(logprob))
                for token, logprob in zip(stored.action.tolist(), stored.logprobs.tolist(), strict=True)
            ]
        )
        choice = model.ChatCompletionChoice(
            message=self._message(attempt, message), stop_reason=stop, logprobs=logprobs
        )
        return model.ModelOutput(
            model=model_of(attempt.run), choices=[choice], usage=self._usage([step]), time=step.t_gen
        )

    def _config(self, step: AttemptStep) -> Any:
        names = {"temperature": "temperature", "top_p": "top_p", "max_new_tokens": "max_tokens"}
        given = {
            field: step.sampling[sampling_key]
            for sampling_key, field in names.items()
            if sampling_key in step.sampling
        }
        if step.sampling.get("top_k", -1) > 0:
            given["top_k"] = step.sampling["top_k"]
        return self._model.GenerateConfig(**given)

    def _usage(self, steps: Any) -> Any:
        shown = sampled = 0
        for step in steps:
            shown += step.stored.state_len
            sampled += len(step.stored.action)
        return self._model.ModelUsage(input_tokens=shown, output_tokens=sampled, total_tokens=shown + sampled)


def model_of(run: str) -> str:
    """The model name for the policy of a run."""
    return f"penstock/{run}"


def timeless(written: Path, file: Path) -> None:
    """Rewrite a zip archive with fixed member times: the same content gives the same bytes."""
    with zipfile.ZipFile(written) as old, zipfile.ZipFile(file, "w") as new:
        for member in old.infolist():
            info = zipfile.ZipInfo(member.filename, EPOCH)
            info.compress_type, info.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            new.writestr(info, old.read(member))
    written.unlink()


def _metrics(log: Any, name: str, values: Sequence[tuple[int, float]], wanted: int) -> Any:
    """Of (group, value). The standard error is clustered by group: its members try the same task."""
    mean, groups = fmean(value for _, value in values), len({group for group, _ in values})
    metrics = {"mean": log.EvalMetric(name="mean", value=mean)}
    if groups > 1:
        error = spread(values, mean, unbiased=True) ** 0.5 / len(values)
        metrics["stderr"] = log.EvalMetric(name="stderr", value=error)
    counts = {"scored_samples": len(values), "unscored_samples": wanted - len(values)}
    return log.EvalScore(name=name, scorer=name, **counts, metrics=metrics)


def _values(attempt: RecordedAttempt) -> dict[str, float]:
    assert attempt.reward is not None
    return {"performance": attempt.reward.performance, "reward": attempt.reward.total}


def _of_step(step: AttemptStep) -> dict[str, Any]:
    return {
        "step": step.idx,
        "kind": str(step.stored.kind),
        "parent_step": step.stored.parent,
        "agent": step.stored.agent,
        "policy_versions": [list(span) for span in step.stored.spans],
        "marks": list(step.marks),
        "train_weight": step.weight,
        "advantage": step.advantage,
        "parse": step.stored.parse,
        "logprob_tokens": "ids",
    }


def _about(attempt: RecordedAttempt) -> dict[str, Any]:
    return {
        "rollout": attempt.rollout_id,
        "attempt": attempt.attempt,
        "group": attempt.group_id,
        "member": attempt.member,
        "task": attempt.task,
        "domain": attempt.domain,
        "purpose": attempt.purpose,
        "label": attempt.label,
        "scaffold": attempt.scaffold,
        "failure_class": attempt.failure_class,
        "group_state": attempt.group_state,
        "group_reason": attempt.group_reason,
        "pinned_version": attempt.pinned_version,
        "policy_versions": list(attempt.versions) if attempt.versions else None,
        "batch": asdict(attempt.batch) if attempt.batch else None,
    }


def _at(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
