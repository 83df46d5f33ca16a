"""Where a task's programs run: files, directories, variables and the work directory. The same for agent, tests and verifier.

Without `environment/Dockerfile` it is `environment/files/**`, placed into /app. With one, the Dockerfile alone says it; its build context is
the folder `environment/`. No image is built. FROM names a base that the sandbox's own system stands for: with bubblewrap that is this
machine's /usr and /bin, read-only (`sandbox.base_images` lists the names that a run takes it for); COPY places files of the task where
sandboxes can be written; ENV sets variables; WORKDIR is where programs begin.

What ENV says holds where the tests run, too: a PATH or PYTHONPATH that leads below /app lets files that the agent left run there.

| | as in Docker | differs |
|---|---|---|
| FROM | one, `AS name` allowed | only listed names; no --platform |
| WORKDIR | relative to the last one, made if missing | begins at /app, must be /app or lie below it |
| COPY | files, directories (their content), wildcards, JSON form, --chmod | below /app, /home/agent, /tmp, /logs; no --from, --chown, .dockerignore |
| ENV | `A=1 B="x y"`, `A x y`, $A, ${A:-b}, ${A:+b} | not PENSTOCK_… |
"""

import posixpath
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Final

from orchestrator.tasks.dockerfile import CONTAINERS, Instruction, expand, parse
from sandboxes.base import DEFAULT_ENV, WORK, WRITABLE, File, Limits, SandboxSpec

DOCKERFILE: Final = "Dockerfile"
IGNORE: Final = ".dockerignore"
RESERVED: Final = "PENSTOCK_"

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_WILD = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True)
class Environment:
    """What a sandbox is opened with: `files` and `directories` by absolute path, `env`, and `work_dir`, /app or below it.

    `build` is the build context where the provider makes the image; all else is then in the image, but what `without` names: absolute paths
    that are not there.
    """

    files: Mapping[str, File]
    directories: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    work_dir: str = WORK
    build: Mapping[str, bytes] | None = None
    without: tuple[str, ...] = ()

    def spec(self, files: Mapping[str, File], limits: Limits) -> SandboxSpec:
        """A sandbox of this environment, with `files` in place of its own."""
        return SandboxSpec(
            files, env=self.env, directories=self.directories, cwd=self.work_dir, build=self.build, without=self.without, limits=limits
        )  # fmt: skip


def image_name(name: str) -> str:
    """An image's name in full, as registries know it.

    >>> image_name("debian"), image_name("docker.io/library/python:3.11")
    ('debian:latest', 'python:3.11')
    """
    short = name.removeprefix("docker.io/").removeprefix("library/")
    return short if ":" in short.rpartition("/")[2] or "@" in short else f"{short}:latest"


def read_environment(context: Mapping[str, bytes], bases: Collection[str] | None) -> Environment:
    """What a build context (path relative to `environment/` → body, a Dockerfile among them) comes to.

    `bases` are the images that the sandbox's own system stands for, None: any. ValueError names line and instruction.
    """
    if IGNORE in context:
        raise ValueError(f"environment/{IGNORE} is not read: remove it, and whatever COPY is not to take")
    try:
        text = context[DOCKERFILE].decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"environment/{DOCKERFILE} is not UTF-8 text (byte {error.start})") from error
    if "\0" in text:
        raise ValueError(f"environment/{DOCKERFILE} holds a NUL character")
    instructions = parse(text)
    if not instructions or instructions[0].name != "FROM":
        raise ValueError(f"environment/{DOCKERFILE} must begin with FROM")
    build = _Build(context, bases)
    for instruction in instructions:
        build.apply(instruction)
    return Environment(build.files, tuple(sorted(build.made)), build.env, build.work_dir)


class _Build:
    """The state between two instructions."""

    def __init__(self, context: Mapping[str, bytes], bases: Collection[str] | None) -> None:
        self._context = context
        self._bases = bases
        self._based = False
        self.files: dict[str, File] = {}
        self.made: set[str] = set()  # directories that WORKDIR asks for
        self.env: dict[str, str] = {}
        self.work_dir = WORK

    def apply(self, instruction: Instruction) -> None:
        match instruction.name:
            case "FROM":
                self._from(instruction)
            case "WORKDIR":
                self._workdir(instruction)
            case "ENV":
                self._env(instruction)
            case "COPY":
                self._copy(instruction)

    def _expand(self, instruction: Instruction, word: str) -> str:
        return expand(instruction, word, {**DEFAULT_ENV, **self.env})

    def _no_flags(self, instruction: Instruction, known: str = "") -> None:
        for flag in instruction.flags:
            if flag != known:
                instruction.refuse(f"has the flag --{flag}: {CONTAINERS}")

    def _from(self, instruction: Instruction) -> None:
        self._no_flags(instruction)
        words = instruction.words
        if self._based:
            instruction.refuse(f"begins a second stage: {CONTAINERS}")
        if len(words) not in (1, 3) or (len(words) == 3 and words[1].upper() != "AS"):
            instruction.refuse("must be FROM image or FROM image AS name")
        self._based = True
        if self._bases is not None and image_name(words[0]) not in {image_name(base) for base in self._bases}:
            instruction.refuse(
                f"{words[0]}: the sandbox's own system stands for {', '.join(self._bases) or 'no image'} alone (sandbox.base_images); "
                "name one of them, or use a sandbox provider with container support (`containers`)"
            )

    def _workdir(self, instruction: Instruction) -> None:
        self._no_flags(instruction)
        path = self._absolute(self._expand(instruction, instruction.rest))
        if not instruction.rest or not _below(path, WORK):
            instruction.refuse(
                f"must be {WORK} or a directory below it, where the agent's work is, got {path}"
            )
        if self._file_above(path):
            instruction.refuse(f"{path} is a file")
        self.work_dir = path
        if path != WORK:
            self.made.add(path)

    def _env(self, instruction: Instruction) -> None:
        self._no_flags(instruction)
        words = instruction.words
        if not words:
            instruction.refuse("must be ENV NAME=value …")
        if "=" in words[0]:
            pairs = [word.partition("=") for word in words]
        else:  # the old form: one name, and the rest of the line
            if len(words) < 2:
                instruction.refuse(f"{words[0]} has no value: write {words[0]}=value")
            pairs = [(words[0], "=", instruction.rest[len(words[0]) :].strip())]
        found = {}
        for name, separator, value in pairs:
            if not separator or not _VARIABLE.fullmatch(name):
                instruction.refuse(f"{name!r:.60} is not of the form NAME=value")
            if name.startswith(RESERVED):
                instruction.refuse(f"{name} is reserved: choose a name that does not begin with {RESERVED}")
            found[name] = self._expand(instruction, value)  # what this line sets counts from the next line on
        self.env |= found

    def _copy(self, instruction: Instruction) -> None:
        self._no_flags(instruction, "chmod")
        words = instruction.words
        if not instruction.is_json:
            words = tuple(self._expand(instruction, word) for word in words)
        if len(words) < 2 or not all(words):
            instruction.refuse("must be COPY source … destination")
        mode = instruction.flags.get("chmod", "644")
        if not re.fullmatch(r"0?[0-7]{3}", mode):
            instruction.refuse(f"--chmod={mode} must be three octal digits")
        *sources, destination = words
        target = self._absolute(destination)
        found = [one for source in sources for one in self._sources(instruction, source)]
        into = destination.endswith("/") or len(sources) > 1 or len(found) > 1 or self._is_directory(target)
        for path, is_directory in found:
            if is_directory:
                taken = {
                    inside[len(path) :].lstrip("/"): inside
                    for inside in self._context
                    if _below(inside, path)
                }
                for name, inside in taken.items():
                    self._place(instruction, f"{target}/{name}", inside, mode)
            else:
                name = f"{target}/{posixpath.basename(path)}" if into else target
                self._place(instruction, name, path, mode)

    def _sources(self, instruction: Instruction, source: str) -> list[tuple[str, bool]]:
        """(path in the context, whether it is a directory) of what a source names, in order."""
        plain = posixpath.normpath("/" + source).lstrip("/")
        if ".." in source.split("/"):
            instruction.refuse(f"{source}: a source lies in environment/ and cannot be left with ..")
        directories = {""} | {path[: at.start()] for path in self._context for at in re.finditer("/", path)}
        if not _WILD.search(plain):
            known = [path for path in (plain,) if path in self._context or path in directories]
        else:
            pattern = plain.split("/")
            known = sorted(
                path
                for path in (*self._context, *directories)
                if len(parts := path.split("/")) == len(pattern) and all(map(fnmatchcase, parts, pattern))
            )
        if not known:
            instruction.refuse(f"{source}: there is no environment/{plain} in the task")
        return [(path, path in directories) for path in known]

    def _place(self, instruction: Instruction, path: str, source: str, mode: str) -> None:
        path = posixpath.normpath(path)
        if not any(path.startswith(f"{place}/") for place in WRITABLE):
            instruction.refuse(f"{path}: files can be placed below {', '.join(WRITABLE)} only; {CONTAINERS}")
        if self._is_directory(path) or self._file_above(posixpath.dirname(path)):
            instruction.refuse(f"{path}: there is a directory where a file is to be, or the other way round")
        self.files[path] = File(self._context[source], int(mode, 8))

    def _absolute(self, path: str) -> str:
        return "/" + posixpath.normpath(posixpath.join(self.work_dir, path)).lstrip("/")

    def _is_directory(self, path: str) -> bool:
        return (
            path in WRITABLE
            or any(_below(one, path) and one != path for one in (*self.files, *self.made))
            or path in self.made
        )

    def _file_above(self, path: str) -> bool:
        return any(_below(path, file) for file in self.files)


def _below(path: str, directory: str) -> bool:
    """Whether `path` is `directory` or lies in it; "" is the root of the context."""
    return not directory or path == directory or path.startswith(f"{directory}/")
