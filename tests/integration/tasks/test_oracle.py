"""The generated suite in real sandboxes: its solutions pass, an empty attempt and a random harness do not.

An attempt runs in one sandbox and is graded in another one, over the pristine environment plus the attempt's changes, as
in a run. Five kinds of attempts: the solution, nothing, random commands, each good and each bad trajectory.
"""

import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass

import anyio
import pytest
from scaffolds.observation import observe

from orchestrator.tasks.harbor import Task
from orchestrator.tasks.suite import FAMILIES, WORDS, SuiteTask, Trajectory, generate
from orchestrator.tasks.verdict import ANSWER_VARIABLE, REWARD_FILE, parse_reward
from sandboxes.base import AnyFile, Artifacts, File, Sandbox, SandboxSpec
from sandboxes.bubblewrap import BubblewrapProvider

pytestmark = [pytest.mark.anyio, pytest.mark.tier("tasks")]

CONCURRENCY = 8
ANSWER = "/logs/answer.txt"

HELDOUT = generate("heldout", 100, seed=0)
TRAIN = generate("train", 160, seed=0)
ONE_PER_FAMILY = list({t.family.name: t for t in generate("train", 100, seed=1)}.values())

Attempt = Callable[[Sandbox], Awaitable[str]]
"""Acts in the sandbox and returns the final message."""


@pytest.fixture
async def provider() -> AsyncIterator[BubblewrapProvider]:
    provider = BubblewrapProvider()
    assert not await provider.problems()
    yield provider


async def reward_of(provider: BubblewrapProvider, task: Task, attempt: Attempt | None) -> float:
    """Run one attempt (None: an empty one) and grade it in a fresh sandbox."""
    environment = dict(task.environment(None).files)
    answer, changed = "", None
    if attempt is not None:
        async with provider.open(SandboxSpec(files=environment)) as sandbox:
            answer = await attempt(sandbox)
            changed = await sandbox.changed()
    graded = with_artifacts(environment, changed)
    graded |= {f"/tests/{path}": file for path, file in task.tests_files().items()}
    graded[ANSWER] = File(answer.encode())
    async with provider.open(SandboxSpec(files=graded, env={ANSWER_VARIABLE: ANSWER})) as sandbox:
        ended = await sandbox.exec(["bash", "/tests/test.sh"])
        assert ended.ok and not ended.stderr, ended
        return parse_reward((await sandbox.get(REWARD_FILE)).decode()).reward


def with_artifacts(environment: dict[str, AnyFile], changed: Artifacts | None) -> dict[str, AnyFile]:
    """The pristine environment plus the files that the attempt left."""
    if changed is None:
        return dict(environment)
    kept = {path: file for path, file in environment.items() if path[len("/app/") :] not in changed.deleted}
    new = {f"/app/{path}": file for path, file in [*changed.added.items(), *changed.modified.items()]}
    return {**kept, **new}


def solve(task: Task) -> Attempt:
    async def attempt(sandbox: Sandbox) -> str:
        assert task.solution is not None
        await sandbox.put({"/solution/solve.sh": File(task.solution.encode())})
        ended = await sandbox.exec(["bash", "/solution/solve.sh"])
        assert ended.ok, ended
        return ended.stdout.decode()

    return attempt


def play(trajectory: Trajectory) -> Attempt:
    async def attempt(sandbox: Sandbox) -> str:
        seen = ""
        for turn in trajectory.turns:
            ended = await sandbox.exec(["bash", "-c", turn.command])
            seen = observe(ended.stdout, ended.stderr, ended.exit_code, lines=3)
        return seen if trajectory.answer is None else trajectory.answer

    return attempt


def random_harness(seed: int) -> Trajectory:
    """Commands that suit other tasks, then a copy of their output, `done`, a word or a number."""
    dice = random.Random(seed)
    known = [turn for t in TRAIN for trajectory in (*t.good, *t.bad) for turn in trajectory.turns]
    answers = (None, "done", dice.choice(WORDS), str(dice.randint(0, 99)), str(dice.randint(0, 12)))
    return Trajectory(tuple(dice.choices(known, k=dice.randint(1, 3))), dice.choice(answers))


@dataclass(frozen=True)
class Try:
    """One attempt at one task, and its result."""

    of: SuiteTask
    attempt: Attempt | None
    label: str


async def rewards(provider: BubblewrapProvider, tries: Sequence[Try]) -> dict[str, float]:
    """Reward by label, `CONCURRENCY` at a time."""
    found: dict[str, float] = {}
    limit = anyio.CapacityLimiter(CONCURRENCY)

    async def one(tried: Try) -> None:
        async with limit:
            found[tried.label] = await reward_of(provider, tried.of.task, tried.attempt)

    async with anyio.create_task_group() as tasks:
        for tried in tries:
            tasks.start_soon(one, tried)
    assert len(found) == len(tries)
    return found


async def test_every_solution_passes(provider: BubblewrapProvider) -> None:
    tasks = [*HELDOUT, *TRAIN]
    found = await rewards(provider, [Try(t, solve(t.task), t.task.name) for t in tasks])
    assert [name for name, reward in found.items() if reward != 1.0] == []


async def test_an_empty_attempt_fails_everywhere(provider: BubblewrapProvider) -> None:
    tasks = [*HELDOUT, *TRAIN[:80]]  # 80 in a row: every family in every phrasing
    found = await rewards(provider, [Try(t, None, t.task.name) for t in tasks])
    assert [name for name, reward in found.items() if reward != 0.0] == []


async def test_a_harness_that_acts_at_random_scores_below_5_percent(provider: BubblewrapProvider) -> None:
    tries = [Try(t, play(random_harness(i)), t.task.name) for i, t in enumerate(HELDOUT)]
    found = await rewards(provider, tries)
    assert sum(found.values()) / len(found) < 0.05


async def test_every_good_trajectory_passes_and_every_bad_one_fails(provider: BubblewrapProvider) -> None:
    assert {t.family.name for t in ONE_PER_FAMILY} == set(FAMILIES)
    tries = [
        Try(t, play(trajectory), f"{kind} {number} {t.task.instruction}")
        for t in ONE_PER_FAMILY
        for kind, trajectories in (("good", t.good), ("bad", t.bad))
        for number, trajectory in enumerate(trajectories)
    ]
    found = await rewards(provider, tries)
    wrong = [label for label, reward in found.items() if reward != float(label.startswith("good"))]
    assert wrong == []
    assert Counter(label.split()[0] for label in found)["good"] >= len(FAMILIES)
