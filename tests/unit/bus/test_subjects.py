"""Invalid names are refused with a sentence, subjects parse to the values that they were built from, and consumers never overlap."""

import itertools

import pytest

from orchestrator.bus import subjects
from orchestrator.contracts.states import Purpose
from tests.memory_bus import overlap


@pytest.mark.parametrize("name", ["", "Demo", "a.b", "a b", "a*", ">", "x" * 33, "ü", "a\n"])
def test_a_name_that_nats_or_we_could_misread_is_refused_with_the_allowed_characters(name: str) -> None:
    for build in (
        subjects.policy,
        subjects.results_rollout,
        subjects.results_verdict,
        subjects.consume_steps,
    ):
        with pytest.raises(
            ValueError, match=r"^run .* is not a valid name: use 1 to 32 characters of a-z, 0-9, _ and -$"
        ):
            build(name)
    with pytest.raises(ValueError, match=r"^pool .* is not a valid name"):
        subjects.work_rollout("demo", name)
    with pytest.raises(ValueError, match=r"^domain .* is not a valid name"):
        subjects.tasks("demo", name)


@pytest.mark.parametrize("submission", ["", ".a", "a.", "a..b", "a b", "a>", "*", "a\n", "x" * 129])
def test_a_submission_that_cannot_stand_in_a_subject_is_refused(submission: str) -> None:
    with pytest.raises(ValueError, match="submission id"):
        subjects.accepted("demo", submission)


@pytest.mark.parametrize("submission", ["a", "0" * 64, "swe:django/1.2-3", "A.b.c"])
def test_usual_submission_ids_are_allowed(submission: str) -> None:
    assert subjects.accepted("demo", submission) == f"accepted.demo.{submission}"


def test_subjects_read_back_what_they_were_built_from() -> None:
    assert subjects.parse_tasks(subjects.tasks("demo", "coding")) == ("demo", "coding")
    for subject in (
        subjects.tasks("demo", "coding"),
        subjects.work_rollout("demo"),
        subjects.work_verify("demo", "eval"),
        subjects.steps("demo", "r1"),
        subjects.results_rollout("demo"),
        subjects.results_verdict("demo"),
        subjects.policy("demo"),
        subjects.accepted("demo", "a.b.c"),
    ):
        assert subjects.run_of(subject) == "demo"


@pytest.mark.parametrize(
    "subject", ["tasks", "tasks.demo", "tasks.Demo.coding", "tasks.demo.coding.more", "steps.demo.r1"]
)
def test_a_task_subject_of_another_form_is_refused(subject: str) -> None:
    with pytest.raises(ValueError, match=r"is not a valid name|is not tasks"):
        subjects.parse_tasks(subject)


def test_every_subject_is_stored_by_its_stream_and_a_malformed_task_too() -> None:
    expected = {
        subjects.tasks("demo", "coding"): "TASKS",
        "tasks.too.many.tokens": "TASKS",
        subjects.work_rollout("demo"): "WORK",
        subjects.work_verify("demo"): "WORK",
        subjects.steps("demo", "r1"): "STEPS",
        subjects.results_rollout("demo"): "RESULTS",
        subjects.results_verdict("demo"): "RESULTS",
        subjects.policy("demo"): "POLICY",
        subjects.dead("TASKS"): "DEAD",
    }
    assert {subject: subjects.stream_of(subject).name for subject in expected} == expected
    with pytest.raises(ValueError, match="no stream stores"):
        subjects.stream_of(subjects.accepted("demo", "s1"))


def test_a_letter_of_every_stream_has_a_place() -> None:
    assert {subjects.stream_of(subjects.dead(stream.name)).name for stream in subjects.STREAMS} == {"DEAD"}


def test_consumers_of_a_work_queue_never_overlap_nor_share_a_name() -> None:
    names = ["a", "a-b", "b-c", "c", "b"]
    consumers = [subjects.consume_tasks()]
    for run in names:
        consumers += [
            subjects.consume_steps(run),
            subjects.consume_results_rollout(run),
            subjects.consume_results_verdict(run),
        ]
        for pool in names:
            consumers += [subjects.consume_work_rollout(run, pool), subjects.consume_work_verify(run, pool)]
    for one, other in itertools.combinations(consumers, 2):
        if one.stream == other.stream:
            assert not overlap(one.filter, other.filter)
            assert one.durable != other.durable


@pytest.mark.parametrize(
    ("pattern", "subject", "expected"),
    [
        ("a.*", "a.b", True),
        ("a.*", "a", False),
        ("a.*", "a.b.c", False),
        ("a.>", "a.b.c", True),
        ("a.>", "a", False),
        ("*.b", "a.b", True),
        ("a.b", "a.c", False),
    ],
)
def test_patterns_match_as_in_nats(pattern: str, subject: str, expected: bool) -> None:
    assert subjects.matches(pattern, subject) is expected


def test_only_training_uses_the_default_pool() -> None:
    assert {purpose: subjects.pool_for(purpose) for purpose in Purpose} == {
        Purpose.TRAIN: "default",
        Purpose.EVAL: "eval",
        Purpose.RECORD: "eval",
    }
