"""OCI images, as a directory or as a tar archive of one: index, manifest, configuration and layers, each checked against its digest."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import posixpath
import re
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from sandboxes.base import ImageRefused
from sandboxes.images import layers
from sandboxes.images.architecture import machine, spelled
from sandboxes.images.unpack import Unpacker
from sandboxes.machine import pass_on

_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_MAX_JSON = 8 << 20
_MAX_LAYERS = 512
_MAX_VOLUMES = 64
_INDEXES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
_FORMS: dict[type, str] = {str: "a text", list: "a list", dict: "an object"}
_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"

VOLUME_LABEL = "penstock.volume."
"""Beginning of the labels that stand for VOLUME in an image that was built here."""

Opener = Callable[[str], BinaryIO]
Form = TypeVar("Form", str, list[Any], dict[str, Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """The configuration of an image: its variables, WORKDIR, USER and VOLUME as written, and the digest of the configuration itself."""

    env: dict[str, str] = field(default_factory=dict)
    work: str = ""
    user: str = ""
    volumes: tuple[str, ...] = ()
    config: str = ""


def is_oci(path: Path) -> bool:
    """Whether a directory or a file looks like an OCI image."""
    return (path / "index.json").is_file() if path.is_dir() else tarfile.is_tarfile(path)


def unpack(path: Path, target: Unpacker) -> Description:
    """Unpack the image at `path` for this machine's architecture. ImageRefused (one sentence) names the problem."""
    with _opened(path) as opener:
        manifest = _manifest(opener)
        config = _json(opener, _blob(manifest.get("config")), _digest_of(manifest.get("config")))
        system, found = (
            _of(str, config, key) or usual for key, usual in (("os", "linux"), ("architecture", machine()))
        )
        if (system, spelled(found)) != ("linux", machine()):
            raise ImageRefused(
                f"the image is for {system}/{found} and this machine is linux/{machine()}: choose an image for {machine()}"
            )
        description = _description(config, f"sha256:{_digest_of(manifest['config'])}")
        listed = manifest.get("layers")
        if not isinstance(listed, list) or len(listed) > _MAX_LAYERS:
            raise ImageRefused(f"the image's manifest lists no layers, or more than {_MAX_LAYERS}")
        for layer in listed:
            _apply(opener, layer, target)
    return description


def _description(config: dict[str, Any], digest: str) -> Description:
    settings = _of(dict, config, "config")
    pairs = [pair.partition("=") for pair in map(_text, _of(list, settings, "Env"))]
    return Description(
        env={name: value for name, _, value in pairs if name and "\0" not in name + value},
        work=_of(str, settings, "WorkingDir"),
        user=_of(str, settings, "User"),
        volumes=_volumes(settings),
        config=digest,
    )


def _volumes(settings: dict[str, Any]) -> tuple[str, ...]:
    """Absolute paths, in order; others mean nothing."""
    labels = _of(dict, settings, "Labels")
    labelled = (value for name, value in labels.items() if name.startswith(VOLUME_LABEL))
    names = map(_text, (*_of(dict, settings, "Volumes"), *labelled))
    plain = {posixpath.normpath(name) for name in names if name.startswith("/") and "\0" not in name}
    return tuple(sorted({f"/{name.lstrip('/')}" for name in plain} - {"/"})[:_MAX_VOLUMES])


def _of(form: type[Form], holder: dict[str, Any], key: str) -> Form:
    """The value of `holder` under `key`: empty without it and for null, as its writers mean it. ImageRefused for another form."""
    value = holder.get(key)
    if value is None:
        return form()
    if not isinstance(value, form):
        raise ImageRefused(
            f"the image is malformed: {key} must be {_FORMS[form]}, and is {_cut(value)}: export it again"
        )
    if isinstance(value, str):
        _text(value)
        if "\0" in value:
            raise ImageRefused(f"the image is malformed: {key} has a NUL character: export it again")
    return value


def _text(value: Any) -> str:
    """A text that a file or a variable can be named by. ImageRefused for another value."""
    try:
        if isinstance(value, str):
            value.encode()
            return value
    except UnicodeEncodeError:
        pass
    raise ImageRefused(f"the image is malformed: its configuration has {_cut(value)} in place of a text")


def _cut(value: object) -> str:
    return json.dumps(value)[:60]


@contextmanager
def _opened(path: Path) -> Iterator[Opener]:
    if path.is_dir():

        def from_directory(name: str) -> BinaryIO:
            try:
                return (path / name).open("rb")
            except OSError as error:
                pass_on(error)
                raise ImageRefused(f"{path} is not an OCI image: {name} cannot be read") from error

        yield from_directory
        return
    try:
        opened = tarfile.open(path, mode="r:")  # noqa: SIM115 - only opening it may fail so
    except (tarfile.TarError, OSError) as error:
        pass_on(error)
        raise ImageRefused(f"{path} is not an OCI archive (an uncompressed tar): {error}") from error
    with opened as archive:
        members = {entry.name.removeprefix("./"): entry for entry in _members(archive, path)}

        def from_archive(name: str) -> BinaryIO:
            entry = members.get(name)
            source = archive.extractfile(entry) if entry is not None and entry.isreg() else None
            if source is None:
                raise ImageRefused(
                    f"{path} is not an OCI archive: it has no {name} (`skopeo copy docker-archive:… oci-archive:…` makes one)"
                )
            return source  # type: ignore[return-value]

        yield from_archive


def _members(archive: tarfile.TarFile, path: Path) -> Iterator[tarfile.TarInfo]:
    try:
        for count, entry in enumerate(archive):
            if count > 10_000:
                raise ImageRefused(f"{path} is not an OCI archive: it has more than 10,000 entries")
            yield entry
    except (tarfile.TarError, EOFError) as error:
        raise ImageRefused(f"{path} is not an OCI archive: {error}") from error


def _manifest(opener: Opener) -> dict[str, Any]:
    found = _json(opener, "index.json", None)
    for _ in range(4):  # an index may name further indexes
        if "manifests" not in found:
            return found
        entries = [entry for entry in _of(list, found, "manifests") if isinstance(entry, dict)]
        fitting = [entry for entry in entries if _fits(entry)]
        if not fitting:
            known = sorted({str((entry.get("platform") or {}).get("architecture", "?")) for entry in entries})
            raise ImageRefused(
                f"the archive has no image for linux/{machine()}, only for {', '.join(known) or 'none'}"
            )
        if len({_digest_of(entry) for entry in fitting}) > 1:
            raise ImageRefused(
                f"the archive holds {len(fitting)} images for linux/{machine()}: export one of them alone"
            )
        found = _json(opener, _blob(fitting[0]), _digest_of(fitting[0]))
    raise ImageRefused("the image's indexes lead to no manifest")


def _fits(entry: dict[str, Any]) -> bool:
    platform = entry.get("platform")
    if not isinstance(platform, dict) or entry.get("mediaType") in _INDEXES:
        return True
    return platform.get("os") == "linux" and spelled(str(platform.get("architecture"))) == machine()


def _digest_of(descriptor: Any) -> str:
    match = _DIGEST.fullmatch(str(descriptor.get("digest"))) if isinstance(descriptor, dict) else None
    if match is None:
        raise ImageRefused("the image's index or manifest names a part without a sha256 digest")
    return match[1]


def _blob(descriptor: Any) -> str:
    return f"blobs/sha256/{_digest_of(descriptor)}"


def _json(opener: Opener, name: str, digest: str | None) -> dict[str, Any]:
    with opener(name) as source:
        data = source.read(_MAX_JSON + 1)
    if len(data) > _MAX_JSON or (digest is not None and hashlib.sha256(data).hexdigest() != digest):
        raise ImageRefused(f"{name} of the image is too long, or not what its digest says")
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ImageRefused(f"{name} of the image is not JSON") from error
    if not isinstance(found, dict):
        raise ImageRefused(f"{name} of the image is not a JSON object")
    return found


def _apply(opener: Opener, descriptor: Any, target: Unpacker) -> None:
    digest = _digest_of(descriptor)
    with opener(_blob(descriptor)) as blob, contextlib.ExitStack() as stack:
        hashed = _HashingReader(blob)
        source = io.BufferedReader(hashed, 1 << 18)
        start = source.peek(4)[:4]
        stream: Any = source
        if start[:2] == _GZIP:
            stream = stack.enter_context(gzip.GzipFile(fileobj=source))
        elif start == _ZSTD:
            raise ImageRefused(
                "a layer of the image is compressed with zstd: export it with gzip, or without compression"
            )
        try:
            layers.apply(stream, target)
            while source.read(1 << 18):  # what follows the archive belongs to the digest too
                pass
        except (gzip.BadGzipFile, zlib.error) as error:
            raise ImageRefused(f"a layer of the image cannot be read: {error}") from error
        if hashed.digest() != digest:
            raise ImageRefused(f"a layer of the image is not what its digest says: sha256:{digest[:12]}…")


class _HashingReader(io.RawIOBase):
    """A stream whose bytes are hashed as they are read."""

    def __init__(self, source: BinaryIO) -> None:
        self._source = source
        self._hasher = hashlib.sha256()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._source.read(len(buffer))
        self._hasher.update(data)
        buffer[: len(data)] = data
        return len(data)

    def digest(self) -> str:
        return self._hasher.hexdigest()
