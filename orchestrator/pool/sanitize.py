"""Cleans text for a text column."""

from typing import Any


def clean(value: str) -> str:
    """`value` without NUL and lone surrogates, which Postgres text cannot hold; token ids remain the truth."""
    if value.isascii() and "\x00" not in value:  # true of most text, and fast to check
        return value
    return value.replace("\x00", "\ufffd").encode("utf-8", "replace").decode("utf-8")


def clean_json(value: Any) -> Any:
    """`clean` for every string inside a JSON value."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {clean(key): clean_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [clean_json(item) for item in value]
    return value
