"""Images: which one a sandbox's programs run in, and what it says of their variables and work directory."""

from __future__ import annotations

import hashlib
import io
import json
import posixpath
import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import anyio.to_thread

from sandboxes.base import HOME, PLACED, WORK, File, ImageRefused, Limits
from sandboxes.container.content import Bounds, Content, read, too_large
from sandboxes.container.engine import LABEL, ROOT, Engine
from sandboxes.owner import Owner
from sandboxes.room import making

BUILD_S = 3600.0
_TAKEN = (
    HOME,
    *PLACED,
    "/logs",
    "/tmp",
    "/bin",
    "/sbin",
    "/lib",
    "/lib64",
    "/usr",
    "/etc",
    "/proc",
    "/dev",
    "/sys",
    "/run",
)
_NAME = "localhost/penstock-task"
_READER = "reader:"


@dataclass(frozen=True, slots=True)
class Image:
    """`work`: where its programs begin. `env`: what it sets for them. `content`: the files of its work directory, by path below that."""

    name: str
    work: str = WORK
    env: Mapping[str, str] = field(default_factory=dict)
    content: Mapping[str, File] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    directories: tuple[str, ...] = ()


def digest(context: Mapping[str, bytes]) -> str:
    """One name for one build context."""
    seal = hashlib.sha256()
    for path, body in sorted(context.items()):
        seal.update(json.dumps([path, len(body)]).encode() + hashlib.sha256(body).digest())
    return seal.hexdigest()[:24]


async def built(engine: Engine, root: Path, context: Mapping[str, bytes], limits: Limits) -> Image:
    """The image of a build context, made unless this engine has it, for sandboxes below `root`. ImageRefused if the context is what is wrong, or
    if its work directory holds more than a sandbox of these limits."""
    name = f"{_NAME}:{digest(context)}"
    if (await engine.call("image", "inspect", name)).returncode:
        await _build(engine, name, context)
    told = json.loads(await engine.must("image", "inspect", "--format={{json .Config}}", name))
    work = posixpath.normpath(told.get("WorkingDir") or WORK)
    if work == "/" or any(work == taken or work.startswith(f"{taken}/") for taken in _TAKEN):
        raise ImageRefused(
            f"environment/Dockerfile: WORKDIR {work} is taken: choose {WORK}, or another directory of its own"
        )
    env = dict(pair.split("=", 1) for pair in told.get("Env") or ())
    found = await _content(engine, root, name, work, Bounds.of(limits))
    return Image(name, work, env, found.files, found.links, tuple(found.directories))


async def _build(engine: Engine, name: str, context: Mapping[str, bytes]) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for path, body in sorted(context.items()):
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(body), 0o644
            archive.addfile(entry, io.BytesIO(body))
    done = await engine.call(
        "build", f"--tag={name}", *engine.settings.build_options, "-", timeout_s=BUILD_S, stdin=packed.getvalue()
    )  # fmt: skip
    if done.returncode:
        complaint = " ".join(done.stderr.decode(errors="replace").split())[-800:]
        raise ImageRefused(f"environment/Dockerfile cannot be built by {engine.settings.engine}: {complaint}")


def reads(label: str) -> bool:
    """Whether a container's `LABEL` says that somebody who may live reads an image by it; it never runs."""
    try:
        return label.startswith(_READER) and not Owner.read(label.removeprefix(_READER)).is_dead()
    except ValueError:
        return False


async def _content(engine: Engine, root: Path, name: str, work: str, bounds: Bounds) -> Content:
    """What the image has in its work directory: a directory of the sandbox lies over it."""
    labels = (f"--label={LABEL}={_READER}{Owner.current()}", f"--label={ROOT}={root}")
    made = await engine.must("create", "--network=none", "--entrypoint=/bin/sh", *labels, name)
    container = made.decode().split()[-1]
    try:
        with making(Path(tempfile.gettempdir())), tempfile.TemporaryFile() as archive:
            whole = await engine.copied(f"{container}:{work}/.", archive, bounds.archive)
            if whole is None:
                raise too_large(bounds)
            if not whole:  # WORKDIR was never made
                return Content()
            archive.seek(0)
            return await anyio.to_thread.run_sync(read, archive, bounds)
    finally:
        with anyio.CancelScope(shield=True):  # `CALL_S` bounds it
            await engine.remove(container)
