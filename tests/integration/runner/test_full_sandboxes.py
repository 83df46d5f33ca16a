"""The disk under the sandboxes of a worker, full to the last byte: its work waits, nothing of it fails, and afterwards all of it is done."""

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import anyio
import pytest
from structlog.testing import capture_logs

from ops.lab.chaos import disk
from orchestrator.deploy.embedded.nats import EmbeddedNats
from orchestrator.settings.timeouts import Timeouts, use
from sandboxes.base import File, SandboxFull, SandboxSpec
from sandboxes.bubblewrap import BubblewrapProvider
from tests.integration.deploy.small_disk import directory, small_disk
from tests.integration.runner.rig import Rig, a_task, open_rig, runs, says
from tests.waiting import eventually
from trainer.policy.init import make_policy

__all__ = ["directory", "small_disk"]
pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("processes")]

CLOCK = Timeouts(sandbox_retry_s=0.05)
TASK = a_task(runs("echo done > out"), says("done"))
SLOTS = 4  # of the rig's workers
LOOKS = 3 * SLOTS  # alarms enough that every slot has looked for room again


async def counted_for_nothing(rig: Rig, rollouts: Sequence[int]) -> None:
    """All of them get the reward that they deserve, and no attempt counts as failed."""
    for rollout in rollouts:
        assert await rig.verdict(rollout) == 1.0
        ends = [row.failure_class for row in await rig.attempts(rollout)]
        assert ends == ["cancelled"] * (len(ends) - 1) + ["completed"]
    counted = {row.name: row.value for row in await rig.rows("SELECT * FROM counters")}
    assert (
        0 < counted["leases_given_back"] <= SLOTS
    )  # at most once per slot, however often it looked for room
    assert not {"scaffold_errors", "leases_expired", "leases_lost"} & counted.keys()
    assert not await rig.rows("SELECT 1 FROM rollouts WHERE verify_tries > 0 OR state = 'lost'")


async def test_while_the_sandboxes_of_a_runner_have_no_room_its_attempts_wait_and_none_is_counted(
    database_url: str,
    nats_server: EmbeddedNats,
    directory: Path,
    small_disk: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policy = make_policy(tmp_path_factory.mktemp("policy"), seed=0)
    with use(CLOCK), capture_logs() as logs:

        def alarms() -> int:
            return sum(line["event"] == "sandbox.full" for line in logs)

        async with open_rig(database_url, nats_server.url, directory, policy) as rig:
            with monkeypatch.context() as elsewhere:
                elsewhere.setattr(tempfile, "tempdir", str(small_disk))
                rig.start_runner()
                await eventually(lambda: any(line["event"] == "runner.ready" for line in logs))
            rig.start_verifier()
            disk.fill(small_disk)
            rollouts = [await rig.submit(TASK) for _ in range(SLOTS + 2)]
            await eventually(lambda: alarms() >= LOOKS)
            disk.empty(small_disk)
            await counted_for_nothing(rig, rollouts)
    assert not list(small_disk.glob("penstock-sandboxes-*/*.new"))  # nor a half-written record


async def test_while_the_sandboxes_of_a_verifier_have_no_room_it_waits_at_its_start_and_later_and_no_try_is_counted(
    database_url: str,
    nats_server: EmbeddedNats,
    directory: Path,
    small_disk: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policy = make_policy(tmp_path_factory.mktemp("policy"), seed=0)
    with use(CLOCK), capture_logs() as logs:

        def alarms() -> int:
            return sum(line["event"] == "sandbox.full" for line in logs)

        async with open_rig(database_url, nats_server.url, directory, policy) as rig:
            disk.fill(small_disk)
            with monkeypatch.context() as elsewhere:
                elsewhere.setattr(tempfile, "tempdir", str(small_disk))
                rig.start_verifier()
                await eventually(lambda: alarms() >= 2)
                disk.empty(small_disk)
                await eventually(lambda: any(line["event"] == "verifier.ready" for line in logs))
            disk.fill(small_disk)
            del logs[:]
            rig.start_runner()
            rollouts = [await rig.submit(TASK) for _ in range(SLOTS + 2)]
            await eventually(lambda: alarms() >= LOOKS)
            disk.empty(small_disk)
            await counted_for_nothing(rig, rollouts)


async def test_wherever_the_making_of_a_sandbox_runs_out_of_disk_it_says_so_in_one_sentence_and_leaves_nothing(
    directory: Path, small_disk: Path
) -> None:
    root = small_disk / "sandboxes"
    provider = BubblewrapProvider(root)
    assert await provider.problems() == ()
    spec = SandboxSpec(files={"/app/a": File(b"a"), "/tests/test.sh": File(b"true")})
    page, refused = os.sysconf("SC_PAGE_SIZE"), 0
    disk.fill(small_disk)
    with pytest.raises(SandboxFull):
        await provider.problems()
    ballast = small_disk / disk.BALLAST
    with anyio.fail_after(60):
        while True:
            assert [path.name for path in root.iterdir()] == ["reap.lock"]
            try:
                async with provider.open(spec):
                    break
            except SandboxFull as error:
                assert str(error) == (
                    f"the disk of {root} takes no sandbox (No space left on device): free space there, or set TMPDIR to another disk"
                )
            refused += 1
            os.truncate(ballast, ballast.stat().st_size - page)  # one more page of room
    assert refused >= 5, "the record, three files of /etc and two of the spec take a page each"
