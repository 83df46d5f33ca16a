"""Weights that another user exchanges behind the gateway's back, under the version that it gave them: found, named, refused, exchanged back."""

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import pytest
from structlog.testing import capture_logs

from orchestrator.gateway_client import NativeLlm, OpenSession
from orchestrator.runtime.weights_digest import weights_digest
from tests.integration.audit.audited import no_violations
from tests.integration.gateway.rig import OpenRig, Rig, until_row
from tests.waiting import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("gateway")]
POLICY_VERSIONS = 2

TOKENS = 200
NEVER_S = 3600.0
UNWATCHED: dict[str, Any] = {"probe_s": NEVER_S, "canary_interval_s": 0.0}


@pytest.fixture
def open_at(open_here: OpenRig) -> OpenRig:
    """Opens a rig; keywords are `servers.*`. Its policies go round in circles and never end."""

    def opened(**servers: Any) -> AbstractAsyncContextManager[Rig]:
        return open_here(sections={"servers": servers}, max_new_tokens=TOKENS, temperature=0.2)

    return opened


async def at_version_0(rig: Rig) -> None:
    await rig.publish(0)
    await eventually(lambda: rig.gateway.pool.servers[0].version == 0 and rig.gateway.pool.servers[0].ready)
    rig.start_ingest()


def digest_of(rig: Rig, version: int) -> str:
    return weights_digest([rig.policies.versions[version].path / "model.safetensors"])


async def exchange(rig: Rig, version: int, label: str = "0") -> None:
    """As another user of the machine could: the weights of `version` under another label, past the gateway."""
    path = str(rig.policies.versions[version].path)
    async with aiohttp.ClientSession() as http:
        body = {"model_path": path, "weight_version": label}
        async with http.post(f"{rig.proxy.target}/update_weights_from_disk", json=body) as answer:
            assert answer.status == 200


async def reported(rig: Rig) -> dict[str, Any]:
    """The server's statements about its weights."""
    async with aiohttp.ClientSession() as http, http.get(f"{rig.proxy.target}/model_info") as answer:
        found = await answer.json()
    assert isinstance(found, dict)
    return found


async def ask(rig: Rig, session: OpenSession) -> None:
    async with NativeLlm(rig.gateway.url, session.token) as llm:
        await llm.complete([{"role": "user", "content": "oak"}])


async def synced_again(rig: Rig, logs: list[Any]) -> str:
    """Wait until the server has the weights of version 0 again and serves; return what was logged about the others."""
    server = rig.gateway.pool.servers[0]

    async def again() -> bool:
        return server.ready and (await reported(rig))["weights_digest"] == digest_of(rig, 0)

    await eventually(again)
    (line,) = [line for line in logs if line["event"] == "server.invalidated"]
    assert line["server"] == server.url and server.url in line["reason"]
    return str(line["reason"])


async def test_weights_that_were_exchanged_under_their_version_are_found_by_the_watch_and_exchanged_back(
    open_at: OpenRig,
) -> None:
    async with open_at(canary_interval_s=0.0) as rig:
        await at_version_0(rig)
        query = "SELECT 1 FROM rollout_servers WHERE state = 'ready' AND weights_digest = :digest"
        await eventually(lambda: rig.rows(query, digest=digest_of(rig, 0)))
        with capture_logs() as logs:
            await exchange(rig, 1)
            reason = await synced_again(rig, logs)
        assert f"expected digest '{digest_of(rig, 0)}', found '{digest_of(rig, 1)}'" in reason
        _, session = await rig.open()
        await ask(rig, session)
        assert {span["weights_digest"] for span in rig.proxy.answers[-1]["meta_info"]["weight_versions"]} == {
            digest_of(rig, 0)
        }


async def test_a_reply_of_other_weights_is_refused_at_once_and_never_recorded_under_their_version(
    open_at: OpenRig, tmp_path: Path
) -> None:
    """No watch and no canary looks: only the reply shows it."""
    async with open_at(**UNWATCHED) as rig:
        await at_version_0(rig)
        rollout, session = await rig.open()
        rig.proxy.stops = [20]
        with capture_logs() as logs:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask, rig, session)
                await eventually(lambda: rig.proxy.standing)
                await exchange(rig, 1)
                rig.proxy.go_on()
            reason = await synced_again(rig, logs)
        assert f"expected digest '{digest_of(rig, 0)}', found '{digest_of(rig, 1)}'" in reason
        first, wrong, right = rig.proxy.answers
        digests = [answer["meta_info"]["weights_digest"] for answer in (first, wrong, right)]
        assert digests == [digest_of(rig, 0), digest_of(rig, 1), digest_of(rig, 0)]
        (step,) = await rig.stored(rollout, 1)
        assert step.action.tolist() == first["output_ids"] + right["output_ids"]
        assert tuple(map(tuple, step.spans)) == ((0, 0, len(step.action)),)
        assert wrong["output_ids"] and (await rig.seal(rollout)).marks == ()
        (row,) = await rig.rows("SELECT weights FROM steps WHERE rollout_id = :rollout", rollout=rollout)
        assert row.weights == [f"0:{digest_of(rig, 0)}"]
        (tmp_path / rig.run).symlink_to(rig.policies.versions[0].path.parent)
        only = "steps are of the published weights"
        report = await no_violations(rig.engine, rig.run, tmp_path, only=[only])
        assert [check.examined for check in report.checks if check.name == only] == [1]


async def test_a_server_that_tells_no_digest_is_watched_by_the_directory_that_it_read(
    open_at: OpenRig,
) -> None:
    """As SGLang."""
    async with open_at(canary_interval_s=0.0) as rig:
        rig.proxy.untold = ("weights_digest",)
        await at_version_0(rig)
        with capture_logs() as logs:
            await exchange(rig, 1)
            reason = await synced_again(rig, logs)
        paths = [rig.policies.versions[version].path for version in (0, 1)]
        assert f"expected directory '{paths[0]}', found '{paths[1]}'" in reason


async def test_weights_that_only_their_logprobs_betray_are_found_by_the_canary_between_syncs(
    open_at: OpenRig,
) -> None:
    async with open_at(canary_interval_s=0.2) as rig:
        rig.proxy.untold = ("weights_digest", "model_path")
        await at_version_0(rig)
        server, openings = rig.gateway.pool.servers[0], rig.gateway.pool.servers[0].openings
        canaries = rig.proxy.seen.count("canary")
        await eventually(lambda: rig.proxy.seen.count("canary") > canaries + 2)
        assert server.openings == openings, "it serves on while it is checked"
        with capture_logs() as logs:
            await exchange(rig, 1)
            reason = await synced_again(rig, logs)
        assert "expected the canary's logprobs to differ by at most 0.02" in reason


async def test_exchanged_weights_are_found_also_while_the_newest_version_cannot_be_loaded(
    open_at: OpenRig,
) -> None:
    async with open_at(canary_interval_s=0.2, retry_s=NEVER_S) as rig:
        rig.proxy.untold = ("weights_digest", "model_path")
        await at_version_0(rig)
        await rig.publish(1, manifest_sha="0" * 64)
        await until_row(rig, "SELECT 1 FROM rollout_servers WHERE detail LIKE '%not the published%'")
        server = rig.gateway.pool.servers[0]
        assert server.ready and server.version == 0
        await exchange(rig, 1)
        await eventually(lambda: not server.ready)


async def test_a_server_without_the_directory_gets_weights_that_only_the_canary_misses_from_a_sender_again(
    open_at: OpenRig,
) -> None:
    """As SGLang on another host: it tells no digest, and its directory says nothing about weights that were sent."""
    async with open_at(transport="distributed", canary_interval_s=0.2) as rig:
        rig.proxy.untold = ("weights_digest",)
        refusal = b'{"success":false,"message":"no such directory","num_paused_requests":0}'
        rig.proxy.odd["/update_weights_from_disk"] = (400, refusal)
        await at_version_0(rig)
        del rig.proxy.seen[:]
        with capture_logs() as logs:
            await exchange(rig, 1)
            reason = await synced_again(rig, logs)
        assert "expected the canary's logprobs to differ by at most 0.02" in reason
        assert "/update_weights_from_distributed" in rig.proxy.seen
        assert not [line for line in logs if line["event"] == "sync.failed"]


async def test_a_server_that_keeps_weights_which_failed_the_canary_serves_nothing(open_at: OpenRig) -> None:
    async with open_at(**UNWATCHED) as rig:
        rig.proxy.untold = ("weights_digest", "model_path")
        await at_version_0(rig)
        server, openings = rig.gateway.pool.servers[0], rig.gateway.pool.servers[0].openings
        rig.proxy.odd["/update_weights_from_disk"] = (400, b'{"success":false,"message":"disk error"}')
        with capture_logs() as logs:
            await exchange(rig, 1, "1")
            await rig.publish(
                1, path=rig.policies.versions[0].path, manifest_sha=rig.policies.versions[0].manifest_sha
            )
            await eventually(lambda: [line for line in logs if line["event"] == "sync.failed"])
        assert not server.ready and server.openings == openings


async def test_a_sync_does_not_wait_for_a_canary_between_syncs(open_at: OpenRig) -> None:
    async with open_at(canary_interval_s=0.1) as rig:
        await at_version_0(rig)
        released, canaries = anyio.Event(), rig.proxy.seen.count("canary")
        rig.proxy.held["/generate"] = released
        await eventually(lambda: rig.proxy.seen.count("canary") > canaries)
        await rig.publish(1)
        await eventually(lambda: "/update_weights_from_disk" in rig.proxy.seen[-3:])
        released.set()
        server = rig.gateway.pool.servers[0]
        await eventually(lambda: server.version == 1 and server.ready)


async def test_without_an_interval_no_canary_runs_between_syncs(open_at: OpenRig) -> None:
    async with open_at(canary_interval_s=0.0) as rig:
        await at_version_0(rig)
        canaries, looks = rig.proxy.seen.count("canary"), rig.proxy.seen.count("/model_info")
        await eventually(lambda: rig.proxy.seen.count("/model_info") > looks + 5)
        assert rig.proxy.seen.count("canary") == canaries


async def test_weights_that_were_exchanged_while_no_gateway_looked_are_exchanged_back_by_the_next_one(
    open_at: OpenRig,
) -> None:
    async with open_at(**UNWATCHED) as rig:
        await at_version_0(rig)
        await rig.stop_gateway()
        del rig.proxy.seen[:]
        async with rig.another_gateway() as (gateway, _):
            await eventually(lambda: gateway.pool.servers[0].ready)
        assert "/update_weights_from_disk" not in rig.proxy.seen, "it still had its weights"
        await exchange(rig, 1)
        async with rig.another_gateway() as (gateway, _):
            await eventually(lambda: gateway.pool.servers[0].ready)
            assert (await reported(rig))["weights_digest"] == digest_of(rig, 0)
