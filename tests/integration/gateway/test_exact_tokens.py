"""Zero drift on real services: call by call, the ids that the rollout server saw are the ids that Postgres folds; and why branches were made."""

import json
import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from orchestrator.deploy.embedded.nats import EmbeddedNats
from orchestrator.gateway.completions.parse import parse_action
from orchestrator.gateway.messages.turns import read_messages
from orchestrator.gateway.render import load_renderer
from orchestrator.gateway.servers.server import RolloutServer
from orchestrator.gateway_client import NativeLlm, SessionBudget
from tests.integration.gateway.rig import Policies, Rig, drift, open_rig
from tests.unit.gateway.driver import TEXTS, user
from tests.unit.gateway.models import CHATML_DROPS

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("gateway")]


BASH: dict[str, Any] = {"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}


async def converse(rig: Rig, token: str, dice: random.Random, calls: int) -> None:
    """A harness that appends, interjects, rewrites, drops reasoning, repeats, goes back, and sends side requests; checks every call."""
    talks: list[list[dict[str, Any]]] = []
    async with NativeLlm(rig.gateway.url, token) as llm:
        for number in range(calls):
            move = dice.choice(
                ("new", "append", "append", "append", "rewrite", "drop", "repeat", "back", "side")
            )
            if move == "new" or not talks:
                talks.append([user(f"task {number} {dice.choice(TEXTS)}")])
            talk = dice.choice(talks)
            request = [*talk] if talk[-1]["role"] == "user" else [*talk, user(dice.choice(TEXTS))]
            if move == "rewrite":
                request[0] = user(f"task {number}, rewritten")
            elif move == "drop":
                request = [
                    {k: v for k, v in message.items() if k != "reasoning_content"} for message in request
                ]
            elif move == "repeat" and talk[-1]["role"] == "assistant":
                request = talk[:-1]
            elif move == "back":
                request = [*talk[: dice.randrange(0, len(talk) // 2 + 1) * 2], user(f"otherwise {number}")]
            elif move == "side":
                request = [*request, user("what would you call this?")]
            before = len(rig.proxy.sent)
            reply = await llm.complete(request, [BASH], agent="side" if move == "side" else "main")
            assert len(rig.proxy.sent) == before + 1
            state, action = rig.proxy.sent[-1]
            assert (len(state), len(action)) == (reply.usage.prompt_tokens, reply.usage.completion_tokens)
            if move != "side":
                talk[:] = [*request, reply.message()]


@pytest.mark.parametrize("seed", [1, 2])
async def test_call_by_call_the_server_saw_what_the_stored_steps_fold_to(rig: Rig, seed: int) -> None:
    rig.start_ingest()
    rollout, session = await rig.open(budget=SessionBudget(max_turns=60, max_context=2048))
    await converse(rig, session.token, random.Random(seed), 25)
    seal = await rig.seal(rollout)
    steps = await rig.stored(rollout, seal.steps)
    assert seal.steps == 25 and seal.marks == () and drift(rig.gateway) == 0
    renderer = load_renderer(rig.policies.model)
    rows = await rig.rows("SELECT kind, parent_idx, spans, branch_reason, branch FROM steps ORDER BY idx")
    for step, row, (state, action) in zip(steps, rows, rig.proxy.sent, strict=True):
        assert step.full.tolist() == state + action
        assert len(action) == len(step.logprobs) == sum(end - start for _, start, end in step.spans)
        if row.kind == "continues":
            parent = steps[row.parent_idx]
            assert step.full[: len(parent.full)].tolist() == parent.full.tolist()
        served = read_messages([{**step.reply, "reasoning_content": step.reply.get("reasoning")}])[0][0]
        assert structs.replace(served, hint=None) == parse_action(renderer, action, [BASH]).turn
        assert (row.branch_reason is not None) or row.kind == "continues" or step.idx == 0
    view = await rig.rows("SELECT * FROM branches ORDER BY idx")
    reasons = {row.reason for row in view}
    assert {"new_conversation", "rewritten", "sibling"} <= reasons, reasons
    for row in view:
        if row.reason == "new_conversation":
            assert row.turn == 0 and row.field == "text" and row.recorded != row.sent
    (intact,) = await rig.rows(
        "SELECT count(*) AS n FROM broken_steps(:run, :rollout, 1)", run=rig.run_id, rollout=rollout
    )
    assert intact.n == 0


async def test_ids_that_change_on_their_way_to_the_server_are_counted_and_do_not_train(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault of our own: the sent context is not the recorded one."""
    honest = RolloutServer.send

    async def faulty(self: RolloutServer, ids: Any, *rest: Any) -> Any:
        changed: Any = [token + (at == 1) for at, token in enumerate(ids.tolist())]
        return await honest(self, changed, *rest)

    rollout, session = await rig.open()
    async with NativeLlm(rig.gateway.url, session.token) as llm:
        await llm.complete([user("oak")])
        with monkeypatch.context() as patched:
            patched.setattr(RolloutServer, "send", faulty)
            await llm.complete([user("elm")])
        await llm.complete([user("ash")])
    assert drift(rig.gateway) == 1
    rig.forgive_drift()
    assert [(mark.idx, mark.reason) for mark in (await rig.seal(rollout)).marks] == [(1, "drift")]


async def test_a_template_that_rewrites_is_served_request_by_request_and_every_step_says_so(
    database_url: str, nats_server: EmbeddedNats, server_url: str, policies: Policies, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    shutil.copytree(policies.model, model)
    (model / "render.json").write_text(json.dumps({"renderer": "template", "tools_in_prompt": False}))
    (model / "chat_template.jinja").write_text(CHATML_DROPS)
    unproven = replace(policies, model=model)
    sections = {"gateway": {"unproven_template": "per_request"}}
    async with open_rig(
        database_url, nats_server.url, server_url, unproven, tmp_path, sections=sections, max_new_tokens=12
    ) as rig:
        await rig.publish(0)
        rig.start_ingest()
        rollout, session = await rig.open()
        async with NativeLlm(rig.gateway.url, session.token) as llm:
            history = [user("oak")]
            for turn in range(3):
                reply = await llm.complete(history)
                history += [reply.message(), user(f"go on {turn}")]
        steps = await rig.stored(rollout, 3)
        assert [(state + out) for state, out in rig.proxy.sent] == [step.full.tolist() for step in steps]
        rows = await rig.rows("SELECT idx, reason, field, near FROM branches ORDER BY idx")
        assert [(row.idx, row.reason, row.field, row.near) for row in rows] == [
            (1, "per_request", "ids", 0),
            (2, "per_request", "ids", 1),
        ]
