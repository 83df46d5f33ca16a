"""Runners, verifier runners and gateways get impossible work and announcements among good ones: they live, and do the good work."""

import secrets
from pathlib import Path

import anyio
import pytest

from orchestrator.bus import subjects
from orchestrator.bus.base import Delivery, Outgoing
from orchestrator.contracts.events import RolloutAssigned, VerifyAssigned, encode
from orchestrator.deploy.embedded.nats import EmbeddedNats
from orchestrator.roles.dead_letters import store_dead_letters
from orchestrator.runner import assignments
from orchestrator.tasks.validate_results import check_assignment
from tests import builders
from tests.contract.bus_rig import letters_of
from tests.integration.pool.rig import context_of, ended, report, running, small
from tests.integration.runner.rig import a_task, open_rig, runs, says

pytestmark = [pytest.mark.anyio, pytest.mark.services]

DEEP = b'{"later": ' + b"[" * 9000 + b"]" * 9000 + b"}"


async def test_work_that_cannot_be_is_refused_with_its_reason_and_the_rest_is_done(
    database_url: str, nats_server: EmbeddedNats, directory: Path, model: Path
) -> None:
    async with open_rig(database_url, nats_server.url, directory, model, lease_ttl_s=15.0) as rig:
        run = rig.context.run
        forged: list[bytes] = [b"", b"\xff\xfe", b"[]", b"null", DEEP]
        for kind in (RolloutAssigned, VerifyAssigned):
            for values in (
                {"run": "another", "rollout": 1, "epoch": 1},
                {"run": run, "rollout": 2**70, "epoch": 1},
                {"run": run, "rollout": -1, "epoch": 1},
                {"run": run, "rollout": 1, "epoch": 2**40},
                {"run": run, "rollout": 1, "epoch": 0},
            ):
                forged.append(encode(kind(attempt=1, **values)))  # type: ignore[arg-type]
        work = ((subjects.work_rollout, "RolloutAssigned/1"), (subjects.work_verify, "VerifyAssigned/1"))
        for subject, schema in work:
            for body in forged:
                where = subject(run, subjects.POOL_DEFAULT)
                await rig.context.bus.publish(
                    Outgoing(subject=where, msg_id=secrets.token_hex(8), schema=schema, body=body)
                )
        for body in (b"", b"\xff", DEEP, b'{"version": -1}', b'{"run": 7}'):
            await rig.context.bus.publish(
                Outgoing(
                    subject=subjects.policy(run),
                    msg_id=secrets.token_hex(8),
                    schema="PolicyPublished/1",
                    body=body,
                )
            )
        rig.tasks.start_soon(store_dead_letters, rig.context)
        rig.start_runner()
        rig.start_verifier()
        rollout = await rig.submit(a_task(runs("echo done > out"), says("done")), pool="default")
        assert await rig.verdict(rollout) == 1.0
        refused: list[Delivery] = []
        async with rig.context.bus.subscribe(letters_of("WORK")) as arriving:
            with anyio.fail_after(60):
                while len(refused) < 2 * len(forged):
                    found = await arriving.take(8)
                    refused += [
                        each for each in found if run.encode() in each.body or f".{run}." in str(each.headers)
                    ]
        reasons = [each.headers[subjects.HEADER_DEAD_REASON] for each in refused]
        for part in (
            "RolloutAssigned: it is work of the run 'another', on the subject of",
            "VerifyAssigned: it is work of the run 'another', on the subject of",
            "its content is nested too deeply",
            f"RolloutAssigned: rollout {2**70}, attempt 1, epoch 1 does not exist",
            "RolloutAssigned: rollout -1, attempt 1, epoch 1 does not exist",
            "VerifyAssigned: rollout 1, attempt 1, epoch 0 does not exist",
        ):
            assert any(part in reason for reason in reasons), (part, reasons)
        await rig.until(
            "SELECT count(*) AS n FROM dead_letters WHERE run_id = :run AND stream = 'WORK'",
            lambda row: row.n == 2 * len(forged),
            run=rig.context.run_id,
        )
        await rig.counted("work_refused")
        (counted,) = await rig.rows("SELECT count(*) AS n FROM attempts")
        assert counted.n == 1, "forged work was leased"


async def test_work_that_names_a_rollout_of_another_run_is_stale_and_changes_nothing(
    database_url: str, nats_server: EmbeddedNats, directory: Path, model: Path
) -> None:
    async with open_rig(database_url, nats_server.url, directory, model, lease_ttl_s=15.0) as rig:
        run, engine = rig.context.run, rig.context.engine
        theirs = await builders.make_run(engine, small("theirs"))
        [reported, _] = await running(engine, theirs, name="to verify")
        assert await report(context_of(engine, theirs), ended("theirs", reported, [], digest=""))
        [group] = await builders.accepted(engine, theirs, ["to run"], size=1)
        await builders.dispatch(engine, theirs)
        state = "SELECT r::text FROM rollouts r WHERE run_id = :run ORDER BY rollout_id"
        before = await rig.rows(state, run=theirs.run_id)
        queued = await rig.rows("SELECT rollout_id FROM rollouts WHERE group_id = :id", id=group)
        for where, event in (
            (
                subjects.work_rollout(run, subjects.POOL_DEFAULT),
                RolloutAssigned(run=run, rollout=queued[0].rollout_id, attempt=1, epoch=1),
            ),
            (
                subjects.work_verify(run, subjects.POOL_DEFAULT),
                VerifyAssigned(run=run, rollout=reported.rollout_id, attempt=1, epoch=2),
            ),
        ):
            await rig.context.bus.publish(
                Outgoing(
                    subject=where, msg_id=secrets.token_hex(8), schema=event.schema(), body=encode(event)
                )
            )
        rig.start_runner()
        rig.start_verifier()
        await rig.until(
            "SELECT coalesce(sum(value), 0) AS n FROM counters WHERE run_id = :run AND name = 'assignments_stale'",
            lambda row: row.n == 2,
            run=rig.context.run_id,
        )
        assert await rig.rows(state, run=theirs.run_id) == before


async def test_work_whose_dead_letter_barely_fits_or_that_our_code_cannot_handle_ends_only_itself(
    database_url: str,
    nats_server: EmbeddedNats,
    directory: Path,
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with open_rig(database_url, nats_server.url, directory, model, lease_ttl_s=15.0) as rig:
        run, bus = rig.context.run, rig.context.bus

        def refuses_seven(event: RolloutAssigned | VerifyAssigned, of: str) -> None:
            if event.rollout == 7:
                raise KeyError("its fault")
            check_assignment(event, of)

        monkeypatch.setattr(assignments, "check_assignment", refuses_seven)
        long_schema = "S" * (50 << 10)
        bodies = {
            long_schema: b"x" * (bus.max_payload - (51 << 10)),
            "RolloutAssigned/1": encode(RolloutAssigned(run=run, rollout=7, attempt=1, epoch=1)),
        }
        for schema, body in bodies.items():
            await bus.publish(
                Outgoing(
                    subject=subjects.work_rollout(run), msg_id=secrets.token_hex(8), schema=schema, body=body
                )
            )
        rig.tasks.start_soon(store_dead_letters, rig.context)
        rig.start_runner()
        rig.start_verifier()
        for _ in range(2):
            rollout = await rig.submit(a_task(runs("echo done > out"), says("done")), pool="default")
            assert await rig.verdict(rollout) == 1.0
        await rig.until(
            "SELECT count(*) AS n FROM dead_letters WHERE run_id = :run AND stream = 'WORK'",
            lambda row: row.n == len(bodies),
            run=rig.context.run_id,
        )
        letters = await rig.rows("SELECT reason, schema FROM dead_letters ORDER BY length(body)")
    assert "the last time with KeyError" in letters[0].reason
    assert letters[1].reason.startswith("unknown schema 'SSS") and len(letters[1].schema) == 256
