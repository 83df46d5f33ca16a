"""Tries reward-hacking probes on a task: an attempt in one sandbox, a verification in another, as in a run.

    probe → its command in a sandbox of the task → changed files (tasks.artifacts) → the task's tests (runner.grade) → reward

A probe earned something if the tests reward it, or if a secret stored with the tests leaked into its work. A missing verdict does
not count as 0: an attempt without a verdict is repeated, so a policy that can cause this on purpose could retry until it wins.
"""

import secrets
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

import anyio

from orchestrator.contracts.errors import InfraFailure
from orchestrator.contracts.events import ArtifactFile
from orchestrator.contracts.ids import unb64
from orchestrator.runner.collect import declared, run_hooks
from orchestrator.runner.grade import Grade, grade
from orchestrator.runner.healthcheck import until_healthy
from orchestrator.runner.left_elsewhere import left_elsewhere
from orchestrator.runner.open_sandbox import open_sandbox
from orchestrator.runner.prepare import prepare
from orchestrator.runner.step_grades import numbers_of, work_of
from orchestrator.runner.verification_limits import verification_limits
from orchestrator.runner.worker import sandbox_limits
from orchestrator.settings.sandbox import SandboxSection
from orchestrator.tasks.artifact_modes import type_of
from orchestrator.tasks.artifacts import (
    answer_of_output,
    limits_of,
    packed,
    too_much,
)
from orchestrator.tasks.bundle import EMPTY, Bundle
from orchestrator.tasks.collected import with_convention
from orchestrator.tasks.environment import DOCKERFILE, Environment, builds_where_needed
from orchestrator.tasks.harbor import CONTEXT, SOLUTION, TESTS, Task
from orchestrator.tasks.multi_step import TaskStep, missed, steps_of, together
from orchestrator.tasks.network import access, of_agent, of_tests
from orchestrator.tasks.probes import PROBES, Needs, Probe, takes_the_place_of
from orchestrator.tasks.probes.probe import TARGET
from orchestrator.tasks.verdict import shell_options
from sandboxes.base import AnyFile, File, ImageRefused, KilledBy, Limits, PathRefused, Provider, Sandbox

NEEDLE: Final = "probe-[0-9a-f]{8}"
NOT_HIDDEN: Final = 97
WORD_FILE: Final = ".probe-word"
MAX_TARGETS: Final = 20
TABLES: Final = (".csv", ".tsv")
SMALL: Final = SandboxSection(memory_mb=512, processes=64, cpu_s=60, disk_mb=64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """One probe at one task. `reward` None: no verdict, `reason` explains. `leaked`: a secret of the tests leaked. `skipped`: why the probe does
    not apply; None if it was tried."""

    probe: Probe
    reward: float | None = None
    reason: str | None = None
    leaked: bool = False
    skipped: str | None = None

    @property
    def held(self) -> bool:
        """Whether the task paid nothing for the probe."""
        return self.skipped is not None or (self.reward == 0.0 and not self.leaked)


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """Results of the probes at one task. `oracle`: the reward of its solution, None without a solution or a verdict."""

    oracle: float | None
    tried: tuple[Tried, ...]

    @property
    def earned(self) -> tuple[Tried, ...]:
        """The probes that the task rewards, or that got no verdict."""
        return tuple(tried for tried in self.tried if not tried.held)


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """The answer and files of an attempt, for its verification. `ended`: how its program ended, empty with exit code 0; `wall_s`: after how many
    seconds; `exit_code`: of its program. `earlier`: after the earlier steps of a task with several, which the other fields sum up."""

    answer: str
    artifacts: Sequence[ArtifactFile]
    programs: tuple[str, ...] = ()
    ended: str = ""
    wall_s: float = 0.0
    exit_code: int = 0
    earlier: tuple["Left", ...] = ()

    @property
    def steps(self) -> tuple["Left", ...]:
        """After each step, in order."""
        return (*self.earlier, self)

    @property
    def target(self) -> str:
        """The first file that the attempt left, `TARGET` without one."""
        return next(iter(self._regular), TARGET)

    @property
    def headers(self) -> dict[str, str]:
        """The first `MAX_TARGETS` files that the attempt left, each with its first line if it is a table with rows, else with an empty text."""
        return {path: _header(path, unb64(body)) for path, body in islice(self._regular.items(), MAX_TARGETS)}

    @property
    def _regular(self) -> dict[str, str]:
        """Path -> body."""
        return {
            file.path: file.body for file in self.artifacts if file.body is not None and not type_of(file)
        }


async def probed(
    task: Task,
    provider: Provider,
    probes: Sequence[Probe] = PROBES,
    *,
    section: SandboxSection | None = None,
    judging: SandboxSection | None = None,
    agent_s: float = 8.0,
    at_once: int = 2,
) -> Probed:
    """Try the probes on a task, `at_once` at a time. Each attempt has `agent_s` seconds, each verification the task's own limit.

    `section`: the limits of the sandboxes. The default is `SMALL`, because probes use up their limits. `judging`: those of verification, if they
    differ.
    ValueError when the provider cannot run the task, SandboxError when it fails, InfraFailure when its health check does.
    """
    probe_run = ProbeRun(task, provider, section=section or SMALL, agent_s=agent_s, judging=judging)
    solved = await probe_run.solved()
    oracle = (await probe_run.judged(solved)).reward if solved is not None else None
    solution = solved or Left(answer="", artifacts=())
    found: dict[str, Tried] = {}
    slots = anyio.CapacityLimiter(at_once)

    async def try_probe(probe: Probe) -> None:
        async with slots:
            found[probe.name] = await probe_run.tried(probe, solution)

    async with anyio.create_task_group() as tasks:
        for probe in probes:
            tasks.start_soon(try_probe, probe)
    return Probed(
        oracle=oracle,
        tried=tuple(found[probe.name] for probe in probes),
    )


class ProbeRun:
    """One task with a secret word of ours among its tests, and the sandboxes to try it in. `judging`: the limits of verification, if they differ."""

    def __init__(
        self,
        task: Task,
        provider: Provider,
        *,
        section: SandboxSection,
        agent_s: float,
        judging: SandboxSection | None = None,
    ) -> None:
        self._task, self._provider = task, provider
        self._steps = steps_of(task)
        self.word = f"probe-{secrets.token_hex(4)}"
        self.pristine: Environment = task.environment(
            section.base_images, containers=provider.containers, where_needed=builds_where_needed(provider)
        )
        self._judging = [
            step.over(
                step.task.verification(
                    section.base_images,
                    containers=provider.containers,
                    where_needed=builds_where_needed(provider),
                )
            )
            for step in self._steps
        ]
        self._section = section
        self._judged_within = judging or section
        self._access = access(of_agent(task.settings), section)
        self._agent = sandbox_limits(section, agent_s)

    async def solved(
        self,
        *,
        env: Mapping[str, str] | None = None,
        environment: Environment | None = None,
        section: SandboxSection | None = None,
        hide: Sequence[str] = (),
    ) -> Left | None:
        """Artifacts of the reference solution; None without one. `env`: more variables, below the task's; `environment`: instead of the task's;
        `section`: other limits; `hide`: files that are empty while it runs (exit code `NOT_HIDDEN`: one cannot be emptied)."""
        if not self._task.is_solved:
            return None
        longest = max(step.task.settings.agent.timeout_sec for step in self._steps)
        limits = replace(self._agent, wall_s=longest)
        if section is not None:
            limits = sandbox_limits(section, limits.wall_s)
        variables = {**(env or {}), **self._task.settings.solution.env}

        def act(step: TaskStep) -> tuple[str, Bundle]:
            options = " ".join(shell_options(step.task.files[SOLUTION].data))
            return _hiding(hide, f"bash {options} /{SOLUTION}"), step.task.solution_bundle

        left = await self.attempt(act, limits, env=variables, environment=environment)
        programs = tuple(
            file.path
            for file in {file.path: file for each in left.steps for file in each.artifacts}.values()
            if file.body is not None and takes_the_place_of(file.path, unb64(file.body))
        )
        return replace(left, programs=programs)

    @property
    def pinned(self) -> frozenset[str]:
        """The variables that the tests find set in each run: those of their environments and of [verifier].env."""
        tables = (step.task.settings.verifier.env for step in self._steps)
        return frozenset(
            name for each in (*tables, *(judging.env for judging in self._judging)) for name in each
        )

    async def open_tests(self) -> None:
        """Open each sandbox of the tests that is not the agent's, without any work. ValueError, one sentence, if one is refused."""
        known = [_bare(self.pristine)]
        for step, judging in zip(self._steps, self._judging, strict=True):
            if _bare(judging) in known:
                continue
            known.append(_bare(judging))
            timeout_s = step.task.settings.verifier.timeout_sec
            held = verification_limits(
                self._judged_within, timeout_s, judging, private=self._provider.isolated, tests_bytes=0
            )
            try:
                async with open_sandbox(self._provider, judging.spec(judging.files, held.limits)):
                    pass
            except (ValueError, PathRefused) as error:
                own = step.task.settings.verifier.is_separate and f"{TESTS}{DOCKERFILE}" in step.task.files
                says = str(error).replace(f"{CONTEXT}{DOCKERFILE}", f"{TESTS}{DOCKERFILE}") if own else error
                raise ValueError(f"{step.label}the sandbox of the tests does not open: {says}") from error

    async def tried(self, probe: Probe, solved: Left) -> Tried:
        """Try one probe. `solved` names the files and programs that the task requests."""
        if probe.needs is Needs.GATEWAY:
            return Tried(probe=probe, skipped="it asks the gateway, and sandboxes alone have none")
        if probe.needs is Needs.PROGRAM and not solved.programs:
            return Tried(
                probe=probe, skipped="the task's solution leaves no program that the judge could run"
            )
        command = probe.acts(
            solved.target, NEEDLE.replace("{8}", "*"), solved.programs, headers=solved.headers
        )
        left = await self.attempt(lambda _: (command, EMPTY), self._agent)
        if probe.answer is not None:
            earlier = tuple(replace(each, answer=probe.answer) for each in left.earlier)
            left = replace(left, answer=probe.answer, earlier=earlier)
        try:
            found = await self.judged(left)
        except ImageRefused:  # says nothing about the work
            raise
        except (ValueError, PathRefused) as error:  # a run gives such work 0: its artifacts cannot be placed
            return Tried(probe=probe, reward=0.0, reason=str(error), leaked=self.leaks(left))
        return Tried(probe=probe, reward=found.reward, reason=found.reason, leaked=self.leaks(left))

    async def judged(
        self,
        left: Left,
        *,
        order: Callable[[Mapping[str, AnyFile]], Mapping[str, AnyFile]] = dict,
        env: Mapping[str, str] | None = None,
        section: SandboxSection | None = None,
        seed: int = 0,
    ) -> Grade:
        """The verdict of the task's tests on an attempt's work. `order`: changes the files of the tests; `env`: more variables, below the task's;
        `section`: other limits. Of several steps: the last one's, with the reward of all. Steps that are not among what was left are graded as
        `left`."""
        found: list[Grade] = []
        ended = False
        works = left.steps if left.earlier else (left,) * len(self._steps)
        for step, judging, each in zip(self._steps, self._judging, works, strict=False):
            work = work_of(step, each.answer, each.artifacts, self.pristine)
            tests = order({**work.tests, WORD_FILE: File(self.word.encode())})
            grade_ = await grade(
                self._provider,
                judging,
                replace(
                    work,
                    tests=tests,
                    env={**(env or {}), **work.env},
                    access=access(of_tests(step.task.settings), section or self._judged_within),
                ),
                section or self._judged_within,
                timeout_s=step.task.settings.verifier.timeout_sec,
                seed=seed,
            )
            found.append(grade_)
            if ended := grade_.reward is None or missed(step, numbers_of(grade_)):
                break
        last = found[-1]
        if not self._task.is_multi_step or last.reward is None:
            return last
        numbers: list[dict[str, float]] = [numbers_of(each) for each in found]
        if not ended:  # a step that could not begin counts as 0
            numbers += [{}] * (len(self._steps) - len(numbers))
        scores = together(self._task, numbers)
        wall_s = max(each.wall_s for each in found)
        return replace(last, reward=scores.reward, components=scores.components, wall_s=wall_s)

    def leaks(self, left: Left) -> bool:
        """Whether the secret word from the tests is in the attempt's answer or artifacts."""
        word = self.word.encode()
        return any(
            word in each.answer.encode()
            or any(word in unb64(file.body) for file in each.artifacts if file.body is not None)
            for each in left.steps
        )

    async def attempt(
        self,
        act: Callable[[TaskStep], tuple[str, Bundle]],
        limits: Limits,
        *,
        env: Mapping[str, str] | None = None,
        environment: Environment | None = None,
    ) -> Left:
        """Act as the agent in every step: `act` gives a command and what it needs, by absolute path. Artifacts over the size limits are a policy
        failure, as in a run: no file is copied."""
        begin = environment or self.pristine
        first = self._steps[0]
        command, needed = act(first)
        spec = begin.spec({**begin.files, **needed.files}, limits)
        spec = replace(spec, links={**spec.links, **needed.links}, modes={**spec.modes, **needed.directories})
        lefts: list[Left] = []
        async with open_sandbox(self._provider, spec, self._access) as sandbox:
            if (check := self._task.settings.healthcheck) is not None:
                await until_healthy(sandbox, check)
            for step in self._steps:
                if step is not first:
                    command, needed = act(step)
                    await sandbox.put(needed.files, links=needed.links, modes=needed.directories)
                try:
                    await prepare(sandbox, step, begin.work_dir, limits.wall_s)
                except (InfraFailure, PathRefused) as error:
                    if step is first:
                        raise InfraFailure(str(error)) from error
                    unready = f"{step.label}it cannot begin: {error}"
                    lefts[-1] = replace(lefts[-1], ended=unready)
                    break
                lefts.append(await self._left(sandbox, step, command, limits, env))
        return replace(
            lefts[-1],
            earlier=tuple(lefts[:-1]),
            ended="; ".join(dict.fromkeys(each.ended for each in lefts if each.ended)),
            wall_s=max(each.wall_s for each in lefts),
            exit_code=max((each.exit_code for each in lefts), key=abs),
        )

    async def _left(
        self, sandbox: Sandbox, step: TaskStep, command: str, limits: Limits, env: Mapping[str, str] | None
    ) -> Left:
        settings = step.task.settings
        result = await sandbox.exec(["bash", "-c", command], timeout_s=limits.wall_s, env=env)
        most = limits_of(self._section, memory_bytes=None)
        sources = with_convention(settings.artifacts, step.task.tests_files())
        await run_hooks(sandbox, settings.verifier.collect)
        elsewhere = await left_elsewhere(self._provider, sandbox, self.pristine.files.keys(), sources)
        changed = await sandbox.changed(most)
        collected = await declared(sandbox, sources, most)
        answer = answer_of_output(result.stdout.decode(errors="replace"))
        ended = (
            ""
            if result.ok
            else f"exit code {result.exit_code}: {result.stderr[-300:].decode(errors='replace')}"
        )
        if result.killed_by is not KilledBy.NONE:
            ended = f"ended by its limit: {result.killed_by.value}"
        over = too_much(changed, collected, answer, most)
        return Left(
            answer=answer,
            artifacts=() if over else [*packed(changed), *collected, *elsewhere],
            ended=over or ended,
            wall_s=result.wall_s,
            exit_code=result.exit_code,
        )


def _header(path: str, body: bytes) -> str:
    lines = body[:4096].decode(errors="ignore").replace("\0", "").splitlines()
    return lines[0] if path.endswith(TABLES) and len(lines) > 1 else ""


def _bare(environment: Environment) -> Environment:
    """An environment without the files that are placed in it."""
    return replace(environment, files={}, links={}, modes={}, directories=())


def _hiding(paths: Sequence[str], command: str) -> str:
    """A shell command that runs `command` while files are empty, and restores those that it left empty."""
    if not paths:
        return command
    files = " ".join(map(shlex.quote, paths))
    each = f"n=0; for f in {files}; do n=$((n + 1)); h=/tmp/.hidden-$n"
    return (
        f'{each}; {{ cp -p "$f" "$h" && : > "$f"; }} 2> /dev/null || {{ rm -f "$h"; exit {NOT_HIDDEN}; }}; done\n{command}; status=$?\n'
        f'{each}; [ -s "$f" ] || cp -p "$h" "$f"; rm -f "$h"; done\nexit $status'
    )
