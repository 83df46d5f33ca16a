"""A stored or submitted task as a `Task`, and large files that attempts left. What is named as blobs is read from the data pool into the cache."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import anyio.to_thread
from sqlalchemy.ext.asyncio import AsyncEngine

from orchestrator.blobs.cache import BlobCache, default_root
from orchestrator.contracts.errors import ConfigurationError
from orchestrator.contracts.events import ArtifactFile
from orchestrator.contracts.quote import quoted
from orchestrator.pool import blobs
from orchestrator.pool.transact import passing, transact
from orchestrator.settings.tasks import TasksSection
from orchestrator.tasks.bundle import BundleLimits
from orchestrator.tasks.harbor import Task
from orchestrator.tasks.message import (
    MAX_DEPTH,
    BlobFile,
    Listing,
    Part,
    Unpacker,
    most_tree_bytes,
    needs_blobs,
)
from sandboxes.base import AnyFile, SandboxError


class BlobsMissing(ValueError):
    """Signals that the data pool does not have all blobs of a task. They may be on their way."""

    def __init__(self, shas: Collection[str]) -> None:
        first = min(shas)
        others = f" and {len(shas) - 1} others" if len(shas) > 1 else ""
        super().__init__(
            f"its blob {first}{others} never arrived: publish each to blobs.<its sha256>, then the task again"
        )
        self.shas = frozenset(shas)


@dataclass(frozen=True, slots=True)
class ReadTask:
    """A task, and the hex names of all blobs that it consists of."""

    task: Task
    blobs: frozenset[str]


class TaskFiles:
    """Reads tasks through one cache."""

    def __init__(self, engine: AsyncEngine, cache: BlobCache, limits: BundleLimits | None = None) -> None:
        self._engine = engine
        self._cache = cache
        self._limits = limits or BundleLimits()

    @classmethod
    def of(cls, engine: AsyncEngine, section: TasksSection) -> "TaskFiles":
        """With the limits and the cache of a configuration. ConfigurationError if another user holds the cache's directory, or this one cannot
        write it."""
        root = Path(section.cache_dir) if section.cache_dir else default_root()
        cache = BlobCache(root, section.cache_mb << 20)
        try:
            cache.check()
        except SandboxError as error:
            raise ConfigurationError(f"{error}, or name one in tasks.cache_dir") from error
        except OSError as error:
            if not passing(error):
                raise ConfigurationError(
                    f"the directory {root} for the files of large tasks cannot be used: {error}; let this user write it, "
                    "or name another one in tasks.cache_dir"
                ) from error
        return cls(engine, cache, BundleLimits.of(section))

    async def task(self, message: Any) -> Task:
        """The task of a message that a run has accepted. Raises BlobsMissing, and ValueError for a message that is not a task's."""
        return (await self._read(message, self._limits, accepted=True)).task

    async def submitted(self, message: Any, limits: BundleLimits) -> ReadTask:
        """The task of a message that no run has accepted, within the limits of the run that it is for: it is also searched for leaks. Raises like
        `task`."""
        return await self._read(message, limits, accepted=False)

    async def left(self, artifacts: Collection[ArtifactFile]) -> dict[str, AnyFile]:
        """The content of those artifacts that lie in blobs, by path. Raises BlobsMissing, and ValueError for a wrong size."""
        large = [artifact for artifact in artifacts if artifact.parts]
        await self._fetch(
            {sha for artifact in large for sha in artifact.parts}, sum(artifact.size for artifact in large)
        )

        def read() -> dict[str, AnyFile]:
            return {
                artifact.path: self._cache.stored(
                    BlobFile(tuple(artifact.parts), artifact.size), artifact.mode
                )
                for artifact in large
            }

        return await anyio.to_thread.run_sync(read)

    async def keep(self, parts: Mapping[str, Part]) -> None:
        """Store blobs in the data pool, those that it lacks. Raises ServiceError, and ValueError if a file has changed since it was split."""
        if not parts:
            return
        lacking = await transact(self._engine, partial(blobs.name, shas=list(parts)), at="artifacts.named")
        wanted = sorted(lacking)
        for start in range(0, len(wanted), blobs.PAGE):
            page = [parts[sha] for sha in wanted[start : start + blobs.PAGE]]
            bodies = await anyio.to_thread.run_sync(_read, page)
            await transact(self._engine, partial(blobs.store, bodies=bodies), at="artifacts.commit")

    async def _read(self, message: Any, limits: BundleLimits, *, accepted: bool) -> ReadTask:
        if not needs_blobs(message):
            return ReadTask(await anyio.to_thread.run_sync(Task.from_message, message), frozenset())
        trees = await self._trees(message, limits)
        listing = await anyio.to_thread.run_sync(Unpacker(limits).unpack, message, self._cache.read)
        parts = {sha for blob in listing.blobs.values() for sha in blob.parts}
        await self._fetch(parts, sum(blob.size for blob in listing.blobs.values()))
        made = await anyio.to_thread.run_sync(
            partial(self._made, message, listing, limits, accepted=accepted)
        )
        return ReadTask(made, frozenset(trees | parts))

    def _made(
        self, message: dict[str, Any], listing: Listing, limits: BundleLimits, *, accepted: bool
    ) -> Task:
        bundle = listing.bundle(self._cache.stored)
        return Task.of(bundle, limits=limits, received=message, accepted=accepted)

    async def _trees(self, message: dict[str, Any], limits: BundleLimits) -> set[str]:
        """Bring every tree into the cache, level by level. Their form is checked only as far as needed to find the next level."""
        known: set[str] = set()
        open_trees = _trees_of(message)
        for _ in range(MAX_DEPTH + 2):
            if not open_trees:
                break
            if len(known) + len(open_trees) > limits.entries:
                raise ValueError(f"it has more than {limits.entries:,} directories")
            await self._fetch(open_trees, most_tree_bytes(limits))
            known |= open_trees
            open_trees = await anyio.to_thread.run_sync(self._below, open_trees, limits.entries) - known
        return known

    def _below(self, trees: Collection[str], most: int) -> set[str]:
        """The trees that these name; when they are more than `most`, only some of them."""
        found: set[str] = set()
        for sha in trees:
            if len(found) > 2 * most:  # more than `most` of them are not known yet
                break
            try:
                document = json.loads(self._cache.read(sha))
            except (ValueError, RecursionError):
                raise ValueError(f"the tree {sha} is not JSON") from None
            found |= _trees_of(document)
        return found

    async def _fetch(self, shas: Collection[str], most: int) -> None:
        """Bring blobs into the cache. ValueError if those that it lacks have more than `most` bytes."""
        wanted = await anyio.to_thread.run_sync(self._cache.missing, shas)
        absent: set[str] = set()
        for start in range(0, len(wanted), blobs.PAGE):
            page = wanted[start : start + blobs.PAGE]
            found = await transact(self._engine, partial(blobs.read, shas=page), at="blobs.read")
            most -= sum(map(len, found.values()))
            if most < 0:
                raise ValueError("its blobs hold more bytes than it says")
            await anyio.to_thread.run_sync(self._cache.add, found)
            absent |= set(page) - found.keys()
        if absent:
            raise BlobsMissing(absent)


def _read(page: Sequence[Part]) -> dict[str, bytes]:
    return {part.sha: part.read() for part in page}


def _trees_of(document: Any) -> set[str]:
    """The trees that a document names. ValueError for another form."""
    trees = document.get("trees", {}) if isinstance(document, dict) else None
    if not isinstance(trees, dict) or not all(isinstance(shas, list) for shas in trees.values()):
        raise ValueError(
            f'a tree must be an object, and its "trees" an object of path to blobs, got {quoted(document)}'
        )
    found = {sha for shas in trees.values() for sha in shas if isinstance(sha, str)}
    wrong = next((sha for sha in found if len(sha) != 64 or set(sha) - set("0123456789abcdef")), None)
    if wrong is not None:
        raise ValueError(f"{quoted(wrong)} is not a sha256 in 64 digits of 0-9 and a-f")
    return found
