"""Artifacts of a result whose list lies in blobs."""

from typing import Final

import anyio.to_thread
import msgspec
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.errors import MessageError
from orchestrator.contracts.events import RolloutFinished
from orchestrator.contracts.quote import quoted
from orchestrator.pool import blobs
from orchestrator.tasks.artifact_blobs import read_listing
from orchestrator.tasks.artifacts import MAX_NOTES
from orchestrator.tasks.key_values import MAX_STEPS
from orchestrator.tasks.message import PART_BYTES
from sandboxes.base import ArtifactLimits

MAX_BLOBS: Final = 256
"""Of one list: 230 MB, where 20,000 entries with paths of 4,096 bytes take 100."""
ENTRY_BYTES: Final = 12 << 10
"""Of one entry: its path, the target of a link in base64, and the rest."""
ENTRY_QUOTES: Final = 64
"""Of one entry: 24 for the keys and values, and some in its path. Each key and text that is decoded has two."""
PART_WRITTEN: Final = 67
"""Bytes of the name of a blob, with its quotes and comma."""


async def with_listed(
    connection: AsyncConnection, event: RolloutFinished, limits: ArtifactLimits
) -> RolloutFinished:
    """The result with its artifacts. MessageError if a blob of the list is not stored, they are not a list, or it is longer than the run's `limits`
    allow: that is refused before it is decoded."""
    if not event.listing:
        return event
    if len(event.listing) > MAX_BLOBS:
        raise MessageError(
            f"RolloutFinished: the list of its artifacts has {len(event.listing):,} blobs, more than {MAX_BLOBS}"
        )
    entries = limits.files + MAX_NOTES * MAX_STEPS
    parts = entries + limits.total_bytes // PART_BYTES
    bytes_left = entries * ENTRY_BYTES + parts * PART_WRITTEN
    quotes_left = entries * ENTRY_QUOTES + parts * 2
    bodies: list[bytes] = []
    for start in range(0, len(event.listing), blobs.PAGE):
        try:
            found = await blobs.read(connection, event.listing[start : start + blobs.PAGE])
            page = [found[sha] for sha in event.listing[start : start + blobs.PAGE]]
        except KeyError as error:
            raise MessageError(
                f"RolloutFinished: the blob {quoted(str(error.args[0]))} of its artifacts is not stored"
            ) from error
        except ValueError as error:
            raise MessageError(
                f"RolloutFinished: a blob of its artifacts is not a sha256: {error}"
            ) from error
        bytes_left -= sum(map(len, page))
        quotes_left -= sum(body.count(b'"') for body in page)
        if bytes_left < 0 or quotes_left < 0:
            raise MessageError(
                f"RolloutFinished: the list of its artifacts is longer than that of {limits.files:,} files, which may cross"
            )
        bodies += page
    try:
        artifacts = await anyio.to_thread.run_sync(read_listing, b"".join(bodies))
    except ValueError as error:
        raise MessageError(f"RolloutFinished: {error}") from error
    return msgspec.structs.replace(event, artifacts=artifacts, listing=[])
