"""Tasks with several instructions (`[[steps]]`): each step as a task of its own, and what their rewards make together.

The steps run one after the other in one sandbox. Each has its instruction, and its tests see what the agent has left after it:

    steps/<name>/instruction.md    the instruction
    steps/<name>/tests/            laid over tests/; steps/<name>/solution/ stands for solution/
    steps/<name>/workdir/          put into the work directory before the step; bash runs its setup.sh there

A step whose numbers miss its `min_reward` ends the task: later steps do not run and count as 0. ops/decisions/0032 compares this with Harbor.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Final

import msgspec

from orchestrator.contracts.events import ArtifactFile
from orchestrator.contracts.ids import b64, unb64
from orchestrator.contracts.quote import quoted
from orchestrator.contracts.states import Left
from orchestrator.tasks.bundle import EMPTY, Bundle
from orchestrator.tasks.collected import ANSWER_PATH, hooks
from orchestrator.tasks.environment import DOCKERFILE, Environment
from orchestrator.tasks.harbor import INSTRUCTION, SOLUTIONS, STEPS, TESTS, Task
from orchestrator.tasks.key_values import REWARD, EnvironmentMode, RewardStrategy
from orchestrator.tasks.settings import (
    Healthcheck,
    StepSettings,
    TaskSettings,
    VerifierLimits,
    variables_of,
)
from orchestrator.tasks.verdict import (
    EXACT,
    MAX_NAME,
    MAX_SIGNALS,
    MAX_STEPS,
    PROCESS_FILE,
    Process,
    Scores,
    rounded,
)
from sandboxes.artifacts import stays

WORKDIR: Final = "workdir/"
SETUP: Final = "setup.sh"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStep:
    """One step. `task`: the task as this step sees it, with one instruction and one test; `name`: None for the only step of an ordinary task.
    `placed`: what is put into the work directory before it, by path relative to that; `before`: the same of earlier steps;
    `own_environment`: it states `[verifier.environment]` itself."""

    number: int = 0
    name: str | None = None
    task: Task
    min_reward: Mapping[str, float] = field(default_factory=dict)
    healthcheck: Healthcheck | None = None
    placed: Bundle = EMPTY
    before: Bundle = EMPTY
    own_environment: bool = False

    @property
    def has_setup(self) -> bool:
        return SETUP in self.placed.files

    @property
    def label(self) -> str:
        """For reasons and logs; empty for an ordinary task."""
        return "" if self.name is None else f"step {self.name}: "

    def over(self, pristine: Environment) -> Environment:
        """`pristine` with what was placed in this step and before: the state against which the agent's changes are compared."""
        placed = self.placed.over(self.before).below_root(pristine.work_dir)
        under = Bundle(files=pristine.files, links=pristine.links, directories=pristine.modes)
        whole = placed.over(under)
        return replace(pristine, files=whole.files, links=whole.links, modes=whole.directories)


def steps_of(task: Task) -> tuple[TaskStep, ...]:
    """The steps of a task in order; an ordinary task is its own only step."""
    if not task.is_multi_step:
        return (TaskStep(task=task),)
    found: list[TaskStep] = []
    before = EMPTY
    for number, step in enumerate(task.settings.steps):
        placed = _placed(task, step)
        found.append(
            TaskStep(
                number=number,
                name=step.name,
                task=Task(bundle=_bundle(task, step), settings=_settings(task, step)),
                min_reward=step.min_reward,
                healthcheck=step.healthcheck,
                placed=placed,
                before=before,
                own_environment="environment" in step.verifier,
            )
        )
        before = placed.over(before)
    return tuple(found)


def _placed(task: Task, step: StepSettings) -> Bundle:
    folder = f"{STEPS}{step.name}/{WORKDIR}"
    found = task.bundle.below(folder)
    for path, target in found.links.items():
        if not stays(path, target):
            raise ValueError(
                f"{folder}{path} is a link to {quoted(target)}, which leads out of the work directory: put the file there instead"
            )
    return found


def _bundle(task: Task, step: StepSettings) -> Bundle:
    own = task.bundle.below(f"{STEPS}{step.name}/")
    solved = any(path.startswith(SOLUTIONS) for path in own.files)
    shared = task.bundle.only(
        lambda path: not path.startswith(STEPS) and not (solved and path.startswith(SOLUTIONS))
    )
    return own.only(lambda path: path == INSTRUCTION or path.startswith((TESTS, SOLUTIONS))).over(shared)


def _settings(task: Task, step: StepSettings) -> TaskSettings:
    whole = task.settings
    agent = whole.agent
    if "timeout_sec" in step.agent:
        agent = agent.model_copy(update={"timeout_sec": float(step.agent["timeout_sec"])})
    if "user" in step.agent:
        agent = agent.model_copy(update={"user": str(step.agent["user"])})
    dockerfile = f"{STEPS}{step.name}/{TESTS}{DOCKERFILE}" in task.files
    return whole.model_copy(
        update={
            "agent": agent,
            "verifier": _verifier(whole.verifier, step.verifier, dockerfile=dockerfile),
            "artifacts": (*whole.artifacts, *step.artifacts),
            "steps": (),
        }
    )


def _verifier(whole: VerifierLimits, own: Mapping[str, Any], *, dockerfile: bool) -> VerifierLimits:
    """`[verifier]` with what a step states. `dockerfile`: the step's tests have an image of their own."""
    table = own.get("environment")
    environment = dict(table if isinstance(table, dict) else whole.environment or {})
    if dockerfile and not (isinstance(table, dict) and "docker_image" in table):
        environment.pop("docker_image", None)
    elif isinstance(table, dict) and whole.environment and "docker_image" in whole.environment:
        environment.setdefault("docker_image", whole.environment["docker_image"])
    mode = own.get("environment_mode") or (
        EnvironmentMode.SEPARATE.value if isinstance(table, dict) else whole.environment_mode
    )
    known = isinstance(table, dict) or whole.environment is not None
    return whole.model_copy(
        update={
            "timeout_sec": float(own.get("timeout_sec", whole.timeout_sec)),
            "env": {**whole.env, **variables_of(own)},
            "environment_mode": mode,
            "environment": environment if known else None,
            "collect": (*whole.collect, *hooks(own.get("collect"))),
            "user": str(own.get("user", whole.user)),
        }
    )


def of_step(files: Sequence[ArtifactFile], number: int) -> tuple[str, list[ArtifactFile]] | None:
    """Answer and artifacts that an attempt had left after a step, from all of its artifacts; None: the step did not run."""
    left = [file for file in files if file.step == number]
    answer = next((file for file in left if file.kind is Left.ANSWER), None)
    if answer is None:
        return None
    text = unb64(answer.body or "").decode(errors="replace")
    return text, [file for file in left if file is not answer]


def as_step(number: int, answer: str | None, files: Sequence[ArtifactFile]) -> list[ArtifactFile]:
    """Answer and artifacts of a step, as `of_step` reads them."""
    body = b64((answer or "").encode(errors="replace"))
    kept = ArtifactFile(path=ANSWER_PATH, body=body, kind=Left.ANSWER)
    return [_numbered(file, number) for file in (kept, *files)]


def _numbered(file: ArtifactFile, number: int) -> ArtifactFile:
    return msgspec.structs.replace(file, step=number)


def missed(step: TaskStep, numbers: Mapping[str, float]) -> bool:
    """Whether these numbers of a step end the task. A missing number misses every limit."""
    reward = step.task.settings.verifier.performance
    known = {REWARD: numbers[reward], **numbers} if reward in numbers else numbers
    return any(known.get(name, float("-inf")) < least - EXACT for name, least in step.min_reward.items())


def together(task: Task, numbers: Sequence[Mapping[str, float]]) -> Scores:
    """The reward of a task, from the numbers of its graded steps in order: by name their mean, a missing number counts as 0, or those of the last
    step. A step without numbers, or after the last of `numbers`, did not run and counts as 0; if only such a step would name the reward, that is 0.
    The components also hold the numbers of each step, as `<name>/reward`. ValueError if all steps ran and do not say which is the reward."""
    numbers = [*numbers, *({} for _ in task.settings.steps[len(numbers) :])]
    names = dict.fromkeys(name for each in numbers for name in each) or {
        task.settings.verifier.performance or REWARD: None
    }
    if task.settings.multi_step_reward_strategy is RewardStrategy.FINAL:
        total = dict(numbers[-1] or dict.fromkeys(names, 0.0))
    else:
        total = {name: _mean([each.get(name, 0.0) for each in numbers]) for name in names}
    wanted = task.settings.verifier.performance
    chosen = wanted or (next(iter(total)) if len(total) == 1 else REWARD)
    if chosen not in total and not all(numbers):
        # An error would take the member out of its group: ending early would pay.
        total[chosen] = 0.0
    if chosen not in total:
        named = ", ".join(repr(name) for name in total)[:300] or "none"
        raise ValueError(
            f"the steps must say which of their numbers is the reward: call it {quoted(REWARD)}, or name it in [verifier].performance, got {named}"
        )
    total[chosen] = rounded(total[chosen])
    if not 0.0 <= total[chosen] <= 1.0:
        raise ValueError(f"the steps together must give a reward from 0 to 1, got {total[chosen]:g}")
    return Scores(total[chosen], dict(_components(task, total, numbers, chosen)))


def joined(graded: Sequence[tuple[str, Process | None]]) -> tuple[Process | None, list[str]]:
    """The process values of a task from those of its graded steps, by their names in order: numbers as their mean over the steps that gave one,
    lists one after the other, since completions are counted over all steps. Second: a note for each name that is left out.

    >>> joined([("one", {"plan": [1.0, 0.0], "style": 1.0}), ("two", {"plan": [-1.0], "style": 0.0})])
    ({'plan': [1.0, 0.0, -1.0], 'style': 0.5}, [])
    """
    found: Process = {}
    notes: list[str] = []
    for name in dict.fromkeys(name for _, each in graded for name in each or {}):
        values = [(each or {}).get(name) for _, each in graded]
        given = [value for value in values if value is not None]
        numbers = [value for value in given if not isinstance(value, list)]
        lists = [value for value in given if isinstance(value, list)]
        parts = list(chain.from_iterable(lists))
        if numbers and lists:
            why = "is a number in one step and a list in another"
        elif lists and None in values[: len(given)]:
            missing, _ = graded[values.index(None)]
            why = f"is missing in the step {missing}, so the numbers of later steps have no place"
        elif len(parts) > MAX_STEPS:
            why = f"has numbers of {len(parts)} steps, more than {MAX_STEPS}"
        elif len(found) == MAX_SIGNALS:
            why = f"is one name more than {MAX_SIGNALS}"
        else:
            found[name] = parts if lists else _mean(numbers)
            continue
        notes.append(f"{PROCESS_FILE}: {name} {why}: left out")
    return found or None, notes


def _mean(values: Sequence[float]) -> float:
    """Finite, because the values are."""
    total = sum(values)
    return total / len(values) if math.isfinite(total) else sum(value / len(values) for value in values)


def _components(
    task: Task, total: Mapping[str, float], numbers: Sequence[Mapping[str, float]], chosen: str
) -> Iterator[tuple[str, float]]:
    """The most important first: as many as a verdict may have."""
    found: dict[str, float] = {chosen: total[chosen]}
    steps = list(zip(task.settings.steps, numbers, strict=False))
    for number, (step, each) in enumerate(steps, start=1):
        if chosen in each:
            found[_label(step.name, number, chosen)] = each[chosen]
    found |= total
    for number, (step, each) in enumerate(steps, start=1):
        found |= {_label(step.name, number, name): value for name, value in each.items()}
    yield from list(found.items())[:MAX_SIGNALS]


def _label(step: str, number: int, name: str) -> str:
    label = f"{step}/{name}"
    return label if len(label) <= MAX_NAME else f"step {number}/{name}"[:MAX_NAME]
