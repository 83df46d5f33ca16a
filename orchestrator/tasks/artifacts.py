"""Artifacts: the changes in the agent's work directory that go to verification, within limits, and their application there. On an image, those in its
other places that programs may write (sandboxes.elsewhere) go with them, by their absolute paths.

Only the changes are copied: files with their permissions, directories that are empty or have their own permissions, and symbolic links that
stay in the work directory (`sandboxes.artifacts.stays`) or, on an image, in these places. They are recreated for the tests, and the platform never
follows links.
Times and owners are not copied. Set-user-id, set-group-id and sticky bits, hard links, extended attributes and access control lists are not copied
either, but notes name them. A note is an entry that stayed behind, by path and kind, and does not count as a file.

Entries that cannot be copied (other links, pipes, sockets, entries that are too deep or unreadable) are named with the reason, and are missing
for the tests; a reward of 0 then states it. An agent that exceeds the limits has used up a budget: a policy failure, no file is copied, and its
verdict is 0.
"""

import posixpath
import re
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TypeVar

import msgspec

from orchestrator.contracts.events import ArtifactFile
from orchestrator.contracts.ids import b64, unb64
from orchestrator.contracts.quote import cut
from orchestrator.contracts.states import Left
from orchestrator.settings.sandbox import SandboxSection
from orchestrator.tasks.artifact_modes import GONE, directory_at, gone_at, is_change, link_at, type_of
from orchestrator.tasks.environment import Environment
from sandboxes.base import WORK, AnyFile, ArtifactLimits, Artifacts, File, Lost, RefusedReason
from sandboxes.elsewhere import place_of
from sandboxes.lost_properties import NAMED

INLINE_BYTES = 400_000  # 533 KB in base64: the result still fits the smallest maximum message of a server
MEMORY_BYTES = 4 << 20
"""How much of what an attempt left lies in a runner's memory; the rest is copied on its disk."""
NOTHING: Mapping[str, AnyFile] = MappingProxyType({})
SHOWN_PATH = 1_000
"""Characters of the path of an entry left behind."""
MAX_BEHIND = 20
"""How many of the entries left behind are named."""
_OTHERS = "…"
"""The name of the others together."""
_MORE = re.compile(r"holds (\d[\d,]{0,14}) more that cannot be copied")
T = TypeVar("T")
MAX_NOTES = NAMED * len(Lost)
"""How many notes the work of one step has."""
_NOTE = "crosses to the tests without it"
_TOO_MUCH = (RefusedReason.TOO_LARGE, RefusedReason.TOO_MANY, RefusedReason.TOTAL, RefusedReason.SPARSE)


def limits_of(section: SandboxSection, memory_bytes: int | None = MEMORY_BYTES) -> ArtifactLimits:
    """A run's limits on what an attempt leaves."""
    return ArtifactLimits(
        files=section.artifact_files,
        file_bytes=section.artifact_file_mb << 20,
        total_bytes=section.artifact_mb << 20,
        memory_bytes=memory_bytes,
    )


def over_limit(changed: Artifacts, answer: str | None, limits: ArtifactLimits) -> str | None:
    """Why what the agent left exceeds the limits, or None. `changed` was collected under `limits`."""
    if (size := answer_bytes(answer)) > INLINE_BYTES:
        return f"the answer has {size:,} bytes, more than {INLINE_BYTES:,}: write long answers into a file"
    for path, reason in changed.refused:
        if reason in _TOO_MUCH:
            return f"artifacts: {cut(path, SHOWN_PATH)} {reason.value}"
    for reason in _TOO_MUCH:
        if changed.counts.get(reason):  # beyond the listed ones
            return f"artifacts: one of {sum(changed.counts.values()):,} files that stay behind {reason.value}"
    if _entries_of(changed) > limits.files:
        return f"artifacts: more than {limits.files:,} files differ (sandbox.artifact_files)"
    return _over(_bytes_of(changed), limits)


def _entries_of(changed: Artifacts) -> int:
    """How many entries `packed` makes, notes apart."""
    parts = (changed.added, changed.modified, changed.deleted, changed.links, changed.directories)
    return len(changed.refused[:MAX_BEHIND]) + (_unnamed(changed) > 0) + sum(map(len, parts))


def _unnamed(changed: Artifacts) -> int:
    """How many of the entries left behind are not named."""
    return sum(changed.counts.values()) - min(len(changed.refused), MAX_BEHIND)


def _bytes_of(changed: Artifacts) -> int:
    """The bytes of these entries: of files, and of the targets of links."""
    files = [*changed.added.values(), *changed.modified.values()]
    targets = sum(len(target.encode(errors="surrogateescape")) for target in changed.links.values())
    return sum(file.size for file in files) + targets


def too_much(
    changed: Artifacts, collected: Sequence[ArtifactFile], answer: str | None, limits: ArtifactLimits
) -> str | None:
    """`over_limit`, with the collected files."""
    if (why := over_limit(changed, answer, limits)) is not None or not collected:
        return why
    for file in collected:
        if file.why == RefusedReason.TOO_LARGE.value:
            return f"artifacts: {cut(file.path, SHOWN_PATH)} {file.why}"
    if _entries_of(changed) + len(collected) > limits.files:
        return f"artifacts: more than {limits.files:,} files (sandbox.artifact_files)"
    return _over(_bytes_of(changed) + sum(map(size_of, collected)), limits)


def _over(total: int, limits: ArtifactLimits, when: str = "") -> str | None:
    most = limits.total_bytes
    if total <= most:
        return None
    return f"artifacts: {total:,} bytes{when}, more than {most:,} (sandbox.artifact_mb)"


def size_of(file: ArtifactFile) -> int:
    """Bytes of a file's content."""
    return file.size if file.parts else len(unb64(file.body or ""))


def too_much_together(files: Sequence[ArtifactFile], limits: ArtifactLimits) -> str | None:
    """Why the artifacts of all steps of an attempt exceed what one attempt may leave, or None."""
    if sum(not is_note(file) for file in files) > limits.files:
        return (
            f"artifacts: more than {limits.files:,} files after all steps together (sandbox.artifact_files)"
        )
    return _over(sum(map(size_of, files)), limits, " after all steps together")


def answer_of_output(output: str) -> str:
    """The answer of a solution or a probe: what it printed. Output longer than an answer may be, such as a build log, is not one."""
    return output if answer_bytes(output) <= INLINE_BYTES else ""


def answer_bytes(answer: str | None) -> int:
    """Bytes of the answer in a message, including escapes."""
    return 0 if answer is None else len(msgspec.json.encode(answer))


def permissions(mode: int) -> int:
    """The bits of a mode that are copied."""
    return mode & 0o777


def packed(changed: Artifacts, only: Mapping[str, AnyFile] | None = None) -> list[ArtifactFile]:
    """The changes in the format of a result, by path, with every file's content. Deleted files and entries left behind have no body. `only`: the
    files to take, in place of all changed ones."""
    files = {**changed.added, **changed.modified} if only is None else only
    found = [
        ArtifactFile(
            path=f"{written(path)} ({lost.value})",
            body=None,
            kind=Left.BEHIND,
            why=_one_of(changed.lost_counts[lost]),
        )
        for path, lost in changed.lost
        if f"{path} ({lost.value})" not in changed.added.keys() | changed.modified.keys()
    ]
    found += [
        gone_at(path) if path.startswith("/") else ArtifactFile(path=path, body=None)
        for path in changed.deleted
    ]
    found += left_behind(changed.refused[:MAX_BEHIND])
    if (more := _unnamed(changed)) > 0:
        found.append(ArtifactFile(path=_OTHERS, body=None, kind=Left.BEHIND, why=holds_more(more)))
    found += [
        directory_at(path, mode)
        if path.startswith("/")
        else ArtifactFile(path=path, body="", mode=mode & 0o777, kind=Left.DIRECTORY)
        for path, mode in changed.directories.items()
    ]
    found += [
        link_at(path, target)
        if path.startswith("/")
        else ArtifactFile(path=path, body=b64(target.encode()), mode=0o777, kind=Left.LINK)
        for path, target in changed.links.items()
    ]
    found += [
        ArtifactFile(path=path, body=b64(file.data), mode=permissions(file.mode), kind=kind_of(path))
        for path, file in files.items()
    ]
    return sorted({file.path: file for file in found}.values(), key=lambda file: file.path)


def kind_of(path: str) -> Left:
    """The kind of a changed file."""
    return Left.COLLECTED if path.startswith("/") else Left.FILE


def stayed_behind(artifacts: Sequence[ArtifactFile]) -> str | None:
    """A sentence about artifacts that the tests could not see; None: they saw all."""
    behind = [file for file in artifacts if file.kind is Left.BEHIND and not is_note(file)]
    parts = []
    if behind:
        number = sum(map(_number_of, behind))
        others = f", nor did {number - 1:,} others" if number > 1 else ""
        first = next((file for file in behind if not _MORE.search(file.why or "")), behind[0])
        parts.append(
            f"{first.path!r:.200} {first.why or 'stayed behind'} and did not reach the tests{others}"
        )
    notes: dict[str, ArtifactFile] = {}  # the first one of each kind
    for file in filter(is_note, artifacts):
        notes.setdefault(file.path.rpartition(" (")[2], file)
    parts += [f"{file.path!r:.200} {file.why}" for file in notes.values()]
    return "; ".join(parts) or None


def is_note(file: ArtifactFile) -> bool:
    """Whether it names something of a file that the tests see without it."""
    return file.kind is Left.BEHIND and file.why is not None and file.why.startswith(_NOTE)


def left_behind(refused: Iterable[tuple[str, RefusedReason]]) -> list[ArtifactFile]:
    """An entry for each path that stays behind. Paths that are written alike are numbered."""
    found: dict[str, ArtifactFile] = {}
    for path, reason in refused:
        name = shown = written(path)
        number = 1
        while name in found:
            number += 1
            name = f"{shown} ({number})"
        found[name] = ArtifactFile(path=name, body=None, kind=Left.BEHIND, why=reason.value)
    return list(found.values())


def holds_more(count: int) -> str:
    """The reason of one entry for `count` others that stay behind."""
    return f"holds {count:,} more that cannot be copied"


def _number_of(file: ArtifactFile) -> int:
    """For how many an entry that stayed behind stands."""
    more = _MORE.search(file.why or "")
    return int(more[1].replace(",", "")) if more else 1


def noted(file: ArtifactFile) -> str:
    """The path of an artifact; of a note, the path of its file."""
    return file.path.rpartition(" (")[0] if is_note(file) else file.path


def _one_of(count: int) -> str:
    return f"{_NOTE}, one of {count:,}" if count > 1 else _NOTE


def written(path: str) -> str:
    """The path of an entry that stayed behind, for people: its name may not be UTF-8, or too long."""
    return cut(path.encode(errors="surrogateescape").decode(errors="backslashreplace"), SHOWN_PATH)


def with_artifacts(
    environment: Environment, artifacts: Sequence[ArtifactFile], stored: Mapping[str, AnyFile] = NOTHING
) -> Environment:
    """The pristine environment with the artifacts applied. `stored`: the content of those that lie in blobs, by path. Deleted entries stay deleted.
    If the agent replaced a directory by a file, or a file by a directory, the agent's version is used. If the tests' work directory is now a file,
    they start in its parent directory. Where the image lacks a place outside of the work directory, it is made."""
    collected: dict[str, AnyFile] = {
        artifact.path: _content(artifact, stored)
        for artifact in artifacts
        if artifact.kind is Left.COLLECTED and not artifact.deleted and type_of(artifact) == 0
    }
    beyond = [artifact for artifact in artifacts if is_change(artifact)]
    links = {artifact.path: _link(artifact) for artifact in beyond if type_of(artifact) == stat.S_IFLNK}
    artifacts = [artifact for artifact in artifacts if not artifact.path.startswith("/")]
    change = _Change(artifacts, stored)
    begin = environment.work_dir
    while _covered(begin, change.no_directory):
        begin = posixpath.dirname(begin)
    return replace(
        environment,
        files=change.kept(environment.files) | change.files | collected,
        directories=tuple(
            path for path in environment.directories if not _covered(path, change.no_directory)
        ),
        work_dir=begin,
        without=(
            *sorted(change.gone),
            *(artifact.path for artifact in beyond if type_of(artifact) == GONE),
        ),
        links=change.kept(environment.links) | change.links | links,
        modes={path: mode for path, mode in environment.modes.items() if change.keeps_directory(path)}
        | change.modes
        | {
            artifact.path: permissions(artifact.mode)
            for artifact in beyond
            if type_of(artifact) == stat.S_IFDIR
        },
        writable=tuple(
            dict.fromkeys((*environment.writable, *(place_of(artifact.path) for artifact in beyond)))
        ),
    )


def _link(artifact: ArtifactFile) -> str:
    return unb64(artifact.body or "").decode(errors="surrogateescape")


def _content(artifact: ArtifactFile, stored: Mapping[str, AnyFile]) -> AnyFile:
    mode = permissions(artifact.mode)
    if artifact.parts:
        return replace(stored[artifact.path], mode=mode)
    return File(unb64(artifact.body or ""), mode)


class _Change:
    """The agent's artifacts, by absolute path. None of its files or links is above another path of it."""

    def __init__(self, artifacts: Sequence[ArtifactFile], stored: Mapping[str, AnyFile]) -> None:
        self.gone = {
            f"{WORK}/{artifact.path}"
            for artifact in artifacts
            if artifact.deleted and not is_note(artifact) and not _MORE.search(artifact.why or "")
        }
        self.files: dict[str, AnyFile] = {}
        self.links: dict[str, str] = {}
        self.modes: dict[str, int] = {}  # of directories
        for artifact in artifacts:
            if artifact.deleted:
                continue
            path = f"{WORK}/{artifact.path}"
            match artifact.kind:
                case Left.FILE:
                    self.files[path] = _content(artifact, stored)
                case Left.LINK:
                    self.links[path] = _link(artifact)
                case Left.DIRECTORY:
                    self.modes[path] = artifact.mode & 0o777
        self.no_directory = self.files.keys() | self.links.keys()
        entries = self.no_directory | self.modes.keys()
        self._directories = self.modes.keys() | {parent for path in entries for parent in _above(path)}

    def kept(self, pristine: Mapping[str, T]) -> dict[str, T]:
        """The pristine files or links that are still there and unchanged."""
        return {
            path: entry
            for path, entry in pristine.items()
            if path not in self.gone
            and path not in self._directories
            and not _covered(path, self.no_directory)
        }

    def keeps_directory(self, path: str) -> bool:
        return path not in self.gone and not _covered(path, self.no_directory)


def _covered(path: str, left: Collection[str]) -> bool:
    """Whether an artifact is at `path` or above it."""
    return path in left or any(parent in left for parent in _above(path))


def _above(path: str) -> Iterator[str]:
    """The parent directories of `path` below the work directory."""
    while (path := posixpath.dirname(path)).startswith(f"{WORK}/"):
        yield path
