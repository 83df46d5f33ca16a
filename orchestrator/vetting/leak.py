"""The control `leak` in sandboxes: suspects in what the agent can read, each confirmed by the solution without it."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import anyio
import anyio.to_thread

from orchestrator.contracts.ids import unb64
from orchestrator.contracts.quote import quoted
from orchestrator.contracts.states import Left as LeftKind
from orchestrator.probing import NOT_HIDDEN, Left
from orchestrator.tasks.artifact_modes import is_change, type_of
from orchestrator.tasks.environment import Environment
from orchestrator.tasks.harbor import SOLUTIONS, Task
from orchestrator.tasks.verdict import same
from orchestrator.tasks.vetting.findings import Finding, TaskFault
from orchestrator.tasks.vetting.leaks import (
    SHOWN_FILES,
    Readable,
    Searched,
    Suspect,
    confirmed,
    search,
    without,
)
from orchestrator.tasks.vetting.secrets import READ_BYTES, Solved, Source, secrets_of
from orchestrator.tasks.vetting.shown import not_shown
from orchestrator.vetting.trials import Trials
from sandboxes.base import File

MAX_PLACES: Final = 12
"""Suspects that are tried one by one."""
COPIED_LINES: Final = 3
"""One or two lines of a solution may stand in a manual."""
_READS: Final = re.compile(
    rb"\bgit(?:['\",\s]+(?:-[Cc]['\",\s]*\S+|--?[\w-]+\S*))*['\",\s]+"
    rb"(?:show|log|checkout|restore|revert|reset|stash|cherry-pick|cat-file|bisect|reflog|fsck|diff|merge|rebase|clone|switch|worktree|archive|blame|grep"
    rb"|unpack-objects|format-patch|am|pull|fetch|filter-branch|read-tree|rev-list)\b"
)
"""A command of git that may bring a text of the past."""


def solved_of(left: Left, readable: Readable) -> Solved:
    """The files that a solution added, by content. A file of the same name in another directory is not an earlier version of one."""
    written = {
        file.path: unb64(file.body)
        for file in left.artifacts
        if file.body is not None and (file.kind is LeftKind.FILE or (is_change(file) and type_of(file) == 0))
    }
    paths = (path for file in left.artifacts for path in readable.paths_of(file.path))
    before = {path: readable.files[path] for path in paths if path in readable.files}
    return Solved(written=written, before=before, answer=left.answer)


async def leak_findings(trials: Trials, left: Left, readable: Readable) -> tuple[list[Finding], str]:
    """The leaks of a task whose solution left `left` and earns the maximum; a note on what was not read, empty for nothing."""

    def find_suspects() -> Searched:
        solved = solved_of(left, readable)
        return search(not_shown(secrets_of(trials.task, solved), solved, readable), readable)

    # In a thread: the timers of other tasks run on.
    searched = await anyio.to_thread.run_sync(find_suspects)
    findings, untried = await _confirmed(trials, searched.suspects, readable)
    return findings, "; ".join(filter(None, (searched.note, untried)))


async def _confirmed(
    trials: Trials, suspects: Sequence[Suspect], readable: Readable
) -> tuple[list[Finding], str]:
    if not suspects:
        return [], ""
    if await _solves_without(trials, suspects, readable) is True:
        return confirmed(suspects), ""
    places = list(dict.fromkeys(suspect.place for suspect in suspects))
    found: list[Suspect] = []
    for place in places[:MAX_PLACES]:
        here = [suspect for suspect in suspects if suspect.place == place]
        solves = await _solves_without(trials, here, readable)
        unread = here[0].fault is TaskFault.LEAK_IN_HISTORY and not reads_history(trials.task)
        alone = here[0].fault is not TaskFault.LEAK_IN_FILE or any(map(is_copy, here))
        if solves or unread or (solves is None and alone):
            found += here
    return confirmed(found), untried_note(places)


def untried_note(places: Sequence[str]) -> str:
    """A sentence on files that were not tried one by one; empty: all were."""
    left = places[MAX_PLACES:]
    if not left:
        return ""
    shown = ", ".join(map(quoted, left[:SHOWN_FILES])) + (" …" if len(left) > SHOWN_FILES else "")
    return f"only {MAX_PLACES} of {len(places)} suspect places were tried one by one, not {shown}"


def is_copy(suspect: Suspect) -> bool:
    """Whether a file that cannot be hidden holds lines of the solution or the tests themselves, not only a text that may stand there by design."""
    own = suspect.body.source in (Source.SOLUTION, Source.TESTS)
    return own and len(suspect.body.lines.intersection(suspect.texts)) >= COPIED_LINES


def reads_history(task: Task) -> bool:
    """Whether the solution uses what a git repository holds of the past. A solution that only records its work needs the objects, too, but not the
    answer in them."""
    return any(
        _READS.search(file.data) is not None
        for path, file in task.files.items()
        if path.startswith(SOLUTIONS) and file.size <= READ_BYTES
    )


async def _solves_without(trials: Trials, suspects: Sequence[Suspect], readable: Readable) -> bool | None:
    """Whether the solution earns the maximum although the agent cannot read the suspects; None: a file of an image cannot be hidden."""
    altered = altered_environment(trials.run.pristine, suspects, readable)
    of_image = {s.path for s in suspects if s.path and not s.named and s.path not in altered.files}
    left = await trials.solved(environment=altered, hide=sorted(of_image))
    if of_image and left.exit_code == NOT_HIDDEN:
        return None
    return same((await trials.outcome(left)).reward, trials.maximum)


def altered_environment(
    pristine: Environment, suspects: Sequence[Suspect], readable: Readable
) -> Environment:
    """The environment without the suspects' secrets in its variables, and in its placed files, links and directories."""
    files, env = dict(pristine.files), dict(pristine.env)
    gone = {suspect.path for suspect in suspects if suspect.named}
    for suspect in suspects:
        if suspect.variable:
            env[suspect.variable] = "x" * len(readable.variables[suspect.variable])
        elif suspect.path in files and suspect.named:
            del files[suspect.path]
        elif suspect.path in files:
            file = files[suspect.path]
            files[suspect.path] = File(without(file.data, suspect), file.mode)
    return replace(
        pristine,
        files=files,
        env=env,
        directories=tuple(path for path in pristine.directories if path not in gone),
        links={path: target for path, target in pristine.links.items() if path not in gone},
        modes={path: mode for path, mode in pristine.modes.items() if path not in gone},
    )
