"""The content of a message as text: one rule for parts of all types, known or not.

| a part | is |
|---|---|
| with `text`, `refusal`, a `content` or a text `source` of parts, a `transcript`, a `tool_name` | its text |
| with a `title`, a `context`, or a `source` that is a string, in addition | these before the text, and all of it on lines of its own |
| of reasoning, or made by a provider's own tools (`…_tool_use`, `…_tool_result`) | left out, counted |
| any other (an image, audio, a file, an unknown type), in the opening of a conversation | refused: the policy reads text only |
| the same, in the past | left out, counted; the policy sees a note in its place |

Past are tool results, messages of the assistant, and all messages after the assistant's first message or a session's first step. Harnesses put
such parts into a history on their own and send them with every later request, so a refusal would repeat forever.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from orchestrator.contracts.quote import quoted
from orchestrator.gateway.problems import Problem, bad_request
from orchestrator.pool.sanitize import clean

# Key of a chat-form message: the types of the parts that a dialect left out of it.
LEFT_KEY = "penstock_left_out"
MAX_DEPTH = 8  # parts inside parts
# Only a provider's own servers create these parts. They hold no text for the policy.
_PROVIDER_PARTS = frozenset({"thinking", "redacted_thinking", "reasoning"})
_PROVIDER_ENDINGS = ("_tool_use", "_tool_result")
_UNREADABLE = {
    "image": "an image",
    "image_url": "an image",
    "input_image": "an image",
    "computer_screenshot": "an image",
    "input_audio": "audio",
    "audio": "audio",
    "file": "a file",
    "input_file": "a file",
    "document": "a document",
}
LeftOut = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PartText:
    """The text of a part, None if it has none. `complete`: that is the whole part; `apart`: it has a heading, so no text shares its lines."""

    text: str | None
    complete: bool
    apart: bool = False


def flatten(
    content: Any, where: str = "messages", *, past: bool = False, shown: bool = True
) -> tuple[str, LeftOut]:
    """(text, types of the parts left out): content as a string, the texts of its parts joined. An unreadable part is refused (Problem 400);
    in the `past` it is left out, with a note in its place if `shown` (never in the assistant's messages, because they are compared)."""
    if content is None:
        return "", ()
    if isinstance(content, str):
        return clean(content), ()
    if not isinstance(content, list):
        if not past:
            raise bad_request(
                f"{where}: the content of a message must be a string, a list of parts or null", "messages"
            )
        content = [content]
    texts: list[PartText] = []
    left_out: list[str] = []
    for part in content:
        if isinstance(part, str):
            texts.append(PartText(part, True))
            continue
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(kind, str) and (kind in _PROVIDER_PARTS or kind.endswith(_PROVIDER_ENDINGS)):
            left_out.append(kind[:64])
            continue
        read = readable(part)
        texts.append(read)
        if read.complete:
            continue
        if not past:
            raise unreadable(kind, where)
        name = clean(kind)[:64] if isinstance(kind, str) and kind else "unknown"
        left_out.append(name)
        if shown and read.text is None:
            texts.append(PartText(f"[{name} left out: only text is read]", False))
    return clean(_joined(texts)), tuple(left_out)


def _joined(parts: Iterable[PartText]) -> str:
    """The texts one after the other; a part with a heading begins and ends a line."""
    texts: list[str] = []
    apart = False
    for part in parts:
        if not part.text:
            continue
        touches = texts and not (texts[-1].endswith("\n") or part.text.startswith("\n"))
        if touches and (apart or part.apart):
            texts.append("\n")
        texts.append(part.text)
        apart = part.apart
    return "".join(texts)


def of_unknown_role(role: Any, text: str) -> tuple[str, LeftOut]:
    """(text of a user's message that begins with the role, the mark of its record): a message of the past whose role its wire does not know."""
    name = clean(role)[:64] if isinstance(role, str) and role else "unknown"
    return f"{name}: {text}", (f"role {name}",)


def unknown_role(role: Any, where: str, known: Iterable[str], param: str) -> Problem:
    """400: a message of the opening whose role its wire does not know."""
    wrong = "has no role" if role is None else f"has the unknown role {quoted(role)}"
    return bad_request(f"{where} {wrong}: use {', '.join(known)}", param)


def readable(part: Any, depth: int = 0) -> PartText:
    """The text of a part, or of a list of parts."""
    if isinstance(part, str):
        return PartText(part, True)
    if depth > MAX_DEPTH:
        return PartText(None, False)
    if isinstance(part, list):
        found = [readable(member, depth + 1) for member in part]
        complete, apart = all(each.complete for each in found), any(each.apart for each in found)
        readable_here = not part or any(each.text is not None for each in found)
        return PartText(_joined(found) if readable_here else None, complete, apart)
    if not isinstance(part, dict):
        return PartText(None, False)
    text = part.get("refusal" if part.get("type") == "refusal" else "text")
    if isinstance(text, str):
        return PartText(text, True)
    for inner in (
        part.get("content"),
        _source(part.get("source")),
        part.get("transcript"),
        part.get("tool_name"),
    ):
        read = readable(inner, depth + 1) if inner is not None else PartText(None, False)
        if read.text is not None:
            heading = _heading(part, within=True)
            text = "\n".join(each for each in (heading, read.text) if each)
            return PartText(text, read.complete, read.apart or heading is not None)
    heading = _heading(part, within=False)
    whole = heading is not None and not any(isinstance(value, dict | list) for value in part.values())
    return PartText(heading, whole, heading is not None)


def _heading(part: dict[str, Any], *, within: bool) -> str | None:
    """The title, the source and the context of a part. `within`: it has a text. A source alone may belong to a picture: it is not text."""
    title, source, context = (part.get(key) for key in ("title", "source", "context"))
    if not (within or title or context) or (isinstance(source, str) and source.startswith("data:")):
        source = None
    return "\n".join(each for each in (title, source, context) if isinstance(each, str) and each) or None


def _source(source: Any) -> Any:
    """The text, or the parts, of a document that contains them itself."""
    if not isinstance(source, dict):
        return None
    return source.get("data") if source.get("type") == "text" else source.get("content")


def unreadable(kind: object, where: str) -> Problem:
    """400: content that the policy cannot read."""
    if isinstance(kind, str) and kind in _UNREADABLE:
        return bad_request(
            f"{where} holds {_UNREADABLE[kind]} ({kind}), and this policy reads text only: send text instead",
            "messages",
        )
    wrong = "without a type" if kind is None else f"of the unsupported type {quoted(kind)}"
    return bad_request(f"{where} holds content {wrong}: send text parts", "messages")
