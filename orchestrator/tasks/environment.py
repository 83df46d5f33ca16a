"""The environment of a task's programs: files, directories, variables and the work directory. The same for agent, tests and verifier.

Without `environment/Dockerfile` it is `environment/files/**`, placed into /app, or over an image that the task names all of `environment/`. With a
Dockerfile, only the Dockerfile defines it; its build context is the folder `environment/`. No image is built. FROM names a base that the sandbox's
own system replaces: with bubblewrap that is this machine's /usr and /bin, read-only (`sandbox.base_images` lists the names that a run accepts for
it). COPY places files of the task into writable directories of sandboxes; ENV sets variables; WORKDIR is the start directory of programs.

ENV also applies to the tests: with a PATH or PYTHONPATH that leads below /app, the agent's files can run there.

| | as in Docker | differs |
|---|---|---|
| FROM | one, `AS name` allowed | only listed names; no --platform |
| WORKDIR | relative to the last one, made if missing | starts at /app, for COPY as well; must be /app or below it |
| COPY | files, links, content of directories, wildcards, JSON, --chmod | below /app, /home/agent, /tmp, /logs; no --from, --chown, .dockerignore |
| ENV | `A=1 B="x y"`, `A x y`, $A, ${A:-b}, ${A:+b}, ${A-b}, ${A+b} | not PENSTOCK_…, BASH_ENV |
"""

import posixpath
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from orchestrator.contracts.numbers import is_finite
from orchestrator.contracts.quote import quoted
from orchestrator.tasks.bundle import Bundle
from orchestrator.tasks.dockerfile import (
    CONTAINERS,
    DockerfileError,
    Instruction,
    check_growth,
    expand,
    parse,
)
from orchestrator.tasks.last_stage import user_of
from orchestrator.tasks.reserved import PREFIX
from orchestrator.tasks.sizes import (
    MAX_COPIED,
    MAX_SEARCHED,
    VARIABLE_BYTES,
    VARIABLES_BYTES,
    TooLarge,
    check_dockerfile,
    dockerfile_text,
    size_of,
    too_long,
    too_many,
)
from sandboxes.artifacts import stays
from sandboxes.base import (
    DEFAULT_ENV,
    WORK,
    WRITABLE,
    AnyFile,
    BuildEntry,
    File,
    Folder,
    ImageRefused,
    Limits,
    Link,
    Provider,
    SandboxSpec,
    SideService,
    StoredFile,
)
from sandboxes.build_context import ignore_file
from sandboxes.docker_patterns import names
from sandboxes.images import recipe
from sandboxes.images.adapt import work_directory
from sandboxes.paths import is_within, parents
from sandboxes.users import refusal

DOCKERFILE: Final = "Dockerfile"
IGNORES: Final = (".dockerignore", f"{DOCKERFILE}.dockerignore")
LOGS: Final = ("/logs/agent", "/logs/artifacts", "/logs/verifier")
"""Directories that the format guarantees to agent and tests."""

_MAX_LINKS: Final = 40

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_WILD = re.compile(r"[*?\[]")
_PLAIN = re.compile(r"/[\w./-]{1,1000}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The content of a new sandbox: `files` and `directories` by absolute path, `env`, and `work_dir`, /app or below it.
    `cpus`: its cores, 0: the provider's. `build_timeout_s`: the time of a build, 0: the provider's. `user`: who runs its programs, empty: the
    sandbox's own user.

    `links`: absolute path → target of a symbolic link; `modes`: permission bits of directories, by absolute path.
    `build` is the build context if the provider makes the image; the image then holds everything else, except `without`: absolute paths that
    must be absent. `writable`: absolute paths outside of the work directory that programs of an image are to write as well (sandboxes.base).
    `prebuilt`: a context that begins with the image that `docker_image` names, to be tried before `build`. `services`: side services next to it.
    """

    files: Mapping[str, AnyFile]
    directories: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    work_dir: str = WORK
    build: Mapping[str, BuildEntry] | None = None
    prebuilt: Mapping[str, BuildEntry] | None = None
    without: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    links: Mapping[str, str] = field(default_factory=dict)
    modes: Mapping[str, int] = field(default_factory=dict)
    cpus: float = 0.0
    build_timeout_s: float = 0.0
    user: str = ""
    services: tuple[SideService, ...] = ()

    @property
    def services_s(self) -> float:
        """The most seconds that its side services may take to start, one after the other; 0 without any."""
        return sum(each.longest_s for each in self.services)

    def spec(self, files: Mapping[str, AnyFile], limits: Limits) -> SandboxSpec:
        """A sandbox of this environment, with `files` in place of its own."""
        return SandboxSpec(
            files=files,
            env=self.env,
            directories=(*LOGS, *self.directories),
            cwd=self.work_dir,
            build=self.build,
            prebuilt=self.prebuilt,
            without=self.without,
            writable=self.writable,
            limits=replace(limits, cpus=self.cpus),
            build_timeout_s=self.build_timeout_s,
            links=self.links,
            modes=self.modes,
            user=self.user,
            services=self.services,
        )


def read_environment(context: Bundle, bases: Collection[str] | None) -> Environment:
    """The environment of a build context (the bundle of `environment/`, including a Dockerfile).

    `bases` are the images that the sandbox's own system replaces, None: any. ValueError names line and instruction.
    """
    for name in IGNORES:
        if name in context.files or name in context.links:
            raise ValueError(
                f"environment/{name} is not read: remove it, and the files that COPY must not copy"
            )
    text = dockerfile_text(context.files[DOCKERFILE], f"environment/{DOCKERFILE}")
    if "\0" in text:
        raise ValueError(f"environment/{DOCKERFILE} holds a NUL character")
    try:
        instructions = parse(text)
    except DockerfileError as error:  # add the error of FROM, which would be refused next
        base = next((each for each in error.read if each.name == "FROM"), None)
        try:
            if base is not None:
                _Build(context, bases).apply(base)
        except ValueError as refused:
            raise DockerfileError([*error.wrong, str(refused)]) from error
        raise
    if not instructions or instructions[0].name != "FROM":
        raise ValueError(f"environment/{DOCKERFILE} must begin with FROM")
    build = _Build(context, bases)
    for instruction in instructions:
        build.apply(instruction)
    return Environment(
        files=build.files,
        directories=tuple(sorted(build.made)),
        env=build.env,
        work_dir=build.work_dir,
        links=build.links,
        modes=build.modes,
    )


def build_context(
    context: Bundle, dockerfile: str = DOCKERFILE, folder: str = "environment"
) -> dict[str, BuildEntry]:
    """A bundle as the build context of an image. TooLarge for the Dockerfile of the build; `folder`: of the task, for this sentence."""
    if (recipe_file := context.files.get(dockerfile)) is not None:
        check_dockerfile(recipe_file, posixpath.join(folder, dockerfile))
        check_growth(recipe_file.data.decode(errors="replace"))
    links = {path: Link(target) for path, target in context.links.items()}
    folders = {path: Folder(mode) for path, mode in context.directories.items()}
    return {**context.files, **links, **folders}


def read_or_build(context: Bundle, bases: Collection[str] | None, *, named: bool = False) -> Environment:
    """The environment of a build context: without an image if it needs none, and otherwise with the image that it builds. `named`: the image must
    have a user. ValueError if FROM is missing or names another architecture."""
    if not named:
        try:
            return read_environment(context, bases)
        except TooLarge:  # a build does not make it smaller
            raise
        except ValueError:
            pass
    built = build_context(context)
    recipe.read(context.files[DOCKERFILE].data)
    return Environment(files={}, build=built)


def image_user(found: Environment) -> str:
    """The user that the Dockerfile of an environment that is built names, also where it only stands for an image; empty for none."""
    if found.build is None:
        return ""
    dockerfile = found.build[DOCKERFILE]
    assert isinstance(dockerfile, File | StoredFile)
    return user_of(dockerfile.data.decode(errors="replace"))


def builds_where_needed(provider: Provider | type[Provider]) -> bool:
    """Whether a provider with `containers` uses its own system for a task that needs no image."""
    return bool(getattr(provider, "only_where_needed", False))


def reaches_the_proxy(provider: Provider | type[Provider]) -> bool:
    """Whether programs of a provider's sandboxes reach the runner's egress proxy, by a directory with its socket."""
    return bool(getattr(provider, "live_binds", False))


def writes_elsewhere(provider: Provider | type[Provider]) -> bool:
    """Whether programs of a provider's sandboxes may write an image's directories of data, and the tests get the changes."""
    return bool(getattr(provider, "writes_elsewhere", False))


def has_side_services(provider: Provider | type[Provider]) -> bool:
    """Whether a provider runs the services of a compose file next to a sandbox."""
    return bool(getattr(provider, "side_services", False))


def check_services(found: Environment, provider: Provider | type[Provider]) -> None:
    """ValueError if the environment needs side services and the provider has none, or names a user in its Dockerfile whom it does not have."""
    if (why := refusal(provider, found.user)) is not None:
        raise ValueError(f"environment/Dockerfile: USER {found.user} is not honoured: {why}")
    if found.services and not has_side_services(provider):
        names = ", ".join(each.name for each in found.services)[:200]
        raise ValueError(
            f"environment/docker-compose.yaml has the services {names}, which the provider {provider.name} does not run: the provider container does "
            '(sandbox.provider = "container"); choose it, or put what they do into the image and start it in [environment].healthcheck'
        )


def check_ignore_files(found: Environment, provider: Provider | type[Provider]) -> None:
    """ValueError for an ignore file of the environment, or of a side service, that the provider container does not read as it stands."""
    if provider.name != "container":
        return
    if found.build is not None and found.prebuilt is None:
        ignore_file(found.build, f"environment/{DOCKERFILE}")
    for each in found.services:
        ignore_file(each.build, f"the image of the service {each.name}, {each.shown},")


def of_image(
    image: str, bases: Collection[str] | None, *, containers: bool
) -> Mapping[str, BuildEntry] | None:
    """The build context of an image that exists; None where the sandbox's own system stands for it. ValueError if it does not."""
    if containers:
        return {DOCKERFILE: File(f"FROM {image}\n".encode())}
    if bases is not None and recipe.short_name(image) not in map(recipe.short_name, bases):
        raise ValueError(
            f"task.toml: [environment].docker_image = {quoted(image)}: the sandbox's own system stands for {', '.join(bases) or 'no image'} alone "
            "(sandbox.base_images); name one of them, or set sandbox.images.directory, with which bubblewrap builds images (ops/guides/images.md)"
        )
    return None


def configured(found: Environment, table: Mapping[str, Any], variables: Mapping[str, str]) -> Environment:
    """`found` with `variables` and with the work directory, cores and build time of `table`, the task's `[environment]`. ValueError for a work
    directory outside of the agent's directory. Where an image is built, it may be any directory that the image does not need itself."""
    found = replace(
        found,
        env={**found.env, **variables},
        cpus=_positive(table.get("cpus")),
        build_timeout_s=_positive(table.get("build_timeout_sec")) if found.build is not None else 0.0,
    )
    workdir = table.get("workdir")
    if not isinstance(workdir, str) or not workdir:
        return found
    path = posixpath.normpath(posixpath.join("/", workdir))
    if path in ("/", "//"):  # as for an image whose WORKDIR is /
        path = WORK
    if found.build is not None:
        if not _PLAIN.fullmatch(path):
            raise ValueError(
                f"task.toml: [environment].workdir must be a path of letters, digits and ._- where an image is built, got {quoted(workdir)}"
            )
        try:
            work_directory(path)
        except ImageRefused as error:
            raise ValueError(f"task.toml: [environment].workdir = {quoted(workdir)}: {error}") from error
        prebuilt = None if found.prebuilt is None else _in(path, found.prebuilt)
        return replace(found, build=_in(path, found.build), prebuilt=prebuilt)
    if not _below(path, WORK) or any(_below(path, file) for file in found.files):
        raise ValueError(
            f"task.toml: [environment].workdir must be {WORK} or a directory below it, where the agent's work is, got {quoted(workdir)}"
        )
    made = {*found.directories, path} - {WORK}
    return replace(found, work_dir=path, directories=tuple(sorted(made)))


def _in(work_dir: str, context: Mapping[str, BuildEntry]) -> dict[str, BuildEntry]:
    """A build context whose image begins in a directory."""
    dockerfile = context[DOCKERFILE]
    assert isinstance(dockerfile, File | StoredFile)
    return {**context, DOCKERFILE: File(dockerfile.data + f"\nWORKDIR {work_dir}\n".encode())}


def _positive(value: object) -> float:
    """A number above 0. Tasks accepted before this check may have another value: 0."""
    return max(0.0, float(value)) if is_finite(value) else 0.0


class _Build:
    """The state between two instructions."""

    def __init__(self, context: Bundle, bases: Collection[str] | None) -> None:
        self._context = context
        self._entries = list(context.paths)
        self._directories = {"", *context.directories}
        self._directories |= {path[: at.start()] for path in self._entries for at in re.finditer("/", path)}
        self._plain = set(self._entries) - set(context.directories)  # files and links
        self._searched = self._placed = 0
        self._bases = bases
        self._based = False
        self.files: dict[str, AnyFile] = {}
        self.links: dict[str, str] = {}
        self.modes: dict[str, int] = {}  # of directories
        self.made: set[str] = set()  # directories created by WORKDIR
        self._folders: set[str] = set()  # every directory that has something in it, or was created
        self.env: dict[str, str] = {}
        self._known = dict(DEFAULT_ENV)  # with `env`
        self._bytes = 0  # of `env`
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

    def _expand(self, instruction: Instruction, word: str, what: str = "a word") -> str:
        return expand(instruction, word, self._known, what=what)

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
        image = self._expand(instruction, words[0])
        if self._bases is not None and recipe.short_name(image) not in {
            recipe.short_name(base) for base in self._bases
        }:
            instruction.refuse(
                f"{words[0]}: the sandbox's own system stands for {', '.join(self._bases) or 'no image'} alone (sandbox.base_images); "
                "name one of them, or set sandbox.images.directory, with which bubblewrap builds images (ops/guides/images.md)"
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
            self._folders.add(path)
            self._entered(path)

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
        found: dict[str, str] = {}
        for name, separator, value in pairs:
            if not separator or not _VARIABLE.fullmatch(name):
                instruction.refuse(f"{quoted(name)} is not of the form NAME=value")
            if name.startswith(PREFIX):
                instruction.refuse(f"{name} is reserved: choose a name that does not begin with {PREFIX}")
            # Variables of this line apply from the next line on.
            text = self._expand(instruction, value, name)
            self._bytes += size_of(name, text) - (size_of(name, found[name]) if name in found else 0)
            found[name] = text
            if size_of(name, text) > VARIABLE_BYTES:
                raise TooLarge(f"{instruction.at}: {too_long(name)}")
            if self._bytes > VARIABLES_BYTES:
                raise TooLarge(f"{instruction.at}: {too_many()}")
        self._bytes -= sum(size_of(name, self.env[name]) for name in found if name in self.env)
        self.env |= found
        self._known |= found

    def _copy(self, instruction: Instruction) -> None:
        self._no_flags(instruction, "chmod")
        words = instruction.words
        if not instruction.is_json:
            words = tuple(self._words(instruction))
        if len(words) < 2 or not all(words):
            instruction.refuse("must be COPY source … destination")
        mode = instruction.flags.get("chmod", "")
        if mode and not re.fullmatch(r"0?[0-7]{3}", mode):
            instruction.refuse(f"--chmod={mode} must be three octal digits")
        *sources, destination = words
        self._count(instruction, searched=len(sources))
        target = self._absolute(destination)
        found = [match for source in sources for match in self._sources(instruction, source)]
        into = destination.endswith("/") or len(sources) > 1 or len(found) > 1 or self._is_directory(target)
        for path, is_directory in found:
            if is_directory:
                taken = {
                    inside[len(path) :].lstrip("/"): inside
                    for inside in self._entries
                    if _below(inside, path)
                }
                self._count(instruction, searched=len(self._entries), placed=len(taken))
                for name, inside in taken.items():
                    self._place(instruction, f"{target}/{name}", inside, mode)
            else:
                self._count(instruction, placed=1)
                name = f"{target}/{posixpath.basename(path)}" if into else target
                self._place(instruction, name, path, mode)

    def _sources(self, instruction: Instruction, source: str) -> list[tuple[str, bool]]:
        """(path in the context, whether it is a directory) of every match of a source, in order."""
        plain = posixpath.normpath("/" + source).lstrip("/")
        if ".." in source.split("/"):
            instruction.refuse(f"{source}: a source lies in environment/ and cannot be left with ..")
        entries, directories = self._plain, self._directories
        if not _WILD.search(plain):
            known = [path for path in (plain,) if path in entries or path in directories]
        else:
            self._count(instruction, searched=len(self._entries))
            known = sorted(path for path in (*entries, *directories) if names(plain, path))
        if not known:
            instruction.refuse(f"{source}: environment/{plain} does not exist in the task")
        followed = [self._followed(instruction, path) for path in known]
        return [(path, path in directories) for path in followed]

    def _words(self, instruction: Instruction) -> Iterator[str]:
        left = VARIABLES_BYTES
        for word in instruction.words:
            text = self._expand(instruction, word)
            if (left := left - len(text)) < 0:
                raise TooLarge(
                    f"{instruction.at} has more than {VARIABLES_BYTES:,} characters: copy directories as a whole"
                )
            yield text

    def _count(self, instruction: Instruction, *, searched: int = 0, placed: int = 0) -> None:
        """Count the entries that a COPY looks through and places."""
        self._searched += searched
        self._placed += placed
        for count, most, does in (
            (self._searched, MAX_SEARCHED, "search through"),
            (self._placed, MAX_COPIED, "copy"),
        ):
            if count > most:
                raise TooLarge(
                    f"{instruction.at}: the lines up to this one {does} more than {most:,} files: copy directories as a whole, and each once"
                )

    def _followed(self, instruction: Instruction, path: str) -> str:
        """The entry to which a source leads that is itself a link."""
        for _ in range(_MAX_LINKS):
            target = self._context.links.get(path)
            if target is None:
                return path
            path = posixpath.normpath(posixpath.join("/", posixpath.dirname(path), target)).lstrip("/")
        instruction.refuse(f"environment/{path} is a link that leads to itself")

    def _place(self, instruction: Instruction, path: str, source: str, mode: str) -> None:
        path = posixpath.normpath(path)
        if not any(path.startswith(f"{writable}/") for writable in WRITABLE):
            instruction.refuse(f"{path}: files can be placed below {', '.join(WRITABLE)} only; {CONTAINERS}")
        folder = source in self._context.directories
        if (self._is_directory(path) and not folder) or self._file_above(
            path if folder else posixpath.dirname(path)
        ):
            instruction.refuse(f"{path}: there is a directory where a file is to be, or the other way round")
        self._entered(path)
        if (target := self._context.links.get(source)) is not None:
            inside = path.removeprefix(f"{WORK}/")
            if inside == path or not stays(inside, target):
                instruction.refuse(
                    f"{path} would be a link to {quoted(target)}: links lead from {WORK} to places in it or to the system's"
                )
            self.files.pop(path, None)
            self.links[path] = target
        elif source in self._context.directories:
            self._folders.add(path)
            self.modes[path] = int(mode, 8) if mode else self._context.directories[source]
        else:
            file = self._context.files[source]
            self.links.pop(path, None)
            self.files[path] = replace(file, mode=int(mode, 8)) if mode else file

    def _absolute(self, path: str) -> str:
        return "/" + posixpath.normpath(posixpath.join(self.work_dir, path)).lstrip("/")

    def _is_directory(self, path: str) -> bool:
        return path in WRITABLE or path in self._folders

    def _file_above(self, path: str) -> bool:
        """Whether a file or link lies at `path` or above it."""
        return any(one in self.files or one in self.links for one in (path, *parents(path)))

    def _entered(self, path: str) -> None:
        self._folders.update(parents(path))


def _below(path: str, directory: str) -> bool:
    """Whether `path` is `directory` or below it; "" is the root of the context."""
    return not directory or is_within(path, directory)
