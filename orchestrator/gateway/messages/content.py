"""The content of a message as text: one rule for parts of all types, known or not.

| a part | is |
|---|---|
| with `text`, `refusal`, a `content` or a text `source` of parts, a `transcript`, a `tool_name` | its text, a `title` and a `context` before it |
| of reasoning, or made by a provider's own tools (`…_tool_use`, `…_tool_result`) | left out, counted |
| any other (an image, audio, a file, an unknown type), in the opening of a conversation | refused: the policy reads text only |
| the same, in the past | left out, counted; the policy sees a note in its place |

Past are tool results, messages of the assistant, and all messages after the assistant's first message or a session's first step. Harnesses put
such parts into a history on their own and send them with every later request, so a refusal would repeat forever.
"""

from typing import Any

from orchestrator.contracts.quote import quoted
from orchestrator.gateway.problems import Problem, bad_request
from orchestrator.pool.sanitize import clean

# Key of a chat-form message: the types of the parts that a dialect left out of it.
LEFT_KEY = "penstock_left_out"
DEEPEST = 8  # parts inside parts
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
    texts: list[str] = []
    left_out: list[str] = []
    for part in content:
        if isinstance(part, str):
            texts.append(part)
            continue
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(kind, str) and (kind in _PROVIDER_PARTS or kind.endswith(_PROVIDER_ENDINGS)):
            left_out.append(kind[:64])
            continue
        text, complete = readable(part)
        if text is not None:
            texts.append(text)
        if complete:
            continue
        if not past:
            raise unreadable(kind, where)
        name = clean(kind)[:64] if isinstance(kind, str) and kind else "unknown"
        left_out.append(name)
        if shown and text is None:
            texts.append(f"[{name} left out: only text is read]")
    return clean("".join(texts)), tuple(left_out)


def of_unknown_role(role: Any, text: str) -> tuple[str, LeftOut]:
    """(text of a user's message that begins with the role, the mark of its record): a message of the past whose role its wire does not know."""
    name = clean(role)[:64] if isinstance(role, str) and role else "unknown"
    return f"{name}: {text}", (f"role {name}",)


def readable(part: Any, depth: int = 0) -> tuple[str | None, bool]:
    """(the text of a part, whether that is the whole part); the text is None if it has none."""
    if isinstance(part, str):
        return part, True
    if depth > DEEPEST:
        return None, False
    if isinstance(part, list):
        found = [readable(member, depth + 1) for member in part]
        texts = [text for text, _ in found if text is not None]
        return ("".join(texts) if texts or not part else None), all(complete for _, complete in found)
    if not isinstance(part, dict):
        return None, False
    text = part.get("refusal" if part.get("type") == "refusal" else "text")
    if isinstance(text, str):
        return text, True
    headings = [part.get("title"), part.get("context")]
    heading = "\n".join(each for each in headings if isinstance(each, str) and each) or None
    for inner in (
        part.get("content"),
        _source(part.get("source")),
        part.get("transcript"),
        part.get("tool_name"),
    ):
        text, complete = readable(inner, depth + 1) if inner is not None else (None, False)
        if text is not None:
            return "\n".join(each for each in (heading, text) if each is not None), complete
    return heading, heading is not None and not any(isinstance(value, dict | list) for value in part.values())


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
    return bad_request(
        f"{where} holds content of the unsupported type {quoted(kind)}: send text parts", "messages"
    )
