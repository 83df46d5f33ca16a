"""One run on fifteen hosts, with the faults that need several hosts. Each test starts where the previous one ended. Two orchestrators are at
work all the time."""

import hashlib
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from orchestrator.audit import audit
from orchestrator.audit.i3_external_record import GENERATED, RECEIVED
from orchestrator.audit.i5_leases import RENEWED, TAKEN_BACK
from orchestrator.audit.statement import NOT_YET
from orchestrator.deploy.cluster.measured import (
    predicted_against,
    rounds,
    span,
    taking_turns,
)
from orchestrator.deploy.cluster.size import plan_of_config
from tests.e2e.stack_rig import until
from tests.hosts.test_bus import MAX_S, step
from tests.hosts.world import SCALE, SERVER, World
from tests.violations import command_found_nothing, nothing_found
from tests.waiting import stays_true_for

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300), pytest.mark.tier("hosts")]

CUT_S = 60.0  # not scaled: five times the value that the run's own durations give
BACK_S = 60.0 / SCALE
BOTH = ("orch1", "orch2")
WORK = ('"group.concluded"', '"rollout.reported"')
NEAR = 0.2
# Predicted from the same span, the seconds of a batch always equal the measured ones, and tokens follow steps: neither would prove anything.
HELD_AGAINST = (
    "groups/min",
    "steps/s",
    "slots at work",
    "trainer at work",
)
SO = "so the trainer ends; nothing was saved over, and its next start goes on from the last commit"
HELD = "select count(*) from rollouts where run_id = :run and state in ('running', 'verifying') and lease_owner like :owner"
STANDING = "select rollout_id, attempt, lease_epoch from rollouts where run_id = :run and state in ('running', 'verifying')"
UNDER_WAY = ("queued", "running")
SLOW = """select count(*) from rollouts r join groups g using (group_id)
 where r.run_id = :run and r.state = 'verifying' and r.lease_owner like :owner and g.submission = any(:slow)"""
STANDS = "select rollout_id, state, attempt, lease_epoch from rollouts where run_id = :run and rollout_id = any(:ids)"


@contextmanager
def within(bound_s: float, what: str) -> Iterator[None]:
    """Print the time taken and the bound that the guide names. The clock reports: what is awaited inside judges, with a patience of its own."""
    began = time.monotonic()
    yield
    took_s = time.monotonic() - began
    print(f"{what}: {took_s:.1f} s of {bound_s:g} s{'' if took_s <= bound_s else ', MISSED'}")


def done(world: World) -> dict[str, int]:
    """How many conclusions and intakes each orchestrator has logged."""
    logs = {name: world.log_text(name, "orchestrator") for name in BOTH}
    return {name: sum(text.count(word) for word in WORK) for name, text in logs.items()}


async def both_at_work(world: World) -> None:
    """From now on each orchestrator does something, and every started process still runs."""
    before = done(world)

    def more() -> bool:
        return all(now > before[name] for name, now in done(world).items())

    with within(40, "both orchestrators are at work"):
        await until(more, "both orchestrators conclude groups or take in results", 40)
    world.all_alive()


async def test_the_loop_trains_over_hosts_with_two_ranks_and_two_orchestrators(world: World) -> None:
    with within(200, "two batches are trained"):
        await world.trains(200, batches=2)
    await both_at_work(world)
    for name in ("gate1", "gate2"):
        assert '"session.opened"' in world.log_text(name, "gateway"), f"no session uses {name}"
    assert '"ranks.joined"' in world.log_text("train1", "trainer")


@pytest.mark.timeout(420)  # batches are waited for 280 s, then three predictions are rehearsed
async def test_what_size_predicts_of_the_undisturbed_run_is_within_a_fifth_of_what_it_did(
    world: World,
) -> None:
    """From a span's seconds of work and of waiting, the throughputs of the same span. Its halves are shown, but are too short on a
    machine that does other work too."""
    queue = plan_of_config(world.config).queue
    first = await world.seen.batches()
    last = first + 4 * rounds(queue)
    with within(280, f"{last + 1 - first} batches are trained"):
        await world.seen.until_batches(last + 1, 280)
    async with world.seen.engine.connect() as connection:
        whole = await span(connection, world.seen.run_id, first, last)
        halves = await taking_turns(connection, world.seen.run_id, queue, first, last)
        for one, other in (halves, halves[::-1], (whole, whole)):
            found = await predicted_against(
                connection, world.seen.run_id, world.config, calibrate=one, against=other
            )
            print(*found, sep="\n")
    for held in found:
        if held.name in HELD_AGAINST:
            assert held.predicted == pytest.approx(held.measured, rel=NEAR), found
    await both_at_work(world)


async def test_publishing_goes_on_after_the_leader_of_a_stream_died(world: World) -> None:
    leader = await world.nats.leader("STEPS")
    assert leader is not None
    leader.kill("nats")
    # The bound of the median is test_bus's: servers may need a second round to choose.
    with within(MAX_S, f"publishing goes on after {leader.name}, the leader of STEPS, died"):
        await world.seen.bus.publish(step(0))  # of a run that does not exist: it has no reader
    with within(40, "rollouts are verified again"):
        await world.progress(40, rollouts=5)
    world.nats.start(leader)

    async def whole() -> bool:
        return await world.nats.replicas("STEPS") == 3

    await until(whole, f"{leader.name} has all of STEPS again", 60)
    await both_at_work(world)


def stale(world: World) -> set[tuple[int, int, int]]:
    """Results and verdicts that the orchestrators refused: (rollout, attempt, epoch)."""
    found = set()
    for name in BOTH:
        for line in world.log_text(name, "orchestrator").splitlines():
            if '"results.stale"' in line or '"verdicts.stale"' in line:
                event: dict[str, Any] = json.loads(line)
                found.add((event["rollout"], event["attempt"], event["epoch"]))
    return found


async def test_a_runner_whose_host_was_cut_off_returns_and_what_its_zombies_say_is_refused(
    world: World,
) -> None:
    host, owner = world.hosts["run1"], "run1:%"

    async def verifies() -> bool:
        return bool(await world.seen.value(SLOW, owner=owner, slow=world.slow))

    await until(verifies, "run1 verifies something that takes seconds", 60)
    rows = await world.rows(f"{STANDING} and lease_owner like :owner", owner=owner)
    zombies = {(row.rollout_id, row.attempt, row.lease_epoch) for row in rows}
    host.cut_off()
    async with anyio.create_task_group() as group:

        async def others() -> None:
            with within(CUT_S + 30, "the other runner continues"):
                await world.progress(CUT_S + 30, rollouts=5)

        group.start_soon(others)

        def lives() -> bool:
            return host.alive("runner") and host.alive("verifier")

        await stays_true_for(CUT_S, lives, every_s=0.2)

        async def taken_back() -> bool:
            return bool(await world.seen.value(HELD, owner=owner) == 0)

        with within(BACK_S, "everything is taken back from it"):
            await until(taken_back, "run1 holds nothing", BACK_S)
        counted = await world.counted("results_stale", "verdicts_stale")
        host.plug_in()
    with within(45, "what its zombies say is refused and counted"):

        def refused() -> bool:
            return bool(zombies & stale(world))

        await until(refused, "a result or verdict of a lease that was taken back is refused", 45)
        assert await world.counted("results_stale", "verdicts_stale") > counted
    with within(60, "it is at work again"):

        async def at_work() -> bool:
            return bool(await world.seen.value(HELD, owner=owner))

        await until(at_work, "run1 holds a lease again", 60)
    await both_at_work(world)


def opened(world: World, gate: str) -> set[tuple[int, int, int]]:
    """Sessions that a gateway opened: (rollout, attempt, epoch)."""
    found = set()
    for line in world.log_text(gate, "gateway").splitlines():
        if '"session.opened"' in line:
            event: dict[str, Any] = json.loads(line)
            found.add((event["rollout"], event["attempt"], event["epoch"]))
    return found


async def test_the_sessions_of_a_gateway_that_dies_move_to_the_other_one(world: World) -> None:
    async def running(gate: str) -> dict[int, tuple[int, int]]:
        mine = opened(world, gate)
        rows = await world.rows(STANDS, ids=[rollout for rollout, _, _ in mine])
        return {
            row.rollout_id: (row.attempt, row.lease_epoch)
            for row in rows
            if row.state == "running" and (row.rollout_id, row.attempt, row.lease_epoch) in mine
        }

    async def several() -> bool:
        return len(await running("gate1")) >= 2

    await until(several, "gate1 has sessions of running attempts", 60)
    orphans = await running("gate1")
    world.hosts["gate1"].kill("gateway")

    async def moved() -> bool:
        """Each has ended its attempt, or a later attempt has its session at the other gateway."""
        elsewhere = {key[0]: key[1:] for key in sorted(opened(world, "gate2"))}
        rows = await world.rows(STANDS, ids=list(orphans))
        there = {rollout for rollout, was in orphans.items() if elsewhere.get(rollout, (0, 0)) > was}
        ended = {row.rollout_id for row in rows if row.state not in UNDER_WAY}
        return bool(there) and there | ended == set(orphans)

    with within(45, f"{len(orphans)} sessions left the dead gateway"):
        await until(moved, "attempts of gate1 go on at gate2", 45)
    with within(30, "rollouts are verified"):
        await world.progress(30, rollouts=5)
    before = len(opened(world, "gate1"))
    world.start("gate1", "gateway")

    async def used() -> bool:
        return len(opened(world, "gate1")) > before

    with within(60, "the gateway that came back is used again"):
        await until(used, "gate1 opens sessions", 60)
    await both_at_work(world)


def files(place: Path) -> dict[str, str]:
    """sha256 of every file."""
    return {
        path.relative_to(place).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(place.rglob("*"))
        if path.is_file()
    }


async def test_a_trainer_rank_that_dies_ends_the_other_cleanly_and_the_batch_is_repeated_bit_for_bit(
    world: World,
) -> None:
    claimed = world.log_text("train1", "trainer").count('"batch.claimed"')
    await world.says("train1", "trainer", '"batch.claimed"', 90, times=claimed + 1)
    leading = world.let_end("train1", "trainer")
    world.hosts["train2"].kill("trainer")
    with within(20, "rank 0 ends after rank 1 was killed"):
        assert await world.hosts["train1"].ends(leading, 20) == 1
    assert SO in world.log_text("train1", "trainer").splitlines()[-1], "one sentence, no stack trace"
    # The next life writes the whole version, and dies before it announces the version.
    points = world.directory / "points"
    points.mkdir()
    (points / "trainer.commit.before").write_text("exit")
    world.start("train1", "trainer", PENSTOCK_FAILPOINTS=str(points))
    world.start("train2", "trainer")
    leading, following = world.let_end("train1", "trainer"), world.let_end("train2", "trainer")
    assert await world.hosts["train1"].ends(leading, 120) == -9
    with within(20, "rank 1 ends after rank 0 was killed"):
        assert await world.hosts["train2"].ends(following, 20) == 1
    version = await world.newest() + 1
    place = world.directory / "shared" / "policies" / "hosts" / f"version-{version:06d}"
    written = files(place)
    assert "manifest.json" in written and any(name.startswith("trainer/shard-") for name in written), written
    for name in ("train1", "train2"):
        world.start(name, "trainer")

    async def published() -> bool:
        return await world.newest() >= version

    with within(120, "the batch is trained once more"):
        await until(published, f"version {version} is published", 120)
    assert files(place) == written, "what was trained again is the same bit for bit"
    row = (
        await world.rows(
            "select manifest_sha from policy_versions where run_id = :run and version = :v", v=version
        )
    )[0]
    assert row.manifest_sha == written["manifest.json"]
    await both_at_work(world)


async def test_a_rollout_server_that_joins_late_serves_only_after_it_has_the_current_version(
    world: World,
) -> None:
    url = f"http://{world.hosts['serve2'].address}:{SERVER}"
    newest = await world.newest()
    assert newest > 0
    world.start("serve2", "server")
    states: list[tuple[str, int | None]] = []

    async def serves() -> bool:
        rows = await world.rows(
            "select state, version from rollout_servers where run_id = :run and url = :url", url=url
        )
        if rows and (not states or states[-1] != (rows[0].state, rows[0].version)):
            states.append((rows[0].state, rows[0].version))
        return bool(states) and states[-1][0] == "ready"

    with within(60, "a late rollout server serves"):
        await until(serves, "serve2 is ready", 60)
    assert all(state == "ready" or version is None for state, version in states[:-1]), states
    assert states[-1][1] is not None and states[-1][1] >= newest, states
    syncs = [
        json.loads(line)
        for name in ("gate1", "gate2")
        for line in world.log_text(name, "gateway").splitlines()
        if '"sync.done"' in line and url in line
    ]
    assert syncs and min(sync["version"] for sync in syncs) >= newest, "no older version ever served there"
    await world.trains(120)
    await both_at_work(world)


async def audited(world: World, *, ended: bool) -> set[str]:
    """Expect no violation; returns the checks that were skipped, except those that only an ended run can pass.

    `penstock audit` knows one host's processes and sandboxes. All of these are of one machine, so everything can be checked here."""
    report = await audit(
        world.seen.engine,
        world.seen.run,
        world.directory / "shared" / "policies",
        world.directory / "ledger.txt",
        alive=frozenset(process for host in world.hosts.values() for process in host.processes),
        sandbox_root=world.sandboxes,
    )
    await nothing_found(world.seen.engine, report)
    skipped = {check.name: check.skipped for check in report.checks if check.skipped}
    early = {name for name, why in skipped.items() if why.endswith(NOT_YET)}
    assert bool(early) is not ended, early
    return set(skipped) - early


async def test_at_the_end_nothing_is_missing_and_the_audit_finds_no_violation(world: World) -> None:
    unwitnessed = {GENERATED, RECEIVED}
    assert await audited(world, ended=False) == unwitnessed
    await world.feeder.stop()
    ended = world.penstock("orch1", "run", "end", "--reason", "the tier is over")
    assert ended.returncode == 0, ended.stderr
    await world.seen.until_ended(60)
    await world.seen.nothing_lost()
    assert await audited(world, ended=True) == unwitnessed | {
        TAKEN_BACK,
        RENEWED,
    }  # leases are not renewed any more
    command_found_nothing(
        world.penstock("orch1", "audit", "--json", "--ledger", str(world.directory / "ledger.txt"))
    )
    print(f"{await world.seen.batches()} batches, {len(world.seen.ledger)} submissions, 0 violations")
