"""Inspect's logs, read back by Inspect."""

from datetime import UTC
from pathlib import Path
from statistics import stdev

import pytest
from inspect_ai.event import ModelEvent, ScoreEvent, SpanBeginEvent, ToolEvent
from inspect_ai.log import EvalLog, list_eval_logs, read_eval_log
from inspect_ai.model import ContentReasoning
from sqlalchemy import text, update

from orchestrator.contracts.ids import logprobs_from_bytes
from orchestrator.export import inspect_log
from orchestrator.export.inspect_log import Inspect
from orchestrator.pool.tables import groups, messages, runs, steps
from orchestrator.queries.attempts import AttemptStep, RecordedAttempt
from tests.integration.export.rig import ExportedRun, exported_run

__all__ = ["exported_run"]
pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("look")]


async def logs(exported_run: ExportedRun, out: Path, part: int = 200) -> list[EvalLog]:
    done = await exported_run.export(Inspect(part), out)
    assert done.attempts == 12
    found = sorted(file.name for file in out.glob("*.eval"))
    assert sorted(Path(info.name).name for info in list_eval_logs(out.as_posix())) == found
    return [read_eval_log((out / name).as_posix()) for name in found]


async def test_groups_of_one_purpose_and_domain_are_a_log_of_inspects(
    exported_run: ExportedRun, tmp_path: Path
) -> None:
    coding, general = await logs(exported_run, tmp_path / "out")
    assert (coding.eval.task, general.eval.task) == ("train-coding", "train-general")
    assert (coding.eval.model, coding.status) == ("penstock/exported", "success")
    assert coding.results is not None and coding.results.completed_samples == 8
    mean = {score.name: score.metrics["mean"].value for score in coding.results.scores}
    assert mean["performance"] == 0.25
    [error] = [
        score.metrics["stderr"].value for score in coding.results.scores if score.name == "performance"
    ]
    assert error == pytest.approx(stdev([1, 1, 0, 0, 0, 0, 0, 0]) / 8**0.5), (
        "two groups that solved as much: the spread is of members"
    )
    assert coding.samples is not None and len(coding.samples) == 8
    assert (coding.eval.dataset.samples, coding.eval.config.epochs) == (2, 4)
    assert len({(sample.id, sample.epoch) for sample in coding.samples}) == 8


async def test_an_empty_label_selects_the_groups_without_one(
    exported_run: ExportedRun, tmp_path: Path
) -> None:
    async with exported_run.owner.begin() as connection:
        await connection.execute(update(groups).where(groups.c.submission == "third").values(label="held"))
    done = await exported_run.export(Inspect(), tmp_path / "out", label="")
    assert done.attempts == 8
    assert [file.name for file in (tmp_path / "out").glob("*.eval")] == ["train-coding-00000.eval"]


async def test_a_sample_has_the_conversation_the_scores_and_every_call_of_the_policy(
    exported_run: ExportedRun, tmp_path: Path
) -> None:
    coding, _ = await logs(exported_run, tmp_path / "out")
    assert coding.samples is not None
    sample = min(coding.samples, key=lambda each: each.metadata["rollout"])
    messages = [(message.role, message.text) for message in sample.messages]
    assert messages == [
        ("system", "be brief"),
        ("user", "count the files"),
        ("assistant", ""),
        ("tool", "a b"),
        ("assistant", "ask help"),
        ("tool", "two"),
        ("assistant", "it is two <b>"),
    ]
    assert sample.output.completion == "it is two <b>"
    assert sample.scores is not None and sample.scores["performance"].value == 1.0
    assert sample.scores["performance"].explanation == "passed test_answer"
    assert sample.metadata["batch"]["version"] == 1
    models = [event for event in sample.events if isinstance(event, ModelEvent)]
    assert len(models) == 6
    rows = {
        row.idx: row for row in await exported_run.rows(steps) if row.rollout_id == sample.metadata["rollout"]
    }
    for event in models:
        assert event.metadata is not None and event.output.choices[0].logprobs is not None
        row = rows[event.metadata["step"]]
        found = [token.logprob for token in event.output.choices[0].logprobs.content]
        assert found == logprobs_from_bytes(row.logprobs).tolist()
        assert event.output.usage is not None and event.output.usage.input_tokens == row.state_len
    tools = [(event.function, event.result) for event in sample.events if isinstance(event, ToolEvent)]
    assert tools == [("bash", "a b"), ("ask", "two")] or tools == [("ask", "two"), ("bash", "a b")]
    assert [event.name for event in sample.events if isinstance(event, SpanBeginEvent)] == [
        "agent helper",
        "rewrite main",
        "sibling main",
    ]
    assert [event.scorer for event in sample.events if isinstance(event, ScoreEvent)] == [
        "performance",
        "reward",
    ]


async def test_equal_answers_that_no_step_gave_keep_their_own_reasoning(
    exported_run: ExportedRun, tmp_path: Path
) -> None:
    answer = {"role": "assistant", "content": "ok"}
    history = [answer, *({**answer, "reasoning": thought} for thought in ("one", "two", "one"))]
    async with exported_run.owner.begin() as connection:
        await connection.execute(text("SET LOCAL session_replication_role = replica"))  # rows are immutable
        await connection.execute(update(messages).where(messages.c.idx == 4).values(appended=history))
    coding, _ = await logs(exported_run, tmp_path / "out")
    assert coding.samples is not None
    for sample in coding.samples:
        (event,) = [each for each in sample.events if isinstance(each, ModelEvent) and _step(each) == 4]
        found = [
            [part.reasoning for part in message.content if isinstance(part, ContentReasoning)]
            if isinstance(message.content, list)
            else []
            for message in event.input
        ]
        assert found == [[], ["one"], ["two"], ["one"]]
        assert len({message.id for message in event.input}) == 3


def _step(event: ModelEvent) -> object:
    return (event.metadata or {})["step"]


async def test_a_large_task_is_several_logs_and_the_same_export_is_the_same_bytes(
    exported_run: ExportedRun, tmp_path: Path
) -> None:
    found = await logs(exported_run, tmp_path / "one", part=5)
    assert [len(log.samples or []) for log in found] == [5, 3, 4]
    (created,) = [row.created for row in await exported_run.rows(runs)]
    made = f"penstock-exported-{created.astimezone(UTC):%Y%m%dT%H%M%S%f}"  # a run of that name in another database is a different run
    assert all(log.eval.eval_id.startswith(f"{made}-") and log.eval.run_id == made for log in found)
    assert len({log.eval.eval_id for log in found}) == len({log.eval.task_id for log in found}) == 3
    await exported_run.export(Inspect(5), tmp_path / "two")
    for file in (tmp_path / "one").glob("*.eval"):
        assert file.read_bytes() == (tmp_path / "two" / file.name).read_bytes()


async def test_long_conversations_are_fewer_to_a_log(
    exported_run: ExportedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = await logs(exported_run, tmp_path / "whole")
    monkeypatch.setattr(inspect_log, "PART_MESSAGES", 40)
    found = await logs(exported_run, tmp_path / "cut")
    assert [len(log.samples or []) for log in found] == [2] * 6
    ids = [sample.uuid for log in found for sample in log.samples or []]
    assert sorted(map(str, ids)) == sorted(str(sample.uuid) for log in whole for sample in log.samples or [])


async def test_many_sampled_tokens_are_fewer_samples_to_a_log_and_each_logprob_is_built_once(
    exported_run: ExportedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = await logs(exported_run, tmp_path / "whole")
    monkeypatch.setattr(inspect_log, "PART_TOKENS", 1)
    form = Inspect()
    built: list[int] = []
    answer = form._answer

    def counted(attempt: RecordedAttempt, step: AttemptStep) -> object:
        built.append(step.idx)
        return answer(attempt, step)

    monkeypatch.setattr(form, "_answer", counted)
    await exported_run.export(form, tmp_path / "cut")
    assert len(list((tmp_path / "cut").glob("*.eval"))) == sum(len(log.samples or []) for log in whole) == 12
    assert len(built) == len(await exported_run.rows(steps))
