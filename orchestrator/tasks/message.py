"""The message form of a task: JSON that carries its bundle, or names the blobs that hold it.

    {"files": {path: text}, "files_b64": {path: base64},     content in the message
     "modes": {path: "755"},                                 where a file's bits are not those of `mode_of`, or not 644 for one in blobs
     "links": {path: target},                                symbolic links
     "directories": {path: "755"},                           empty directories, and those with other bits than 755
     "blobs": {path: {"parts": [sha256, …], "size": bytes}}, a file whose content is those blobs, one after the other
     "trees": {path: [sha256, …]}}                           a directory: each blob is JSON of this form, with paths relative to it

Every key may be absent. A *blob* is up to `PART_BYTES` bytes, known by the hex sha256 of its bytes. Equal files and equal directories of different
tasks are the same blobs. A packed task above `MAX_MESSAGE_BYTES` is sent with blobs. Errors are ValueError, one sentence each.
"""

import base64
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from orchestrator.contracts.quote import quoted
from orchestrator.tasks.bundle import Bundle, BundleLimits, check_path, mode_of, usual
from sandboxes.base import AnyFile, File

MAX_MESSAGE_BYTES: Final = 512 * 1024
"""Largest packed task that a message may carry, as JSON."""
PART_BYTES: Final = 900_000
"""Largest blob: it fits the smallest maximum message of a server (1 MB) with its headers."""
TINY_BYTES: Final = 128
"""Files up to this size lie in their tree: a blob's name is as long."""
SMALL_PART_BYTES: Final = 64 << 10
"""Blobs of this size are large enough for every task. Each file may have one smaller blob."""
MAX_DEPTH: Final = 64
_ENTRY_BYTES: Final = 4096
"""The longest path in JSON, with the names of its blobs."""
BLOB_MODE: Final = 0o644
ROOT_FILES: Final = (
    "task.toml",
    "instruction.md",
    "tests/test.sh",
    "solution/solve.sh",
    "environment/Dockerfile",
)
"""Files that are read where the task is checked. They, and the instructions of steps, lie in the message itself, where queries find them."""
_OF_STEPS: Final = re.compile(r"steps/[^/]+/instruction\.md")
_SHA: Final = re.compile(r"[0-9a-f]{64}")
_MODE: Final = re.compile(r"0?[0-7]{3}")
KEYS: Final = ("files", "files_b64", "modes", "links", "directories", "blobs", "trees")


@dataclass(frozen=True, slots=True)
class BlobFile:
    """A file's content as blobs: `parts` are hex sha256, `size` bytes in all."""

    parts: tuple[str, ...]
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The entries of a message. `files`: content that it carries; `blobs`: content that lies in blobs; `modes` of both."""

    files: dict[str, bytes] = field(default_factory=dict)
    blobs: dict[str, BlobFile] = field(default_factory=dict)
    modes: dict[str, int] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    directories: dict[str, int] = field(default_factory=dict)

    def bundle(self, stored: Callable[[BlobFile, int], AnyFile]) -> Bundle:
        """The bundle. `stored` gives a file for blobs and permission bits."""
        files: dict[str, AnyFile] = {
            path: File(body, self.modes.get(path, mode_of(body))) for path, body in self.files.items()
        }
        files |= {path: stored(blob, self.modes.get(path, BLOB_MODE)) for path, blob in self.blobs.items()}
        return Bundle(files=files, links=self.links, directories=self.directories)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A blob that is to be sent: the bytes from `start` on of `file`."""

    sha: str
    file: AnyFile
    start: int = 0
    size: int

    def read(self) -> bytes:
        """Its bytes. Raises ValueError if the file has changed since it was packed."""
        with self.file.open() as stream:
            stream.seek(self.start)
            body = stream.read(self.size)
        if hashlib.sha256(body).hexdigest() != self.sha:
            raise ValueError("a file changed while it was sent: send it again")
        return body


@dataclass(frozen=True, slots=True)
class Packed:
    """A task's message, and the blobs that it needs by hex sha256."""

    message: dict[str, Any]
    parts: Mapping[str, Part]


def pack(bundle: Bundle, *, inline: bool = True) -> Packed:
    """The message of a bundle: all in one if that fits and is allowed (`inline`), else with blobs. The same bundle gives the same message."""
    if inline and bundle.size <= MAX_MESSAGE_BYTES:
        message = _inline(bundle)
        if len(json.dumps(message)) <= MAX_MESSAGE_BYTES:
            return Packed(message, {})
    parts: dict[str, Part] = {}
    root = Bundle(
        files={
            path: file
            for path, file in bundle.files.items()
            if path in ROOT_FILES or _OF_STEPS.fullmatch(path)
        }
    )
    message = _inline(root)
    rest = Bundle(
        files={path: file for path, file in bundle.files.items() if path not in root.files},
        links=bundle.links,
        directories=bundle.directories,
    )
    for key, entries in _document(rest, parts).items():
        message[key] = {**message.get(key, {}), **entries}
    if len(json.dumps(message)) > MAX_MESSAGE_BYTES:
        names = ", ".join((*ROOT_FILES, "steps/*/instruction.md"))
        raise ValueError(f"it cannot be sent: {names} together may have about {MAX_MESSAGE_BYTES // 1024} KB")
    return Packed(message, parts)


def _inline(bundle: Bundle) -> dict[str, Any]:
    text: dict[str, str] = {}
    binary: dict[str, str] = {}
    for path, file in bundle.files.items():
        body = file.data
        if (decoded := _text(body)) is not None:
            text[path] = decoded
        else:
            binary[path] = base64.b64encode(body).decode("ascii")
    message: dict[str, Any] = {"files": text}
    if binary:
        message["files_b64"] = binary
    return message | _described(bundle)


def _described(bundle: Bundle) -> dict[str, Any]:
    """Modes, links and directories."""
    found: dict[str, Any] = {
        "modes": {path: f"{file.mode & 0o777:o}" for path, file in bundle.files.items() if not usual(file)},
        "links": dict(bundle.links),
        "directories": {path: f"{mode & 0o777:o}" for path, mode in bundle.directories.items()},
    }
    return {key: value for key, value in found.items() if value}


def _text(body: bytes) -> str | None:
    """`body` as text, None for another content and for NUL, which JSON may hold but Postgres does not store."""
    try:
        decoded = body.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return None if "\0" in decoded else decoded


def _document(bundle: Bundle, parts: dict[str, Part]) -> dict[str, Any]:
    """The message form of one directory. Its subdirectories become trees; blobs are added to `parts`."""
    here = Bundle(
        files={path: file for path, file in bundle.files.items() if "/" not in path},
        links={path: target for path, target in bundle.links.items() if "/" not in path},
        directories={path: mode for path, mode in bundle.directories.items() if "/" not in path},
    )
    tiny = {path: file for path, file in here.files.items() if file.size <= TINY_BYTES}
    document = _inline(Bundle(files=tiny, links=here.links, directories=here.directories))
    large = {path: file for path, file in here.files.items() if path not in tiny}
    if modes := {path: f"{file.mode & 0o777:o}" for path, file in large.items() if file.mode != BLOB_MODE}:
        document["modes"] = document.get("modes", {}) | modes
    if large:
        document["blobs"] = {path: _blob(file, parts) for path, file in sorted(large.items())}
    if folders := _folders(bundle):
        document["trees"] = {
            folder: _tree(_document(folders[folder], parts), parts) for folder in sorted(folders)
        }
    if not document["files"]:
        del document["files"]
    return document


def _folders(bundle: Bundle) -> dict[str, Bundle]:
    """The bundles below each folder, in one pass over the entries."""
    files, links, directories = map(_grouped, (bundle.files, bundle.links, bundle.directories))
    return {
        folder: Bundle(
            files=files.get(folder, {}), links=links.get(folder, {}), directories=directories.get(folder, {})
        )
        for folder in {**files, **links, **directories}
    }


def _grouped(entries: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for path, entry in entries.items():
        folder, slash, rest = path.partition("/")
        if slash:
            found.setdefault(folder, {})[rest] = entry
    return found


def _blob(file: AnyFile, parts: dict[str, Part]) -> dict[str, Any]:
    blob = split(file, parts)
    return {"parts": list(blob.parts), "size": blob.size}


def split(file: AnyFile, parts: dict[str, Part]) -> BlobFile:
    """The blobs of a file, which are added to `parts`."""
    if isinstance(file, File) and 0 < file.size <= PART_BYTES:
        parts.setdefault(file.content, Part(sha=file.content, file=file, size=file.size))
        return BlobFile((file.content,), file.size)
    names, start = [], 0
    with file.open() as stream:
        while body := stream.read(PART_BYTES):
            sha = hashlib.sha256(body).hexdigest()
            parts.setdefault(sha, Part(sha=sha, file=file, start=start, size=len(body)))
            names.append(sha)
            start += len(body)
    return BlobFile(tuple(names), start)


def _tree(document: Mapping[str, Any], parts: dict[str, Part]) -> list[str]:
    """The blobs of a directory's document: one, or several if it is long."""
    names = []
    for piece in _pieces(document):
        body = json.dumps(piece, sort_keys=True, separators=(",", ":")).encode()
        sha = hashlib.sha256(body).hexdigest()
        parts.setdefault(sha, Part(sha=sha, file=File(body), size=len(body)))
        names.append(sha)
    return names


def _pieces(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    piece: dict[str, Any] = {}
    size = 0
    for key, entries in document.items():
        for path, entry in entries.items():
            length = len(json.dumps({path: entry})) + len(key) + 8
            if piece and size + length > PART_BYTES:
                yield piece
                piece, size = {}, 0
            piece.setdefault(key, {})[path] = entry
            size += length
    yield piece


def hash_of(message: Mapping[str, Any]) -> str:
    """The hex sha256 by which a task is known. For a message of files alone: over the sorted files, each as its path and content with their lengths.
    Otherwise over the message, as JSON with sorted keys. The message must be valid."""
    if set(message) - {"files", "files_b64"}:
        return hashlib.sha256(json.dumps(message, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    bodies = {
        path: _decoded(key, path, body)
        for key in ("files", "files_b64")
        for path, body in message.get(key, {}).items()
    }
    digest = hashlib.sha256()
    for path, content in sorted(bodies.items()):
        for part in (path.encode(), content):
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)
    return digest.hexdigest()


def needs_blobs(message: Any) -> bool:
    """Whether parts of the task lie in blobs."""
    return isinstance(message, dict) and bool(message.get("blobs") or message.get("trees"))


class Unpacker:
    """Reads a message and its trees into a listing, one document at a time, within limits."""

    def __init__(self, limits: BundleLimits | None = None) -> None:
        self._limits = limits or BundleLimits()
        self._entries = 0
        self._bytes = 0
        self._trees = 0
        self._tree_bytes = 0
        self._parts = 0
        self.listing = Listing()

    def unpack(self, message: Any, tree: Callable[[str], bytes]) -> Listing:
        """The whole listing. `tree` gives a blob's bytes by its name. Raises ValueError for a form that is not a task's."""
        if isinstance(message, dict) and (unknown := sorted(set(message) - set(KEYS), key=str)):
            raise ValueError(f"a task has only {_named(KEYS)}, got {quoted(unknown[0])}")
        self._read(message, "", tree, 0)
        found = self.listing
        stray = next(
            (path for path in found.modes if path not in found.files and path not in found.blobs), None
        )
        if stray is not None:
            raise ValueError(f'"modes" has {stray}, which is not a file of the task')
        return found

    def _read(self, document: Any, folder: str, tree: Callable[[str], bytes], depth: int) -> None:
        if not isinstance(document, dict):
            raise ValueError(f'a task must be an object with "files", got {type(document).__name__}')
        for key in KEYS:
            entries = document.get(key, {})
            if not isinstance(entries, dict):
                raise ValueError(
                    f'"{key}" must be an object of path to content, got {type(entries).__name__}'
                )
            for name, entry in entries.items():
                path = f"{folder}{name}"
                check_path(name if not folder else path)
                self._count(path)
                self._take(key, path, entry)
                if key == "trees":
                    if depth >= MAX_DEPTH:
                        raise ValueError(f"{path}: directories lie more than {MAX_DEPTH} deep")
                    for sha in entry:
                        self._read(self._tree(path, tree(sha)), f"{path}/", tree, depth + 1)

    def _tree(self, path: str, body: bytes) -> Any:
        """The document of a tree. Trees count each time they are read: a few that repeat one another would be read without end."""
        self._trees += 1
        self._tree_bytes += len(body)
        if self._trees > 3 * self._limits.entries or self._tree_bytes > most_tree_bytes(self._limits):
            raise ValueError(
                f"its trees are more than {self._limits.entries:,} files, links and directories need, with {path}"
            )
        try:
            return json.loads(body)
        except (ValueError, RecursionError):
            raise ValueError(f"{path}: its tree is not JSON") from None

    def _take(self, key: str, path: str, entry: Any) -> None:
        found = self.listing
        match key:
            case "files" | "files_b64":
                if not isinstance(entry, str):
                    raise ValueError(f'"{key}" must hold text under each path, got {quoted(entry)} at {path}')
                if path in found.files:
                    raise ValueError(f'{path} is in both "files" and "files_b64"')
                found.files[path] = _decoded(key, path, entry)
                self._add(path, len(found.files[path]))
            case "blobs":
                if path in found.files or path in found.blobs:
                    raise ValueError(f"{path} comes twice")
                blob = found.blobs[path] = _blob_file(path, entry)
                self._add(path, blob.size)
                self._parts += len(blob.parts)
                if self._parts > (most := self._limits.entries + self._limits.bytes // SMALL_PART_BYTES):
                    raise ValueError(
                        f"its files lie in more than {most:,} blobs, with {path}: send larger ones"
                    )
            case "trees":
                shas = _shas(path, entry)
                if len(set(shas)) < len(shas):
                    raise ValueError(f"{path}: its list of trees names one twice")
            case "links":
                if not isinstance(entry, str):
                    raise ValueError(
                        f'"links" must hold the target of each link, got {quoted(entry)} at {path}'
                    )
                found.links[path] = entry
            case "modes":
                found.modes[path] = _mode(key, path, entry)
            case "directories":
                found.directories[path] = _mode(key, path, entry)

    def _count(self, path: str) -> None:
        self._entries += 1
        # A file may have an entry in `modes`, and its directory one in `trees`.
        if self._entries > 3 * self._limits.entries:
            raise ValueError(
                f"it has more than {self._limits.entries:,} files, links and directories ({path} is one too many)"
            )

    def _add(self, path: str, size: int) -> None:
        self._bytes += size
        if self._bytes > self._limits.bytes:
            raise ValueError(
                f"it has more than {self._limits.bytes >> 20} MB, the most that a task may have, with {path}"
            )


def most_tree_bytes(limits: BundleLimits) -> int:
    """Bytes that the trees of a task may have, each time that they are named: small files in base64, and a name, bits and blobs per entry."""
    return 2 * limits.bytes + limits.entries * _ENTRY_BYTES


def _blob_file(path: str, entry: Any) -> BlobFile:
    match entry:
        case {"parts": list() as parts, "size": int() as size} if len(entry) == 2 and not isinstance(
            size, bool
        ):
            names = _shas(path, parts)
            if len(names) > max(size, 1):
                raise ValueError(
                    f"{path}: {size} bytes cannot lie in {len(names)} blobs: leave out empty ones"
                )
            if not 0 <= size <= len(names) * PART_BYTES:
                raise ValueError(
                    f"{path}: {size} bytes cannot lie in {len(names)} blobs of at most {PART_BYTES:,} bytes"
                )
            return BlobFile(names, size)
    raise ValueError(
        f'"blobs" must hold {{"parts": [sha256, …], "size": bytes}} under each path, got {quoted(entry)} at {path}'
    )


def _shas(path: str, entry: Any) -> tuple[str, ...]:
    if not isinstance(entry, list) or not entry:
        raise ValueError(f"{path}: a list of blobs is needed, got {quoted(entry)}")
    wrong = next((sha for sha in entry if not isinstance(sha, str) or not _SHA.fullmatch(sha)), None)
    if wrong is not None:
        raise ValueError(f"{path}: {quoted(wrong)} is not a sha256 in 64 digits of 0-9 and a-f")
    return tuple(entry)


def _mode(key: str, path: str, entry: Any) -> int:
    if not isinstance(entry, str) or not _MODE.fullmatch(entry):
        raise ValueError(f'"{key}" must hold three octal digits such as "755", got {quoted(entry)} at {path}')
    return int(entry, 8)


def _decoded(key: str, path: str, body: str) -> bytes:
    try:
        return body.encode("utf-8") if key == "files" else base64.b64decode(body, validate=True)
    except UnicodeEncodeError as error:
        raise ValueError(f"{path} is not valid Unicode text (character {error.start})") from error
    except ValueError as error:
        raise ValueError(f"{path} is not valid base64: {error}") from error


def _named(keys: Sequence[str]) -> str:
    return ", ".join(f'"{key}"' for key in keys[:-1]) + f' and "{keys[-1]}"'
