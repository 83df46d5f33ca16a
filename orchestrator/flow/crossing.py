"""What crosses from the agent's sandbox to verification: the work directory's difference, as regular files within limits, and back again.

Only the difference travels. Links, devices and what lies too deep stay behind; an agent that leaves more than the limits allow has used up
a budget: a policy failure, and then no file crosses at all.
"""

from collections.abc import Mapping, Sequence

import msgspec

from orchestrator.contracts.events import ArtifactFile
from orchestrator.contracts.ids import b64, unb64
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


def applied(environment: Mapping[str, File], artifacts: Sequence[ArtifactFile]) -> dict[str, File]:
    """The pristine environment with the difference of its work directory, both absolute path → file."""
    files = dict(environment)
    for artifact in artifacts:
        path = f"{WORK}/{artifact.path}"
        if artifact.body is None:
            files.pop(path, None)
        else:
            files[path] = File(unb64(artifact.body), artifact.mode & 0o777)
    return files
