"""Closed sets and missing texts of messages, as other senders write them."""

import msgspec
import pytest

from orchestrator.contracts.errors import MessageError
from orchestrator.contracts.events import (
    RolloutFinished,
    SubmissionAnswered,
    TaskSubmitted,
    VerdictReached,
    decode,
    encode,
)
from orchestrator.contracts.states import FailureClass, Left, Purpose, Replay, SubmissionStatus

RESULT = {"run": "r", "rollout": 1, "attempt": 1, "epoch": 1, "failure_class": "completed"}
TEXTS = ("reason", "digest", "scaffold", "scaffold_version", "scaffold_sha", "replay", "ungradable", "system")


def result(**more: object) -> RolloutFinished:
    return decode(msgspec.json.encode(RESULT | more), None, RolloutFinished)


def test_an_empty_text_of_an_older_sender_is_a_missing_one() -> None:
    found = result(**dict.fromkeys(TEXTS, ""), artifacts=[{"path": "a", "body": "", "why": ""}])
    assert found == result(artifacts=[{"path": "a", "body": ""}])
    assert [getattr(found, name) for name in TEXTS] == [None] * len(TEXTS)
    assert (found.artifacts[0].why, found.artifacts[0].body) == (None, "")


def test_a_missing_text_is_not_written() -> None:
    assert msgspec.json.decode(encode(result(**dict.fromkeys(TEXTS, "")))) == RESULT


def test_a_member_is_read_and_written_as_its_text() -> None:
    found = result(replay="diverged", artifacts=[{"path": "a", "body": None, "kind": "behind"}])
    assert (found.failure_class, found.replay, found.artifacts[0].kind) == (
        FailureClass.COMPLETED,
        Replay.DIVERGED,
        Left.BEHIND,
    )
    assert msgspec.json.decode(encode(found))["replay"] == "diverged"
    assert decode(b'{"task": {}}', None, TaskSubmitted).purpose is Purpose.TRAIN
    answer = decode(b'{"submission": "s", "status": "accepted", "reason": ""}', None, SubmissionAnswered)
    assert (answer.status, answer.reason) == (SubmissionStatus.ACCEPTED, None)


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"failure_class": "glory"}, "failure_class is 'glory', it must be one of completed, policy_failure"),
        ({"failure_class": ""}, "failure_class is '', it must be one of completed"),
        (
            {"replay": "half"},
            "replay is 'half', it must be one of continued, diverged, interrupted",
        ),
        (
            {
                "replay": "",
                "artifacts": [{"path": "a", "body": None}, {"path": "b", "body": None, "kind": "it's"}],
            },
            'artifacts[1].kind is "it\'s", it must be one of file, link, directory, behind',
        ),
    ],
)
def test_a_text_that_is_not_a_member_is_refused_with_the_members(
    more: dict[str, object], sentence: str
) -> None:
    with pytest.raises(MessageError) as refused:
        result(**more)
    assert str(refused.value).startswith(f"RolloutFinished: {sentence}")


def test_a_long_text_that_is_not_a_member_is_quoted_in_part() -> None:
    with pytest.raises(MessageError) as refused:
        decode(
            msgspec.json.encode(RESULT | {"failure_class": "x" * 100_000, "reward": 0.0}),
            None,
            VerdictReached,
        )
    assert len(str(refused.value)) < 300
