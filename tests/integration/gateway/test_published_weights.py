"""Which weights a rollout server may serve: the published ones, whole, with the canary's logprobs, and exact spans where they change."""

import hashlib
import shutil
from pathlib import Path
from typing import Any

import anyio
import pytest

from orchestrator.contracts.spans import VersionSpan
from orchestrator.gateway.servers.client import RolloutServerClient
from orchestrator.gateway_client import NativeLlm
from tests.integration.gateway.rig import OpenRig, Policies, Rig, until_row
from tests.waiting import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("gateway")]
POLICY_VERSIONS = 3


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def measured(rig: Rig, name: str) -> float:
    """A metric of the gateway for its only server; 0 before there is one."""
    labels = {"server": rig.gateway.pool.servers[0].url}
    return rig.gateway.metrics.registry.get_sample_value(f"penstock_gateway_{name}", labels) or 0.0


def of_all(rig: Rig, name: str) -> float:
    """A metric of the gateway without labels."""
    value = rig.gateway.metrics.registry.get_sample_value(f"penstock_gateway_{name}")
    assert value is not None
    return value


async def test_new_weights_in_the_middle_of_a_call_leave_one_action_with_exact_spans(
    open_here: OpenRig,
) -> None:
    async with open_here(max_new_tokens=1000, temperature=0.0) as slow:  # its likeliest tokens never end
        await slow.publish(0)
        slow.start_ingest()
        rollout, session = await slow.open()
        async with NativeLlm(slow.gateway.url, session.token) as llm:
            slow.proxy.stops = [10]
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(llm.complete, [user("oak")])
                await eventually(lambda: slow.proxy.standing)
                await slow.publish(1)
                await slow.publish(2)
        (step,) = await slow.stored(rollout, 1)
        versions = [version for version, _, _ in step.spans]
        assert versions in ([0, 2], [0, 1, 2]), "the second came while, or after, the first was loaded"
        assert step.spans[-1].end == len(step.action) == len(step.logprobs)
        whole: list[int] = slow.proxy.sent[0][0]
        lengths = []
        for state, partial in slow.proxy.sent:  # every segment continues with exactly the ids before it
            assert state == whole
            whole = state + partial
            lengths += [len(partial)] if partial else []
        assert step.full.tolist() == whole
        assert [end - start for _, start, end in step.spans] == lengths
        assert len({body["rid"] for body in slow.proxy.bodies}) == len(slow.proxy.bodies)
        assert (await slow.seal(rollout)).marks == ()
        (row,) = await slow.rows("SELECT state, version FROM rollout_servers")
        assert (row.state, row.version) == ("ready", 2)


async def test_weights_that_are_not_the_published_ones_never_serve(rig: Rig) -> None:
    await rig.open()
    await eventually(lambda: rig.gateway.pool.servers[0].version == 0)
    await rig.publish(1, manifest_sha="0" * 64)  # another manifest than was published
    await until_row(rig, "SELECT detail FROM rollout_servers WHERE detail LIKE '%not the published%'")
    assert rig.gateway.pool.servers[0].version == 0, "the old weights go on serving"
    _, session = await rig.open()
    async with NativeLlm(rig.gateway.url, session.token) as llm:
        await llm.complete([user("oak")])
    assert measured(rig, "weights_refused_total") >= 1


async def test_files_that_are_not_those_of_their_manifest_never_serve(
    rig: Rig, policies: Policies, tmp_path: Path
) -> None:
    await eventually(lambda: rig.gateway.pool.servers[0].version == 0)
    damaged = tmp_path / "damaged"
    shutil.copytree(policies.versions[1].path, damaged)
    weights = bytearray((damaged / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (damaged / "model.safetensors").unlink()
    (damaged / "model.safetensors").write_bytes(weights)
    await rig.publish(1, path=damaged, manifest_sha=policies.versions[1].manifest_sha)
    await until_row(
        rig, "SELECT detail FROM rollout_servers WHERE detail LIKE '%does not match its published%'"
    )
    assert rig.gateway.pool.servers[0].version == 0 and measured(rig, "weights_refused_total") >= 1
    assert rig.proxy.sent == []


async def test_a_canary_that_differs_keeps_the_server_closed_until_a_good_version_comes(
    rig: Rig, policies: Policies, tmp_path: Path
) -> None:
    await eventually(lambda: rig.gateway.pool.servers[0].version == 0)
    bad = tmp_path / "bad"
    shutil.copytree(policies.versions[1].path, bad)
    manifest = (bad / "manifest.json").read_text()
    manifest = manifest.replace('"logprobs": [\n', '"logprobs": [\n -99.0,\n', 1)
    ids_before = manifest.index('"ids": [') + len('"ids": [')
    manifest = manifest[:ids_before] + "260," + manifest[ids_before:]
    (bad / "manifest.json").write_text(manifest)
    await rig.publish(1, path=bad, manifest_sha=hashlib.sha256(manifest.encode()).hexdigest())
    await until_row(rig, "SELECT state FROM rollout_servers WHERE state = 'failed' AND detail LIKE 'canary%'")
    assert measured(rig, "canary_difference") > 10
    rollout, session = await rig.open()
    async with NativeLlm(rig.gateway.url, session.token) as llm, anyio.create_task_group() as tasks:
        tasks.start_soon(llm.complete, [user("oak")])  # held, not refused
        await eventually(
            lambda: rig.admin.activity(rollout=rollout, attempt=1, epoch=1),
            lambda seen: seen.in_flight,
            within_s=10,
        )
        assert rig.proxy.sent == []
        await rig.publish(2)
    assert len(rig.proxy.sent) == 1
    assert measured(rig, "canary_difference") < 0.01


async def test_the_duration_of_a_weight_sync_is_measured(rig: Rig, policies: Policies) -> None:
    server = rig.gateway.pool.servers[0]
    await eventually(lambda: server.version == 0)
    names = ("sync_load_seconds_count", "sync_load_seconds_sum", "sync_seconds_sum")
    before, bytes_before = [of_all(rig, name) for name in names], measured(rig, "sync_bytes_total")
    await rig.publish(1)
    await eventually(lambda: server.version == 1)
    loads, loading, held = (of_all(rig, name) - was for name, was in zip(names, before, strict=True))
    assert loads == 1 and 0 < loading < held
    served = [entry.bytes for name, entry in policies.versions[1].files.items() if "/" not in name]
    assert measured(rig, "sync_bytes_total") - bytes_before == sum(served)


async def test_a_rollout_server_with_other_weights_is_synced_before_it_is_used(
    rig: Rig, server_url: str, policies: Policies
) -> None:
    """The behavior of a restarted server: it answers, with weights under the label `default`."""
    rig.start_ingest()
    rollout, session = await rig.open()
    async with NativeLlm(rig.gateway.url, session.token) as llm:
        await llm.complete([user("oak")])
        async with RolloutServerClient(server_url) as behind_our_back:
            await behind_our_back.update_weights(str(policies.versions[2].path), "default")
        await llm.complete([user("elm")])
    steps = await rig.stored(rollout, 2)
    assert [step.spans for step in steps] == [(VersionSpan(0, 0, len(step.action)),) for step in steps]
    assert (await rig.seal(rollout)).marks == ()
    assert len(rig.proxy.sent) == 3, "the output of the other weights was thrown away"
