"""`artifacts` and `[[verifier.collect]]`: what of the agent's sandbox goes to the tests besides the changes of its work directory.

An artifact appears in verification at its own path. `destination` only says where Harbor keeps a copy, so it has no effect here.
`/logs/artifacts` is an artifact of every task whose tests mention it.
"""

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from pydantic import BaseModel, ConfigDict

from orchestrator.contracts.events import ArtifactFile
from orchestrator.contracts.quote import quoted
from orchestrator.contracts.states import Left
from orchestrator.tasks import key_values as values
from sandboxes.base import WORK, AnyFile

CONVENTION: Final = "/logs/artifacts"
COLLECTED: Final = (CONVENTION, "/tmp")
"""Directories outside of the work directory from which files are copied. A file of the agent's in the home or among the logs of verification could
run there, or pass for a verdict."""
ANSWER_PATH: Final = "/logs/agent/answer.txt"
"""Where the tests find the final message."""
READ_BYTES: Final = 1 << 20
"""Larger files of the tests are data, not programs."""
MAIN: Final = "main"


class ArtifactSource(BaseModel):
    """One artifact: `source` is a file or a directory; `exclude` are patterns of names or relative paths in it."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    source: str
    exclude: tuple[str, ...] = ()

    @property
    def is_collected(self) -> bool:
        """Whether it lies outside of the work directory, whose changes the tests see anyway."""
        return any(self.source == place or self.source.startswith(f"{place}/") for place in COLLECTED)


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
    """What a valid artifact would be, if this one is not; None: it is valid."""
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
    elif exclude and not ArtifactSource(source=posixpath.normpath(source)).is_collected:
        yield "without exclude in the work directory, whose changes all reach the tests"


def only_declared(
    left: Sequence[ArtifactFile], declared: tuple[ArtifactSource, ...], work_dir: str
) -> list[ArtifactFile]:
    """What of an attempt's files the tests of the mode `separate` get: the declared ones. `work_dir`: the agent's, as its sources name it."""
    roots = [root for artifact in declared if (root := _in_work(artifact, work_dir)) is not None]
    return [
        file
        for file in left
        if file.kind == Left.COLLECTED
        or any(root == "." or file.path == root or file.path.startswith(f"{root}/") for root in roots)
    ]


def _in_work(artifact: ArtifactSource, work_dir: str) -> str | None:
    """The path of an artifact relative to the work directory, "." for itself; None: it is elsewhere."""
    inside = posixpath.join(work_dir, artifact.source)
    for top in dict.fromkeys((WORK, work_dir)):
        if inside == top or inside.startswith(f"{top}/"):
            return posixpath.relpath(inside, top)
    return None


def places(declared: tuple[ArtifactSource, ...]) -> Iterator[str]:
    """Sentences about artifacts that no file of the agent can be at, where no image is built."""
    for artifact in declared:
        inside = posixpath.join(WORK, artifact.source)
        if not artifact.is_collected and inside != WORK and not inside.startswith(f"{WORK}/"):
            yield (
                f"task.toml: artifacts has {quoted(artifact.source)}: files can be taken from {WORK}, {CONVENTION} and /tmp alone, "
                "write it there, or copy it with a command of [[verifier.collect]]"
            )
