"""A task: a Harbor task directory, read from disk or from a message, checked once, immutable from then on.

    task.toml                 settings (settings.py)
    instruction.md            what the agent is told, UTF-8
    environment/files/**      put into the sandbox's work directory /app before the agent starts
    environment/Dockerfile    instead: says what is put where, of the files beside it (environment.py)
    tests/test.sh, tests/**   put into /tests at verification, in a fresh sandbox; never where the agent runs (verdict.py)
    solution/solve.sh         a reference solution, run in /app: what it prints is the final message; never shown to the agent

A task whose environment holds a git repository, or the whole text of its solution or test script, is refused: see `check_leaks`.

In a message the directory is `{"files": {path: text}, "files_b64": {path: base64}}`. File modes do not travel: scripts
are run by their interpreter. Other files (a README) are carried and ignored. Errors are ValueError, one sentence each.
"""

import base64
import hashlib
import json
import os
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from orchestrator.tasks.environment import DOCKERFILE, Environment, read_environment
from orchestrator.tasks.settings import Settings, parse_settings
from sandboxes.base import WORK, File

MAX_MESSAGE_BYTES: Final = 512 * 1024
"""Largest packed task that a message may carry inline, as JSON."""

MAX_PATH_BYTES: Final = 1024
MAX_NAME_BYTES: Final = 255
LEAK_BYTES: Final = 24
"""Scripts shorter than this say too little to be looked for in what the agent sees."""

CONTEXT: Final = "environment/"
ENVIRONMENT: Final = "environment/files/"
TESTS: Final = "tests/"
SOLUTIONS: Final = "solution/"
TEST_SCRIPT: Final = "tests/test.sh"
SOLUTION: Final = "solution/solve.sh"

_LOOSE_OBJECT = re.compile(r"/objects/[0-9a-f]{2}/[0-9a-f]{38}")
_PACKED_OBJECTS = (b"PACK\0\0\0", b"# v2 git bundle", b"# v3 git bundle")
_UNSAFE = re.compile(r"[\x00-\x1f\x7f\\\ud800-\udfff]")


@dataclass(frozen=True)
class Task:
    """The files of a task by path, checked. Build one with `load`, `Task.from_files` or `Task.from_message`."""

    files: Mapping[str, bytes]
    settings: Settings

    @classmethod
    def from_files(cls, files: Mapping[str, bytes]) -> "Task":
        """Check the files of a task directory. ValueError names the file and, in `task.toml`, the key."""
        for path in files:
            check_path(path)
        for path in files:
            folder = path.rpartition("/")[0]
            while folder:
                if folder in files:
                    raise ValueError(f"{folder}: a task cannot have both this file and {path}")
                folder = folder.rpartition("/")[0]
        for path in files:
            if (
                path.startswith(CONTEXT)
                and not path.startswith(ENVIRONMENT)
                and CONTEXT + DOCKERFILE not in files
            ):
                raise ValueError(
                    f"{path} is placed nowhere: put it under {ENVIRONMENT}, or write {CONTEXT}{DOCKERFILE} that copies it"
                )
        for path, purpose in (
            ("task.toml", "it holds the task's settings and may be empty"),
            ("instruction.md", "it is what the agent is told"),
            (TEST_SCRIPT, "it decides the reward"),
        ):
            if path not in files:
                raise ValueError(f"{path} is missing: {purpose}")
        if not _text(files, "instruction.md").strip():
            raise ValueError("instruction.md is empty: write what the agent is to do")
        if not files[TEST_SCRIPT].strip():
            raise ValueError(f"{TEST_SCRIPT} is empty: write a script that leaves a reward")
        if SOLUTION in files:
            _text(files, SOLUTION)
        check_leaks(files)
        return cls(
            MappingProxyType({path: bytes(files[path]) for path in sorted(files)}),
            parse_settings(_text(files, "task.toml")),
        )

    @classmethod
    def from_message(cls, message: Any) -> "Task":
        """Unpack and check the inline form of a task."""
        if not isinstance(message, dict):
            raise ValueError(f'a task must be an object with "files", got {type(message).__name__}')
        unknown = sorted(set(message) - {"files", "files_b64"})
        if unknown:
            raise ValueError(f'a task has only "files" and "files_b64", got {unknown[0]!r:.80}')
        files: dict[str, bytes] = {}
        for field in ("files", "files_b64"):
            bodies = message.get(field, {})
            if not isinstance(bodies, dict):
                raise ValueError(
                    f'"{field}" must be an object of path to content, got {type(bodies).__name__}'
                )
            for path, body in bodies.items():
                check_path(path)  # before anything else says it
                if not isinstance(body, str):
                    raise ValueError(f'"{field}" must hold text under each path, got {body!r:.80} at {path}')
                if path in files:
                    raise ValueError(f'{path} stands in both "files" and "files_b64"')
                files[path] = _decode(field, path, body)
        task = cls.from_files(files)
        _check_size(task, len(json.dumps(message)))
        return task

    def to_message(self) -> dict[str, dict[str, str]]:
        """The inline form: UTF-8 files as text, others as base64. ValueError above `MAX_MESSAGE_BYTES`."""
        text: dict[str, str] = {}
        binary: dict[str, str] = {}
        for path, body in self.files.items():
            try:
                text[path] = body.decode("utf-8")
            except UnicodeDecodeError:
                binary[path] = base64.b64encode(body).decode("ascii")
        message = {"files": text} | ({"files_b64": binary} if binary else {})
        _check_size(self, len(json.dumps(message)))
        return message

    def write(self, directory: Path) -> None:
        """Write the task as a directory, which must not hold files yet."""
        for path, body in self.files.items():
            target = directory / path
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("xb") as file:
                file.write(body)

    @cached_property
    def content_hash(self) -> str:
        """Hex sha256 over the sorted files, each as its path and content with their lengths; 64 characters."""
        digest = hashlib.sha256()
        for path, body in self.files.items():
            for part in (path.encode(), body):
                digest.update(len(part).to_bytes(8, "little"))
                digest.update(part)
        return digest.hexdigest()

    @property
    def name(self) -> str:
        """`[metadata].name`, or one made from the content hash."""
        return self.settings.metadata.name or f"task-{self.content_hash[:12]}"

    @property
    def instruction(self) -> str:
        """`instruction.md` without the white space around it."""
        return self.files["instruction.md"].decode("utf-8").strip()

    @property
    def solution(self) -> str | None:
        """`solution/solve.sh`, if the task has one."""
        return self.files[SOLUTION].decode("utf-8") if SOLUTION in self.files else None

    def environment(self, bases: Collection[str] | None, *, containers: bool = False) -> Environment:
        """Where its programs run. `bases`: images that the sandbox's own system stands for (None: any); `containers`: whether the provider
        builds images. ValueError names the line of the Dockerfile that asks for more than there is."""
        context = self._under(CONTEXT)
        if DOCKERFILE not in context:
            return Environment(
                {f"{WORK}/{path}": File(body) for path, body in self._under(ENVIRONMENT).items()}
            )
        return Environment({}, build=context) if containers else read_environment(context, bases)

    def tests_files(self) -> dict[str, bytes]:
        """Verification files by path relative to /tests; `test.sh` is always among them."""
        return self._under(TESTS)

    def _under(self, folder: str) -> dict[str, bytes]:
        return {path[len(folder) :]: body for path, body in self.files.items() if path.startswith(folder)}


def load(directory: Path) -> Task:
    """Read a task directory. ValueError names the directory and what is wrong; links are refused, not followed."""
    if not directory.is_dir():
        raise ValueError(f"{directory} is not a task directory")
    try:
        return Task.from_files(_read_tree(directory))
    except ValueError as error:
        raise ValueError(f"{directory}: {error}") from error


def iter_jsonl(path: Path) -> Iterator[Task]:
    """Read tasks in message form, one per line; blank lines are skipped. ValueError names the line."""
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                yield Task.from_message(json.loads(line))
            except ValueError as error:
                raise ValueError(f"{path} line {number}: {error}") from error


def check_path(path: str) -> None:
    """Refuse a path that is not relative, normal, printable and short: it may not leave the folder that it is written to, and must fit."""
    parts = path.split("/")
    if not path or path.startswith("/") or _UNSAFE.search(path) or any(p in ("", ".", "..") for p in parts):
        raise ValueError(f"{path!r:.120} is not a plain relative path")
    if len(path.encode()) > MAX_PATH_BYTES or any(len(part.encode()) > MAX_NAME_BYTES for part in parts):
        raise ValueError(
            f"{path!r:.120} is too long: a path has at most {MAX_PATH_BYTES} bytes, and each name in it {MAX_NAME_BYTES}"
        )


def check_leaks(files: Mapping[str, bytes]) -> None:
    """ValueError if the agent could read the answer in its environment: the text of a solution or of the test script in one of its files,
    or a git repository, whose objects can hold what its work tree does not show."""
    context = {path: body for path, body in files.items() if path.startswith(CONTEXT)}
    for path, body in context.items():
        if ".git" in path.split("/") or _LOOSE_OBJECT.search(path) or body.startswith(_PACKED_OBJECTS):
            raise ValueError(
                f"{path}: a git repository may hold the answer in its history: leave it out, and let the agent begin with plain files"
            )
    for path, body in files.items():
        secret = body.strip()
        if not (path.startswith(SOLUTIONS) or path == TEST_SCRIPT) or len(secret) < LEAK_BYTES:
            continue
        for where, found in context.items():
            if secret in found:
                raise ValueError(f"{where} holds the whole text of {path}, which the agent must not see")


def _read_tree(directory: Path) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    for folder, subfolders, names in os.walk(directory):
        for name in [*subfolders, *names]:
            path = Path(folder, name)
            relative = path.relative_to(directory).as_posix()
            if path.is_symlink():
                raise ValueError(f"{relative} is a link: a task holds regular files only")
            if path.is_file():
                files[relative] = path.read_bytes()
            elif not path.is_dir():
                raise ValueError(f"{relative} is neither a file nor a folder")
    return files


def _text(files: Mapping[str, bytes], path: str) -> str:
    try:
        return files[path].decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text (byte {error.start})") from error


def _decode(field: str, path: str, body: str) -> bytes:
    try:
        return body.encode("utf-8") if field == "files" else base64.b64decode(body, validate=True)
    except UnicodeEncodeError as error:
        raise ValueError(f"{path} is not valid Unicode text (character {error.start})") from error
    except ValueError as error:
        raise ValueError(f"{path} is not valid base64: {error}") from error


def _check_size(task: Task, size: int) -> None:
    if size > MAX_MESSAGE_BYTES:
        raise ValueError(
            f"{task.name} is {-(-size // 1024)} KB packed and a message carries at most {MAX_MESSAGE_BYTES // 1024} KB: "
            "make its files smaller"
        )
