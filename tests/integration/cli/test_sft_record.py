"""`penstock sft record` on a stack of its own: real sandboxes, real gateway, real verdicts, scripted policy."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import select, text
from transformers import AutoTokenizer

from orchestrator.deploy.embedded.nats import EmbeddedNats
from orchestrator.pool.engine import Role, open_engine
from orchestrator.pool.tables import groups, messages, rollouts
from orchestrator.runtime.plugins import names
from orchestrator.tasks.suite.record import SCRIPTS, demonstrations
from trainer.policy.init import make_policy
from trainer.sft.corpus import Demonstrations, tokenizer_digest

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.timeout(180), pytest.mark.tier("tasks")]

SCAFFOLDS = [name for name in SCRIPTS if name in names("scaffolds")]
COUNT = 8 * len(SCAFFOLDS)


def penstock(*arguments: str, **environment: str) -> dict[str, Any]:
    """The JSON that a command prints."""
    done = subprocess.run(
        [sys.executable, "-m", "orchestrator.cli", *arguments, "--json"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


async def conversations(url: str) -> list[tuple[str, list[dict[str, Any]]]]:
    """(scaffold, messages in the chat form) of every recorded rollout, by submission."""
    rows = (
        select(groups.c.scaffold, groups.c.submission, messages.c.appended, messages.c.reply)
        .join(rollouts, rollouts.c.group_id == groups.c.group_id)
        .join(
            messages,
            (messages.c.rollout_id == rollouts.c.rollout_id) & (messages.c.attempt == rollouts.c.attempt),
        )
        .order_by(groups.c.submission, messages.c.idx)
    )
    found: dict[str, tuple[str, list[dict[str, Any]]]] = {}
    async with open_engine(url, Role.READER, size=1) as engine, engine.connect() as connection:
        for row in await connection.execute(rows):
            _, turns = found.setdefault(row.submission, (row.scaffold, []))
            turns += row.appended
            calls = [{"type": "function", "function": call} for call in row.reply.get("tool_calls") or []]
            reasoning = row.reply.get("reasoning") or ""
            turns.append({**row.reply, "reasoning_content": reasoning, "tool_calls": calls})
    return list(found.values())


async def test_recorded_ids_are_what_the_chat_template_renders_of_the_recorded_conversations(
    database_url: str, nats_server: EmbeddedNats, tmp_path: Path
) -> None:
    model, out = make_policy(tmp_path / "policy", seed=0), tmp_path / "demonstrations.safetensors"
    shares = ",".join(f"{name}={1 / len(SCAFFOLDS)}" for name in SCAFFOLDS)
    options = ("--out", str(out), "-n", str(COUNT), "--scaffold", shares, "--model", str(model))
    report = penstock("sft", "record", *options, DATABASE_URL=database_url, NATS_URL=nats_server.url)
    played = demonstrations(COUNT, 0, dict.fromkeys(SCAFFOLDS, 1.0))
    assert (report["rollouts"], report["demonstrations"], report["not_scored"]) == (COUNT, COUNT, 0)
    assert report["meant_to_succeed"] == sum(each.good for each in played) / COUNT
    assert abs(report["success"] - report["meant_to_succeed"]) < 0.1  # a bad trajectory may pass by luck

    template = AutoTokenizer.from_pretrained(model)
    found = Demonstrations.load(out, tokenizer=tokenizer_digest(model))
    recorded = await conversations(database_url)
    assert [scaffold for scaffold, _ in recorded] == [each.scaffold for each in played]
    for (ids, action), (_, conversation), each in zip(
        (found[i] for i in range(len(found))), recorded, played, strict=True
    ):
        rendered = template.apply_chat_template(conversation, return_dict=False)
        assert ids.tolist() == rendered[:-1]  # the newline after the last turn belongs to no action
        assert each.task.instruction in str(conversation)
        sampled = np.split(ids, np.flatnonzero(np.diff(action)) + 1)[1::2]
        replies = [message for message in conversation if message["role"] == "assistant"]
        for tokens, reply in zip(sampled, replies, strict=True):
            alone = template.apply_chat_template([{"role": "user", "content": "x"}, reply], tokenize=False)
            assert template.decode(tokens) + "\n" == alone.split("<|im_start|>assistant\n", 1)[1]

    async with open_engine(database_url, Role.READER, size=1) as engine, engine.connect() as connection:
        kinds = await connection.execute(text("select purpose, count(*) from groups group by 1"))
        assert [tuple(row) for row in kinds] == [("record", COUNT)]
