"""Whether a run can take a task: checked before it is published and before it is accepted, never for a task accepted earlier."""

from collections.abc import Iterator, Sequence
from typing import Final

from orchestrator.contracts.network import NetworkMode
from orchestrator.contracts.quote import quoted
from orchestrator.runtime import plugins
from orchestrator.settings.providers import tables
from orchestrator.settings.sandbox import SandboxSection
from orchestrator.tasks.collected import places
from orchestrator.tasks.compose.services import COMPOSE
from orchestrator.tasks.dockerfile import check_entrypoint, variables_set
from orchestrator.tasks.environment import DOCKERFILE, builds_where_needed, check_services, reaches_the_proxy
from orchestrator.tasks.harbor import CONTEXT, ENVIRONMENT, SOLUTION, STEPS, TEST_SCRIPT, TESTS, Task
from orchestrator.tasks.keys import check_keys
from orchestrator.tasks.multi_step import TaskStep, steps_of
from orchestrator.tasks.network import contradictions, of_agent, of_tests
from orchestrator.tasks.network import refusals as network_refusals
from orchestrator.tasks.reserved import reserved
from orchestrator.tasks.resources import shortages
from orchestrator.tasks.settings import variables_of
from orchestrator.tasks.sizes import check_variables, dockerfile_text, read_task_toml
from orchestrator.tasks.users import of_steps, unknown
from orchestrator.tasks.users import refusals as user_refusals
from orchestrator.tasks.verdict import shell_options
from orchestrator.tasks.work_dir import begins_in
from sandboxes.base import Provider
from sandboxes.shell_lines import flaw

COMPOSE_FILES: Final = (COMPOSE, "docker-compose.yml", "compose.yaml", "compose.yml")


def check_admissible(task: Task, sandbox: SandboxSection, place: str = "") -> None:
    """ValueError, one sentence, if the task requests features that the run's sandboxes do not have. It names the task and the key of its settings,
    the file, or the line of its Dockerfile. `place`: where the task was read; it replaces the task's name."""
    provider = _provider(sandbox)
    try:
        check_keys(task.files["task.toml"].data.decode())
        for problem in (
            *_files(task),
            *contradictions(task.settings),
            *_reserved(task),
            *of_steps(task.settings),
            *shortages(task.settings.environment, sandbox),
        ):
            raise ValueError(problem)
        steps = steps_of(task)
        for problem in _unread_dockerfiles(task, steps):
            raise ValueError(problem)
        for step in steps:
            table = (
                "[verifier].environment" if step.name is None else f"step {step.name}: [verifier].environment"
            )
            settings = step.task.settings
            for problem in (
                *user_refusals(settings, provider),
                *network_refusals(settings, sandbox, proxied=reaches_the_proxy(provider)),
                *_verification(step),
                *shortages(settings.judging, sandbox, table),
            ):
                raise ValueError(problem)
            tests = step.task.verification(
                sandbox.base_images,
                containers=provider.containers,
                where_needed=builds_where_needed(provider),
            )
            for problem in unknown(tests, "[verifier]"):
                raise ValueError(problem)
            begins_in(tests)
            check_variables({**tests.env, **settings.verifier.env}, "the environment of tests/test.sh")
        environment = task.environment(
            sandbox.base_images, containers=provider.containers, where_needed=builds_where_needed(provider)
        )
        for problem in unknown(environment, "[agent]"):
            raise ValueError(problem)
        check_services(environment, provider)
        check_variables(
            {**environment.env, **task.settings.solution.env}, "the environment of the reference solution"
        )
        if environment.build is not None and "docker_image" not in task.settings.environment:
            check_entrypoint(dockerfile_text(task.files[path := f"{CONTEXT}{DOCKERFILE}"], path))
        built, begins = environment.build is not None, begins_in(environment)
        for step in steps:
            for problem in places(step.task.settings.artifacts, begins, built=built):
                raise ValueError(problem)
    except ValueError as error:
        raise ValueError(f"{place or f'task {task.name}'}: {error}") from error


def _provider(sandbox: SandboxSection) -> Provider | type[Provider]:
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
            if path in task.files and path != f"{CONTEXT}{COMPOSE}":
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
    for path in task.bundle.paths:
        if path.startswith(CONTEXT) and path != f"{CONTEXT}{COMPOSE}" and not path.startswith(used):
            yield f"{path} is placed nowhere: put it under {ENVIRONMENT}, or build a service from its folder"


def _steps(task: Task) -> Iterator[str]:
    """Files and keys of steps that no step reads."""
    names = [step.name for step in task.settings.steps]
    if names and not task.is_multi_step:
        yield f"instruction.md is not read in a task with [[steps]]: move its text to {STEPS}{names[0]}/instruction.md, or remove the steps"
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
