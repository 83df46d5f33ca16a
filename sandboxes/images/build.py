"""Builds images from Dockerfiles by buildah, in a cage (cage.py), and keeps them in the store.

Bases come from the store. buildah's own storage, `<store>/builds`, holds them and the layers of earlier builds, which later ones reuse. One build
runs at a time. A failed one leaves no container, mount or layer there: what was not known before is removed. What a build made is then read as an OCI
image like any other: links are not followed, rights and devices are dropped, and its history is not kept.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import math
import os
import stat
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread

from sandboxes import tree
from sandboxes.base import (
    BuildEntry,
    BuildOutOfSpace,
    BuildTimedOut,
    DownloadFailed,
    File,
    ImageRefused,
    MissingBase,
    SandboxError,
    StoredFile,
)
from sandboxes.build_context import context_digest, write_context
from sandboxes.disk_full import storing
from sandboxes.images import caged, export, oci, recipe, rootfs
from sandboxes.images.build_files import files_digest, paths_of
from sandboxes.images.caged import BUILD_KEY, FIRST_USER, Caged, Log, own
from sandboxes.images.oci import Description
from sandboxes.images.refused import RefusedBuild
from sandboxes.images.settings import ImageSettings
from sandboxes.images.store import Image, ImageStore, UnknownImage
from sandboxes.images.unpack import FORMAT, Unpacker
from sandboxes.machine import pass_on

DOCKERFILE: Final = "Dockerfile"
_IGNORE: Final = f"{DOCKERFILE}.dockerignore"
"""Counts in place of .dockerignore. buildah looks for it next to the file of --file, which is another one here."""
AUTOMATIC: Final = "build/"
"""Beginning of the names of images that tasks built: they do not keep an image from being pruned."""
FILES: Final = "/run/penstock-build"
"""Where RUN finds `build_files`, and this machine's certificates as `ca.crt`."""
_CERTIFICATES: Final = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
)
_CERTIFICATE_VARIABLES: Final = (
    *(
        "SSL_CERT_FILE",
        "PIP_CERT",
        "REQUESTS_CA_BUNDLE",
        "CURL_CA_BUNDLE",
        "NODE_EXTRA_CA_CERTS",
        "GIT_SSL_CAINFO",
        "CARGO_HTTP_CAINFO",
    ),
)
_PROGRAMS: Final = (b"#!", b"\x7fELF")
_RULES: Final = b"2\n"
"""Part of the names of images that tasks build: with other rules of a build they are built again. 2: SHELL and VOLUME count."""
_WAIT_S: Final = 0.2
_CLEAN_S: Final = 600.0

_BUILD: Final = """
set -e
for base in /bases/*/; do
  [ -d "$base" ] || continue
  id=$(buildah pull -q "oci:${base%/}:image")
  buildah tag "$id" "localhost/penstock-base:$(basename "$base")"
done
set -- ; while IFS= read -r word; do set -- "$@" "$word"; done </penstock-options
[ -f "/context/$IGNORE" ] && set -- "$@" --ignorefile "/context/$IGNORE"
buildah build --format oci --layers --pull=never --network host --cap-drop CAP_SYS_CHROOT,CAP_MKNOD "$@" \
  --volume "/penstock-files:$FILES:ro" --tag "$TAG" --file /penstock-recipe /context
buildah push -q --disable-compression "$TAG" oci:/out/image
buildah images -a -q --no-trunc | sort -u >/out/known
"""
_CLEAN: Final = """
buildah rm -a >/dev/null 2>&1
for round in 1 2 3; do
  buildah images -a -q --no-trunc 2>/dev/null | sort -u | grep -vxFf /penstock-known | while read -r id; do buildah rmi -f "$id" >/dev/null 2>&1; done
done
rm -rf /var/tmp/* /out/* /storage/run/*
exit 0
"""


class Builder:
    """Builds for one store. `log` receives buildah's output as it comes. `task_s`: the time that a task gives its build, up to that of the settings;
    0: theirs."""

    def __init__(
        self, store: ImageStore, settings: ImageSettings, log: Log | None = None, *, task_s: float = 0.0
    ) -> None:
        self._store, self._settings, self._log = store, settings, log
        self._task_s = task_s

    @property
    def _home(self) -> Path:
        return self._store.directory / "builds"

    def problems(self) -> list[str]:
        """Why nothing can be built on this machine, one sentence each."""
        return caged.missing("buildah")

    def base(self, name: str) -> Image:
        """The image that stands for a name in FROM. ImageRefused names the three ways to get it."""
        table = {recipe.short_name(key): value for key, value in self._settings.bases.items()}
        short = recipe.short_name(name)
        for reference in (table.get(short), name, short):
            try:
                if reference:
                    return self._store.find(reference)
            except UnknownImage:
                continue
        wanted = table.get(short, short)
        raise MissingBase(
            f"environment/Dockerfile: the base image {name} is not in {self._store.directory}: make it with `penstock images bootstrap {wanted}`"
            f" (Debian and Ubuntu), import an archive of it with `penstock images import FILE --name {wanted}`, or name another image for it in"
            " sandbox.images.bases"
        )

    def key(self, context: Mapping[str, BuildEntry]) -> str:
        """The name under which the store keeps what a task's context builds: it changes with the context, the bases, and the settings and files of
        builds. ImageRefused if a base is missing, SandboxError if a file is."""
        _, stages = recipe.read(_dockerfile(context))
        hasher = hashlib.sha256(_RULES + context_digest(context))
        if _IGNORE in context:  # versions that did not read it made another image
            hasher.update(_IGNORE.encode())
        if any(_is_closed(entry) for entry in context.values()):  # versions that let everyone read it, too
            hasher.update(b"modes")
        found = [self.base(name).digest for name in recipe.bases(stages)]
        hasher.update(FORMAT + json.dumps([found, sorted(self._settings.build_env.items())]).encode())
        hasher.update(files_digest(self._settings.build_files).encode())
        return f"{AUTOMATIC}{hasher.hexdigest()[:32]}"

    async def prebuilt_or_built(
        self, prebuilt: Mapping[str, BuildEntry], context: Mapping[str, BuildEntry]
    ) -> tuple[Image, str]:
        """The image of `prebuilt`, or where the store lacks what that begins with the one of `context`; and what it is, if it is the second.
        ImageRefused names the key docker_image."""
        try:
            return await self.built(prebuilt), ""
        except MissingBase as error:
            (name,) = recipe.bases(recipe.read(_dockerfile(prebuilt))[1])
            missing = f"task.toml: docker_image: the image {name} is not in {self._store.directory}"
            if context == prebuilt:
                raise MissingBase(
                    f"{missing}: import an archive of it with `penstock images import FILE --name {recipe.short_name(name)}`, name another image for"
                    " it in sandbox.images.bases, or give the task a Dockerfile that makes it"
                ) from error
        try:
            return await self.built(context), f"environment/Dockerfile in place of {name}"
        except ImageRefused as error:
            raise ImageRefused(
                f"{missing}, and its Dockerfile cannot be built in its place: {error}"
            ) from error

    async def built(self, context: Mapping[str, BuildEntry], *, again: bool = False) -> Image:
        """The image of a task's build context, built unless the store has it. ImageRefused if the context is at fault, or was a short time ago
        (not `again`); SandboxError if this machine is."""
        name = await anyio.to_thread.run_sync(self.key, context)
        try:
            return self._store.find(name)
        except UnknownImage:
            pass
        refused = self._refused(name)
        if again:
            refused.forget()
        refused.check()
        return await self._build(context, name, name)

    async def build(self, directory: Path, *, name: str = "") -> Image:
        """Build the Dockerfile of a directory, and let `name` stand for the image. ImageRefused if it is at fault."""
        return await self._build(directory, name, name or str(directory))

    async def clear(self) -> None:
        """Remove the layers that earlier builds left for later ones."""
        if not self._home.is_dir():
            return
        async with self._alone():
            if os.geteuid() != 0:
                await self._cage(
                    ("rm", "-rf", "/storage/graph", "/storage/run"),
                    [],
                    "clearing the cache of builds",
                    network=False,
                )
            await anyio.to_thread.run_sync(tree.remove, self._home / "storage")
            await anyio.to_thread.run_sync(tree.remove, self._home / "refused")
            for name in ("known.json", "unclean"):
                (self._home / name).unlink(missing_ok=True)

    def _refused(self, name: str) -> RefusedBuild:
        """The failure of a task's build with these limits, by this buildah."""
        name = f"{name} {self._task_s} {self._settings} {caged.identity('buildah')}"
        return RefusedBuild(self._home / "refused", name)

    async def _build(self, context: Mapping[str, BuildEntry] | Path, name: str, source: str) -> Image:
        if problems := self.problems():
            raise SandboxError(f"no image can be built on this machine: {' '.join(problems)}")
        dockerfile = _dockerfile(context)
        lines, stages = recipe.read(dockerfile)
        bases = {written: self.base(written) for written in recipe.bases(stages)}
        first = bases.get(recipe.line_of(stages)[0].image)
        volumes = () if first is None else first.volumes
        substitutes = {
            written: image.digest for written, image in bases.items() if not self._is_called(image, written)
        }
        variables = self._variables()
        text = recipe.written(lines, stages, lambda written: _tag(bases[written]), list(variables))
        refused = self._refused(name)
        async with self._alone():
            if name.startswith(AUTOMATIC):  # another process may have built it while we waited
                try:
                    return self._store.find(name)
                except UnknownImage:
                    pass
                refused.check()
            was_late = refused.was_late()
            try:
                return await self._run(
                    context, text, list(bases.values()), variables, name, source, substitutes, volumes
                )
            except ImageRefused as error:
                if name.startswith(AUTOMATIC) and not isinstance(error, DownloadFailed | BuildOutOfSpace):
                    # The first time, a stalled server may be at fault.
                    if isinstance(error, BuildTimedOut) and not was_late:
                        refused.note_late()
                    else:
                        refused.note(error)
                raise

    async def _run(
        self,
        context: Mapping[str, BuildEntry] | Path,
        text: bytes,
        bases: Sequence[Image],
        variables: Mapping[str, str],
        name: str,
        source: str,
        substitutes: Mapping[str, str],
        volumes: Sequence[str],
    ) -> Image:
        known = self._known()
        with self._store.place() as place:
            await anyio.to_thread.run_sync(self._lay, place, context, text, bases, variables, known)
            tag = f"localhost/penstock-built:{hashlib.sha256(text + source.encode()).hexdigest()[:24]}"
            binds = [
                *(
                    (place / inside, f"/{inside}", True)
                    for inside in (
                        "context",
                        "bases",
                        "penstock-recipe",
                        "penstock-options",
                        "penstock-known",
                    )
                ),
                (own(place / "out"), "/out", False),
                *self._files(),
            ]
            clean = partial(
                self._cage,
                ("sh", "-c", _CLEAN),
                binds,
                "cleaning up after a build",
                place=place,
                network=False,
                time_s=_CLEAN_S,
            )
            unclean = self._home / "unclean"
            if unclean.exists():  # the last builder was killed
                await clean()
            unclean.touch()
            try:
                environment = {"TAG": tag, "FILES": FILES, "IGNORE": _IGNORE}
                what = "environment/Dockerfile: its build"
                await self._cage(
                    ("sh", "-c", _BUILD), binds, what, place=place, env=environment, time_s=self._task_s
                )
                take = partial(self._take, place / "out" / "image", name, source, substitutes, volumes)
                image = await anyio.to_thread.run_sync(take)
            except BaseException:
                # The error of the build counts. If cleaning up fails, the next build does it again.
                with anyio.CancelScope(shield=True), contextlib.suppress(ImageRefused, SandboxError):
                    await clean()
                    unclean.unlink()
                raise
            lines = (place / "out" / "known").read_text().split()
            self._know(lines, {*known["bases"], *(base.digest for base in bases)})
            unclean.unlink()
            if os.geteuid() != 0:  # subordinate users own what is there
                await self._cage(
                    ("sh", "-c", "rm -rf /var/tmp/* /out/*"),
                    binds,
                    "cleaning up after a build",
                    place=place,
                    network=False,
                )
            return image

    def _take(
        self, made: Path, name: str, source: str, substitutes: Mapping[str, str], volumes: Sequence[str]
    ) -> Image:
        def write(target: Unpacker) -> Description:
            found = oci.unpack(made, target)
            target.remove(tuple(FILES.strip("/").split("/")))
            return found

        return self._store.write(write, source=source, name=name, substitutes=substitutes, volumes=volumes)

    def _is_called(self, image: Image, name: str) -> bool:
        return (
            self._store.names().get(recipe.short_name(name)) == image.digest
            or self._store.names().get(name) == image.digest
        )

    def _variables(self) -> dict[str, str]:
        certificates = dict.fromkeys(_CERTIFICATE_VARIABLES, f"{FILES}/ca.crt") if _certificates() else {}
        # buildah reuses the layer of a RUN while its variables are the same, whatever the files hold that it read.
        digest = files_digest(self._settings.build_files)
        files = {"PENSTOCK_BUILD_FILES": digest} if digest else {}
        # A build is thrown away if the machine fails: dpkg need not wait for the disk.
        return {"DPKG_FORCE": "unsafe-io", **certificates, **files, **self._settings.build_env}

    def _files(self) -> list[tuple[Path, str, bool]]:
        found = paths_of(self._settings.build_files)
        if (certificates := _certificates()) is not None:
            found.setdefault("ca.crt", certificates)
        return [(path, f"/penstock-files/{name}", True) for name, path in found.items()]

    def _lay(
        self,
        place: Path,
        context: Mapping[str, BuildEntry] | Path,
        text: bytes,
        bases: Sequence[Image],
        variables: Mapping[str, str],
        known: Mapping[str, Sequence[str]],
    ) -> None:
        """Write what the cage reads. Other users than ours must be able to read all but the context."""
        caged.make_etc(place / "etc")
        own(place / "tmp")
        (place / "context").mkdir(mode=0o755)
        _copy_context(context, place / "context", self._settings.build_mb << 20)
        (place / "bases").mkdir(mode=0o755)
        for base in bases:
            if base.digest not in known["bases"]:
                directory = place / "bases" / base.digest[:24]
                directory.mkdir(mode=0o755)
                export.write_directory(base, directory, volumes=False)
        options = [word for key, value in variables.items() for word in ("--build-arg", f"{key}={value}")]
        (place / "penstock-recipe").write_bytes(text)
        (place / "penstock-options").write_text("".join(f"{word}\n" for word in options))
        (place / "penstock-known").write_text("".join(f"{line}\n" for line in known["images"]) or "none\n")
        for entry in tree.walk(place):  # whatever our umask is
            in_context = entry.path.startswith("context/")
            if in_context and os.geteuid() == 0:
                os.chown(entry.name, FIRST_USER, FIRST_USER, dir_fd=entry.parent_fd, follow_symlinks=False)
            is_directory = stat.S_ISDIR(entry.stat.st_mode)
            # The build's root owns the context, and COPY keeps the modes of its files.
            if (
                not stat.S_ISLNK(entry.stat.st_mode)
                and entry.path != "tmp"
                and (is_directory or not in_context)
            ):
                os.chmod(
                    entry.name,
                    entry.stat.st_mode | (0o055 if is_directory else 0o044),
                    dir_fd=entry.parent_fd,
                )

    async def _cage(
        self,
        argv: Sequence[str],
        binds: Iterable[tuple[Path, str, bool]],
        what: str,
        *,
        place: Path | None = None,
        env: Mapping[str, str] | None = None,
        network: bool = True,
        time_s: float = 0.0,
    ) -> None:
        most_s = min(time_s or math.inf, self._settings.build_s)
        own_binds = (
            [] if place is None else [(place / "etc", "/etc", True), (place / "tmp", "/var/tmp", False)]
        )
        storage = own(self._home / "storage")
        await caged.run(
            Caged(
                argv=argv,
                what=what,
                binds=[(storage, "/storage", False), *own_binds, *binds],
                env={"HOME": "/storage", "TMPDIR": "/var/tmp", "BUILDAH_ISOLATION": "chroot", **(env or {})},
                time_s=most_s,
                time_from="build_timeout_sec" if most_s == self._task_s else BUILD_KEY,
                disk_mb=self._settings.build_mb,
                memory_mb=self._settings.build_memory_mb,
                grows=storage,
                network=network,
                opened=self._settings.build_networks,
            ),
            self._log,
        )

    def _known(self) -> dict[str, list[str]]:
        """The content of buildah's storage since the last build that succeeded."""
        try:
            found: dict[str, list[str]] = json.loads((self._home / "known.json").read_text())
        except (OSError, ValueError):
            return {"images": [], "bases": []}
        return found

    def _know(self, images: Sequence[str], bases: Iterable[str]) -> None:
        temporary = self._home / "known.new"
        temporary.write_text(json.dumps({"images": list(images), "bases": sorted(bases)}))
        temporary.rename(self._home / "known.json")

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        """One build of the store at a time. An OSError of what runs inside becomes a SandboxError."""
        with storing(self._store.directory):
            self._store.prepare()
            tree.make_passable(self._home)
            with (self._home / "lock").open("w") as lock:
                while True:
                    try:
                        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        break
                    except BlockingIOError:
                        await anyio.sleep(_WAIT_S)
                yield


def _is_closed(entry: BuildEntry) -> bool:
    """Whether COPY makes a file that not everyone may read."""
    return isinstance(entry, File | StoredFile) and entry.mode & 0o044 != 0o044


def _certificates() -> Path | None:
    return next((Path(name) for name in _CERTIFICATES if Path(name).is_file()), None)


def _tag(image: Image) -> str:
    return f"localhost/penstock-base:{image.digest[:24]}"


def _dockerfile(context: Mapping[str, BuildEntry] | Path) -> bytes:
    if isinstance(context, Mapping):
        written = context.get(DOCKERFILE)
        return written.data if isinstance(written, File | StoredFile) else b""
    try:
        return (context / DOCKERFILE).read_bytes()
    except OSError as error:
        pass_on(error)
        raise ImageRefused(f"{context / DOCKERFILE} cannot be read: {error.strerror}") from error


def _copy_context(context: Mapping[str, BuildEntry] | Path, place: Path, most: int) -> None:
    if isinstance(context, Mapping):
        write_context(context, place)
        return
    size = 0
    for entry in rootfs.entries(context):
        target, mode = place / entry.path, entry.stat.st_mode
        if stat.S_ISDIR(mode):
            target.mkdir(mode=0o755)
        elif stat.S_ISLNK(mode):
            target.symlink_to(os.readlink(entry.name, dir_fd=entry.parent_fd))
        elif stat.S_ISREG(mode):
            size += entry.stat.st_size
            if size > most:
                raise ImageRefused(f"{context} holds more than {most >> 20} MB (sandbox.images.build_mb)")
            with open(
                os.open(entry.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=entry.parent_fd), "rb"
            ) as source:
                target.write_bytes(source.read())
            target.chmod(0o755 if mode & 0o100 else 0o644)
