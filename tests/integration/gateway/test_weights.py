"""New weights in the middle of a generation: spans exact per token, down to the samples that the trainer learns from."""

import sys
from collections.abc import AsyncIterator, Sequence

import aiohttp
import anyio
import numpy as np
import pytest

from orchestrator.bus import subjects
from orchestrator.contracts.states import RunState
from orchestrator.gateway.render import load_renderer
from orchestrator.gateway_client import NativeLlm, OpenSession
from orchestrator.pool import batches
from orchestrator.pool.batches import BatchRollout, NewVersion
from orchestrator.pool.rewind import FIRST, rewind
from orchestrator.pool.runs import StoredRun
from orchestrator.roles.relay import relay
from orchestrator.scheduling.queue_policies import queue_policy
from tests.builders import Author, ready_groups
from tests.integration.gateway.rig import OpenRig, Policies, Rig
from tests.waiting import eventually
from trainer.batch import make_parts
from trainer.model import load_model
from trainer.update import UpdateSettings, recompute_logprobs

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("gateway")]
POLICY_VERSIONS = 2

TOKENS = 300


@pytest.fixture
async def rig(open_here: OpenRig) -> AsyncIterator[Rig]:
    """A temperature so low that the random policies go round in circles and never end."""
    async with open_here(max_new_tokens=TOKENS, temperature=0.2) as rig:
        await rig.publish(0)
        await eventually(lambda: rig.gateway.pool.servers[0].version == 0)
        rig.start_ingest()
        yield rig


@pytest.fixture
async def unwatched(open_here: OpenRig) -> AsyncIterator[Rig]:
    """As `rig`, and no check of the server's health finds weights that change behind the gateway's back before a reply shows them."""
    async with open_here(
        sections={"servers": {"probe_s": 3600.0}},
        max_new_tokens=TOKENS,
        temperature=0.2,
    ) as rig:
        await rig.publish(0)
        await eventually(lambda: rig.gateway.pool.servers[0].version == 0)
        rig.start_ingest()
        yield rig


async def ask(rig: Rig, session: OpenSession, stop: Sequence[str] = ()) -> None:
    async with NativeLlm(rig.gateway.url, session.token) as llm:
        await llm.complete([{"role": "user", "content": "oak"}], stop=stop)


async def relabel(rig: Rig, label: str) -> None:
    """A substitute for weights that change behind the gateway's back."""
    async with aiohttp.ClientSession() as http:
        await http.post(f"{rig.proxy.target}/update_weight_version", json={"new_version": label})


async def seed_of_a_long_action(rig: Rig) -> int:
    """Version 0 samples all its tokens with this seed, without an end."""
    for seed in range(20):
        _, session = await rig.open(sampling={"temperature": 1.0, "seed": seed})
        await ask(rig, session)
        if rig.proxy.answers[-1]["meta_info"]["finish_reason"]["type"] == "length":
            return seed
    raise AssertionError("every action ends early")


async def test_an_action_of_two_versions_trains_with_the_logprobs_of_the_version_that_made_each_token(
    rig: Rig, policies: Policies
) -> None:
    seed = await seed_of_a_long_action(rig)
    del rig.proxy.requests[:], rig.proxy.answers[:]
    rollout, session = await rig.open(sampling={"temperature": 1.0, "seed": seed})
    rig.proxy.stops = [20]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask, rig, session)
        await eventually(lambda: rig.proxy.standing)
        await rig.publish(1)
    (step,) = await rig.stored(rollout, 1)
    first, second = rig.proxy.answers
    cut, end = len(first["output_ids"]), len(step.action)
    assert 20 == cut < end and tuple(map(tuple, step.spans)) == ((0, 0, cut), (1, cut, end))
    assert step.action.tolist() == first["output_ids"] + second["output_ids"]
    one, two = rig.proxy.requests
    assert two["input_ids"] == one["input_ids"] + first["output_ids"] and two["rid"] != one["rid"]
    assert [each["sampling_params"]["max_new_tokens"] for each in (one, two)] == [TOKENS, TOKENS - cut]
    seal = await rig.seal(rollout)
    assert (seal.versions, seal.marks) == ((0, 1), ())

    chosen = BatchRollout(
        group_id=1,
        seq=0,
        domain="general",
        rollout_id=rollout,
        attempt=1,
        reward_revision=0,
        performance=1.0,
        total=1.0,
        advantages=[0.5],
        weights=[1],
    )
    (part,) = make_parts([chosen], {rollout: [step]}, 1)
    (sample,) = part.samples
    assert sample.versions.tolist() == [0] * cut + [1] * (end - cut) and sample.trained_tokens == end
    off = []
    for checkpoint in policies.versions:
        (logprobs,) = recompute_logprobs(load_model(checkpoint.path), [sample], UpdateSettings())
        off.append(np.abs(logprobs - sample.behavior_logprobs))
    made_by, other = np.choose(sample.versions, off), np.choose(1 - sample.versions, off)
    assert made_by.max() < 0.001, "the trainer agrees with the server that sampled it, token by token"
    assert other.min() > 0.002, "and for no token with the other version"


async def test_a_stop_string_that_a_pause_cut_in_two_ends_the_action(rig: Rig, policies: Policies) -> None:
    greedy = {"temperature": 0.0}
    whole, session = await rig.open(sampling=greedy)
    await ask(rig, session)
    (step,) = await rig.stored(whole, 1)
    sampled = step.action.tolist()
    assert len(sampled) == TOKENS, "it goes round in circles without an end"
    stop = load_renderer(policies.model).decode(sampled[:20])

    del rig.proxy.requests[:], rig.proxy.answers[:]
    rig.proxy.cuts = [12]
    rollout, session = await rig.open(sampling=greedy)
    await ask(rig, session, [stop])
    (step,) = await rig.stored(rollout, 1)
    one, two = (answer["output_ids"] for answer in rig.proxy.answers)
    assert one == sampled[:12] and len(one + two) > 20, "neither part has all of the stop string"
    assert step.action.tolist() == sampled[:20] and tuple(map(tuple, step.spans)) == ((0, 0, 20),)
    (row,) = await rig.rows("SELECT finish FROM steps WHERE rollout_id = :rollout", rollout=rollout)
    assert row.finish == "stop"


async def trained_to_version_1(rig: Rig, policies: Policies) -> None:
    """The trainer's commit: a batch, and with it version 1."""
    run = StoredRun(run_id=rig.run_id, name=rig.run, state=RunState.ACTIVE, config={})
    await ready_groups(rig.engine, run, ["a"], Author(turns=1))
    async with rig.engine.begin() as connection:
        batch = await batches.take(connection, rig.run_id, queue_policy("greedy", 1, 1.0), 1, 1)
        assert batch is not None
        made = policies.versions[1]
        new = NewVersion(version=1, parent=0, path=str(made.path), manifest_sha=made.manifest_sha)
        assert await batches.commit(
            connection,
            rig.run_id,
            rig.run,
            batch=batch,
            new=new,
            metrics=[{}],
            subject=subjects.policy(rig.run),
        )


async def test_a_rewind_brings_older_weights_back_under_a_newer_version_token_by_token(
    rig: Rig, policies: Policies
) -> None:
    server = rig.gateway.pool.servers[0]
    seed = await seed_of_a_long_action(rig)
    async with anyio.create_task_group() as relaying:
        relaying.start_soon(relay, rig.context)
        await trained_to_version_1(rig, policies)
        rig.context.signals.outbox.set()
        await eventually(lambda: server.version == 1)
        rollout, session = await rig.open(sampling={"temperature": 1.0, "seed": seed})
        rig.proxy.stops = [5]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, rig, session)
            await eventually(lambda: rig.proxy.standing)
            async with rig.engine.begin() as connection:
                done = await rewind(
                    connection, rig.run_id, FIRST, subjects.policy(rig.run), "test", lambda version: True
                )
            rig.context.signals.outbox.set()
        relaying.cancel_scope.cancel()
    assert (done.superseded, done.version) == ((1,), 2)
    (step,) = await rig.stored(rollout, 1)
    cut, end = step.spans[0].end, len(step.action)
    assert tuple(map(tuple, step.spans)) == ((1, 0, cut), (2, cut, end)) and 5 == cut < end
    (row,) = await rig.rows("SELECT version, state FROM rollout_servers")
    assert (row.version, row.state) == (2, "ready")
    chosen = BatchRollout(
        group_id=1,
        seq=0,
        domain="general",
        rollout_id=rollout,
        attempt=1,
        reward_revision=0,
        performance=1.0,
        total=1.0,
        advantages=[0.5],
        weights=[1],
    )
    (part,) = make_parts([chosen], {rollout: [step]}, 1)
    off = []
    for checkpoint in policies.versions:
        (logprobs,) = recompute_logprobs(load_model(checkpoint.path), part.samples, UpdateSettings())
        off.append(np.abs(logprobs - part.samples[0].behavior_logprobs))
    first, second = off
    assert max(second[:cut].max(), first[cut:].max()) < 0.001, "version 2 is what version 0 was"
    assert min(np.median(first[:cut]), np.median(second[cut:])) > 0.002, "and the other one is another policy"
    assert (await rig.seal(rollout)).marks == (), "a newer number is nothing to be suspicious of"


async def test_every_sync_is_proven_by_a_canary_before_calls_are_let_in(rig: Rig) -> None:
    server, seen = rig.gateway.pool.servers[0], rig.proxy.seen
    rollout, session = await rig.open()
    rig.proxy.stops = [10]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask, rig, session)
        await eventually(lambda: rig.proxy.standing)
        await rig.publish(1)
        await eventually(lambda: server.version == 1)
    order = [
        path
        for path in seen
        if path in ("/pause_generation", "/update_weights_from_disk", "canary", "/generate")
    ]
    assert order[-5:] == [
        "/generate",
        "/pause_generation",
        "/update_weights_from_disk",
        "canary",
        "/generate",
    ]
    (row,) = await rig.rows("SELECT version, detail FROM rollout_servers")
    assert row.version == 1 and float(row.detail.removeprefix("canary difference ")) < 0.001
    assert (await rig.seal(rollout)).steps == 1


async def test_a_reply_of_another_version_than_was_pinned_is_marked_and_the_server_synced_again(
    unwatched: Rig,
) -> None:
    rig = unwatched
    rollout, session = await rig.open()
    syncs = rig.proxy.seen.count("canary")
    rig.proxy.stops = [10]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask, rig, session)
        await eventually(lambda: rig.proxy.standing)
        await relabel(rig, "7")
        rig.proxy.go_on()
    await eventually(lambda: rig.gateway.pool.servers[0].ready and rig.proxy.seen.count("canary") > syncs)
    await ask(rig, session)
    seal = await rig.seal(rollout)
    assert [(mark.idx, mark.reason) for mark in seal.marks] == [(0, "version_suspect")]
    steps = await rig.stored(rollout, 2)
    assert tuple(map(tuple, steps[0].spans)) == ((0, 0, 10), (7, 10, TOKENS))
    assert tuple(map(tuple, steps[1].spans)) == ((0, 0, TOKENS),)


async def test_output_under_older_weights_than_the_pinned_ones_is_discarded(unwatched: Rig) -> None:
    rig = unwatched
    same = rig.policies.versions[0]  # under another number, so that its output continues for long
    await rig.publish(1, path=same.path, manifest_sha=same.manifest_sha)
    await eventually(lambda: rig.gateway.pool.servers[0].version == 1)
    rollout, session = await rig.open()
    released = rig.proxy.held["/generate"] = anyio.Event()
    del rig.proxy.seen[:]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask, rig, session)
        await eventually(lambda: "/generate" in rig.proxy.seen)
        await relabel(rig, "0")
        released.set()
    seal = await rig.seal(rollout)
    (step,) = await rig.stored(rollout, 1)
    assert tuple(map(tuple, step.spans)) == ((1, 0, TOKENS),) and seal.marks == ()
    thrown = [answer for answer in rig.proxy.answers if answer["meta_info"]["weight_version"] == "0"]
    assert thrown and thrown[0]["output_ids"]


@pytest.fixture
async def sending_rig(open_here: OpenRig) -> AsyncIterator[Rig]:
    sections = {"servers": {"transport": "distributed"}}
    async with open_here(sections=sections) as rig:
        await rig.publish(0)
        await eventually(lambda: rig.gateway.pool.servers[0].version == 0)
        rig.start_ingest()
        yield rig


async def test_weights_are_sent_from_process_to_process_and_the_directory_is_not_read(
    sending_rig: Rig,
) -> None:
    server, seen = sending_rig.gateway.pool.servers[0], sending_rig.proxy.seen
    seen.clear()
    await sending_rig.publish(1)
    await eventually(lambda: server.version == 1 and server.ready)
    known = ("/init_weights_update_group", "/pause_generation", "canary")
    of_the_sync = [path for path in seen if path in known or path.startswith("/update_weights")]
    assert of_the_sync == [
        "/init_weights_update_group",
        "/pause_generation",
        "/update_weights_from_distributed",
        "canary",
    ], "joined while it still served, and proven before calls were let in"
    await eventually(lambda: "/destroy_weights_update_group" in seen[seen.index("canary") :])
    rollout, session = await sending_rig.open()
    await ask(sending_rig, session)
    (step,) = await sending_rig.stored(rollout, 1)
    assert {version for version, _, _ in step.spans} == {1}


async def test_a_sender_that_cannot_start_leaves_the_weights_to_the_directory(
    sending_rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, seen = sending_rig.gateway.pool.servers[0], sending_rig.proxy.seen
    monkeypatch.setattr(sys, "executable", "/bin/false")
    seen.clear()
    await sending_rig.publish(1)
    await eventually(lambda: server.version == 1 and server.ready)
    assert "/update_weights_from_disk" in seen and "/update_weights_from_distributed" not in seen
    assert sending_rig.gateway.metrics.transfers_failed.labels(server.url)._value.get() == 1
