"""Any bytes in subjects and headers, sent by a plain socket: the roles live, no connection is lost, and the next message is handled."""

import json
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import anyio
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from orchestrator.bus import subjects
from orchestrator.contracts.events import TaskSubmitted, encode
from orchestrator.deploy.embedded.nats import EmbeddedNats
from orchestrator.roles.blobs import answer_missing, store_blobs
from orchestrator.roles.dead_letters import store_dead_letters
from orchestrator.roles.ingest import ingest_results, ingest_steps, ingest_verdicts
from orchestrator.roles.intake import Intake
from tests.integration.bus.test_raw_bytes import HEADERS, LAST_TOKENS
from tests.integration.roles.rig import TASK, Stage, playing, staged, until
from tests.integration.roles.test_poison import TEXTS, Cases
from tests.raw_nats import RawNats, raw_nats

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("faults")]

MAX_LINE = 3_900  # a line of the protocol has 4,096 bytes
BYTES = {name: text.encode(errors="surrogatepass") for name, text in TEXTS.items()}
TOKENS = LAST_TOKENS | {
    name: token[:MAX_LINE]
    for name, text in BYTES.items()
    if (token := text.translate(None, b" \t\r\n."))  # what ends a token is another subject or no line
}
LINES = HEADERS | {
    f"{name} in {key}": b"NATS/1.0\r\n%b: %b\r\n\r\n" % (key.encode(), text.replace(b"\r\n", b"\n"))
    for name, text in BYTES.items()
    for key in (subjects.HEADER_SCHEMA, subjects.HEADER_MSG_ID, "Status", subjects.HEADER_DEAD_REASON, "Nats-Rollup")
    if len(text) < 60_000
}  # fmt: skip


@pytest.fixture
async def stage(engine: AsyncEngine, nats_server: EmbeddedNats) -> AsyncIterator[Stage]:
    async with staged(engine, nats_server.url) as stage:
        yield stage


@pytest.fixture
async def raw(nats_server: EmbeddedNats) -> AsyncIterator[RawNats]:
    async with raw_nats(nats_server.url) as raw:
        yield raw


def roles(stage: Stage) -> dict[str, Any]:
    context = stage.context
    return {
        "TASKS": Intake(context, ["shell"]).run,
        "STEPS": partial(ingest_steps, context),
        "BLOBS": partial(store_blobs, context),
        "RESULTS": partial(ingest_results, context),
        "VERDICTS": partial(ingest_verdicts, context),
    }


ROOTS = {
    "TASKS": ("tasks.{run}.", "coding"),
    "STEPS": ("steps.{run}.", "7"),
    "BLOBS": ("blobs.", "0" * 64),
    "RESULTS": ("results.rollout.", "{run}"),
    "VERDICTS": ("results.verdict.", "{run}"),
}


@pytest.mark.parametrize("stream", ROOTS)
async def test_messages_with_any_bytes_in_subject_or_headers_are_settled_and_the_connection_lives(
    stage: Stage, raw: RawNats, stream: str, cases: Cases
) -> None:
    root, last = (f"{stage.prefix}.{part}".replace("{run}", stage.run.name) for part in ROOTS[stream])
    whole = root.encode() + last.removeprefix(f"{stage.prefix}.").encode()
    connection = stage.bus._link.current  # type: ignore[attr-defined]
    body = encode(TaskSubmitted(task=TASK, submission="odd"))
    async with playing([roles(stage)[stream], partial(store_dead_letters, stage.context)]):
        if stream not in ("RESULTS", "VERDICTS"):  # the last word of their subjects is the run
            for token in TOKENS.values():
                await raw.publish(root.encode() + token, body)
        for headers in LINES.values():
            await raw.publish(whole, body, headers=headers)
        await stage.emptied(stream.replace("VERDICTS", "RESULTS"))
        if stream == "TASKS":
            await stage.submit("next")
            await stage.reaches(1, "submissions", submission="next", status="accepted")
    assert stage.bus._link.current is connection  # type: ignore[attr-defined]
    reasons = await stage.reasons()
    assert reasons and all(reason and "\n" not in reason for reason in reasons)
    cases(len(LINES) + len(TOKENS) * (stream not in ("RESULTS", "VERDICTS")))


QUESTIONS = (
    b"",
    b"[]",
    b"7",
    b"null",
    b"{}",
    b'["x"]',
    b"[7]",
    b"\xff",
    b"[" * 100_000,
    b"[[]]",
    b"1" * 9_000,
)


async def test_questions_of_any_bytes_are_dropped_and_the_next_one_is_answered(
    stage: Stage, raw: RawNats, cases: Cases
) -> None:
    root = f"{stage.prefix}.blobs_wanted.".encode()
    async with playing([partial(answer_missing, stage.context)]):
        for token in TOKENS.values():
            await raw.publish(root + token, b"[]")
        for body in QUESTIONS:
            await raw.publish(root + b"q", body)
        for headers in LINES.values():
            await raw.publish(root + b"q", b"{", headers=headers)
        answers: list[str] = []

        async with stage.bus.listen(subjects.blobs_missing("last")) as notices:

            async def answered() -> bool:
                await stage.bus.notify(subjects.blobs_wanted("last"), json.dumps(["ab" * 32]).encode())
                with anyio.move_on_after(1):
                    async for notice in notices:
                        answers.extend(json.loads(notice.body))
                        return True
                return False

            await until(answered)
    assert answers == ["ab" * 32]
    cases(len(TOKENS) + len(QUESTIONS) + len(LINES))
