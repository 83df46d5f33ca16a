"""A task whose environment holds the whole text of a solution or of a test script is refused: its agent could read the answer there.

A file of a build's folder may hold it if the image does not keep that file for the agent (kept_in_image.py).

Files are searched, and the objects of git repositories. Many tasks bring the same repository, so what comes more than once is known by its words
(word_filter.py) and searched again only for a text that it may hold. Errors are ValueError, one sentence each.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, BinaryIO, Final

from orchestrator.tasks import git_objects
from orchestrator.tasks.bundle import Bundle
from orchestrator.tasks.kept_in_image import KeptInImage
from orchestrator.tasks.message import MAX_MESSAGE_BYTES
from orchestrator.tasks.needles import Needles
from orchestrator.tasks.unchanged_files import HIDDEN, SHOWN, unchanged_files
from orchestrator.tasks.word_filter import WordFilter, inner_words
from sandboxes.base import AnyFile

LEAK_BYTES: Final = 24
"""Shorter scripts are too unspecific to search for in the agent's files."""
KNOWN_BYTES: Final = 32 << 20
"""Of memory for the words of known files."""
_SMALL: Final = 2048
"""Files up to this size are searched faster than their words are looked up."""
_FEW: Final = 16
"""Secrets up to which a search for each is the fastest."""
_FILTERED: Final = 1 << 18
"""Secrets that are looked up in the words of known files, for one task: some tenths of a second."""
_PIECE: Final = 1 << 20
_MAGIC: Final = 16
_ENTRY_BYTES: Final = 200


def check_leaks(bundle: Bundle, table: Mapping[str, Any] | None = None) -> None:
    """ValueError if the agent could read the answer in its environment: the text of a solution or of the test script in one of its files, or in an
    object of a git repository, or objects that cannot be read. `table`: the task's `[environment]`."""
    unchanged = unchanged_files(bundle)
    search = _Search(
        [
            _Secret(path, text, inner_words(text))
            for path, file in bundle.files.items()
            if (kind := HIDDEN.match(path)) is not None
            and (kind[2] == "solution" or path == kind[0] + "test.sh")
            and file.size <= MAX_MESSAGE_BYTES
            and path not in unchanged
            if len(text := file.data.strip()) >= LEAK_BYTES
        ]
    )
    kept: KeptInImage | None = None
    for where, file in bundle.files.items():
        if not SHOWN.match(where):
            continue
        try:
            search.through(where, file)
        except ValueError:
            # Few files hold an answer, and many tasks have thousands: the Dockerfile is read for those alone.
            kept = kept or KeptInImage(bundle, table or {})
            if kept.may_keep(where):
                raise


@dataclass(frozen=True, slots=True)
class _Secret:
    """Text that no agent may see, the path of its file, and its `inner_words`."""

    path: str
    text: bytes
    words: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """The searched words of a file: its own, and for a pack of git those of its objects, which have `object_bytes`; None: they cannot be read."""

    words: WordFilter
    is_packed: bool = False
    objects: WordFilter | None = None
    object_bytes: int = 0

    @property
    def size(self) -> int:
        """Bytes of memory, about."""
        return self.words.size + (self.objects.size if self.objects is not None else 0)


class KnownFiles:
    """Words of files that came more than once, by content. The least recently used go first. `bytes`: of memory, about."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self.bytes = 0
        self._lock = Lock()
        self._found: OrderedDict[str, _Known | None] = OrderedDict()

    def of(self, file: AnyFile) -> _Known | None:
        """The words of a file, from the second time on."""
        if file.size <= _SMALL or file.content is None:
            return None
        with self._lock:
            came = file.content in self._found
            found = self._found.get(file.content)
            if came:
                self._found.move_to_end(file.content)
            else:
                self._add(file.content, None)
        if found is None and came:
            found = _read(file)
            with self._lock:
                self._add(file.content, found)
        return found

    def _add(self, content: str, known: _Known | None) -> None:
        self.bytes += _size(known) - (_size(self._found[content]) if content in self._found else 0)
        self._found[content] = known
        while self.bytes > self._most:
            self.bytes -= _size(self._found.popitem(last=False)[1])


def _size(known: _Known | None) -> int:
    return _ENTRY_BYTES + (known.size if known is not None else 0)


_KNOWN: Final = KnownFiles(KNOWN_BYTES)


def _read(file: AnyFile) -> _Known:
    with file.open() as stream:
        begin = stream.read(_MAGIC)
        stream.seek(0)
        words = WordFilter(iter(lambda: stream.read(_PIECE), b""), file.size)
    if not git_objects.is_packed(begin):
        return _Known(words=words)
    sizes: list[int] = []

    def texts() -> Iterator[bytes]:
        for text in git_objects.packed(file.data):
            sizes.append(len(text))
            yield text

    try:
        objects = WordFilter(texts(), 4 * file.size)  # compressed text is about four times as long
    except ValueError:  # the search says why
        return _Known(words=words, is_packed=True)
    return _Known(words=words, is_packed=True, objects=objects, object_bytes=sum(sizes))


class _Search:
    """The search for the secrets of one task. For many of them, one pass over a text finds all."""

    def __init__(self, secrets: Sequence[_Secret]) -> None:
        self._secrets = secrets
        self._longest = max((len(secret.text) for secret in secrets), default=0)
        self._needles = Needles(secret.text for secret in secrets) if len(secrets) > _FEW else None
        self._object_bytes = git_objects.MAX_BYTES
        self._filtered = _FILTERED

    def through(self, where: str, file: AnyFile) -> None:
        """ValueError if a file holds a secret, in its text or in the objects of a git repository."""
        known = _KNOWN.of(file) if self._filtered > 0 else None
        sought = self._secrets
        if self._needles is None:
            sought = [secret for secret in sought if len(secret.text) <= file.size]
        if known is not None:
            self._filtered -= len(self._secrets)
            sought = [secret for secret in sought if known.words.may_hold(secret.words)]
            if known.objects is not None and known.object_bytes <= self._object_bytes:
                in_objects = any(known.objects.may_hold(secret.words) for secret in self._secrets)
                if not sought and not in_objects:
                    self._object_bytes -= known.object_bytes
                    return
            elif not (sought or known.is_packed or git_objects.is_loose(where)):
                return
        with file.open() as stream:
            begin = stream.read(_PIECE if sought else _MAGIC)
            if sought and (held := self._in_file(begin, stream, sought)) is not None:
                raise ValueError(
                    f"{where} holds the whole text of {held}, which the agent must not see: remove it from one of them"
                )
        self._through_objects(where, _objects(where, file, begin, self._object_bytes))

    def _in_file(self, begin: bytes, stream: BinaryIO, sought: Sequence[_Secret]) -> str | None:
        """The path of a secret that a file contains. It is read in pieces, which overlap by the longest secret; `begin` is the first one."""
        text = begin
        while text:
            if (held := self._in_text(text, sought)) is not None:
                return held
            piece = stream.read(_PIECE)
            text = text[-self._longest + 1 :] + piece if piece else b""
        return None

    def _in_text(self, text: bytes, sought: Sequence[_Secret]) -> str | None:
        """The path of the first secret in a text."""
        if self._needles is None or len(sought) <= _FEW:
            return next((secret.path for secret in sought if secret.text in text), None)
        found = self._needles.within(text)
        return next((secret.path for secret in sought if secret.text in found), None) if found else None

    def _through_objects(self, where: str, objects: Iterator[bytes]) -> None:
        held = None
        try:
            for text in objects:
                self._object_bytes -= len(text)
                if (held := self._in_text(text, self._secrets)) is not None:
                    break
        except ValueError as error:
            raise ValueError(
                f"{where}: the objects of this git repository cannot be searched for the answer, {error}: "
                "pack it again (`git gc`), or leave old history out (`git clone --depth 1`)"
            ) from error
        if held is not None:
            raise ValueError(
                f"{where} holds the whole text of {held} in an object of a git repository, which the agent must not see: begin a history without it"
            )


def _objects(path: str, file: AnyFile, begin: bytes, most_bytes: int) -> Iterator[bytes]:
    """The objects of a git repository that a file holds, which starts with `begin`. ValueError, the end of a sentence, where they cannot be read."""
    if git_objects.is_packed(begin):
        yield from git_objects.packed(file.data, most_bytes)
    elif git_objects.is_loose(path):
        text = git_objects.loose(file.data, most_bytes)
        if text is not None:
            yield text
