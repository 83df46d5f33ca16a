"""Settings of providers that are created without arguments."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, TypeVar

from sandboxes.text_files import read_text

VARIABLE = "PENSTOCK_SANDBOX_SETTINGS"
"""Names a JSON file, {"container": {…}, "kubernetes": {…}}, for providers that are created without arguments: by `python -m sandboxes.conformance`
and the owners it kills."""

T = TypeVar("T")


def from_environment(kind: type[T], table: str) -> T:
    """Settings from the file that `VARIABLE` names, or the defaults. ValueError names the key."""
    path = os.environ.get(VARIABLE, "")
    if not path:
        return kind()
    found: dict[str, Any] = json.loads(read_text(Path(path))).get(table, {})
    found = {key: tuple(value) if isinstance(value, list) else value for key, value in found.items()}
    try:
        return kind(**found)
    except TypeError as error:
        raise ValueError(f"{path}: {table}: {error}") from None
