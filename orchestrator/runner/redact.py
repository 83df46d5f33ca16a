"""Removes a session's token from the texts and files of an attempt: a program that prints its configuration prints its key.

The tokens that the policy saw stay: they are the truth of the step, and the session is over before anyone reads them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import msgspec

from orchestrator.contracts.events import ArtifactFile
from orchestrator.contracts.ids import b64, unb64
from orchestrator.runner.outcome import AttemptOutcome
from sandboxes.base import AnyFile, Artifacts, File, StoredFile

_PIECE: Final = 1 << 20  # bytes
INSTEAD = "[token]"


def redacted(outcome: AttemptOutcome, token: str) -> AttemptOutcome:
    """The outcome without the token in its texts."""
    return replace(
        outcome,
        reason=_redacted(outcome.reason, token),
        log=outcome.log.replace(token, INSTEAD),
        answer=_redacted(outcome.answer, token),
    )


def _redacted(text: str | None, token: str) -> str | None:
    return None if text is None else text.replace(token, INSTEAD)


def redacted_changes(changed: Artifacts, token: str) -> Artifacts:
    """The changes without the token; sizes stay the same. A stored file is a copy of ours, and is changed in place."""
    links = {path: target.replace(token, "x" * len(token)) for path, target in changed.links.items()}
    return replace(
        changed, added=_files(changed.added, token), modified=_files(changed.modified, token), links=links
    )


def redacted_files(files: Sequence[ArtifactFile], token: str) -> list[ArtifactFile]:
    """The files of a list without the token; their sizes stay the same."""
    return [
        file
        if file.body is None
        else msgspec.structs.replace(file, body=b64(without(unb64(file.body), token)))
        for file in files
    ]


def _files(files: Mapping[str, AnyFile], token: str) -> dict[str, AnyFile]:
    found: dict[str, AnyFile] = {}
    for path, file in files.items():
        if isinstance(file, StoredFile):
            _mask(file, token.encode())
            found[path] = file
        else:
            found[path] = File(without(file.data, token), file.mode)
    return found


def without(data: bytes, token: str) -> bytes:
    """The bytes with the token overwritten."""
    return data.replace(token.encode(), b"x" * len(token))


def _mask(file: StoredFile, secret: bytes) -> None:
    """Overwrite the secret in a file, also across the bounds of the pieces in which it is read."""
    with file.source.open("r+b") as stream:
        start, tail = 0, b""
        while piece := stream.read(_PIECE):
            window = tail + piece
            at = window.find(secret)
            while at >= 0:
                stream.seek(start - len(tail) + at)
                stream.write(b"x" * len(secret))
                at = window.find(secret, at + len(secret))
            start += len(piece)
            stream.seek(start)
            tail = window[-(len(secret) - 1) :]
