"""Every message of a publisher is answered: accepted, or rejected with a sentence that names the file or key, under the publisher's id."""

import errno
import json
import threading
from collections.abc import Sequence
from typing import Any

import anyio
import pytest
from sqlalchemy import text

from orchestrator.blobs.task_files import ReadTask, TaskFiles
from orchestrator.bus import subjects
from orchestrator.bus.base import Outgoing
from orchestrator.contracts.events import decode_written
from orchestrator.roles import intake
from orchestrator.roles.intake import Intake
from orchestrator.tasks.admit import check_admissible
from orchestrator.tasks.bundle import BundleLimits
from orchestrator.tasks.harbor import Task
from tests.integration.roles.rig import Stage, playing

pytestmark = [pytest.mark.anyio, pytest.mark.services]

TEST = "echo 1 > /logs/verifier/reward.txt"
FILES = {"task.toml": "", "instruction.md": "count", "tests/test.sh": TEST}
NUL = {**FILES, "environment/files/names.lst": "oak\0elm\0", "tests/want": "\0"}


def message(submission: str, files: dict[str, str] | None = None, **more: Any) -> bytes:
    return json.dumps({"submission": submission, "task": {"files": files or FILES}, **more}).encode()


def toml(submission: str, settings: str) -> bytes:
    return message(submission, {**FILES, "task.toml": settings})


SENT: dict[str, tuple[bytes, str | None]] = {
    "nul": (message("nul", NUL), None),
    "nul-name": (toml("nul-name", '[metadata]\nname = "a\\u0000b"\ntags = ["\\u0000"]'), None),
    "nul-label": (message("nul-label", label="a\0b"), "label 'a\\x00b' holds a NUL character"),
    "own": (toml("own", '[metadata]\ndomain = "Life Sciences"\nwhen = 2024-01-01\nx = nan'), None),
    "nul-text": (message("nul-text", {**FILES, "instruction.md": "a\0b"}), "instruction.md holds a NUL character (byte 1)"),
    "nul-env": (toml("nul-env", '[verifier]\nenv = {A = "\\u0000"}'), "[verifier].env must be"),
    "half": (
        b'{"submission": "half", "task": {"files": {"task.toml": "\\ud800"}}}',
        "TaskSubmitted: ",
    ),
    "purpos": (message("purpos", purpos="eval"), "TaskSubmitted: unknown key 'purpos': did you mean purpose?"),
    "versoin": (
        message("versoin", vetting={"sha256": "0" * 64, "level": "vetted", "times": 1, "provider": "b", "versoin": 3}),
        "TaskSubmitted: Object contains unknown field `versoin` - at `$.vetting`",
    ),
    "twice": (b'{"submission": "twice", "purpose": "eval", "purpose": "train", "task": {}}', "the key 'purpose' comes twice"),
    "kind": (message("kind", group_size="4"), "TaskSubmitted: Expected `int | null`, got `str` - at `$.group_size`"),
    "fun": (message("fun", purpose="fun"), "TaskSubmitted: purpose is 'fun', it must be one of train, eval, record"),
    "none": (message("none", group_size=0), "group_size is 0"),
    "no-agent": (message("no-agent", scaffold=""), "unknown scaffold ''"),
    "large": (message("large", group_size=10**30), "group_size is 1000"),
    "flag": (message("flag", purpose="eval", sampling={"temperature": True}), "TaskSubmitted: 'sampling.temperature': Expected `float`, got `bool`"),
    "deep": (toml("deep", "a = " + "[" * 3000), "task.toml: not valid TOML"),
    "long": (message("long", scaffold="x" * 100_000), "unknown scaffold 'xxx"),
}  # fmt: skip


async def answered(stage: Stage, bodies: Sequence[bytes]) -> dict[str, tuple[str, str]]:
    """(status, reason) of every message by its submission, once as many are answered."""
    answers: dict[str, tuple[str, str]] = {}
    async with (
        stage.bus.listen(subjects.every_answer(stage.run.name)) as notices,
        playing([Intake(stage.context, ["shell"]).run]),
    ):
        for body in bodies:
            await stage.bus.publish(
                Outgoing(subject=subjects.tasks(stage.run.name, "coding"), msg_id="", schema="", body=body)
            )
        with anyio.fail_after(60):
            async for notice in notices:
                answer = json.loads(notice.body)
                answers[answer["submission"]] = (answer["status"], answer.get("reason", ""))
                if len(answers) == len(bodies):
                    break
    return answers


async def test_every_message_is_answered_under_the_id_that_it_gives(stage: Stage) -> None:
    answers = await answered(stage, [body for body, _ in SENT.values()])
    assert answers.keys() == SENT.keys()
    for name, (_, reason) in SENT.items():
        status, sentence = answers[name]
        assert status == ("accepted" if reason is None else "rejected"), (name, sentence)
        assert (reason or "") in sentence and len(sentence) <= 2000, (name, sentence)
    query = text("SELECT body FROM tasks JOIN groups USING (task_id) WHERE submission = 'nul'")
    async with stage.context.engine.connect() as connection:
        kept = Task.from_message(await connection.scalar(query))
        stored = (
            await connection.scalars(text("SELECT submission FROM submissions WHERE status = 'rejected'"))
        ).all()
    kinds = (
        "nul-text",
        "nul-env",
        "nul-label",
        "deep",
        "long",
        "large",
        "none",
        "no-agent",
    )  # the others can come again, corrected, under the same id
    assert sorted(stored) == sorted(kinds)
    assert kept.files["environment/files/names.lst"].data == b"oak\0elm\0"
    assert kept.content_hash == Task.from_message({"files": NUL}).content_hash


FROM = "FROM debian:12\n"
HEAVY = {
    "lines": ({"environment/Dockerfile": FROM + "".join(f"ENV A{i}=1\n" for i in range(15_000))}, "has more than 2,000 instructions"),
    "doubling": ({"environment/Dockerfile": FROM + "ENV A=xx\n" + "ENV A=$A$A\n" * 40}, "ENV gives A more than 122,880 bytes"),
    "value": ({"environment/Dockerfile": f"{FROM}ENV A={'x' * 140_000}\n"}, "the variable 'A' has more than 122,880 bytes"),
    "dotted": ({"task.toml": "[metadata]\nx." + "a." * 16_000 + "a = 1\n"}, "has a key of more than 32 parts between dots"),
}  # fmt: skip


async def test_a_task_that_would_take_all_time_or_memory_is_answered_and_the_next_one_accepted(
    stage: Stage,
) -> None:
    bodies = [message(name, {**FILES, **files}) for name, (files, _) in HEAVY.items()]
    answers = await answered(stage, [*bodies, message("next")])
    assert answers.pop("next")[0] == "accepted"
    for name, (status, reason) in answers.items():
        assert status == "rejected" and HEAVY[name][1] in reason, (name, reason)
    assert await stage.count("dead_letters") == len(HEAVY)


async def test_a_task_is_read_and_checked_in_a_thread_before_the_transaction_begins(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[tuple[str, bool]] = []

    def noted(name: str, call: Any) -> Any:
        def called(*given: Any) -> Any:
            done.append((name, threading.current_thread() is threading.main_thread()))
            return call(*given)

        return called

    monkeypatch.setattr(intake, "check_admissible", noted("check", check_admissible))
    monkeypatch.setattr(Intake, "_handle", noted("handle", Intake._handle))
    async with playing([Intake(stage.context, ["shell"]).run]):
        await stage.submit("a")
        await stage.reaches(1, "groups", submission="a")
    assert done == [("check", False), ("handle", True)]


async def test_a_task_that_the_disk_did_not_take_is_read_again_until_it_does(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted, errors = TaskFiles.submitted, [OSError(errno.ENOSPC, "no space")] * 3

    async def on_a_full_disk(files: TaskFiles, task: Any, limits: BundleLimits) -> ReadTask:
        if errors:
            raise errors.pop()
        return await submitted(files, task, limits)

    monkeypatch.setattr(TaskFiles, "submitted", on_a_full_disk)
    assert await answered(stage, [message("kept")]) == {"kept": ("accepted", "")}


async def test_a_large_message_is_decoded_off_the_event_loop_once(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = "".join(f'"k{i}":"",' for i in range(60_000))
    bodies = {
        "good": message("good", {**FILES, "environment/files/a": "x" * intake.LARGE}),
        "again": b'{"submission":"again","task":{"files":{%s"k59999":""}}}' % names.encode(),
        "small": message("small"),
    }
    threads: dict[str, list[int]] = {}

    def decode(body: bytes, schema: str | None, expected: Any) -> Any:
        name = next(name for name, each in bodies.items() if each == body)
        threads.setdefault(name, []).append(threading.get_ident())
        return decode_written(body, schema, expected)

    monkeypatch.setattr(intake, "decode_written", decode)
    answers = await answered(stage, list(bodies.values()))
    loop = threading.get_ident()
    assert {name: status for name, (status, _) in answers.items()} == {
        "good": "accepted",
        "again": "rejected",
        "small": "accepted",
    }
    assert "the key 'k59999' comes twice" in answers["again"][1]
    assert threads["small"] == [loop] and len(threads["good"]) == 1
    assert loop not in threads["good"] + threads["again"]


@pytest.mark.parametrize("domain", ["Chemie", "all"])
async def test_a_message_under_a_domain_that_cannot_be_is_answered(stage: Stage, domain: str) -> None:
    async with (
        stage.bus.listen(subjects.every_answer(stage.run.name)) as notices,
        anyio.create_task_group() as roles,
    ):
        roles.start_soon(Intake(stage.context, ["shell"]).run)
        await stage.bus.publish(
            Outgoing(subject=f"tasks.{stage.run.name}.{domain}", msg_id="", schema="", body=message("odd"))
        )
        with anyio.fail_after(60):
            async for notice in notices:
                answer = json.loads(notice.body)
                break
        roles.cancel_scope.cancel()
    assert (answer["submission"], answer["status"]) == ("odd", "rejected")
    assert f"domain '{domain}' is not a valid name" in answer["reason"]


async def test_a_key_of_a_later_version_is_refused_and_the_version_that_is_known_is_named(
    stage: Stage,
) -> None:
    async with (
        stage.bus.listen(subjects.every_answer(stage.run.name)) as notices,
        anyio.create_task_group() as roles,
    ):
        roles.start_soon(Intake(stage.context, ["shell"]).run)
        subject = subjects.tasks(stage.run.name, "coding")
        await stage.bus.publish(
            Outgoing(subject=subject, msg_id="", schema="TaskSubmitted/2", body=message("plain"))
        )
        await stage.bus.publish(
            Outgoing(subject=subject, msg_id="", schema="TaskSubmitted/2", body=message("newer", priority=3))
        )
        answers = {}
        with anyio.fail_after(60):
            async for notice in notices:
                answer = json.loads(notice.body)
                answers[answer["submission"]] = answer.get("reason", "")
                if len(answers) == 2:
                    break
        roles.cancel_scope.cancel()
    assert answers["plain"] == ""
    assert "unknown key 'priority' in TaskSubmitted/1, which this orchestrator knows" in answers["newer"]
