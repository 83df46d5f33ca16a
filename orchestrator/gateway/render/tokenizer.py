"""Text to ids. Text of a template may become special tokens; text of people, tools and models never does."""

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numpy as np
from tokenizers import AddedToken, Tokenizer

from orchestrator.contracts.errors import ConfigurationError

# Unicode noncharacters, which are not used in text. BREAK is put inside a quoted special token, BREAK + KEEP replaces a BREAK of the text itself.
BREAK, KEEP = "\ufdd0", "\ufdd1"
SHORT = 32  # characters
LONG, KEPT = 4096, 1 << 18  # characters: encoded without the interpreter lock; also cached
SLICE = 1 << 15  # characters
# The library's own threads would take every core, and leave none for the event loop.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
P = ParamSpec("P")
R = TypeVar("R")
_GUARDS = re.compile(f"{BREAK}({KEEP}?)")
_MARKER = re.compile(r"[<\[\]{|]\S*[>\[\]}|]")


def _as_error(function: Callable[P, R]) -> Callable[P, R]:
    """The function with panics of the library as RuntimeError: as they are, no `except Exception` holds them, and one text would end the process."""

    @wraps(function)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except BaseException as panic:
            if type(panic).__name__ != "PanicException":
                raise
            raise RuntimeError(f"the tokenizer panics at this text: {panic}"[:500]) from None

    return guarded


class TokenizerAdapter:
    """A model's tokenizer, with the methods that `renderers` requires.

    A chat format is one text in which `<|im_end|>` is a token if the template wrote it, and plain characters if a tool
    printed it. `guard` marks quoted tokens; `encode` then treats them as text. Marker tokens that a tokenizer does not declare special
    (`<think>` and `<tool_call>` of many models) are guarded as well.
    """

    def __init__(self, directory: Path) -> None:
        path = directory / "tokenizer.json"
        if not path.is_file():
            raise ConfigurationError(
                f"the model directory {directory} has no tokenizer.json: the gateway needs it to make token ids"
            )
        description = json.loads(path.read_text(encoding="utf-8"))
        self._inner = _tokenizer(description)
        self.name_or_path = str(directory)
        self.unk_token_id = None
        self.size: int = self._inner.get_vocab_size(with_added_tokens=True)
        added: Mapping[int, AddedToken] = self._inner.get_added_tokens_decoder()
        markers = {token.content: token for token in added.values() if _is_marker(token)}
        self._ids = {token.content: number for number, token in added.items()}
        self._quotable = _alternatives(re.escape(content) for content in markers)
        self._special = _alternatives(_matched(token) for token in added.values() if len(token.content) > 1)
        for token in description.get("added_tokens") or []:
            token["special"] = token["special"] or token["content"] in markers
        self._plain = _tokenizer(description)
        self._plain.encode_special_tokens = True
        # Headers and markers, which every turn encodes again: the call into the library takes most of the time.
        self._short = lru_cache(maxsize=1024)(self._whole)
        self._one = lru_cache(maxsize=1024)(self._decoded)
        # System prompts and tools, which every attempt sends again, and texts that another thread encoded before.
        self._long = lru_cache(maxsize=32)(self._apart)
        self.longest = self._longest()

    def guard(self, text: str) -> str:
        """`text` for a template: a special token that it spells stays text."""
        if BREAK in text:
            text = text.replace(BREAK, BREAK + KEEP)
        return self._quotable.sub(lambda found: found[0][0] + BREAK + found[0][1:], text)

    def guarded(self, value: Any) -> Any:
        """`guard` for every string of a JSON value."""
        if isinstance(value, str):
            return self.guard(value)
        if isinstance(value, Mapping):
            return {self.guard(str(key)): self.guarded(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.guarded(item) for item in value]
        return value

    def encode(self, text: str, **_: object) -> list[int]:
        if BREAK not in text:
            return list(self._short(text) if len(text) <= SHORT else self._whole(text))
        ids: list[int] = []
        at = 0
        for found in self._special.finditer(text):
            ids += self._text(text[at : found.start()])
            ids.append(self._ids[found[0] if found[0] in self._ids else found[0].strip()])
            at = found.end()
        return ids + self._text(text[at:])

    def measured(self, texts: Iterable[str], most: int) -> int:
        """The number of tokens of `texts`, exact except at the borders of slices. It stops counting above `most`."""
        found = 0
        for text in texts:
            for at in range(0, len(text), SLICE):
                found += len(self._apart(text[at : at + SLICE]))
                if found > most:
                    return found
        return found

    @_as_error
    def _whole(self, text: str) -> Sequence[int]:
        if len(text) < LONG:
            return tuple(self._inner.encode(text, add_special_tokens=False).ids)
        ids = self._long(text) if len(text) <= KEPT else self._apart(text)
        return list(ids.tolist())

    @_as_error
    def _apart(self, text: str) -> np.ndarray[Any, np.dtype[np.int32]]:
        """int32[n]. `encode_batch_fast` is the only function of the library that releases the interpreter lock."""
        (encoding,) = self._inner.encode_batch_fast([text], add_special_tokens=False)
        return np.asarray(encoding.ids, dtype=np.int32)

    def _longest(self) -> int:
        """Bytes of the longest token as JSON writes it, every character above ASCII escaped."""
        best = 1
        for token, number in sorted(self._inner.get_vocab().items(), key=lambda item: -len(item[0])):
            if 12 * len(token) <= best:  # a pair of surrogates: the longest form of a character
                break
            best = max(best, len(json.dumps(self._decoded(number))) - 2)
        return best

    @_as_error
    def _text(self, guarded: str) -> list[int]:
        """Ids of a piece between two special tokens, with its guards removed."""
        if not guarded:
            return []
        text = _GUARDS.sub(lambda found: BREAK if found[1] else "", guarded)
        if len(text) >= LONG:
            (encoding,) = self._plain.encode_batch_fast([text], add_special_tokens=False)
            return list(encoding.ids)
        return list(self._plain.encode(text, add_special_tokens=False).ids)

    @_as_error
    def decode(self, ids: Sequence[int], **_: object) -> str:
        return (
            self._one(ids[0])
            if len(ids) == 1
            else str(self._inner.decode(list(ids), skip_special_tokens=False))
        )

    def _decoded(self, number: int) -> str:
        return str(self._inner.decode([number], skip_special_tokens=False))

    def convert_tokens_to_ids(self, token: str) -> int | None:
        found: int | None = self._inner.token_to_id(token)
        return found

    def special_in(self, text: str) -> str | None:
        """The first special token or marker that `text`, written by a template, contains."""
        found = self._quotable.search(text)
        return found[0] if found else None

    def token(self, text: str) -> int:
        """The id of a token that must exist. Raises ConfigurationError otherwise."""
        found = self.convert_tokens_to_ids(text)
        if found is None:
            raise ConfigurationError(
                f"the tokenizer of {self.name_or_path} has no token {text}: it is not of this chat format"
            )
        return found


def _tokenizer(description: Mapping[str, Any]) -> Tokenizer:
    # Some tokenizers are saved with the truncation and padding of their training.
    inner = Tokenizer.from_str(json.dumps(description))
    inner.no_truncation()
    inner.no_padding()
    return inner


def _is_marker(token: AddedToken) -> bool:
    """Whether a quoted token would be mistaken for a special one. Added tokens that are words or white space are only their characters."""
    return len(token.content) > 1 and bool(token.special or _MARKER.fullmatch(token.content))


def _matched(token: AddedToken) -> str:
    before, after = r"\s*" if token.lstrip else "", r"\s*" if token.rstrip else ""
    return before + re.escape(token.content) + after


def _alternatives(patterns: Any) -> re.Pattern[str]:
    """Leftmost, then longest, as in tokenizers. Without patterns: a pattern that never matches."""
    return re.compile("|".join(sorted(patterns, key=len, reverse=True)) or r"(?!)")
