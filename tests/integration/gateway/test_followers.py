"""A weight sync as seen by a gateway that does not own the rollout server and does not know the new version yet."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from sqlalchemy import text

from orchestrator.gateway.server import Gateway
from orchestrator.gateway.servers import canary
from orchestrator.gateway_client import GatewayAdmin, NativeLlm, OpenSession, SessionBudget
from orchestrator.pool.engine import Role, open_engine
from tests.integration.gateway.gateway_process import settings_in
from tests.integration.gateway.rig import OpenRig, Rig
from tests.waiting import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("gateway")]
POLICY_VERSIONS = 2

TOKENS = 1000  # the sync comes before its end
# It seldom reads the owner's row, and never polls for a version by itself.
UNAWARE = {"probe_s": 2.5, "version_poll_interval_s": 600.0, "drain_s": 0.1, "still_s": 1.0}


@pytest.fixture
async def rig(open_here: OpenRig) -> AsyncIterator[Rig]:
    """Its gateway owns the server, and finds new versions in the data pool. Calls take a while: the likeliest tokens never end."""
    async with open_here(
        sections={"servers": {"version_poll_interval_s": 0.05, "still_s": 1.0}},
        max_new_tokens=TOKENS,
        temperature=0.0,
    ) as rig:
        await rig.publish(0)
        await eventually(lambda: rig.gateway.pool.servers[0].version == 0)
        rig.start_ingest()
        yield rig


@pytest.fixture
async def follower(rig: Rig, tmp_path: Path) -> AsyncIterator[tuple[Gateway, GatewayAdmin]]:
    """Another gateway of the run, before the same server."""
    given = rig.settings.config
    config = given.model_copy(update={"servers": given.servers.model_copy(update=UNAWARE)})
    settings = replace(settings_in(rig, tmp_path / "two"), config=config)
    async with (
        open_engine(rig.settings.database_url, Role.GATEWAY) as engine,
        Gateway.open(settings, engine, rig.context.bus, rig.run_id) as gateway,
        GatewayAdmin(gateway.url, gateway.admin_secret) as admin,
    ):
        await eventually(lambda: gateway.pool.servers[0].ready)
        yield gateway, admin


async def publish_unsaid(rig: Rig, version: int) -> None:
    """The trainer's commit, before the bus announces it."""
    made = rig.policies.versions[version]
    async with rig.engine.begin() as connection:
        await connection.execute(
            text(
                "INSERT INTO policy_versions (run_id, version, path, manifest_sha)"
                " VALUES (:run, :version, :path, :sha)"
            ),
            {"run": rig.run_id, "version": version, "path": str(made.path), "sha": made.manifest_sha},
        )


async def opened(rig: Rig, admin: GatewayAdmin) -> tuple[int, OpenSession]:
    rollout = await rig.new_rollout()
    return rollout, await admin.open_session(
        run=rig.run, rollout=rollout, attempt=1, epoch=1, budget=SessionBudget(max_turns=20, max_context=2048)
    )


async def ask(gateway: Gateway, session: OpenSession, tokens: int = TOKENS) -> None:
    async with NativeLlm(gateway.url, session.token) as llm:
        await llm.complete([{"role": "user", "content": "oak"}], max_tokens=tokens)


async def test_a_call_that_another_gateways_sync_breaks_off_goes_on_with_the_new_weights_and_trains(
    rig: Rig, follower: tuple[Gateway, GatewayAdmin]
) -> None:
    gateway, admin = follower
    rollout, session = await opened(rig, admin)
    rig.proxy.stops = [20]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask, gateway, session)
        await eventually(lambda: rig.proxy.standing)
        await publish_unsaid(rig, 1)
    seal = await admin.seal(rollout=rollout, attempt=1, epoch=1)
    assert (seal.versions, seal.marks) == ((0, 1), ())
    (step,) = await rig.stored(rollout, 1)
    first, second = rig.proxy.answers
    cut, end = len(first["output_ids"]), len(step.action)
    assert 20 == cut < end and tuple(map(tuple, step.spans)) == ((0, 0, cut), (1, cut, end))
    one, two = rig.proxy.requests
    assert two["input_ids"] == one["input_ids"] + first["output_ids"] and two["rid"] != one["rid"]
    assert step.action.tolist() == first["output_ids"] + second["output_ids"]


async def test_a_call_that_waited_at_the_server_through_another_gateways_sync_is_requested_again_and_trains(
    rig: Rig, follower: tuple[Gateway, GatewayAdmin]
) -> None:
    gateway, admin = follower
    (server,) = gateway.pool.servers
    rollout, session = await opened(rig, admin)
    loading = rig.proxy.held["/update_weights_from_disk"] = anyio.Event()
    del rig.proxy.seen[:]
    await publish_unsaid(rig, 1)
    await eventually(lambda: "/update_weights_from_disk" in rig.proxy.seen)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask, gateway, session, 30)
        await eventually(lambda: rig.proxy.requests or not server.ready)
        loading.set()
    seal = await admin.seal(rollout=rollout, attempt=1, epoch=1)
    assert (seal.versions, seal.marks) == ((1,), ())
    (step,) = await rig.stored(rollout, 1)
    assert step.action.tolist() == rig.proxy.answers[-1]["output_ids"] and step.spans[0].version == 1


async def test_a_call_at_a_server_whose_owner_finds_that_it_generates_nothing_is_held_here_too(
    rig: Rig, follower: tuple[Gateway, GatewayAdmin], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(canary, "QUICK_S", 1.0)
    gateway, admin = follower
    sessions = [(await opened(rig, each))[1] for each in (rig.admin, admin)]
    answers = rig.proxy.held["/generate"] = anyio.Event()
    async with anyio.create_task_group() as tasks:
        for each, session in zip((rig.gateway, gateway), sessions, strict=True):
            tasks.start_soon(ask, each, session, 8)
        servers = [each.pool.servers[0] for each in (rig.gateway, gateway)]
        await eventually(lambda: all(server.in_flight for server in servers))
        await eventually(lambda: not any(server.in_flight or server.ready for server in servers))
        del rig.proxy.held["/generate"]
        answers.set()
