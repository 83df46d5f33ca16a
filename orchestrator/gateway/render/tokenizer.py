"""Text to ids. What a template writes may become special tokens; what people, tools and models wrote never does."""

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from orchestrator.contracts.errors import ConfigurationError

# Noncharacters, which no text interchanges. BREAK stands inside a quoted special token, BREAK + KEEP for a BREAK of the text itself.
BREAK, KEEP = "\ufdd0", "\ufdd1"
SHORT = 32  # characters
_GUARDS = re.compile(f"{BREAK}({KEEP}?)")
_MARKER = re.compile(r"[<\[\]{|]\S*[>\[\]}|]")


class TokenizerAdapter:
    """A model's tokenizer, with the methods that `renderers` asks for.

    Chat formats are written as one text in which `<|im_end|>` is a token where the template says it and seven characters where a tool
    printed it. `guard` marks what is quoted; `encode` then takes it for text. Marker tokens that a tokenizer does not call special
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
        # Headers and markers, which every turn asks for again: a call into the library takes longer than all else about them.
        self._short = lru_cache(maxsize=1024)(self._whole)
        self._one = lru_cache(maxsize=1024)(self._decoded)

    def guard(self, text: str) -> str:
        """`text` for a template: what spells a special token in it stays text."""
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

    def _whole(self, text: str) -> tuple[int, ...]:
        return tuple(self._inner.encode(text, add_special_tokens=False).ids)

    def _text(self, guarded: str) -> list[int]:
        """Ids of a piece between two special tokens, its guards taken out."""
        if not guarded:
            return []
        text = _GUARDS.sub(lambda found: BREAK if found[1] else "", guarded)
        return list(self._plain.encode(text, add_special_tokens=False).ids)

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
        """The id of a token that must exist. ConfigurationError otherwise."""
        found = self.convert_tokens_to_ids(text)
        if found is None:
            raise ConfigurationError(
                f"the tokenizer of {self.name_or_path} has no token {text}: it is not of this chat format"
            )
        return found


def _tokenizer(description: Mapping[str, Any]) -> Tokenizer:
    # Some are saved with the truncation and padding of their training.
    inner = Tokenizer.from_str(json.dumps(description))
    inner.no_truncation()
    inner.no_padding()
    return inner


def _is_marker(token: AddedToken) -> bool:
    """Whether a quoted one would be mistaken. Added tokens that are words or white space mean nothing but their characters."""
    return len(token.content) > 1 and bool(token.special or _MARKER.fullmatch(token.content))


def _matched(token: AddedToken) -> str:
    before, after = r"\s*" if token.lstrip else "", r"\s*" if token.rstrip else ""
    return before + re.escape(token.content) + after


def _alternatives(patterns: Any) -> re.Pattern[str]:
    """Leftmost, then longest, as tokenizers do it. Without patterns: what matches nothing."""
    return re.compile("|".join(sorted(patterns, key=len, reverse=True)) or r"(?!)")
