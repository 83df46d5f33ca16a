"""Token ids as text, piece by piece, so that a character made of several tokens is not garbled.

A byte-level token is bytes, not characters: "é" may be two tokens, and neither is text alone. A character is shown at its first token;
tokens that only complete it show nothing of their own. Bytes that form no character are shown as U+FFFD.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

from anyio import to_thread
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection
from tokenizers import Tokenizer

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.queries.texts import readable

K = TypeVar("K")
V = TypeVar("V")
_SPACE = "\u2581"  # SentencePiece's mark for a space


class Detokenizer:
    """The texts of the tokens of one vocabulary. Raises ConfigurationError when `directory` has no readable tokenizer.json."""

    def __init__(self, directory: Path) -> None:
        path = directory / "tokenizer.json"
        try:
            description = json.loads(path.read_text(encoding="utf-8"))
            self._tokenizer = Tokenizer.from_str(json.dumps(description))
        except Exception as error:  # noqa: BLE001 - tokenizers raises bare Exception for a file that it cannot read
            raise ConfigurationError(f"{path} cannot be read, so tokens are shown as ids: {error}") from None
        self._added = {
            number: token.content for number, token in self._tokenizer.get_added_tokens_decoder().items()
        }
        self._byte_level = "ByteLevel" in _kinds(description.get("decoder"))
        self._known: dict[int, bytes] = {}
        self._texts: dict[int, str | None] = {}

    def texts(self, ids: Sequence[int]) -> list[str]:
        """One text per id; together they are the decoded text. A token that only continues a character has an empty text.

        In a vocabulary of bytes, "é" is c3 a9, and the texts of [104, 0xc3, 0xa9] are ["h", "é", ""].
        """
        texts: list[str] = []
        run: list[int] = []  # indices of consecutive tokens that are not whole characters
        for at, id in enumerate(ids):
            whole = self._whole(id)
            if whole is not None and run:
                self._spell(ids, run, texts)
                run = []
            elif whole is None:
                run.append(at)
            texts.append(whole or "")
        self._spell(ids, run, texts)
        return texts

    def _whole(self, id: int) -> str | None:
        """The text of a token that is text by itself; None for a token with a part of a character, or of several."""
        if id not in self._texts:
            added = self._added.get(id)
            self._texts[id] = readable(self._bytes(id)) if added is None else added
        return self._texts[id]

    def _spell(self, ids: Sequence[int], run: Sequence[int], texts: list[str]) -> None:
        """Put the text of the tokens at `run` into `texts`, each character at the token of its first byte."""
        owners: list[int] = []
        spelled = bytearray()
        for at in run:
            raw = self._bytes(ids[at])
            spelled += raw
            owners += [at] * len(raw)
        at = 0
        while at < len(spelled):
            character, length = _character(spelled, at)
            texts[owners[at]] += character
            at += length

    def _bytes(self, id: int) -> bytes:
        found = self._known.get(id)
        if found is None:
            found = self._known[id] = self._spelled(id)
        return found

    def _spelled(self, id: int) -> bytes:
        token = self._tokenizer.id_to_token(id)
        if token is None:
            return f"<{id}>".encode()
        if self._byte_level:
            alphabet = _alphabet()
            if all(character in alphabet for character in token):
                return bytes(alphabet[character] for character in token)
            return str(token).encode()
        if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            return bytes([int(token[3:5], 16)])
        return str(token).replace(_SPACE, " ").encode()


def _character(spelled: bytearray, at: int) -> tuple[str, int]:
    """The character that starts at `at`, and its length in bytes; U+FFFD for a byte that starts none."""
    lead = spelled[at]
    if lead < 0x80:
        return chr(lead), 1
    length = 2 if 0xC2 <= lead < 0xE0 else 3 if 0xE0 <= lead < 0xF0 else 4 if 0xF0 <= lead < 0xF5 else 1
    try:
        return spelled[at : at + length].decode("utf-8"), length
    except UnicodeDecodeError:
        return "\ufffd", 1


def _kinds(description: Any) -> set[str]:
    """The type of a decoder, and those of its parts if it is a sequence."""
    if not isinstance(description, dict):
        return set()
    inner = [kind for part in description.get("decoders") or [] for kind in _kinds(part)]
    return {str(description.get("type")), *inner}


@lru_cache
def _alphabet() -> dict[str, int]:
    """Inverse of the byte-level alphabet, character → byte: printable bytes map to themselves, the others to the characters from U+0100 on,
    in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    unprintable = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(0x100 + n): byte for n, byte in enumerate(unprintable)}


@dataclass(frozen=True, slots=True)
class RunDetokenizer:
    """The detokenizer of a run. Without `detokenizer`, tokens are shown as ids, and `note` gives the reason in one sentence."""

    detokenizer: Detokenizer | None
    note: str | None


class _DetokenizerCache:
    """Vocabularies by the contents of their files: a policy version has a copy of its parent's, which is not parsed again."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._lock = Lock()
        self._digests: dict[Path, tuple[tuple[int, int, int], bytes]] = {}
        self._by_digest: dict[bytes, RunDetokenizer] = {}

    def take(self, path: Path) -> RunDetokenizer:
        """The detokenizer of the tokenizer.json at `path`. Blocks, so call it in a thread."""
        with self._lock:
            try:
                stat = path.stat()
                seen = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
                known = self._digests.get(path)
                if known is None or known[0] != seen:
                    known = (seen, hashlib.sha256(path.read_bytes()).digest())
            except OSError as error:
                return RunDetokenizer(
                    None, f"{path} cannot be read, so tokens are shown as ids: {error.strerror}."
                )
            _put(self._digests, path, known, 64 * self._size)
            found = self._by_digest.get(known[1])
            if found is None:
                try:
                    found = RunDetokenizer(Detokenizer(path.parent), None)
                except ConfigurationError as error:
                    found = RunDetokenizer(None, f"{error}.")
            _put(self._by_digest, known[1], found, self._size)
            return found


def _put(cache: dict[K, V], key: K, value: V, size: int) -> None:
    """Insert as the newest entry; evicts the oldest."""
    cache.pop(key, None)
    cache[key] = value
    if len(cache) > size:
        del cache[next(iter(cache))]


_cache = _DetokenizerCache(4)


_WHERE = text(
    """(SELECT path FROM policy_versions WHERE run_id = :run ORDER BY version DESC LIMIT 1)
       UNION ALL SELECT config -> 'policy' ->> 'model' FROM runs WHERE run_id = :run"""
)


async def run_detokenizer(connection: AsyncConnection, run_id: int) -> RunDetokenizer:
    """The detokenizer of a run: the tokenizer of its newest version, or of its initial model."""
    directories = [directory for directory in await connection.scalars(_WHERE, {"run": run_id}) if directory]
    for directory in directories:
        path = Path(directory) / "tokenizer.json"
        if path.is_file():
            return await to_thread.run_sync(_cache.take, path)
    return RunDetokenizer(
        None, "The policy's tokenizer.json is not on this machine, so tokens are shown as ids."
    )


async def detokenizer_of(connection: AsyncConnection, run_id: int) -> Detokenizer | None:
    """The detokenizer of a run; None if its tokenizer is not on this machine or cannot be read."""
    return (await run_detokenizer(connection, run_id)).detokenizer
