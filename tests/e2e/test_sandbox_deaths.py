"""One sandbox in ten is killed: the rewards and advantages of the rollouts are those of rollouts whose sandboxes live.

Two arms of one run, so that both meet the same machine: the tasks name their arm, and a killer ends programs in one of the arms. A dead sandbox of
an agent costs a resume from the recorded steps or a new attempt; a dead sandbox of a verifier costs another verification. A score of 0 for a death
would be found: the same comparison refuses such scores (`punished`).
"""

import json
import random
import shutil
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from math import log, sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import anyio
import anyio.to_thread
import pytest

from orchestrator.contracts.events import TaskSubmitted
from orchestrator.publish import publish_tasks
from orchestrator.tasks.harbor import Task
from sandboxes import procfs
from tests.e2e.observer import PATIENCE_S, Observer, observing
from tests.e2e.stack_rig import Stack, until
from tests.e2e.worker import WAITS
from tests.violations import command_found_nothing
from tests.waiting import repeatedly

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.timeout(900), pytest.mark.tier("faults")]

GROUPS, SIZE = 12, 4  # of each arm
ONE_IN = 10
SEED = 7
# Two arms of one distribution differ by more once in 1.7 million times. Rewards are drawn from a seed (`PENSTOCK_SEED`), but of each attempt.
SIGMAS, RARELY = 5.0, 6e-7


def a_task(arm: str, number: int) -> Task:
    """Its reward lies evenly between 0.7 and 0.9, by chance: a 0 among such rewards is seen."""
    test = f"{WAITS}; mkdir -p /logs/verifier; printf '0.%03d' $((700 + RANDOM % 200)) > /logs/verifier/reward.txt\n"
    return Task.from_files(
        {
            "task.toml": b'[metadata]\ndomain = "general"\n',
            "instruction.md": f"Say {number}.".encode(),
            "environment/files/arm": arm.encode(),
            "tests/test.sh": test.encode(),
        }
    )


@dataclass(slots=True, kw_only=True)
class Killer:
    """Ends all programs of one in ten sandboxes of its arm, agents' and verifiers', in the order in which their programs begin to wait. Releases
    the programs of the others."""

    root: Path  # directory of the sandboxes
    dice: random.Random = field(default_factory=lambda: random.Random(SEED))
    seen: set[str] = field(default_factory=set)
    doomed: set[str] = field(default_factory=set)
    killed: set[str] = field(default_factory=set)
    _unlucky: int = 0
    _lot: int = 0

    async def run(self) -> None:
        await repeatedly(partial(anyio.to_thread.run_sync, self._look), every_s=0.01)

    def _look(self) -> None:
        there = {record.stem: record for record in self.root.glob("penstock-sandboxes-*/*.json")}
        for name, record in there.items():
            if name in self.seen:
                continue
            files = record.parent / name / "files"
            try:
                arm = (files / "app" / "arm").read_text()
                (files / "tmp" / "waits").stat()
            except OSError:
                continue  # its program does not wait yet, or it is gone
            self.seen.add(name)
            if arm == "deaths" and self._is_unlucky():
                self.doomed.add(name)
            else:
                (files / "tmp" / "go").touch()
        # Again, until it is gone: one program may have started another.
        for name in self.doomed & there.keys():
            # The oldest first: it carries the sandbox. If only a program inside dies, the exit code alone shows it.
            if procfs.kill(sorted(procfs.marked(procfs.MARKER, name), key=_started)):
                self.killed.add(name)

    def _is_unlucky(self) -> bool:
        """One of every ten, by lot: how many there are does not depend on chance."""
        at = self._unlucky % ONE_IN
        if at == 0:
            self._lot = self.dice.randrange(ONE_IN)
        self._unlucky += 1
        return at == self._lot


def _started(pid: int) -> int:
    found = procfs.stat(pid)
    return found.start if found is not None else 0


def differences(one: Sequence[float], other: Sequence[float]) -> list[str]:
    """Measures by which two samples of one distribution would not differ, but these do: mean, spread, and shape (Kolmogorov–Smirnov)."""
    n, m = len(one), len(other)
    found = []
    apart = abs(fmean(one) - fmean(other)) / sqrt(stdev(one) ** 2 / n + stdev(other) ** 2 / m)
    if apart > SIGMAS:
        found.append(f"means {fmean(one):.3f} and {fmean(other):.3f}")
    # The standard error of log s is at most sqrt(1/2n) for distributions with tails no longer than the normal one's.
    if abs(log(stdev(one) / stdev(other))) > SIGMAS * sqrt(1 / (2 * n) + 1 / (2 * m)):
        found.append(f"spreads {stdev(one):.3f} and {stdev(other):.3f}")
    everything = sorted({*one, *other})
    gap = max(abs(sum(x <= at for x in one) / n - sum(x <= at for x in other) / m) for at in everything)
    if gap > sqrt(-log(RARELY / 2) / 2 * (n + m) / (n * m)):
        found.append(f"shapes, by {gap:.3f}")
    return found


def centred(performances: Sequence[Sequence[float]]) -> list[float]:
    """Advantages of whole groups."""
    return [one - fmean(group) for group in performances for one in group]


def punished(groups: Sequence[Sequence[float]], deaths: int) -> list[list[float]]:
    """The same groups, as if this number of their rollouts had been scored 0 because a sandbox died, one after another in a random order."""
    changed = [list(group) for group in groups]
    places = [(g, m) for g, group in enumerate(groups) for m in range(len(group))]
    for g, m in random.Random(SEED).sample(places, deaths):
        changed[g][m] = 0.0
    return changed


def test_the_comparison_finds_one_zero_in_ten_and_takes_equal_distributions_for_equal() -> None:
    dice = random.Random(SEED)
    for _ in range(200):
        arms = [[[dice.uniform(0.7, 0.9) for _ in range(SIZE)] for _ in range(GROUPS)] for _ in range(2)]
        one, other = ([x for group in arm for x in group] for arm in arms)
        assert not differences(one, other) and not differences(centred(arms[0]), centred(arms[1]))
        worse = punished(arms[1], round(GROUPS * SIZE / ONE_IN))
        assert differences(one, [x for group in worse for x in group])
        assert differences(centred(arms[0]), centred(worse))


async def publish(seen: Observer) -> None:
    events = []
    for number in range(GROUPS):
        for arm in ("control", "deaths"):
            submission = f"{arm}:{number:02d}"
            event = TaskSubmitted(task=a_task(arm, number).to_message(), submission=submission)
            events.append(("general", event))
            seen.ledger.append(submission)
    answers = await publish_tasks(seen.bus, seen.run, events, timeout_s=PATIENCE_S)
    assert list(answers.values()) == [("accepted", None)] * len(events), answers


async def rewarded(seen: Observer, arm: str) -> list[list[Any]]:
    """The rows of `latest_rewards`, by group."""
    rows = await seen.rows(
        "select g.group_id, w.performance, w.advantage from latest_rewards w join rollouts r using (rollout_id)"
        " join groups g using (group_id) where g.run_id = :run and g.submission like :arm order by 1, r.member",
        arm=f"{arm}:%",
    )
    by_group: dict[int, list[Any]] = {}
    for row in rows:
        by_group.setdefault(row.group_id, []).append(row)
    return list(by_group.values())


async def test_one_sandbox_in_ten_dies_and_rewards_and_advantages_are_those_of_rollouts_whose_sandboxes_live(
    stack: Stack, model: Path
) -> None:
    place = stack.directory / "worker"
    place.mkdir()
    shutil.copy(Path(__file__).with_name("worker.py"), place)
    stack.configure(model, batches=1, lease_ttl_s=3600.0, more=f'scaffolds = {{ "{place}" = 1.0 }}\n')
    sizes = {"batch_groups": 2 * GROUPS, "capacity": 2 * GROUPS, "group_size": SIZE, "max_attempts": 6}
    # A sandbox that dies is the test's doing: it must not halt admission.
    sets = [f"queue.{key}={value}" for key, value in sizes.items()]
    sets += ["queue.breaker_rate=1.0", "rollout.verify_slots=4"]
    await stack.up(*(part for item in sets for part in ("--set", item)))
    killer = Killer(root=stack.directory / "tmp")
    async with observing(stack.home) as seen, anyio.create_task_group() as tasks:
        tasks.start_soon(killer.run)
        await publish(seen)
        await until(partial(verified, seen), "every rollout has its verdict", 4 * PATIENCE_S)
        tasks.cancel_scope.cancel()
    async with observing(stack.home, seen.ledger) as seen:
        await seen.until_ended()
        await seen.nothing_lost()
        control, deaths = await rewarded(seen, "control"), await rewarded(seen, "deaths")
        failed = await seen.rows(
            "select g.submission from groups g join rollouts r using (group_id) join ("
            "   select rollout_id, reason from resumes where run_id = :run"
            "   union all select rollout_id, reason from attempts where run_id = :run and failure_class = 'infra_failure'"
            " ) a using (rollout_id) where a.reason like 'sandbox: %'"
        )
        again = await seen.rows(
            "select reason from transitions where run_id = :run and kind = 'rollout'"
            " and from_state = 'verifying' and to_state = 'finished'"
        )
        assert await seen.value("select count(*) from rollouts where run_id = :run and state = 'lost'") == 0
        kept = "select count(distinct seq) from groups where run_id = :run and seq < :n"
        assert await seen.value(kept, n=2 * GROUPS) == 2 * GROUPS
        command_found_nothing(stack.penstock("audit", timeout_s=PATIENCE_S))
    # Deaths happened, of agents' sandboxes and of verifiers', and each was recognized as a death.
    deaths_seen = len(failed) + len(again)
    assert killer.killed == killer.doomed and len(killer.killed) >= 2 * GROUPS * SIZE // ONE_IN
    assert deaths_seen == len(killer.killed)
    assert failed and {row.submission.split(":")[0] for row in failed} == {"deaths"}
    assert [len(group) for group in (*control, *deaths)] == [SIZE] * 2 * GROUPS

    performances = [[[row.performance for row in group] for group in arm] for arm in (control, deaths)]
    flat = [[x for group in arm for x in group] for arm in performances]
    assert min(flat[1]) >= 0.7, "a dead sandbox never is a reward"
    assert differences(*flat) == []
    advantages = [[row.advantage for group in arm for row in group] for arm in (control, deaths)]
    assert differences(*advantages) == []
    worse = punished(performances[1], len(failed))
    assert differences(flat[0], [x for group in worse for x in group])
    assert differences(centred(performances[0]), centred(worse))
    print(json.dumps({"killed": len(killer.killed), "attempts": len(failed), "verifications": len(again)}))
    assert stack.signalled(signal.SIGTERM) == 0


async def verified(seen: Observer) -> bool:
    """Whether every rollout of the arms is; the run may measure the noise of its speed in a group of its own."""
    wanted = 2 * GROUPS * SIZE
    query = (
        "select count(*) from rollouts r join groups g using (group_id)"
        " where g.run_id = :run and g.purpose = 'train' and r.state = 'verified'"
    )
    return bool(await seen.value(query) == wanted)
