"""A task: a Harbor task directory, read from disk or from a message, checked once, immutable from then on.

    task.toml                 settings (settings.py)
    instruction.md            the agent's instruction, UTF-8
    environment/files/**      put into the sandbox's work directory /app before the agent starts
    environment/Dockerfile    instead: places the files next to it (environment.py)
    environment/**            with `docker_image`, and without a Dockerfile or compose file: put into the image's work directory
    tests/test.sh, tests/**   put into /tests at verification, in a fresh sandbox; never in the agent's sandbox (verdict.py)
    solution/solve.sh         a reference solution, run in /app: its output is the final message; never shown to the agent
    steps/<name>/             of a task with several instructions: instruction.md, tests/, solution/ and workdir/ of one step (multi_step.py)

A task whose environment holds the whole text of its solution or test script, also in the history of a git repository, is refused: see leak_check.py.

bundle.py holds its files, links and directories; message.py is its form in a message, in which a large task names the blobs that hold its files.
bash runs `test.sh` and `solve.sh`. Other files (a README) are carried and not read; those that misplaced.py knows are refused. Errors are ValueError,
one sentence each.
"""

import json
import os
import posixpath
from collections import ChainMap
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from orchestrator.contracts.errors import ArgumentError
from orchestrator.contracts.events import ArtifactFile
from orchestrator.contracts.quote import quoted
from orchestrator.tasks.bundle import Bundle, BundleLimits, is_content, with_mode
from orchestrator.tasks.carried import lies_in
from orchestrator.tasks.collected import only_declared, written_elsewhere
from orchestrator.tasks.compose.services import COMPOSE, NOTHING, Composed, read_services
from orchestrator.tasks.environment import (
    DOCKERFILE,
    Environment,
    build_context,
    configured,
    image_user,
    of_image,
    read_environment,
    read_or_build,
)
from orchestrator.tasks.keys import check_keys
from orchestrator.tasks.leak_check import check_leaks
from orchestrator.tasks.message import MAX_MESSAGE_BYTES, Packed, Unpacker, hash_of, needs_blobs, pack
from orchestrator.tasks.misplaced import misplaced, unplaced
from orchestrator.tasks.plain_text import as_plain_text, startable
from orchestrator.tasks.read_directory import Shared, read_directory
from orchestrator.tasks.settings import TaskSettings, parse_settings, variables_of
from orchestrator.tasks.sizes import check_variables, read_task_toml
from orchestrator.tasks.unchanged_files import HIDDEN
from orchestrator.tasks.work_dir import begins_in
from sandboxes.artifacts import stays
from sandboxes.base import WORK, AnyFile, File
from sandboxes.paths import is_within
from sandboxes.text_files import text_of
from sandboxes.users import own

CONTEXT: Final = "environment/"
ENVIRONMENT: Final = "environment/files/"
TESTS: Final = "tests/"
SOLUTIONS: Final = "solution/"
TEST_SCRIPT: Final = "tests/test.sh"
SCRIPT: Final = "record/script.json"
"""A recording's replacement for the policy: a list of assistant messages."""
SOLUTION: Final = "solution/solve.sh"
INSTRUCTION: Final = "instruction.md"
STEPS: Final = "steps/"
_PIECE: Final = 1 << 20
_MAX_NAMED: Final = 5


@dataclass(frozen=True, kw_only=True)
class Task:
    """A task's bundle and settings, checked. Build one with `Task.from_files` or `Task.from_message`."""

    bundle: Bundle
    settings: TaskSettings
    received: dict[str, Any] | None = field(default=None, compare=False, repr=False)
    """The message from which it was read, if that names blobs."""

    @property
    def files(self) -> Mapping[str, AnyFile]:
        """Its files by path."""
        return self.bundle.files

    @classmethod
    def from_files(cls, files: Mapping[str, bytes | AnyFile]) -> "Task":
        """Check the files of a task directory, given by path. ValueError names the file and, in `task.toml`, the key."""
        return cls.of(Bundle.of(files))

    @classmethod
    def of(
        cls,
        bundle: Bundle,
        *,
        limits: BundleLimits | None = None,
        received: dict[str, Any] | None = None,
        accepted: bool = False,
    ) -> "Task":
        """Check a bundle. ValueError names the file and, in `task.toml`, the key. `received`: the message from which it was read. `accepted`: a run
        has accepted it, so its files are not searched for leaks again."""
        if not isinstance(bundle, Bundle):
            raise ArgumentError("bundle", f"must be a Bundle, not {quoted(bundle)}: see `Task.from_files`")
        bundle.check(limits)
        bundle = replace(bundle, files=as_plain_text(bundle.files))
        files = bundle.files
        wrong = [] if accepted else list(misplaced(bundle.paths))
        settings = None
        with _noted(wrong):
            _needs(files, "task.toml", "it holds the task's settings and may be empty")
            settings = parse_settings(_text(files, "task.toml"))
            wrong += _stray(bundle, settings.environment)
            if INSTRUCTION not in files and not accepted:
                check_steps(_text(files, "task.toml"))
            several = bool(settings.steps) and INSTRUCTION not in files
            if settings.steps and not several and TEST_SCRIPT not in files:
                raise ValueError(unread_instruction(settings.steps[0].name))  # else admission names it
            for each in settings.steps if several else (None,):
                with _noted(wrong):
                    _check_step(files, f"{STEPS}{each.name}/" if each is not None else "")
        if settings is not None and not accepted and not wrong:
            check_leaks(bundle, settings.environment)
        if settings is None or wrong:
            raise ValueError(_together(wrong, files if settings is not None and not accepted else {}))
        ordered = Bundle(
            files=MappingProxyType({path: files[path] for path in sorted(files)}),
            links=MappingProxyType(dict(sorted(bundle.links.items()))),
            directories=MappingProxyType(dict(sorted(bundle.directories.items()))),
        )
        return cls(bundle=ordered, settings=settings, received=received)

    @classmethod
    def from_message(cls, message: Any) -> "Task":
        """Unpack and check a task that lies in its message as a whole. ValueError for one that names blobs: `TaskFiles.task` reads those."""
        if needs_blobs(message):
            raise ValueError("its files lie in blobs, which this command does not read")
        listing = Unpacker().unpack(message, _no_tree)
        if (size := len(json.dumps(message))) > MAX_MESSAGE_BYTES:
            raise ValueError(
                f"it has {-(-size // 1024)} KB in one message, which may have {MAX_MESSAGE_BYTES // 1024} KB: publish its files as blobs"
            )
        return cls.of(listing.bundle(_no_blob))

    @cached_property
    def packed(self) -> Packed:
        """Its message, and the blobs that go with it. Reads every file."""
        if self.received is not None:
            return Packed(self.received, {})
        return pack(self.bundle)

    def to_message(self) -> dict[str, Any]:
        """The message form (message.py)."""
        return self.packed.message

    def with_file(self, path: str, body: bytes) -> "Task":
        """The task with one more file, or another content of it. ArgumentError for a path or a body of another type."""
        if not isinstance(path, str):
            raise ArgumentError("path", f"must be a string, not {quoted(path)}")
        if not is_content(body):
            raise ArgumentError("body", f"must be bytes, not {quoted(body)}")
        return Task.of(replace(self.bundle, files={**self.files, path: with_mode(body)}))

    def write(self, directory: str | Path) -> None:
        """Write the task as a directory, which must not hold its files yet. ArgumentError for a directory of another type."""
        if not isinstance(directory, str | Path) or directory == "":
            raise ArgumentError("directory", f"must be a path, not {quoted(directory)}")
        directory = Path(directory)
        for path, file in self.files.items():
            target = directory / path
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("xb") as sink, file.open() as source:
                while piece := source.read(_PIECE):
                    sink.write(piece)
            target.chmod(file.mode)
        for path, target_of_link in self.bundle.links.items():
            link = directory / path
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(target_of_link)
        for path in self.bundle.directories:
            (directory / path).mkdir(parents=True, exist_ok=True)
        for path in sorted(self.bundle.directories, reverse=True):
            (directory / path).chmod(self.bundle.directories[path])

    @cached_property
    def content_hash(self) -> str:
        """Hex sha256 of its content (`message.hash_of`), 64 characters. Reads every file."""
        return hash_of(self.to_message())

    @property
    def given_name(self) -> str:
        """`[metadata].name` or `[task].name`; empty: it has neither."""
        return self.settings.metadata.name or self.settings.task.name or ""

    @property
    def name(self) -> str:
        """The given name, or one made from the content hash."""
        return self.given_name or f"task-{self.content_hash[:12]}"

    def called(self, place: str) -> str:
        """Its name for people who have it at `place`, a directory or a line of a file: its own, or that of the directory."""
        return self.given_name or posixpath.basename(os.path.abspath(place)) or self.name

    @property
    def is_multi_step(self) -> bool:
        """Whether it has `[[steps]]`. Then `multi_step.steps_of` gives instruction, tests and solution of each."""
        return INSTRUCTION not in self.files

    @property
    def instruction(self) -> str:
        """`instruction.md` without surrounding white space and canary lines; of a task with steps, all instructions."""
        if self.is_multi_step:
            paths = [f"{STEPS}{step.name}/{INSTRUCTION}" for step in self.settings.steps]
            return "\n\n".join(without_canary(_text(self.files, path)) for path in paths)
        return without_canary(self.files[INSTRUCTION].data.decode("utf-8"))

    @property
    def solution(self) -> str | None:
        """`solution/solve.sh`, if the task has one."""
        return self.files[SOLUTION].data.decode("utf-8") if SOLUTION in self.files else None

    @property
    def is_solved(self) -> bool:
        """Whether every step has a reference solution, its own or the task's."""
        steps = self.settings.steps if self.is_multi_step else ()
        own = [f"{STEPS}{step.name}/{SOLUTIONS}" for step in steps]
        with_own = [folder for folder in own if any(path.startswith(folder) for path in self.files)]
        needed = [f"{folder}solve.sh" for folder in with_own]
        if len(with_own) < max(len(own), 1):
            needed.append(SOLUTION)
        return all(path in self.files for path in needed)

    def environment(
        self, bases: Collection[str] | None, *, containers: bool = False, where_needed: bool = False
    ) -> Environment:
        """Environment of the task's programs. `bases`: images that the sandbox's own system replaces (None: any); `containers`: whether the provider
        builds images, `where_needed`: only those that its own system cannot replace. ValueError names the line of the Dockerfile that requests an
        unsupported feature."""
        table, composed = self.settings.environment, self.composed
        found = self._environment(CONTEXT, table, bases, containers=containers, where_needed=where_needed)
        variables = {**found.env, **composed.env, **variables_of(table)}
        check_variables(variables, "the environment of the task's programs")
        user = self.settings.agent_users[0] or found.user
        return replace(
            found, env=variables, services=composed.services, user=user, writable=self._writable(found)
        )

    def _writable(self, found: Environment) -> tuple[str, ...]:
        """Paths that programs of an image may write because the task declares artifacts there, outside of a known work directory."""
        if found.build is None:
            return ()
        steps = (artifact for step in self.settings.steps for artifact in step.artifacts)
        paths = written_elsewhere((*self.settings.artifacts, *steps))
        work = begins_in(found) if paths else None
        return paths if work is None else tuple(each for each in paths if not lies_in(each, work))

    @cached_property
    def composed(self) -> Composed:
        """The additions of `environment/docker-compose.yaml` to the environment. ValueError names the key that is not honoured."""
        return read_services(self.bundle.below(CONTEXT))

    def verification(
        self, bases: Collection[str] | None, *, containers: bool = False, where_needed: bool = False
    ) -> Environment:
        """Environment in which the tests run, before the agent's work is placed: that of the agent, or in the mode `separate` that of
        `[verifier.environment]` or `tests/Dockerfile`. Side services are there where it is made by environment/. Arguments and ValueError as for
        `environment`."""
        table, folder = self.settings.judging, CONTEXT
        user = self.settings.verifier.user
        if table is self.settings.environment and not self.settings.verifier.is_separate:
            found = self.environment(bases, containers=containers, where_needed=where_needed)
            return replace(found, user=user or image_user(found))
        composed = NOTHING
        if table is not self.settings.environment and "docker_image" in table:
            folder = TESTS  # its Dockerfile makes this image
        elif "docker_image" not in table and f"{TESTS}{DOCKERFILE}" in self.files:
            folder = TESTS
        elif "docker_image" not in table and "docker_image" in self.settings.environment:
            table, composed = (
                {**table, "docker_image": self.settings.environment["docker_image"]},
                self.composed,
            )
        elif "docker_image" not in table or table is self.settings.environment:
            composed = self.composed
        try:
            found = self._environment(folder, table, bases, containers=containers, where_needed=where_needed)
        except ValueError as error:
            if folder != TESTS:
                raise
            raise ValueError(str(error).replace(CONTEXT, TESTS)) from error
        variables = {**found.env, **composed.env, **variables_of(table)}
        check_variables(variables, "the environment of the tests")
        return replace(
            found,
            env=variables,
            services=composed.services,
            user=user or found.user,
            writable=self._writable(found),
        )

    def _environment(
        self,
        folder: str,
        table: Mapping[str, Any],
        bases: Collection[str] | None,
        *,
        containers: bool,
        where_needed: bool,
    ) -> Environment:
        image, context = table.get("docker_image"), self.bundle.below(folder)
        if isinstance(image, str):
            found = self._of_image(image, folder, table, bases, containers=containers)
        elif DOCKERFILE not in context.files:
            found = _placed(self.bundle, ENVIRONMENT)
        elif containers:
            found = (
                read_or_build(context, bases, named=self._names_users)
                if where_needed
                else Environment(files={}, build=build_context(context))
            )
        else:
            found = read_environment(context, bases)
        return replace(configured(found, table, variables_of(table)), user=image_user(found))

    def _of_image(
        self,
        image: str,
        folder: str,
        table: Mapping[str, Any],
        bases: Collection[str] | None,
        *,
        containers: bool,
    ) -> Environment:
        """The environment of an image that a Dockerfile in `folder`, if there is one, makes as well: it stands for an image that cannot be had."""
        context = self.bundle.below(folder)
        if DOCKERFILE in context.files and containers:
            prebuilt = of_image(image, bases, containers=True)
            return Environment(files={}, build=build_context(context), prebuilt=prebuilt)
        try:
            prebuilt = of_image(image, bases, containers=containers)
        except ValueError as missing:
            if DOCKERFILE not in context.files:
                raise
            try:
                return read_environment(context, bases)
            except ValueError as error:
                raise ValueError(f"{missing}; its Dockerfile cannot stand for it: {error}") from error
        if folder != CONTEXT:  # an image of the tests' own
            found = Environment(files={})
        elif _has_recipe(self.bundle):
            found = _placed(self.bundle, ENVIRONMENT)
        else:
            found = _placed(self.bundle, CONTEXT, WORK if prebuilt is not None else _work_of(table))
        return replace(found, build=prebuilt, prebuilt=prebuilt)

    @property
    def _names_users(self) -> bool:
        """Whether agent or tests run as a user that an image must have."""
        users = (*self.settings.agent_users, self.settings.verifier.user)
        return any(own(user) is None and not user.isdecimal() for user in users)

    def seen_by_tests(self, left: Sequence[ArtifactFile], environment: Environment) -> Sequence[ArtifactFile]:
        """The files of an attempt that the tests get: all, or in the mode `separate` the declared artifacts. `environment`: the agent's."""
        if not self.settings.verifier.is_separate:
            return left
        built = environment.build is not None
        of_tests = begins_in(self.verification(None, containers=True)) if built else None
        return only_declared(
            left, self.settings.artifacts, begins_in(environment), built=built, of_tests=of_tests
        )

    @property
    def tests_bundle(self) -> Bundle:
        """The content of /tests at verification, by path relative to it."""
        return replace(self.bundle.below(TESTS), files=self.tests_files())

    @property
    def solution_bundle(self) -> Bundle:
        """The content of /solution where the reference solution is run, by absolute path."""
        return self.bundle.below(SOLUTIONS).below_root(f"/{SOLUTIONS[:-1]}")

    def tests_files(self) -> dict[str, AnyFile]:
        """Verification files by path relative to /tests; `test.sh` is always among them."""
        return startable(self.bundle.below(TESTS).files)


def load(directory: Path, limits: BundleLimits | None = None, shared: Shared | None = None) -> Task:
    """Read a task directory. ValueError names the directory and the problem. Large files are read when they are used. `shared`: files of other tasks
    that are read; it keeps those of this one if it is a task."""
    if not directory.is_dir():
        raise ValueError(f"{directory} is not a task directory")
    try:
        own: dict[tuple[bytes, int], File] = {}
        task = Task.of(read_directory(directory, limits, ChainMap(own, shared or {})), limits=limits)
    except (ValueError, OSError) as error:
        raise ValueError(f"{directory}: {error}") from error
    if shared is not None:
        shared.update(own)
    return task


def each_jsonl(path: Path) -> Iterator[tuple[str, Task | str]]:
    """Read tasks in message form, one per line, each with its location; blank lines are skipped. An invalid task yields a sentence that names the
    location."""
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            location = f"{path} line {number}"
            try:
                yield location, Task.from_message(json.loads(text_of(line, "the line")))
            except ValueError as error:
                yield location, f"{location}: {error}"
            except RecursionError:
                yield location, f"{location}: it is nested too deeply"


def without_canary(instruction: str) -> str:
    """An instruction without the comments at its top by which a benchmark is found in a corpus. No agent is to see them, and none to learn them."""
    lines = instruction.strip().split("\n")
    begin = next((at for at, line in enumerate(lines) if not _is_passed_over(line.strip())), len(lines))
    return "\n".join(lines[begin:])


def _is_passed_over(line: str) -> bool:
    """Whether it is empty or such a comment. A regular expression would search the rest of the line at each of its words."""
    lower = line.lower()
    if lower.startswith("<!--"):
        return lower.endswith("-->") and "canary" in lower[4:-3]
    return not line or (lower.startswith("#") and "canary" in lower)


def is_hidden(path: str) -> bool:
    """Whether a path of a task is of its tests or its solution, which no agent sees."""
    return HIDDEN.match(path) is not None


def unread_instruction(step: str) -> str:
    """A sentence about the instruction of a task with steps, the first of them `step`."""
    return f"{INSTRUCTION} is not read in a task with [[steps]]: move its text to {STEPS}{step}/{INSTRUCTION}, or remove it, or the steps"


def _has_recipe(bundle: Bundle) -> bool:
    """Whether a Dockerfile or compose file decides which files of environment/ an environment has."""
    return CONTEXT + DOCKERFILE in bundle.files or CONTEXT + COMPOSE in bundle.files


def _stray(bundle: Bundle, table: Mapping[str, Any]) -> list[str]:
    """A sentence for each file of environment/ that no sandbox gets. `table`: the task's `[environment]`."""
    if _has_recipe(bundle) or "docker_image" in table:
        return []  # admission names what no service uses
    return [
        f"{path} is placed nowhere: put it under {ENVIRONMENT}, or write {CONTEXT}{DOCKERFILE} that copies it"
        for path in unplaced(bundle.paths, (ENVIRONMENT,))
    ]


@contextmanager
def _noted(wrong: list[str]) -> Iterator[None]:
    """Add the sentence of a ValueError to `wrong`, and go on after it."""
    try:
        yield
    except ValueError as error:
        wrong.append(str(error))


def _together(wrong: Sequence[str], files: Mapping[str, AnyFile]) -> str:
    """The sentences as one. Faults of the keys in the `task.toml` of `files` come first: they may be the cause of the others."""
    named = list(wrong)
    if "task.toml" in files:
        keys: list[str] = []
        with _noted(keys):
            check_keys(_text(files, "task.toml"))
        named = list(dict.fromkeys([*keys, *wrong]))
    left = len(named) - _MAX_NAMED
    return "; ".join(named[:_MAX_NAMED]) + (f"; and {left} more" if left > 0 else "")


def check_steps(toml: str) -> None:
    """ValueError if the settings have `[[steps]]` that are not valid, before their files are looked for."""
    if read_task_toml(toml).get("steps"):
        check_keys(toml)


def _check_step(files: Mapping[str, AnyFile], folder: str) -> None:
    """Check instruction, test and solution of a task, or of the step in `folder`. A step may take test and solution from the task."""
    instruction, test, solution = (f"{folder}{path}" for path in (INSTRUCTION, TEST_SCRIPT, SOLUTION))
    purpose = "it is the agent's instruction" + (" in this step" if folder else "")
    _needs(files, instruction, purpose)
    if test not in files and TEST_SCRIPT in files:
        test = TEST_SCRIPT
    reward = "it decides the reward" + (f" of this step; {TEST_SCRIPT} may, too" if folder else "")
    if any(f"{each}{TESTS}{DOCKERFILE}" in files for each in (folder, "")):
        reward += ", and is the task's own file, not one that an image brings: move the script to this place"
    _needs(files, test, reward)
    if not without_canary(_text(files, instruction)):
        raise ValueError(f"{instruction} is empty: write what the agent is to do")
    if b"\0" in (body := files[instruction].data):
        raise ValueError(
            f"{instruction} holds a NUL character (byte {body.index(0)}): it is text for the agent"
        )
    if not files[test].data.strip():
        raise ValueError(f"{test} is empty: write a script that leaves a reward")
    for path in (solution, SOLUTION):
        if path in files:
            _text(files, path)


def _needs(files: Mapping[str, AnyFile], path: str, purpose: str) -> None:
    if path not in files:
        raise ValueError(f"{path} is missing: {purpose}")
    if files[path].size > MAX_MESSAGE_BYTES:
        raise ValueError(f"{path} has {files[path].size:,} bytes, and may have {MAX_MESSAGE_BYTES:,}")


def _placed(bundle: Bundle, folder: str, work: str = WORK) -> Environment:
    """The environment that the files of a folder give, placed into the directory `work`, which is /app or below it."""
    placed = bundle.below(folder).below_root(work)
    for path, target in placed.links.items():
        if not stays(path.removeprefix(f"{WORK}/"), target):
            raise ValueError(
                f"{folder}{path.removeprefix(f'{work}/')} is a link to {quoted(target)}, which leads out of {WORK}: put the file there instead"
            )
    return Environment(files=placed.files, links=placed.links, modes=placed.directories)


def _work_of(table: Mapping[str, Any]) -> str:
    """The directory that `workdir` names, if it is below /app; otherwise /app."""
    given = table.get("workdir")
    path = posixpath.normpath(posixpath.join("/", given)) if isinstance(given, str) else WORK
    return path if is_within(path, WORK) else WORK


def _no_tree(sha: str) -> bytes:
    raise AssertionError(f"a message without trees names the tree {sha}")


def _no_blob(blob: object, mode: int) -> AnyFile:
    raise AssertionError(f"a message without blobs names {blob} with mode {mode}")


def _text(files: Mapping[str, AnyFile], path: str) -> str:
    return text_of(files[path].data, path)
