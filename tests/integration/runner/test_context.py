"""Context management from end to end: the shell in a sandbox, a gateway, a rollout server; each state is read back from SQL.

The policy of these tests calls one command per turn and never ends by itself (talkative_policy.py).
"""

import itertools
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest
import torch
from scaffolds.base import AgentLimits, TaskView
from scaffolds.find import find
from scaffolds.shell import BASH

from orchestrator.contracts.states import FailureClass
from orchestrator.deploy.embedded.nats import EmbeddedNats
from orchestrator.gateway_client import BudgetExhausted, NativeLlm, SessionBudget
from orchestrator.runner.clocks import Clocks
from orchestrator.runner.context_policies import policy_of
from orchestrator.runner.outcome import AttemptOutcome, captured
from orchestrator.runner.whitebox import run_white
from orchestrator.settings.config import Config
from sandboxes.base import SandboxSpec
from sandboxes.bubblewrap import BubblewrapProvider
from tests.integration.gateway.rig import Policies, Rig, open_rig
from tests.integration.gateway.talkative_policy import SAMPLING, TASK, make_talkative_policy
from trainer.checkpoint import TrainerState, save_checkpoint
from trainer.model import load_model

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("tasks")]

CONTEXT = 400  # tokens; a turn of the policy and its result are about 25


@pytest.fixture(scope="module")
def policies(tmp_path_factory: pytest.TempPathFactory) -> Policies:
    directory = tmp_path_factory.mktemp("talkative")
    model = make_talkative_policy(directory)
    network = load_model(model)
    checkpoint = save_checkpoint(
        directory / "checkpoints",
        network,
        torch.optim.AdamW(network.parameters()),
        TrainerState(version=0, batch_no=None, train_steps=0),
        tokenizer=model,
        canary_ids=list(range(260, 300)),
    )
    return Policies(model, (checkpoint,))


@pytest.fixture
async def rig(
    database_url: str, nats_server: EmbeddedNats, server_url: str, policies: Policies, tmp_path: Path
) -> AsyncIterator[Rig]:
    async with open_rig(database_url, nats_server.url, server_url, policies, tmp_path, **SAMPLING) as rig:
        await rig.publish(0)
        rig.start_ingest()
        yield rig


@dataclass(frozen=True, kw_only=True)
class Step:
    """A step as SQL returns it. `ids` are `step_ids`: state and action."""

    kind: str
    reason: str | None
    agent: str
    state_len: int
    ids: list[int]


async def attempted(
    rig: Rig, scaffold: str, *, turns: int, context: dict[str, Any] | None = None
) -> tuple[AttemptOutcome, list[Step]]:
    """A scaffold's attempt, and its steps from SQL, each compared id by id with the ids that the rollout server received."""
    rollout, session = await rig.open(
        budget=SessionBudget(max_turns=turns, max_context=CONTEXT), sampling={"seed": 5}
    )
    sections = Config.model_validate({"rollout": {"context": {scaffold: context} if context else {}}}).rollout
    clocks = Clocks(timeout_s=120, stall_s=60, completion_s=60)
    limits = AgentLimits(turns=turns, context=CONTEXT, tool_timeout_s=10, timeout_s=120)
    found, policy = find(scaffold), policy_of(sections.context, scaffold)
    async with (
        BubblewrapProvider().open(SandboxSpec()) as sandbox,
        NativeLlm(rig.gateway.url, session.token) as llm,
    ):
        view = TaskView(name="t", domain="general", instruction=TASK)
        outcome = await captured(
            lambda: run_white(
                found,
                view,
                sandbox,
                native=llm,
                clocks=clocks,
                limits=limits,
                tool_calls=[],
                context_policy=policy,
            )
        )
    seal = await rig.seal(rollout)
    await rig.stored(rollout, seal.steps)
    rows = await rig.rows(
        "SELECT kind, branch_reason, agent, state_len, step_ids(run_id, rollout_id, attempt, idx) AS ids"
        " FROM steps WHERE rollout_id = :id ORDER BY idx",
        id=rollout,
    )
    steps = [
        Step(kind=row.kind, reason=row.branch_reason, agent=row.agent, state_len=row.state_len, ids=row.ids)
        for row in rows
    ]
    read_back = [(step.ids[: step.state_len], step.ids[step.state_len :]) for step in steps]
    assert sorted(read_back) == sorted(rig.proxy.sent)
    assert not await rig.rows("SELECT * FROM broken_steps((SELECT run_id FROM runs), :id, 1)", id=rollout)
    return outcome, steps


async def test_without_a_policy_the_history_only_grows(rig: Rig) -> None:
    outcome, steps = await attempted(rig, "shell", turns=5)
    assert (outcome.failure, outcome.reason) == (FailureClass.POLICY_FAILURE, "turns")
    assert [step.kind for step in steps] == ["root", *["continues"] * 4]
    assert all(b.ids[: len(a.ids)] == a.ids for a, b in itertools.pairwise(steps))


async def test_a_sliding_window_forgets_turns_and_every_state_can_be_read_back(rig: Rig) -> None:
    window = {"policy": "sliding_window", "max_turns": 3, "keep_turns": 1}
    _, steps = await attempted(rig, "shell", turns=8, context=window)
    assert [step.reason for step in steps] == [
        None,
        None,
        None,
        "sliding_window",
        None,
        "sliding_window",
        None,
        "sliding_window",
    ]
    assert [step.kind for step in steps] == [
        "root",
        "continues",
        "continues",
        "rewrites",
        "continues",
        "rewrites",
        "continues",
        "rewrites",
    ]
    task, one, slid = steps[0].state_len, steps[1].state_len, steps[3]
    assert slid.ids[:task] == steps[0].ids[:task], "the task stays"
    assert slid.state_len == one, "and one turn with its result"
    turn = steps[2].ids[steps[2].state_len :]
    assert slid.ids[task : task + len(turn)] == turn, "in the very ids that were sampled"


async def test_a_summary_is_a_step_of_its_own_and_its_words_stand_for_the_history(rig: Rig) -> None:
    summary = {"policy": "periodic_summary", "max_turns": 3, "keep_turns": 1}
    _, steps = await attempted(rig, "shell", turns=9, context=summary)
    assert [step.reason for step in steps] == [
        None,
        None,
        None,
        None,
        "periodic_summary",
        None,
        None,
        "periodic_summary",
        None,
    ]
    assert [step.kind for step in steps] == [
        "root",
        *["continues"] * 3,
        "rewrites",
        "continues",
        "continues",
        "rewrites",
        "continues",
    ]
    texts = await rig.rows(
        "SELECT idx, m.appended -> -1 ->> 'content' AS question, reply ->> 'content' AS answer, appended FROM messages m ORDER BY idx"
    )
    for asking, rewritten in ((3, 4), (6, 7)):
        assert texts[asking].question.startswith("Sum up the work so far")
        assert [m["role"] for m in texts[rewritten].appended if m["role"] != "tools"] == [
            "user",
            "user",
            "assistant",
            "tool",
        ]
        summed = next(m for m in texts[rewritten].appended if "summary" in m["content"])
        assert summed["content"].endswith("\n" + texts[asking].answer)
    assert steps[7].state_len - steps[4].state_len < 20, "an older summary does not pile up"


async def test_no_state_past_30_percent_of_the_context_is_sent_and_none_is_cut_before(rig: Rig) -> None:
    _, steps = await attempted(rig, "shell", turns=12, context={"policy": "drop_replies"})
    dropped = [i for i, step in enumerate(steps) if step.reason == "drop_replies"]
    assert len(dropped) >= 2 and all(steps[i].kind == "rewrites" for i in dropped)
    assert all(steps[i].ids[: steps[i].state_len] == steps[0].ids[: steps[0].state_len] for i in dropped), (
        "all replies and tool returns go: the task alone is left"
    )
    share = 0.3 * CONTEXT
    assert all(step.state_len <= share for step in steps), "the one about to be sent counts"
    grown = [(i, i + 1) for i in range(len(steps) - 1) if i + 1 not in dropped]
    result = min(steps[b].state_len - len(steps[a].ids) for a, b in grown)
    assert all(len(steps[i - 1].ids) + result + 8 > share for i in dropped), "and nothing is dropped earlier"


async def test_the_gateway_counts_the_tokens_that_it_sends_and_a_count_is_not_a_step(rig: Rig) -> None:
    rollout, session = await rig.open(budget=SessionBudget(max_turns=2, max_context=CONTEXT))
    async with NativeLlm(rig.gateway.url, session.token) as llm:
        history: list[dict[str, Any]] = [{"role": "user", "content": TASK}]
        for _ in range(2):
            counted = [await llm.count(history, [BASH]) for _ in range(9)]
            reply = await llm.complete(history, [BASH])
            assert set(counted) == {reply.usage.prompt_tokens}
            calls = [{"role": "tool", "tool_call_id": call.id, "content": "oak"} for call in reply.tool_calls]
            history = [*history, reply.message(), *calls]
        with pytest.raises(
            BudgetExhausted, match="prompt is too long"
        ):  # no context is large enough for this text
            await llm.count([*history, {"role": "user", "content": "oak " * 5000}], [BASH])
    assert (await rig.seal(rollout)).steps == 2


async def test_sub_agents_work_at_once_on_branches_of_their_own_and_share_the_budget_of_turns(
    rig: Rig,
) -> None:
    team = "tests.integration.runner.scaffolds_at_work:Team"
    window = {"policy": "sliding_window", "max_turns": 2, "keep_turns": 1}
    outcome, steps = await attempted(rig, team, turns=10, context=window)
    assert outcome.failure is FailureClass.COMPLETED
    agents = {name: [step for step in steps if step.agent == name] for name in {step.agent for step in steps}}
    assert {name: len(of) for name, of in agents.items()} == {
        "main": 1,
        "main/scout": 3,
        "main/scout-2": 3,
        "main/scout/deep": 2,
    }
    for name in ("main/scout", "main/scout-2"):
        assert [step.reason for step in agents[name]][1:] == [None, "sliding_window"], (
            "each has a window of its own"
        )
        assert agents[name][1].ids[: len(agents[name][0].ids)] == agents[name][0].ids


async def test_agents_share_one_budget(rig: Rig) -> None:
    outcome, steps = await attempted(rig, "tests.integration.runner.scaffolds_at_work:Spender", turns=4)
    assert (outcome.failure, outcome.reason) == (FailureClass.POLICY_FAILURE, "turns")
    assert [step.agent for step in steps] == ["main", "main/helper", "main/helper", "main/helper-2"]


async def test_the_same_history_requested_again_is_another_sample_at_once_and_after_a_restart(
    rig: Rig,
) -> None:
    """A policy that drops everything comes back to the history that the agent started with."""
    rollout, session = await rig.open(budget=SessionBudget(max_turns=9, max_context=CONTEXT))
    async with NativeLlm(rig.gateway.url, session.token) as llm:
        history = [{"role": "user", "content": TASK}]
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(llm.complete, history)
        await rig.stop_gateway()
        async with rig.another_gateway() as (_, admin):
            assert (await llm.complete(history)).step == 3
            seal = await admin.seal(rollout=rollout, attempt=1, epoch=1)
    states = [state for state, _ in rig.proxy.sent]
    assert seal.steps == len(states) == 4 and all(state == states[0] for state in states)
