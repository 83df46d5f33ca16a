"""Requests of admissible tasks that do not hold in the sandboxes of a run, or on this machine: notes of `penstock tasks check` and `publish`."""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Final

from orchestrator.cli import tables
from orchestrator.contracts.quote import quoted

if TYPE_CHECKING:
    from orchestrator.settings.sandbox import SandboxSection
    from orchestrator.tasks.harbor import Task

_PATH: Final = re.compile(r"(?<![\w./~$}:-])/\w(?:[\w./-]*[\w-])?")
_MAKES: Final = re.compile(r"\s*(?:COPY|ADD|VOLUME|RUN\b.*\bmkdir)\b", re.I | re.S)
"""Instructions of a Dockerfile that make directories."""
_RUN: Final = re.compile(r"\s*RUN\b", re.I)
_WORK_ALONE: Final = ("container", "kubernetes")
"""Providers whose programs write of an image its work directory alone."""


def notes(
    tasks: "Sequence[Task]", section: "SandboxSection", limits_cores: Callable[[], bool] | None = None
) -> Iterator[str]:
    """One sentence for each. `limits_cores`: whether the sandboxes of this machine can have fewer cores than it has."""
    yield from _cores(tasks, section, limits_cores or _here)
    yield from _data(tasks, section)
    yield from _astray(tasks)
    yield from _hidden(tasks, section)
    yield from _downloads(tasks)
    yield from _silence(tasks)


def _cores(
    tasks: "Iterable[Task]", section: "SandboxSection", limits_cores: Callable[[], bool]
) -> Iterator[str]:
    machine = len(os.sched_getaffinity(0))
    asking = [task for task in tasks if any(0 < cpus < machine for cpus in _cpus(task))]
    if not asking or section.provider not in ("bubblewrap", "local"):
        return
    if section.provider == "local" or not limits_cores():
        yield (
            f"{tables.counted(len(asking), 'task')} with `cpus`, which does not hold on this machine: no control group limits the cores of its "
            "sandboxes, so their programs have all of them (`penstock doctor --sandbox`)"
        )


def _cpus(task: "Task") -> Iterator[float]:
    for table in (task.settings.environment, task.settings.judging):
        if isinstance(cpus := table.get("cpus"), int | float):
            yield cpus


def _here() -> bool:
    from sandboxes import cgroups

    found = cgroups.detect()
    return found is not None and found.limits_cores


def _data(tasks: "Iterable[Task]", section: "SandboxSection") -> Iterator[str]:
    if section.provider not in _WORK_ALONE:
        return
    naming = [path for task in tasks if (path := _elsewhere(task))]
    if naming:
        yield (
            f"{tables.counted(len(naming), 'task')} whose instruction or solution names a place such as {naming[0]}: of an image, sandboxes of the "
            f"provider {section.provider} let programs write the work directory alone (ops/guides/images.md)"
        )


def _downloads(tasks: "Iterable[Task]") -> Iterator[str]:
    from orchestrator.tasks.downloads import without_network

    found = [(task, *first) for task in tasks for first in islice(without_network(task), 1)]
    if found:
        task, script, command = found[0]
        yield (
            f"{tables.counted(len(found), 'task')} whose tests download, and have no network, so that right work may earn 0 ({task.name}: "
            f'{script} runs {command}): bring it in the environment, or write network_mode = "public" below [verifier], which sandbox.egress grants'
        )


def _silence(tasks: "Iterable[Task]") -> Iterator[str]:
    """A time of silence that no attempt reaches."""
    cut = [
        (task, stall_s, longest)
        for task in tasks
        if (stall_s := task.settings.agent.stall_s) is not None
        and stall_s > (longest := task.settings.longest_step_s)
    ]
    if cut:
        task, stall_s, longest = cut[0]
        yield (
            f"{tables.counted(len(cut), 'task')} whose [agent].stall_s is longer than the time limit, which ends the attempt first "
            f"(first {quoted(task.name)}: {stall_s:g} s of {longest:g} s): raise timeout_sec, or lower stall_s"
        )


def _elsewhere(task: "Task") -> str:
    """The first path outside of the work directory that an image may have for data, and that the instruction or the solution names."""
    from orchestrator.tasks.environment import DOCKERFILE
    from orchestrator.tasks.harbor import CONTEXT
    from orchestrator.tasks.last_stage import workdir_of
    from sandboxes.elsewhere import lies_elsewhere

    dockerfile = task.files.get(CONTEXT + DOCKERFILE)
    if dockerfile is None:
        return ""
    text = dockerfile.data.decode(errors="replace")
    work = workdir_of(text)
    if work is None:
        return ""
    # A route of a server looks like a path: a place is one that the image or the solution has.
    made = "\n".join(line for _, line in _lines(text) if _MAKES.match(line))
    solution = task.solution or ""
    known = {_top(path) for path in _PATH.findall(f"{made}\n{solution}")}
    paths = _PATH.findall(f"{task.instruction}\n{solution}")
    outside = (path for path in paths if _top(path) in known and not f"{path}/".startswith(f"{work}/"))
    return next((path for path in outside if lies_elsewhere(path)), "")


def _astray(tasks: "Iterable[Task]") -> Iterator[str]:
    """A relative COPY or ADD without a WORKDIR: where its files lie depends on whether an image is built."""
    from orchestrator.tasks.environment import DOCKERFILE
    from orchestrator.tasks.harbor import CONTEXT
    from orchestrator.tasks.last_stage import last_stage

    found = []
    for task in tasks:
        dockerfile = task.files.get(CONTEXT + DOCKERFILE)
        with suppress(ValueError):  # a build refuses it as well
            if dockerfile and (at := last_stage(dockerfile.data.decode(errors="replace")).astray):
                found.append(f"{quoted(task.name)}, line {at.line}")
    if found:
        yield (
            f"{tables.counted(len(found), 'task')} whose Dockerfile copies to a relative place without a WORKDIR above it (first {found[0]}): "
            "the files lie in /app where no image is built, and in an image where its base has its WORKDIR, mostly in /, while programs begin in "
            "/app: write WORKDIR /app above the COPY"
        )


def _hidden(tasks: "Iterable[Task]", section: "SandboxSection") -> Iterator[str]:
    """A COPY or ADD to a place of an image that a sandbox has of its own, where no program finds the files."""
    if section.provider != "bubblewrap":
        return
    found = [(task, *first) for task in tasks for first in islice(_covered(task), 1)]
    if found:
        task, target, work = found[0]
        yield (
            f"{tables.counted(len(found), 'task')} whose Dockerfile copies to a place that a sandbox has of its own (first {quoted(task.name)}: "
            f"{target}, with WORKDIR {work}): /app shows WORKDIR, and /tests, /solution, /logs and /home/agent nothing of the image, so the files "
            f"are not there: copy them below {work}"
        )


def _covered(task: "Task") -> "Iterator[tuple[str, str]]":
    """The targets of COPY and ADD in the task's image that its programs do not find, each with the work directory. What RUN
    names is for the build."""
    from orchestrator.tasks.environment import DOCKERFILE
    from orchestrator.tasks.harbor import CONTEXT
    from orchestrator.tasks.last_stage import LastStage, last_stage
    from sandboxes.base import HOME, PLACED, WORK

    dockerfile = task.files.get(CONTEXT + DOCKERFILE)
    text = "" if dockerfile is None else dockerfile.data.decode(errors="replace")
    stage = LastStage()
    with suppress(ValueError):  # a build refuses it as well
        stage = last_stage(text)
    given = task.settings.environment.get("workdir")
    work = given if isinstance(given, str) and given.startswith("/") else stage.work
    runs = [line for _, line in _lines(text) if _RUN.match(line)]
    if work is None:
        return
    # Without an image, COPY places its files there, or is refused.
    own = (*PLACED, *((WORK, HOME, "/logs") if runs or not _is_in(work, WORK) else ()))
    for line, target in stage.copies:
        if target is None or _is_in(target, work):
            continue
        names = {target, *(source.rpartition("/")[2] for source in line.sources)} - {""}
        used = any(name in run for run in runs for name in names)
        if not used and any(_is_in(target, place) for place in own):
            yield target, work


def _is_in(path: str, directory: str) -> bool:
    return f"{path}/".startswith(f"{directory.rstrip('/')}/")


def _lines(dockerfile: str) -> "Iterable[tuple[int, str]]":
    from orchestrator.tasks.dockerfile import logical_lines

    try:
        return list(logical_lines(dockerfile))
    except ValueError:
        return ()


def _top(path: str) -> str:
    return path.split("/")[1]
