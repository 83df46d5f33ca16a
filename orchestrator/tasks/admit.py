"""Whether a run can take a task: checked before it is published and before it is accepted, never for a task accepted earlier."""

import posixpath
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from orchestrator.contracts.network import NetworkMode
from orchestrator.contracts.quote import quoted
from orchestrator.rewards.speed import MIN_S
from orchestrator.runtime import plugins
from orchestrator.settings.providers import tables
from orchestrator.settings.sandbox import SandboxSection
from orchestrator.tasks.collected import displaced, places
from orchestrator.tasks.compose.services import COMPOSE
from orchestrator.tasks.copies import copies
from orchestrator.tasks.dockerfile import variables_set
from orchestrator.tasks.environment import (
    DOCKERFILE,
    Environment,
    builds_where_needed,
    check_ignore_files,
    check_services,
    reaches_the_proxy,
    writes_elsewhere,
)
from orchestrator.tasks.extras import missing_skills
from orchestrator.tasks.harbor import (
    CONTEXT,
    ENVIRONMENT,
    SOLUTION,
    STEPS,
    TEST_SCRIPT,
    TESTS,
    Task,
    unread_instruction,
)
from orchestrator.tasks.keys import check_keys
from orchestrator.tasks.last_stage import check_entrypoint
from orchestrator.tasks.misplaced import unplaced
from orchestrator.tasks.multi_step import TaskStep, steps_of
from orchestrator.tasks.network import contradictions, of_agent, of_tests
from orchestrator.tasks.network import refusals as network_refusals
from orchestrator.tasks.reserved import reserved
from orchestrator.tasks.resources import shortages
from orchestrator.tasks.settings import TaskSettings, variables_of
from orchestrator.tasks.sizes import check_variables, dockerfile_text, read_task_toml
from orchestrator.tasks.users import of_steps, unknown
from orchestrator.tasks.users import refusals as user_refusals
from orchestrator.tasks.verdict import shell_options
from orchestrator.tasks.volumes import volumes_closed
from orchestrator.tasks.work_dir import begins_in
from sandboxes.base import WORK, Provider
from sandboxes.shell_lines import flaw

AnyProvider = Provider | type[Provider]
COMPOSE_FILES: Final = (COMPOSE, "docker-compose.yml", "compose.yaml", "compose.yml")


def check_admissible(task: Task, sandbox: SandboxSection, place: str = "") -> None:
    """ValueError, one sentence, if the task requests features that the run's sandboxes do not have. It names the task and the key of its settings,
    the file, or the line of its Dockerfile. `place`: where the task was read; it replaces the task's name."""
    for fault in faults(task, sandbox):
        raise ValueError(f"{place or f'task {task.name}'}: {fault}")


def faults(task: Task, sandbox: SandboxSection) -> Iterator[str]:
    """Why the run's sandboxes cannot take the task, one sentence each. Faults of its keys and files come first. Without any of these, its
    environments are looked at: what they hold depends on the keys."""
    own = list(dict.fromkeys(_of_keys_and_files(task, sandbox)))
    yield from own or dict.fromkeys(_of_environments(task, sandbox))


def _all(*parts: Callable[[], Iterable[str] | None]) -> Iterator[str]:
    """The faults that each part gives, or raises as ValueError."""
    for part in parts:
        try:
            yield from part() or ()
        except ValueError as error:
            yield str(error)


def _of_keys_and_files(task: Task, sandbox: SandboxSection) -> Iterator[str]:
    keys = list(_all(lambda: check_keys(task.files["task.toml"].data.decode())))
    yield from keys
    yield from _all(
        lambda: _files(task),
        lambda: contradictions(task.settings),
        lambda: _reference_time(task.settings) if not keys else (),
        lambda: _reserved(task) if not keys else (),
        lambda: of_steps(task.settings),
        lambda: shortages(task.settings.environment, sandbox) if not keys else (),
    )


def _reference_time(settings: TaskSettings) -> Iterator[str]:
    """A reference that no attempt can differ from in a way that counts: the speed of all of them would be worth the same."""
    reference, agent = settings.agent.reference_sec, settings.agent
    if reference is None:
        return
    key = f"task.toml: [agent].reference_sec = {reference:g}"
    longest = sum(float(step.agent.get("timeout_sec", agent.timeout_sec)) for step in settings.steps)
    longest = longest or agent.timeout_sec
    if reference > longest:
        yield f"{key} is longer than an attempt may take ({longest:g} s): write the seconds that a good agent takes, or raise timeout_sec"
    elif reference < MIN_S:
        yield f"{key} is shorter than times are measured ({MIN_S:g} s): write the seconds that a good agent takes"


def _of_environments(task: Task, sandbox: SandboxSection) -> Iterator[str]:
    provider = _provider(sandbox)
    steps: list[TaskStep] = []
    yield from _all(lambda: steps.extend(steps_of(task)), lambda: _unread_dockerfiles(task, steps))
    for step in steps:
        yield from _all(
            partial(user_refusals, step.task.settings, provider),
            partial(network_refusals, step.task.settings, sandbox, proxied=reaches_the_proxy(provider)),
            partial(_verification, step),
            partial(shortages, step.task.settings.judging, sandbox, _table(step)),
            partial(_of_tests, step, sandbox, provider),
        )
    yield from _all(lambda: _of_agent(task, steps, sandbox, provider))


def _table(step: TaskStep) -> str:
    return "[verifier].environment" if step.name is None else f"step {step.name}: [verifier].environment"


def _of_tests(step: TaskStep, sandbox: SandboxSection, provider: AnyProvider) -> Iterator[str]:
    tests = _tests_environment(step, sandbox, provider)
    yield from unknown(tests, "[verifier]")
    path = f"{TESTS}{DOCKERFILE}"
    own = step.task.settings.verifier.is_separate and path in step.task.files
    built = own and tests.build is not None
    for fault in _all(
        lambda: (
            check_entrypoint(dockerfile_text(step.task.files[path], path), TEST_SCRIPT) if built else None
        ),
        lambda: volumes_closed(tests, begins_in(tests), provider),
        lambda: check_ignore_files(tests, provider),
    ):
        yield fault.replace(CONTEXT, TESTS) if own else fault
    variables = {**tests.env, **step.task.settings.verifier.env}
    check_variables(variables, "the environment of tests/test.sh")


def _tests_environment(step: TaskStep, sandbox: SandboxSection, provider: AnyProvider) -> Environment:
    return step.task.verification(
        sandbox.base_images, containers=provider.containers, where_needed=builds_where_needed(provider)
    )


def _of_agent(
    task: Task, steps: Sequence[TaskStep], sandbox: SandboxSection, provider: AnyProvider
) -> Iterator[str]:
    environment = task.environment(
        sandbox.base_images, containers=provider.containers, where_needed=builds_where_needed(provider)
    )
    yield from unknown(environment, "[agent]")
    yield from missing_skills(task.settings.environment, environment)
    solution = {**environment.env, **task.settings.solution.env}
    built = environment.build is not None
    path = f"{CONTEXT}{DOCKERFILE}"
    yield from _all(
        lambda: check_services(environment, provider),
        lambda: check_ignore_files(environment, provider),
        lambda: check_variables(solution, "the environment of the reference solution"),
        lambda: (
            check_entrypoint(dockerfile_text(task.files[path], path))
            if built and path in task.files
            else None
        ),
    )
    begins = begins_in(environment)
    yield from volumes_closed(environment, begins, provider)
    for step in steps:
        declared = step.task.settings.artifacts
        yield from places(declared, begins, built=built, elsewhere=writes_elsewhere(provider))
        if step.task.settings.verifier.is_separate:
            with suppress(ValueError):  # the part about the tests' environment names it
                tests = _tests_environment(step, sandbox, provider)
                seen = WORK if tests.build is None else begins_in(tests)
                beyond = built and tests.build is not None and writes_elsewhere(provider)
                yield from displaced(declared, begins if built else WORK, seen, elsewhere=beyond)


def _provider(sandbox: SandboxSection) -> AnyProvider:
    """The run's provider, with its settings where they decide what it can do."""
    if sandbox.provider in (known := tables(sandbox)):
        found: Provider = plugins.provider(sandbox.provider, known)
        return found
    unconfigured: type[Provider] = plugins.load("sandboxes", sandbox.provider)
    return unconfigured


def _files(task: Task) -> Iterator[str]:
    """Files with a meaning in the format that they would not have here, and keys that contradict each other."""
    folders = ("", *(f"{STEPS}{step.name}/" for step in task.settings.steps))
    for name in COMPOSE_FILES:
        for path in (f"{CONTEXT}{name}", *(f"{folder}tests/{name}" for folder in folders)):
            if path in task.files and path != f"{CONTEXT}{COMPOSE}" and not _is_data(task, path):
                yield f"{path} is not honoured: only {CONTEXT}{COMPOSE} is, write the services there"
    yield from _unused(task)
    yield from _steps(task)
    for path in (f"{folder}trajectory.json" for folder in folders):
        if path in task.files:
            yield f"{path} is not honoured: an agent begins with the instruction alone, remove it"
    for path in (f"{folder}{script}" for folder in folders for script in (TEST_SCRIPT, SOLUTION)):
        if path in task.files:
            if wrong := flaw(task.files[path].data):
                yield f"{path} {wrong}"
            try:
                shell_options(task.files[path].data)
            except ValueError as error:
                yield f"{path} {error}"


def _is_data(task: Task, path: str) -> bool:
    """Whether the Dockerfile next to a file copies it: then it is what the agent, or a test, works on. A file of Harbor's own name is none."""
    folder, name = posixpath.split(path)
    dockerfile = f"{folder}/{DOCKERFILE}"
    if name == COMPOSE or dockerfile not in task.files:
        return False
    lines = copies(dockerfile_text(task.files[dockerfile], dockerfile))
    return any(line.taken(name) is not None for line in lines)


def _reserved(task: Task) -> Iterator[str]:
    """Variables that the task sets for its sandboxes, and that Penstock replaces. Its keys must be valid."""
    settings = task.settings
    networked = any(wish.mode is not NetworkMode.NONE for wish in (of_agent(settings), of_tests(settings)))
    set_at = [("task.toml: [environment].env", name) for name in variables_of(settings.environment)]
    set_at += [("task.toml: [verifier].environment.env", name) for name in variables_of(settings.judging)]
    set_at += [(f"{CONTEXT}{COMPOSE}: the environment of main", name) for name in task.composed.env]
    for path in (f"{CONTEXT}{DOCKERFILE}", f"{TESTS}{DOCKERFILE}"):
        if path in task.files:
            text = dockerfile_text(task.files[path], path)
            set_at += [(f"{path} line {here.line}: ENV", name) for here, name in variables_set(text)]
    for at, name in set_at:
        if (why := reserved(name, networked=networked)) is not None:
            yield f"{at} sets {name}: {why}"


def _unused(task: Task) -> Iterator[str]:
    """Files of an environment without a Dockerfile that neither the sandbox nor a side service gets."""
    if f"{CONTEXT}{COMPOSE}" not in task.files or f"{CONTEXT}{DOCKERFILE}" in task.files:
        return
    used = (ENVIRONMENT, *(f"{CONTEXT}{folder}" for folder in task.composed.contexts))
    for path in unplaced(task.bundle.paths, used):
        if path != f"{CONTEXT}{COMPOSE}":
            yield f"{path} is placed nowhere: put it under {ENVIRONMENT}, or build a service from its folder"


def _steps(task: Task) -> Iterator[str]:
    """Files and keys of steps that no step reads."""
    names = [step.name for step in task.settings.steps]
    if names and not task.is_multi_step:
        yield unread_instruction(names[0])
    for path in task.files:
        if not path.startswith(STEPS):
            continue
        name, _, inside = path.removeprefix(STEPS).partition("/")
        if name not in names:
            known = (
                f"[[steps]] names {', '.join(map(quoted, names))[:200]}"
                if names
                else "task.toml has no [[steps]]"
            )
            yield f"{path} belongs to no step: {known}: add a step with this name, or remove the directory"
        elif inside.partition("/")[0] == "environment":
            yield f"{path} is not honoured: all steps share {CONTEXT}, put it into {STEPS}{name}/workdir/"
    if not names and "multi_step_reward_strategy" in read_task_toml(task.files["task.toml"].data.decode()):
        yield "task.toml: multi_step_reward_strategy needs [[steps]]: add them, or remove it"


def _unread_dockerfiles(task: Task, steps: Sequence[TaskStep]) -> Iterator[str]:
    """Dockerfiles of tests that run in the agent's environment."""
    separate = [step.name for step in steps if step.task.settings.verifier.is_separate]
    folders = {
        "": bool(separate),
        **{f"{STEPS}{step.name}/": step.name in separate for step in steps if step.name},
    }
    for folder, is_read in folders.items():
        if (path := f"{folder}{TESTS}{DOCKERFILE}") in task.files and not is_read:
            yield f'{path} is not read: write environment_mode = "separate" below [verifier], or remove it'


def _verification(step: TaskStep) -> Iterator[str]:
    """Keys of a verification that contradict each other."""
    verifier = step.task.settings.verifier
    own = step.name is None or step.own_environment
    if own and verifier.environment is not None and not verifier.is_separate:
        table = "[verifier]" if step.name is None else f"[[steps]] {step.name}: verifier"
        yield f'task.toml: {table}.environment needs environment_mode = "separate": write that, or remove one of them'
