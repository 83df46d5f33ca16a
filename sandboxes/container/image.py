"""Images: which one a sandbox's programs run in, and what it says of their variables and work directory."""

from __future__ import annotations

import hashlib
import io
import json
import posixpath
import stat
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from sandboxes.base import HOME, PLACED, WORK, File, SandboxError
from sandboxes.container.engine import Engine
from sandboxes.tree import MAX_DEPTH

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


async def built(engine: Engine, context: Mapping[str, bytes]) -> Image:
    """The image of a build context, made unless this engine has it. ValueError if the context is what is wrong."""
    name = f"{_NAME}:{digest(context)}"
    if (await engine.call("image", "inspect", name)).returncode:
        await _build(engine, name, context)
    told = json.loads(await engine.must("image", "inspect", name))[0]["Config"]
    work = posixpath.normpath(told.get("WorkingDir") or WORK)
    if work == "/" or any(work == taken or work.startswith(f"{taken}/") for taken in _TAKEN):
        raise ValueError(
            f"environment/Dockerfile: WORKDIR {work} is taken: choose {WORK}, or another directory of its own"
        )
    env = dict(pair.split("=", 1) for pair in told.get("Env") or ())
    content, links, directories = await _content(engine, name, work)
    return Image(name, work, env, content, links, directories)


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
        raise ValueError(f"environment/Dockerfile cannot be built by {engine.settings.engine}: {complaint}")


async def _content(
    engine: Engine, name: str, work: str
) -> tuple[dict[str, File], dict[str, str], tuple[str, ...]]:
    """What the image has in its work directory: a directory of the sandbox lies over it."""
    container = (
        (await engine.must("create", "--network=none", "--entrypoint=/bin/sh", name)).decode().split()[-1]
    )
    try:
        copied = await engine.call("cp", f"{container}:{work}/.", "-")
    finally:
        await engine.remove(container)
    if copied.returncode:  # WORKDIR was never made
        return {}, {}, ()
    files: dict[str, File] = {}
    links: dict[str, str] = {}
    directories: list[str] = []
    with tarfile.open(fileobj=io.BytesIO(copied.stdout)) as archive:
        for path, entry in _entries(archive):
            if entry.isreg():
                body = archive.extractfile(entry)
                assert body is not None
                files[path] = File(body.read(), stat.S_IMODE(entry.mode) & 0o777)
            elif entry.issym():
                links[path] = entry.linkname
            elif entry.isdir():
                directories.append(path)
            elif entry.islnk():
                first = posixpath.normpath(entry.linkname)
                if first not in files:
                    raise SandboxError(
                        f"the image {name} has a hard link in {work} that leads out of it: {path}"
                    )
                files[path] = files[first]
    return files, links, tuple(directories)


def _entries(archive: tarfile.TarFile) -> Iterator[tuple[str, tarfile.TarInfo]]:
    for entry in archive:
        path = posixpath.normpath(entry.name)
        if path != "." and (path.startswith(("/", "..")) or path.count("/") >= MAX_DEPTH):
            raise SandboxError(f"an image's file has no plain name: {entry.name!r}")
        if path != ".":
            yield path, entry
