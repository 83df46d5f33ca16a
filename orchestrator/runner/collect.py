"""The files that cross from the agent's sandbox to the tests: the changes of its work directory, and the declared artifacts after the collect hooks.

Hooks run as the agent after it has ended, next to what it left running: their time is the agent's, and what they report is as much its word as its
files. Then every process of the sandbox is ended, and only then is anything copied. Only regular files are copied, and links are not followed; what
else lies there stays behind, by name and number. A missing source is not an error: the tests decide what its absence means.
"""

import os
import posixpath
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import anyio.to_thread

from orchestrator.contracts.events import ArtifactFile
from orchestrator.contracts.ids import b64
from orchestrator.contracts.quote import quoted
from orchestrator.contracts.states import FailureClass, Left
from orchestrator.runner.clocks import Clocks
from orchestrator.runner.egress.sandbox import without_network
from orchestrator.runner.outcome import AttemptOutcome, outcome_of
from orchestrator.runner.redact import redacted_changes, redacted_files, without
from orchestrator.runtime.log import get
from orchestrator.tasks.artifact_blobs import entries
from orchestrator.tasks.artifacts import (
    INLINE_BYTES,
    MAX_BEHIND,
    answer_bytes,
    holds_more,
    left_behind,
    too_much,
    written,
)
from orchestrator.tasks.collected import COLLECTED, ArtifactSource, CollectHook
from orchestrator.tasks.message import BlobFile, Part, split
from sandboxes.artifacts import MAX_PATH
from sandboxes.base import (
    ArtifactLimits,
    Artifacts,
    File,
    KilledBy,
    MachineFault,
    PathRefused,
    RefusedReason,
    Sandbox,
    SandboxError,
)

log = get(__name__)

LIST_S: Final = 30.0
_FIND: Final = r"""
list() { printf '%s\0' "$1"; shift; find "$@" -print0 || status=$?; }
status=0
if [ -e "$1" ] || [ -L "$1" ]; then
    list files "$1" -type f; list programs "$1" -type f -perm -u+x
    list links "$1" -type l; list others "$1" ! -type f ! -type d ! -type l
fi
printf 'end\0'; exit $status
"""
"""Each list begins with its kind, which is not an absolute path."""
_PARTLY: Final = 1
"""find's exit status where it could not read everything."""


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
    clocks: Clocks | None = None,
) -> tuple[AttemptOutcome, list[ArtifactFile]]:
    """The artifacts to copy to verification, after the task's `hooks`, and the resulting outcome: too many or unreadable artifacts cannot be graded,
    and count as caused by the agent. Those that do not fit into memory are stored as blobs when this returns. `clocks` count the time of hooks."""
    try:
        with nullcontext() if clocks is None or not hooks else clocks.counted():
            await run_hooks(sandbox, hooks)
        changed = await sandbox.changed(limits)
        kept = partial(_kept, keep, token)
        collected = await declared(without_network(sandbox), sources, limits, kept)
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
        except MachineFault:  # else its files would be missing by our fault
            raise
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
    """The files of the sources outside of the work directory, by absolute path, at most what may be copied at all; of what cannot be copied the first
    `MAX_BEHIND` by name, and the number of the others. `kept` stores what exceeds `limits.memory_bytes`; None: everything is in memory.
    SandboxError if the platform fails."""
    found: dict[str, ArtifactFile] = {}
    behind: dict[str, ArtifactFile] = {}
    size = 0
    for source in sources:
        if not source.is_collected:
            continue
        listed = await _listed(sandbox, source)
        behind |= {file.path: file for file in listed.behind(MAX_BEHIND - len(behind))}
        for path, mode in listed.files:
            if path in found:
                continue
            if len(found) > limits.files:
                return list(found.values())
            try:
                data = await sandbox.get(path, max_bytes=limits.file_bytes)
            except (PathRefused, FileNotFoundError, ValueError) as error:
                why = error.reason.value if isinstance(error, PathRefused) else "is not there any more"
                found[path] = _behind(path, why)
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
    return list({**behind, **found}.values())


@dataclass(slots=True, kw_only=True)
class _Listing:
    """The content of a source: its regular files as (absolute path, mode), in order; the paths that cannot be copied; and what is wrong with the
    source as a whole."""

    source: ArtifactSource
    files: list[tuple[str, int]] = field(default_factory=list)
    refused: dict[str, RefusedReason] = field(default_factory=dict)
    flaws: list[str] = field(default_factory=list)

    def add(self, path: str, root: str, mode: int, reason: RefusedReason | None) -> None:
        """Add a listed path. What is listed comes from the agent's sandbox."""
        if path == root and self.source.source in COLLECTED:
            self.flaws.append("is not a directory")
            return
        inside = _inside(self.source, path, root)
        if inside is None:
            return
        if reason is None:
            reason = _flaw_of(inside)
        if reason is None:
            self.files.append((inside, mode))
        else:
            self.refused[inside] = reason

    def behind(self, most: int) -> Iterator[ArtifactFile]:
        """The files that cannot be copied: at most `most` by name, and in one more entry the number of the others."""
        named = left_behind(list(self.refused.items())[: max(0, most)])
        yield from named
        flaws = list(self.flaws)
        if more := len(self.refused) - len(named):
            flaws.append(holds_more(more))
        if flaws:
            yield _behind(written(f"{self.source.source}/…"), ", ".join(flaws))


def _behind(path: str, why: str) -> ArtifactFile:
    return ArtifactFile(path=path, body=None, kind=Left.BEHIND, why=why)


async def _listed(sandbox: Sandbox, source: ArtifactSource) -> _Listing:
    """The content of a source. If its list did not come to its end, nothing of it crosses: what is missing has no name."""
    root = sandbox.path(source.source)
    result = await sandbox.exec(["sh", "-c", _FIND, "sh", root], timeout_s=LIST_S, cwd="/")
    found = _Listing(source=source)
    lists = _lists(result.stdout)
    if result.killed_by is not KilledBy.NONE or result.truncated or lists is None:
        limit = "" if result.killed_by is KilledBy.NONE else f" ({result.killed_by.value})"
        found.flaws.append(f"could not be listed to its end{limit}, so nothing of it is copied")
        return found
    if result.exit_code not in (0, _PARTLY):
        error = result.stderr[-300:].decode(errors="replace").strip()
        found.flaws.append(f"could not be listed, so nothing of it is copied: {quoted(error, 300)}")
        return found
    if result.exit_code == _PARTLY:
        found.flaws.append("holds something that cannot be read")
    executable = set(lists["programs"])
    for kind, reason in (("files", None), ("links", RefusedReason.LINK), ("others", RefusedReason.SPECIAL)):
        for path in sorted(lists[kind]):
            found.add(path, root, 0o755 if path in executable else 0o644, reason)
    return found


def _lists(output: bytes) -> Mapping[str, list[str]] | None:
    """The listed paths by kind; None: the output does not come to its end. Bytes that are not UTF-8 are surrogates."""
    lists: dict[str, list[str]] = {"files": [], "programs": [], "links": [], "others": []}
    *entries, last = output.split(b"\0")
    if last or not entries or entries.pop() != b"end":
        return None
    kind = "files"
    for name in map(os.fsdecode, entries):
        if name in lists:
            kind = name
        else:
            lists[kind].append(name)
    return lists


def _flaw_of(inside: str) -> RefusedReason | None:
    try:
        size = len(inside.encode())
    except UnicodeEncodeError:
        return RefusedReason.NAME
    return RefusedReason.LONG if size > MAX_PATH else None


def _inside(source: ArtifactSource, path: str, root: str) -> str | None:
    """The path inside of something that is listed; None: it is not one of the source's, or is excluded."""
    if path != root and not path.startswith(f"{root}/"):
        return None
    inside = source.source + path[len(root) :]
    if posixpath.normpath(inside) != inside or not any(inside.startswith(f"{place}/") for place in COLLECTED):
        return None
    return None if source.excludes(path[len(root) :].lstrip("/")) else inside
