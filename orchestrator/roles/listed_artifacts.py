"""Artifacts of a result whose list lies in blobs."""

from typing import Final

import msgspec
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.contracts.errors import MessageError
from orchestrator.contracts.events import RolloutFinished
from orchestrator.contracts.quote import quoted
from orchestrator.pool import blobs
from orchestrator.tasks.artifact_blobs import read_listing

MOST_BLOBS: Final = 256
"""Of one list: 230 MB, where 20,000 entries with paths of 4,096 bytes take 100."""


async def with_listed(connection: AsyncConnection, event: RolloutFinished) -> RolloutFinished:
    """The result with its artifacts. MessageError if a blob of the list is not stored, they are not a list, or it is longer than any run's."""
    if not event.listing:
        return event
    if len(event.listing) > MOST_BLOBS:
        raise MessageError(
            f"RolloutFinished: the list of its artifacts has {len(event.listing):,} blobs, more than {MOST_BLOBS}"
        )
    bodies: list[bytes] = []
    for start in range(0, len(event.listing), blobs.PAGE):
        try:
            found = await blobs.read(connection, event.listing[start : start + blobs.PAGE])
            bodies += [found[sha] for sha in event.listing[start : start + blobs.PAGE]]
        except KeyError as error:
            raise MessageError(
                f"RolloutFinished: the blob {quoted(str(error.args[0]))} of its artifacts is not stored"
            ) from error
        except ValueError as error:
            raise MessageError(
                f"RolloutFinished: a blob of its artifacts is not a sha256: {error}"
            ) from error
    try:
        return msgspec.structs.replace(event, artifacts=read_listing(b"".join(bodies)), listing=[])
    except ValueError as error:
        raise MessageError(f"RolloutFinished: {error}") from error
