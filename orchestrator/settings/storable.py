"""Texts of a configuration that can be stored: the data pool and the names of files hold neither NUL nor half of a surrogate pair."""

from typing import Any, Final

from orchestrator.contracts.quote import quoted

_NOT_TEXT: Final = "a NUL character or half of a surrogate pair, which is not text: take it out"


def unstorable(raw: Any) -> str | None:
    """The fault of the first text or key that neither the data pool nor the name of a file can hold; None: nothing."""
    pending: list[tuple[str, Any]] = [("", raw)]
    while pending:
        key, value = pending.pop()
        if isinstance(value, dict):
            names = [name for name in value if isinstance(name, str)]
            bad = next((name for name in names if not _storable(name)), None)
            if bad is not None:
                return f"{key or 'the file'}: the key {quoted(bad)} has {_NOT_TEXT}"
            pending += [(f"{key}.{name}" if key else str(name), inner) for name, inner in value.items()]
        elif isinstance(value, list | tuple):
            pending += [(key, inner) for inner in value]
        elif isinstance(value, str) and not _storable(value):
            return f"{key}: {quoted(value)} has {_NOT_TEXT}"
    return None


def _storable(text: str) -> bool:
    return "\0" not in text and not any("\ud800" <= character <= "\udfff" for character in text)
