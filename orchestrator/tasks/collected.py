"""`artifacts` and `[[verifier.collect]]`: what of the agent's sandbox goes to the tests besides the changes of its work directory and, on an image,
of its directories that hold data.

An artifact appears in verification at its own path. `destination` only says where Harbor keeps a copy, so it has no effect here.
`/logs/artifacts` is an artifact of every task whose tests mention it.
"""

import posixpath
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final

from pydantic import BaseModel, ConfigDict

from orchestrator.contracts.events import ArtifactFile
from orchestrator.contracts.ids import unb64
from orchestrator.contracts.quote import quoted
from orchestrator.contracts.states import Left
from orchestrator.tasks import key_values as values
from orchestrator.tasks.artifact_modes import at_path, is_change, type_of
from orchestrator.tasks.artifacts import noted
from sandboxes.base import WORK, AnyFile
from sandboxes.elsewhere import leads_elsewhere, place_of

CONVENTION: Final = "/logs/artifacts"
COLLECTED: Final = (CONVENTION, "/tmp")
"""Directories outside of the work directory from which files are copied. A file of the agent's in the home or among the logs of verification could
run there, or pass for a verdict."""
ANSWER_PATH: Final = "/logs/agent/answer.txt"
"""Where the tests find the final message."""
READ_BYTES: Final = 1 << 20
"""Larger files of the tests are data, not programs."""
MAIN: Final = "main"
_WAY_OUT: Final = "is a symbolic link out of the work directory, where tests in an environment of their own may have other files,"

_BEYOND: Final = "is a symbolic link outside of the tests' work directory, where an environment of their own may have other files,"


class ArtifactSource(BaseModel):
    """One artifact: `source` is a file or a directory; `exclude` are patterns of names or relative paths in it."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    source: str
    exclude: tuple[str, ...] = ()

    @property
    def is_collected(self) -> bool:
        """Whether it lies outside of the work directory, whose changes the tests see anyway."""
        return any(self.source == place or self.source.startswith(f"{place}/") for place in COLLECTED)

    @property
    def lies_elsewhere(self) -> bool:
        """Whether it lies where an image may have data outside of its work directory, or is such a place."""
        return place_of(self.source) != ""

    def excludes(self, relative: str) -> bool:
        """Whether a pattern leaves out a path below the source, or a directory above it."""
        parts = relative.split("/")
        named = [*parts, *("/".join(parts[:end]) for end in range(2, len(parts) + 1))]
        return any(fnmatchcase(part, pattern) for pattern in self.exclude for part in named)


class CollectHook(BaseModel):
    """One command between agent and tests, run by bash in the agent's sandbox. Seconds."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    command: str
    timeout_sec: float = 60.0


def sources(value: Any) -> tuple[ArtifactSource, ...]:
    """The artifacts of a task. Invalid ones are left out: tasks accepted before this check may have them."""
    listed = value if isinstance(value, list | tuple) else ()
    tables = ({"source": each} if isinstance(each, str) else each for each in listed)
    return tuple(
        _normal(table) for table in tables if isinstance(table, dict) and artifact_flaw(table) is None
    )


def _normal(table: Mapping[str, Any]) -> ArtifactSource:
    found = ArtifactSource.model_validate(table)
    return found.model_copy(update={"source": posixpath.normpath(found.source)})


def hooks(value: Any) -> tuple[CollectHook, ...]:
    """The collect hooks of a task. Admission checks them; tasks accepted before it have none."""
    tables = value if isinstance(value, list) else ()
    known = (
        each for each in tables if isinstance(each, dict) and values.command(each.get("command")) is None
    )
    return tuple(
        CollectHook(command=each["command"], timeout_sec=each.get("timeout_sec", 60.0))
        for each in known
        if values.seconds(each.get("timeout_sec", 60.0)) is None
    )


def with_convention(
    declared: tuple[ArtifactSource, ...], tests: Mapping[str, AnyFile]
) -> tuple[ArtifactSource, ...]:
    """The artifacts of a task, with `/logs/artifacts` if a file of its tests mentions it."""
    mentioned = any(CONVENTION.encode() in file.data for file in tests.values() if file.size <= READ_BYTES)
    known = any(artifact.source == CONVENTION for artifact in declared)
    return (*declared, ArtifactSource(source=CONVENTION)) if mentioned and not known else declared


def artifacts_must(value: Any) -> str | None:
    """The check of the key `artifacts`."""
    if not isinstance(value, list):
        return "a list of paths or tables"
    for each in value:
        if flaw := artifact_flaw({"source": each} if isinstance(each, str) else each):
            return flaw
    return None


def artifact_flaw(table: Any) -> str | None:
    """The form of a valid artifact, if this one is not; None: it is valid."""
    return next(_artifact_flaws(table), None)


def _artifact_flaws(table: Any) -> Iterator[str]:
    if not isinstance(table, dict):
        yield "a list of paths or tables"
        return
    source, exclude = table.get("source"), table.get("exclude", [])
    if not isinstance(source, str) or not source or "\0" in source:
        yield "a list of artifacts, each with a `source`"
        return
    if ".." in source.split("/"):
        yield f"a list of paths without .., not {quoted(source)}"
    if unknown := sorted(set(table) - {"source", "destination", "exclude", "service"}):
        yield f"a list of tables with source, destination, exclude and service, not {quoted(unknown[0])}"
    if table.get("service", MAIN) != MAIN:
        yield f"of the service {MAIN}: files are taken from the agent's sandbox, not {quoted(table['service'])}"
    if not isinstance(exclude, list) or not all(isinstance(pattern, str) for pattern in exclude):
        yield "a list of tables whose exclude is a list of patterns"


def only_declared(
    left: Sequence[ArtifactFile],
    declared: tuple[ArtifactSource, ...],
    begins: str | None,
    *,
    built: bool,
    of_tests: str | None = None,
) -> list[ArtifactFile]:
    """The files of an attempt that the tests of the mode `separate` get: the declared ones. `begins`: where the agent's programs begin, None: not
    known; `built`: in an image. `of_tests`: the WORKDIR of the tests: a file that they would find in it, and not at its own path, is named by that
    path."""
    roots = [
        (root, artifact)
        for artifact in declared
        if (root := _in_work(artifact, begins, built=built)) is not None
    ]
    beyond = [(artifact.source, artifact) for artifact in declared if artifact.lies_elsewhere]
    found: list[ArtifactFile] = []
    for file in left:
        path = noted(file)
        naming = [
            artifact
            for root, artifact in (beyond if path.startswith("/") else roots)
            if path == root or root == "." or path.startswith(f"{root}/")
            if not artifact.excludes("" if path == root else posixpath.relpath(path, root))
        ]
        inside = begins if built and not path.startswith("/") else None
        crossing = [each for each in naming if inside and crosses(each.source, inside, of_tests)]
        sent = [at_path(file, f"{inside}/{path}")] if crossing else []
        if len(naming) > len(crossing) or (not naming and _is_collected(file, path)):
            sent += [] if file in sent else [file]
        found += map(_without_ways_out, sent)
    return found


def _is_collected(file: ArtifactFile, path: str) -> bool:
    own = file.kind is Left.COLLECTED and not is_change(file)
    return own or any(path.startswith(f"{place}/") for place in COLLECTED)


def _without_ways_out(file: ArtifactFile) -> ArtifactFile:
    """The file, unless it is a link that leads or lies outside of the work directory: the environment of the tests may have its own files there."""
    beyond = is_change(file) and type_of(file) == stat.S_IFLNK
    if not beyond and (file.kind is not Left.LINK or not _leads_out(file)):
        return file
    why = _BEYOND if beyond else _WAY_OUT
    return ArtifactFile(path=file.path, body=None, kind=Left.BEHIND, why=why, step=file.step)


def _leads_out(file: ArtifactFile) -> bool:
    return leads_elsewhere(file.path, unb64(file.body or "").decode(errors="replace"))


def written_elsewhere(declared: Iterable[ArtifactSource]) -> tuple[str, ...]:
    """The artifacts outside of the work directory that programs of an image may write besides its directories of data, in order."""
    return tuple(dict.fromkeys(artifact.source for artifact in declared if artifact.lies_elsewhere))


def _in_work(artifact: ArtifactSource, begins: str | None, *, built: bool) -> str | None:
    """The path of an artifact relative to the work directory, "." for itself; None: it is elsewhere. An image's work directory is its WORKDIR, which
    sandboxes also show as `/app`; without an image it is `/app`, and programs may begin below it."""
    tops = dict.fromkeys((begins or WORK, WORK)) if built else (WORK,)
    inside = posixpath.normpath(posixpath.join(begins or WORK, artifact.source))
    for top in tops:
        if inside == top or inside.startswith(f"{top}/"):
            return posixpath.relpath(inside, top)
    return None


def places(
    declared: tuple[ArtifactSource, ...], begins: str | None, *, built: bool, elsewhere: bool = False
) -> Iterator[str]:
    """Sentences about artifacts that no file of the agent can be at, or that lie in a work directory that only the image can tell. Arguments as for
    `only_declared`; `elsewhere`: whether the provider lets programs write an image's other places."""
    elsewhere = elsewhere and built
    also = (
        f"{CONVENTION}, /tmp and directories of data such as /data" if elsewhere else f"{CONVENTION} and /tmp"
    )
    for artifact in declared:
        if elsewhere and artifact.lies_elsewhere:
            continue
        if artifact.is_collected or _in_work(artifact, begins, built=built) is not None:
            continue
        wrong = f"task.toml: artifacts has {quoted(artifact.source)}: files can be taken from"
        if begins is None:
            yield (
                f"{wrong} {also.replace(' and ', ', ', 1)} and the work directory alone, and the Dockerfile does not say which that is: "
                "write it into [environment].workdir, or copy the file with a command of [[verifier.collect]]"
            )
        else:
            yield (
                f"{wrong} {begins if built else WORK}, {also} alone, "
                "write it there, or copy it with a command of [[verifier.collect]]"
            )


def displaced(
    declared: tuple[ArtifactSource, ...], work: str | None, of_tests: str | None, *, elsewhere: bool = False
) -> Iterator[str]:
    """Sentences about artifacts that tests with another work directory, `of_tests`, would find elsewhere than at their own path. `work`: the agent's.
    Each environment shows its work directory at its own path and as `/app`. None: not known. `elsewhere`: both have images, whose other places
    programs may write: most such artifacts lie there for the tests (`crosses`)."""
    if work is None or work == of_tests:
        return
    theirs = "which its Dockerfile does not name" if of_tests is None else of_tests
    for artifact in declared:
        source = artifact.source
        inside = next((path for top in (work, WORK) if (path := _relative(source, top)) is not None), None)
        at_app = posixpath.normpath(f"{WORK}/{inside}")
        if inside is None and artifact.is_collected and _relative(source, of_tests or WORK) is not None:
            yield (
                f"task.toml: artifacts has {quoted(source)}, in the tests' WORKDIR {of_tests}: only files of the agent's WORKDIR lie there, "
                "give the tests another WORKDIR"
            )
        elif inside is not None and not _finds(source, inside, of_tests):
            if elsewhere and crosses(source, work, of_tests):
                continue
            instead = (
                f", or write {quoted(at_app)} there and in the tests: both show their WORKDIR at {WORK}"
                if _finds(at_app, inside, of_tests)
                else ""
            )
            yield (
                f"task.toml: artifacts has {quoted(source)}, in the agent's WORKDIR {work}: the tests would find it in their WORKDIR, {theirs}; "
                f"give both the same{instead}"
            )


def crosses(source: str, work: str, of_tests: str | None) -> bool:
    """Whether an artifact of the agent's WORKDIR `work` lies outside of that of the tests, where an image may have data: they get it there."""
    place, inside = place_of(source), _relative(source, work)
    if not place or inside is None or _finds(source, inside, of_tests):
        return False
    return of_tests is None or (_relative(of_tests, place) is None and _relative(place, of_tests) is None)


def _relative(path: str, directory: str) -> str | None:
    """The path relative to a directory that holds it; None: it does not."""
    held = path == directory or path.startswith(f"{directory}/")
    return posixpath.relpath(path, directory) if held else None


def _finds(path: str, inside: str, work: str | None) -> bool:
    """Whether programs find, at an absolute path, the file `inside` of their work directory, which hides a part of `/app` if it lies there."""
    top = WORK if work is None or _relative(path, work) is None else work
    return posixpath.normpath(f"{top}/{inside}") == path
