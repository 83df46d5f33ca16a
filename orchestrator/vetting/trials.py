"""Attempts of the solution and of nothing, each verified by the task's tests, under the conditions of `orchestrator.tasks.vetting.conditions`."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import anyio

from orchestrator.probing import SMALL, Left, ProbeRun
from orchestrator.settings.sandbox import SandboxSection
from orchestrator.tasks.environment import Environment
from orchestrator.tasks.harbor import Task
from orchestrator.tasks.resources import granted
from orchestrator.tasks.sizes import read_task_toml
from orchestrator.tasks.verdict import same
from orchestrator.tasks.vetting.budget import squeezed
from orchestrator.tasks.vetting.conditions import PLAIN, Condition, in_order
from orchestrator.tasks.vetting.outcomes import Outcome
from sandboxes.base import ImageRefused, PathRefused, Provider

NOTHING: Final = Left(answer="", artifacts=())


def maximum_of(task: Task) -> float:
    """The reward of a complete work: `max_reward` of [metadata], a number above 0 up to 1; else 1."""
    given = read_task_toml(task.files["task.toml"].data.decode()).get("metadata", {}).get("max_reward")
    valid = isinstance(given, int | float) and not isinstance(given, bool) and 0 < given <= 1
    return float(given) if valid else 1.0


class Trials:
    """One task in one provider's sandboxes of the limits `section`. ValueError when the provider cannot run the task."""

    def __init__(self, task: Task, provider: Provider, *, section: SandboxSection, at_once: int = 1) -> None:
        self._slots = anyio.CapacityLimiter(at_once)
        self.task, self.provider = task, provider
        self.section = granted(section, task.settings.environment)
        self.judging = granted(section, task.settings.judging)
        self.run = ProbeRun(task, provider, section=self.section, agent_s=SMALL.cpu_s, judging=self.judging)
        self.maximum = maximum_of(task)

    async def solved(
        self,
        condition: Condition = PLAIN,
        environment: Environment | None = None,
        hide: Sequence[str] = (),
    ) -> Left:
        """The files that the solution leaves, in another environment or while files are hidden. The task must have one."""
        left = await self.run.solved(env=condition.env, environment=environment, hide=hide)
        assert left is not None
        return left

    async def outcome(
        self, left: Left, condition: Condition = PLAIN, section: SandboxSection | None = None
    ) -> Outcome:
        """The verdict on an attempt's work. `section`: other limits. ImageRefused if the tests' sandbox has no image."""
        try:
            grade = await self.run.judged(
                left,
                order=lambda tests: in_order(tests, condition.order),
                env=condition.env,
                section=section,
                seed=condition.seed,
            )
        except ImageRefused:  # says nothing about the work
            raise
        except (ValueError, PathRefused) as error:  # the work does not fit into the tests' sandbox
            return Outcome(condition=condition, reward=None, reason=str(error), agent_s=left.wall_s)
        return Outcome(
            condition=condition,
            reward=grade.reward,
            reason=grade.reason or ("" if same(grade.reward, self.maximum) else left.ended),
            agent_s=left.wall_s,
            tests_s=grade.wall_s,
        )

    async def oracle(self, conditions: Sequence[Condition]) -> list[Outcome]:
        """The solution, from the start, under each condition."""

        async def run(condition: Condition) -> Outcome:
            return await self.outcome(await self.solved(condition), condition)

        return await self._each(run, conditions)

    async def nothing(self, conditions: Sequence[Condition]) -> list[Outcome]:
        """The untouched environment under each condition."""

        return await self._each(lambda condition: self.outcome(NOTHING, condition), conditions)

    async def _each(
        self, run: Callable[[Condition], Awaitable[Outcome]], conditions: Sequence[Condition]
    ) -> list[Outcome]:
        """Outcomes in the order of the conditions."""
        found: dict[int, Outcome] = {}

        async def one(number: int, condition: Condition) -> None:
            async with self._slots:
                found[number] = await run(condition)

        async with anyio.create_task_group() as group:
            for number, condition in enumerate(conditions):
                group.start_soon(one, number, condition)
        return [found[number] for number in sorted(found)]

    async def squeezed(self) -> Outcome:
        """The solution and its tests in a sandbox without the reserve of memory, disk and processes."""
        try:
            left = await self.run.solved(section=squeezed(self.section))
        except ImageRefused:
            raise
        except (ValueError, PathRefused) as error:  # its files do not fit
            return Outcome(reward=None, reason=str(error))
        assert left is not None
        return await self.outcome(left, section=squeezed(self.judging))
