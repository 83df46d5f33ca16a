"""Images: which image a sandbox's programs run in, and its variables and work directory."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import tarfile
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import anyio
import anyio.to_thread

from sandboxes import procfs, tree
from sandboxes.base import (
    WORK,
    BuildEntry,
    File,
    Folder,
    ImageRefused,
    Link,
    MachineFault,
    SandboxSpec,
)
from sandboxes.build_context import IGNORES, context_digest, sent
from sandboxes.container.content import DirectoryBounds, DirectoryContent, read, too_large
from sandboxes.container.engine import LABEL, ROOT, ContainerEngine, error_text
from sandboxes.disk_full import making
from sandboxes.images import adapt, recipe
from sandboxes.images.complaint import complaint
from sandboxes.owner import Owner
from sandboxes.users import Account, find

BUILD_S = 3600.0
GRACE_S = 20.0
"""For an engine to clean up after a build that took too long."""
MARK = "PENSTOCK_BUILD"
_AGAIN_S = 0.2
_NAME = "localhost/penstock-task"
_READER = "reader:"
_ID = re.compile(r"[0-9a-f]{64}")
_SHORT = 1 << 20
_FULL = b"no space left on device"


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """`digest`: the engine's id of it, `sha256:…`.

    `work`: the default working directory of its programs. `env`: its variables. `content`: the files of its work directory, by relative
    path. `instead`: what it is, if it stands for another image."""

    name: str
    digest: str = ""
    work: str = WORK
    env: Mapping[str, str] = field(default_factory=dict)
    content: Mapping[str, File] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    directories: tuple[str, ...] = ()
    owners: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    instead: str = ""


def image_name(engine: ContainerEngine, context: Mapping[str, BuildEntry]) -> str:
    """The name of what the engine builds of a context: it changes with the content and the options of builds."""
    found = context_digest(context)
    if any(name in context for name in IGNORES):  # versions that left it to the engine made another image
        found = hashlib.sha256(found + b"ignored").digest()
    if options := engine.settings.build_options:  # without any, images that were built before this rule stay
        found = hashlib.sha256(found + json.dumps(options).encode()).digest()
    return f"{_NAME}:{found.hex()[:24]}"


async def built(engine: ContainerEngine, root: Path, spec: SandboxSpec) -> Image:
    """The image of the spec's build context, built unless this engine has it, for sandboxes below `root`. ImageRefused if the context is at fault, if
    it is not built in the spec's time, or if its work directory holds more than a sandbox with these limits."""
    assert spec.build is not None
    name, instead = await _chosen(engine, spec)
    config = json.loads(await engine.must("image", "inspect", "--format={{json .Config}}", name))
    work = adapt.work_directory(config.get("WorkingDir") or "")
    env = dict(pair.split("=", 1) for pair in config.get("Env") or ())
    found = await _content(engine, root, name, work, DirectoryBounds.of(spec.limits))
    return Image(
        name=name,
        digest=await image_id(engine, name),
        work=work,
        env=env,
        content=found.files,
        links=found.links,
        directories=tuple(found.directories),
        owners=found.owners,
        instead=instead,
    )


async def _chosen(engine: ContainerEngine, spec: SandboxSpec) -> tuple[str, str]:
    """The name of the image of `prebuilt`, or where that cannot be had of `build`; and what it is, if it is the second."""
    assert spec.build is not None
    if spec.prebuilt is None:
        return await made(engine, spec.build, spec.build_timeout_s), ""
    written = spec.prebuilt["Dockerfile"]
    assert isinstance(written, File)
    (base,) = recipe.bases(recipe.read(written.data)[1])
    instead = f"environment/Dockerfile in place of {base}"
    own = image_name(engine, spec.build)
    if spec.build != spec.prebuilt and await engine.has_image(own):
        return own, instead  # it is not tried again whether the other one can be had by now
    key = f"task.toml: docker_image = {base!r}"
    try:
        return await made(engine, spec.prebuilt, spec.build_timeout_s, key), ""
    except ImageRefused as missing:
        if spec.build == spec.prebuilt:
            raise
        try:
            return await made(engine, spec.build, spec.build_timeout_s), instead
        except ImageRefused as error:
            raise ImageRefused(f"{missing}; and its Dockerfile in its place: {error}") from error


async def image_id(engine: ContainerEngine, name: str) -> str:
    """The engine's id of an image, `sha256:…`; empty if it has none."""
    found = await engine.call("image", "inspect", "--format={{.Id}}", name)
    digits = found.stdout.decode(errors="replace").strip().removeprefix("sha256:")
    return f"sha256:{digits}" if found.returncode == 0 and _ID.fullmatch(digits) else ""


async def made(
    engine: ContainerEngine,
    context: Mapping[str, BuildEntry],
    timeout_s: float,
    what: str = "environment/Dockerfile",
) -> str:
    """The name of a build context's image, built unless this engine has it. `timeout_s`: 0: the provider's own. ImageRefused, with `what`, if it
    cannot be built, or not in this time. `MachineFault` if the engine does not answer or its disk is full."""
    name = image_name(engine, context)
    if not await engine.has_image(name):
        await _build(engine, name, context, min(timeout_s or BUILD_S, BUILD_S), what)
    return name


async def _build(
    engine: ContainerEngine, name: str, context: Mapping[str, BuildEntry], timeout_s: float, what: str
) -> None:
    packed = io.BytesIO()
    mark, deadline = uuid4().hex, time.monotonic() + timeout_s
    found = await anyio.to_thread.run_sync(sent, context, what, deadline)
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for path, entry in sorted(found.items()):
            _pack(archive, path, entry)
    left_s = max(deadline - time.monotonic(), 0.0)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_end_programs, mark, left_s)
        with anyio.move_on_after(left_s + GRACE_S) as scope:
            result = await engine.call(
                "build",
                f"--tag={name}",
                *engine.settings.build_options,
                "-",
                timeout_s=2 * BUILD_S,
                stdin=packed.getvalue(),
                env={**os.environ, MARK: mark},
            )
        tasks.cancel_scope.cancel()
    if scope.cancelled_caught:
        await engine.require_answer()
    if scope.cancelled_caught or (result.returncode and time.monotonic() > deadline):
        raise ImageRefused(
            f"{what}: the image is not built by {engine.settings.engine} within {timeout_s:g} s (build_timeout_sec)"
        )
    if result.returncode:
        await engine.require_answer()
        # A step of the build ends with its exit code; the last line is the engine's own.
        if result.stderr.rstrip().lower().endswith(_FULL):
            raise MachineFault(f"the disk of {engine.settings.engine} is full: {error_text(result.stderr)}")
        printed = b"\n".join((result.stdout, result.stderr)).decode(errors="replace")
        raise ImageRefused(complaint(f"{what.rstrip(',')}: its build by {engine.settings.engine}", printed))


def _pack(archive: tarfile.TarFile, path: str, entry: BuildEntry) -> None:
    header = tarfile.TarInfo(path)
    match entry:
        case Link(target):
            header.type, header.linkname = tarfile.SYMTYPE, target
            archive.addfile(header)
        case Folder(mode):
            header.type, header.mode = tarfile.DIRTYPE, mode
            archive.addfile(header)
        case _:
            header.size, header.mode = entry.size, entry.mode
            with entry.open() as body:
                archive.addfile(header, body)


async def _end_programs(mark: str, after_s: float) -> None:
    """From `after_s` on, end what a build runs. The engine then ends by itself and removes its containers, which it leaves behind if it is killed."""
    await anyio.sleep(after_s)
    while True:

        def programs() -> set[int]:
            engine = set(procfs.marked(MARK, mark))
            return {pid for each in engine for pid in procfs.tree(each)} - engine

        procfs.halt(programs)
        await anyio.sleep(_AGAIN_S)


def reads(label: str) -> bool:
    """Whether a container's `LABEL` marks it as one by which a possibly living process reads an image. Such a container never runs."""
    try:
        return label.startswith(_READER) and not Owner.read(label.removeprefix(_READER)).is_dead()
    except ValueError:
        return False


async def _content(
    engine: ContainerEngine, root: Path, name: str, work: str, bounds: DirectoryBounds
) -> DirectoryContent:
    """The files of the image's work directory. They are needed because a directory of the sandbox is mounted over it."""
    async with _reader(engine, root, name) as container:
        with making(Path(tempfile.gettempdir())), tempfile.TemporaryFile() as archive:
            copied = await engine.copied(f"{container}:{work}/.", archive, bounds.archive)
            if copied is None:
                raise too_large(bounds)
            if not copied:  # WORKDIR was never created
                return DirectoryContent()
            archive.seek(0)
            return await anyio.to_thread.run_sync(read, archive, bounds)


async def account(engine: ContainerEngine, root: Path, name: str, user: str) -> Account:
    """Who `user` is in an image. ImageRefused if it has no such user."""
    async with _reader(engine, root, name) as container:
        texts = [await _text(engine, f"{container}:/etc/{file}") for file in ("passwd", "group")]
    passwd, group = texts
    return find(user, passwd, group, "the image")


async def owners(engine: ContainerEngine, root: Path, image: Image) -> Mapping[str, tuple[int, int]]:
    """The owners of the entries of an image's work directory, "" is the directory itself."""
    if not engine.podman:
        return image.owners
    # The archives of `podman cp` say that everything is root's.
    async with _reader(engine, root, image.name) as container:
        mounted = Path((await engine.must("mount", container)).decode().strip())
        try:
            return await anyio.to_thread.run_sync(_walked, mounted, image.work)
        finally:
            with anyio.CancelScope(shield=True):
                await engine.call("umount", container)


def _walked(mounted: Path, work: str) -> dict[str, tuple[int, int]]:
    path = mounted
    for part in work.strip("/").split("/"):
        path /= part
        if path.is_symlink() or not path.is_dir():
            return {}
    found = {"": (path.stat().st_uid, path.stat().st_gid)}
    return found | {entry.path: (entry.stat.st_uid, entry.stat.st_gid) for entry in tree.walk(path)}


async def _text(engine: ContainerEngine, source: str) -> str:
    """The text of a short file of an image; "" if it is none."""
    with making(Path(tempfile.gettempdir())), tempfile.TemporaryFile() as packed:
        if not await engine.copied(source, packed, _SHORT):
            return ""
        packed.seek(0)
        try:
            with tarfile.open(fileobj=packed, mode="r:") as archive:
                entry = archive.next()
                body = archive.extractfile(entry) if entry is not None and entry.isreg() else None
                return "" if body is None else body.read(_SHORT).decode(errors="replace")
        except tarfile.TarError:
            return ""


@asynccontextmanager
async def _reader(engine: ContainerEngine, root: Path, name: str) -> AsyncIterator[str]:
    """A container of an image that never runs, to copy files out of it."""
    labels = (f"--label={LABEL}={_READER}{Owner.current()}", f"--label={ROOT}={root}")
    created = await engine.must("create", "--network=none", "--entrypoint=/bin/sh", *labels, name)
    container = created.decode().split()[-1]
    try:
        yield container
    finally:
        with anyio.CancelScope(shield=True):  # `CALL_S` bounds it
            await engine.remove(container)
