"""The files that an attempt left, as its result carries them: small files in the message, larger ones as blobs, and a long list as blobs too."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from orchestrator.contracts.events import ArtifactFile
from orchestrator.contracts.ids import unb64
from orchestrator.contracts.states import Left
from orchestrator.tasks.artifact_modes import type_of
from orchestrator.tasks.artifacts import INLINE_BYTES, answer_bytes, kind_of, packed, permissions
from orchestrator.tasks.message import Part, split
from sandboxes.base import AnyFile, Artifacts, File

INLINE_FILES: Final = 500
"""Entries of a list that a message carries."""
MESSAGE_BYTES: Final = INLINE_BYTES + 100_000
"""Of the list itself, with names and modes."""
SMALL_BYTES: Final = 1024
"""A file up to this size lies in the list even where others are blobs."""
_LISTED = msgspec.json.Decoder(list[ArtifactFile])


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """The artifacts of a result: `listed` in the message, or as the blobs `listing`. `parts`: all blobs, which must be stored before the result is
    sent."""

    listed: list[ArtifactFile]
    listing: list[str]
    parts: Mapping[str, Part]


NONE: Final = Carried(listed=[], listing=[], parts={})


def entries(
    changed: Artifacts, collected: Sequence[ArtifactFile]
) -> tuple[list[ArtifactFile], dict[str, Part]]:
    """The files that an attempt left, by path: those in memory with their content, stored ones as blobs. Reads every stored file. Raises OSError."""
    parts: dict[str, Part] = {}
    files = {**changed.added, **changed.modified}
    held: dict[str, AnyFile] = {path: file for path, file in files.items() if isinstance(file, File)}
    found = [*packed(changed, only=held), *collected]
    for path, file in files.items():
        if path not in held:
            blob = split(file, parts)
            found.append(
                ArtifactFile(
                    path=path,
                    body=None,
                    mode=permissions(file.mode),
                    kind=kind_of(path),
                    parts=list(blob.parts),
                    size=blob.size,
                )
            )
    # A file may have the name under which something else stayed behind: the file counts.
    by_path = {file.path: file for file in sorted(found, key=lambda file: file.kind is not Left.BEHIND)}
    return sorted(by_path.values(), key=lambda file: file.path), parts


def carried(files: Sequence[ArtifactFile], answer: str | None) -> Carried:
    """The artifacts of an attempt as its result carries them, with its answer."""
    parts: dict[str, Part] = {}
    found = list(files)
    if answer_bytes(answer) + sum(len(file.body or "") for file in found) * 3 // 4 > INLINE_BYTES:
        found = [_as_blobs(file, parts) for file in found]
    encoded = msgspec.json.encode(found)
    if len(found) <= INLINE_FILES and answer_bytes(answer) + len(encoded) * 3 // 4 <= MESSAGE_BYTES:
        return Carried(listed=found, listing=[], parts=parts)
    listing = split(File(encoded), parts)
    return Carried(listed=[], listing=list(listing.parts), parts=parts)


def read_listing(body: bytes) -> list[ArtifactFile]:
    """The list that blobs hold. ValueError for another content."""
    try:
        return _LISTED.decode(body)
    except msgspec.MsgspecError as error:
        raise ValueError(f"a list of artifacts cannot be read: {error}") from error


def _as_blobs(file: ArtifactFile, parts: dict[str, Part]) -> ArtifactFile:
    if file.kind not in (Left.FILE, Left.COLLECTED) or file.body is None or type_of(file):
        return file
    data = unb64(file.body)
    if len(data) <= SMALL_BYTES:
        return file
    blob = split(File(data), parts)
    return msgspec.structs.replace(file, body=None, parts=list(blob.parts), size=blob.size)
