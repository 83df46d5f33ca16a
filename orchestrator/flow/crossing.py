"""What crosses from the agent's sandbox to verification: the work directory's difference, as regular files within limits, and back again.

Only the difference travels. Links, devices and what lies too deep stay behind; an agent that leaves more than the limits allow has used up
a budget: a policy failure, and then no file crosses at all.
"""

import posixpath
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

import msgspec

from orchestrator.contracts.events import ArtifactFile
from orchestrator.contracts.ids import b64, unb64
from orchestrator.tasks.environment import Environment
from sandboxes.base import WORK, ArtifactLimits, Artifacts, File, RefusedReason

TOTAL_BYTES = (
    400_000  # base64 makes 533 KB of it: the result still fits the smallest message that a server must accept
)
LIMITS = ArtifactLimits(files=500, file_bytes=TOTAL_BYTES, total_bytes=TOTAL_BYTES)
_TOO_MUCH = (RefusedReason.TOO_LARGE, RefusedReason.TOO_MANY, RefusedReason.TOTAL, RefusedReason.SPARSE)


def excess(changed: Artifacts, answer: str | None) -> str | None:
    """Why the agent left more than may cross, or None. `changed` was collected under `LIMITS`."""
    for path, reason in changed.refused:
        if reason in _TOO_MUCH:
            return f"artifacts: {path} {reason.value}"
    for reason in _TOO_MUCH:
        if changed.counts.get(reason):  # beyond those that are listed
            return f"artifacts: one of {sum(changed.counts.values()):,} files that stay behind {reason.value}"
    if len(changed.deleted) + len(changed.added) + len(changed.modified) > LIMITS.files:
        return f"artifacts: more than {LIMITS.files} files differ"
    files = [*changed.added.values(), *changed.modified.values()]
    total = sum(len(file.data) for file in files) + answer_bytes(answer)
    return f"artifacts: {total:,} bytes, more than {TOTAL_BYTES:,}" if total > TOTAL_BYTES else None


def answer_bytes(answer: str | None) -> int:
    """How much of a message the answer takes, escapes included."""
    return 0 if answer is None else len(msgspec.json.encode(answer))


def packed(changed: Artifacts) -> list[ArtifactFile]:
    """The difference as a result carries it, by path; a deleted file has no body."""
    files = {**changed.added, **changed.modified}
    found = [
        ArtifactFile(path=path, body=b64(file.data), mode=file.mode & 0o777) for path, file in files.items()
    ]
    gone = [ArtifactFile(path=path, body=None) for path in changed.deleted]
    return sorted([*found, *gone], key=lambda file: file.path)


def graded(environment: Environment, artifacts: Sequence[ArtifactFile]) -> Environment:
    """The pristine environment with the difference of its work directory: what is gone stays gone, and where the agent left a file in place of
    a directory, or the other way round, that is what there is. Where the tests would begin in what is a file now, they begin beside it."""
    files = applied(environment.files, artifacts)
    left = {f"{WORK}/{artifact.path}" for artifact in artifacts if artifact.body is not None}
    begin = environment.work_dir
    while _covered(begin, left):
        begin = posixpath.dirname(begin)
    return replace(
        environment,
        files=files,
        directories=tuple(path for path in environment.directories if not _covered(path, left)),
        work_dir=begin,
        without=tuple(f"{WORK}/{artifact.path}" for artifact in artifacts if artifact.body is None),
    )


def applied(environment: Mapping[str, File], artifacts: Sequence[ArtifactFile]) -> dict[str, File]:
    """The pristine environment's files with the difference of its work directory, both absolute path → file. Below and above a file that the agent
    left there is no other."""
    gone = {f"{WORK}/{artifact.path}" for artifact in artifacts if artifact.body is None}
    left = {
        f"{WORK}/{artifact.path}": File(unb64(artifact.body), artifact.mode & 0o777)
        for artifact in artifacts
        if artifact.body is not None
    }
    directories = {above for path in left for above in _above(path)}
    kept = {
        path: file
        for path, file in environment.items()
        if path not in gone and path not in directories and not _covered(path, left)
    }
    return {**kept, **left}


def _covered(path: str, left: Collection[str]) -> bool:
    """Whether a file that was left lies at `path`, or above it."""
    return path in left or any(above in left for above in _above(path))


def _above(path: str) -> Iterator[str]:
    """The directories that `path` lies in, the work directory and what is above it left out."""
    while (path := posixpath.dirname(path)).startswith(f"{WORK}/"):
        yield path
