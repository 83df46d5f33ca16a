"""What the tests get of the agent's sandbox: the changes of its work directory, and the declared artifacts after the collect hooks.

Hooks run as the agent after it has ended, so what they report is as much the agent's word as its files. Only regular files are copied, and links
are not followed. A missing source is not an error: the tests decide what its absence means.
"""

import posixpath
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import anyio.to_thread

from orchestrator.contracts.events import ArtifactFile
from orchestrator.contracts.ids import b64
from orchestrator.contracts.states import FailureClass, Left
from orchestrator.runner.outcome import AttemptOutcome, outcome_of
from orchestrator.runner.redact import redacted_changes, redacted_files, without
from orchestrator.runtime.log import get
from orchestrator.tasks.artifact_blobs import entries
from orchestrator.tasks.artifacts import INLINE_BYTES, answer_bytes, too_much
from orchestrator.tasks.collected import COLLECTED, ArtifactSource, CollectHook
from orchestrator.tasks.message import BlobFile, Part, split
from sandboxes.base import ArtifactLimits, Artifacts, File, PathRefused, Sandbox, SandboxError

log = get(__name__)

LIST_S: Final = 30.0
_FIND: Final = 'find "$1" -type f -print0; printf "\\0"; find "$1" -type f -perm -u+x -print0'


Keep = Callable[[Mapping[str, Part]], Awaitable[None]]
"""Stores blobs in the data pool."""


async def artifacts_of(
    sandbox: Sandbox,
    outcome: AttemptOutcome,
    token: str,
    limits: ArtifactLimits,
    keep: Keep,
    *,
    hooks: Sequence[CollectHook] = (),
    sources: Sequence[ArtifactSource] = (),
) -> tuple[AttemptOutcome, list[ArtifactFile]]:
    """The artifacts to copy to verification, after the task's `hooks`, and the resulting outcome: too many or unreadable artifacts cannot be graded,
    and count as caused by the agent. Those that do not fit into memory are stored as blobs when this returns."""
    try:
        await run_hooks(sandbox, hooks)
        collected = await declared(sandbox, sources, limits, partial(_kept, keep, token))
        changed = await sandbox.changed(limits)
    except (SandboxError, PathRefused, OSError) as error:
        unread = outcome_of(error)
        if outcome.infra and not outcome.reachable:
            return outcome, []
        if not unread.reachable:
            return unread, []
        reason = outcome.reason if outcome.infra else unread.reason
        failed = replace(outcome, failure=FailureClass.INFRA_FAILURE, reason=reason, reachable=True)
        return replace(failed, ungradable=f"what it left cannot be read: {error}"), []
    if (why := too_much(changed, collected, outcome.answer, limits)) is None:
        found, parts = await anyio.to_thread.run_sync(_entries, changed, collected, token)
        await keep(parts)
        return outcome, found
    if outcome.infra and not outcome.reachable:
        return outcome, []
    answer = outcome.answer if answer_bytes(outcome.answer) <= INLINE_BYTES else None
    failure = outcome.failure if outcome.infra else FailureClass.POLICY_FAILURE
    return replace(outcome, failure=failure, reason=why, answer=answer, ungradable=why), []


def _entries(
    changed: Artifacts, collected: Sequence[ArtifactFile], token: str
) -> tuple[list[ArtifactFile], dict[str, Part]]:
    return entries(redacted_changes(changed, token), redacted_files(collected, token))


async def _kept(keep: Keep, token: str, data: bytes) -> BlobFile:
    parts: dict[str, Part] = {}
    blob = split(File(without(data, token)), parts)
    await keep(parts)
    return blob


async def run_hooks(sandbox: Sandbox, hooks: Sequence[CollectHook]) -> None:
    """Run each hook to its end. A failing one is logged and changes nothing else."""
    for hook in hooks:
        try:
            result = await sandbox.exec(["bash", "-c", hook.command], timeout_s=hook.timeout_sec)
        except SandboxError as error:
            log.warning("collect.failed", command=hook.command, error=str(error))
            return
        if not result.ok:
            tail = result.stderr[-300:].decode(errors="replace")
            log.warning("collect.failed", command=hook.command, exit_code=result.exit_code, error=tail)


async def declared(
    sandbox: Sandbox,
    sources: Sequence[ArtifactSource],
    limits: ArtifactLimits,
    kept: Callable[[bytes], Awaitable[BlobFile]] | None = None,
) -> list[ArtifactFile]:
    """The files of the sources outside of the work directory, by absolute path, at most what may be copied at all. `kept` stores what exceeds
    `limits.memory_bytes`; None: everything is in memory. SandboxError if the platform fails."""
    found: dict[str, ArtifactFile] = {}
    size = 0
    for source in sources:
        if not source.is_collected:
            continue
        for path, mode in await _listed(sandbox, source):
            if path in found:
                continue
            if len(found) > limits.files:
                return list(found.values())
            try:
                data = await sandbox.get(path, max_bytes=limits.file_bytes)
            except (PathRefused, FileNotFoundError, ValueError) as error:
                why = error.reason.value if isinstance(error, PathRefused) else "is not there any more"
                found[path] = ArtifactFile(path=path, body=None, kind=Left.BEHIND, why=why)
                continue
            size += len(data)
            if kept is not None and limits.memory_bytes is not None and size > limits.memory_bytes:
                blob = await kept(data)
                found[path] = ArtifactFile(
                    path=path,
                    body=None,
                    mode=mode,
                    kind=Left.COLLECTED,
                    parts=list(blob.parts),
                    size=blob.size,
                )
            else:
                found[path] = ArtifactFile(path=path, body=b64(data), mode=mode, kind=Left.COLLECTED)
            if size > limits.total_bytes:  # `too_much` names it
                return list(found.values())
    return list(found.values())


async def _listed(sandbox: Sandbox, source: ArtifactSource) -> list[tuple[str, int]]:
    """(absolute path, mode) of the files of a source, in order."""
    root = sandbox.path(source.source)
    result = await sandbox.exec(["sh", "-c", _FIND, "sh", root], timeout_s=LIST_S, cwd="/")
    everything, _, programs = result.stdout.partition(b"\0\0")
    executable = set(_names(programs))
    return [
        (inside, 0o755 if path in executable else 0o644)
        for path in sorted(_names(everything))
        if (inside := _inside(source, path, root)) is not None
    ]


def _names(listing: bytes) -> Iterator[str]:
    """Names that are UTF-8; other names cannot be copied."""
    for name in listing.split(b"\0"):
        try:
            if name:
                yield name.decode()
        except UnicodeDecodeError:
            continue


def _inside(source: ArtifactSource, path: str, root: str) -> str | None:
    """The path inside of a listed file; None: it is not one of the source's, or is excluded. What is listed comes from the agent's sandbox."""
    if path != root and not path.startswith(f"{root}/"):
        return None
    inside = source.source + path[len(root) :]
    if posixpath.normpath(inside) != inside or not any(inside.startswith(f"{place}/") for place in COLLECTED):
        return None
    return None if source.excludes(path[len(root) :].lstrip("/")) else inside
