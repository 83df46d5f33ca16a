"""Writes the tables of keys into task-keys.md (task.toml, compose files): `.venv/bin/python ops/guides/task_keys.py`. A test compares them."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from orchestrator.tasks.compose import keys as compose
from orchestrator.tasks.keys import KEYS, Key, Treatment, shown

PAGE: Final = Path(__file__).resolve().with_name("task-keys.md")
BEGIN: Final = "| key | treatment | details |\n|---|---|---|\n"
_TABLE: Final = re.compile(re.escape(BEGIN) + r"(?:\|.*\n)+")
COMPOSE: Final = "| key of a compose file | treatment | details |\n|---|---|---|\n"
_COMPOSE: Final = re.compile(re.escape(COMPOSE) + r"(?:\|.*\n)+")


def rows() -> Iterator[str]:
    """A row for each key, and one for `[metadata]`."""
    for name, key in KEYS.items():
        yield f"| `{shown(name)}` | {key.treatment} | {_details(key)} |\n"
    yield (
        "| `[task]`, other texts, numbers and dates in it | no effect | refused where the name is close to that of another key; "
        "`domain`, `difficulty` and `category` stand in `[metadata]` |\n"
    )
    yield "| `[metadata]`, anything in it | no effect | honoured: `name`, `domain`, `category`, `difficulty`, where they are of that kind |\n"


def _details(key: Key) -> str:
    """The effect of a key, and the values of a refused one that request nothing."""
    idle = " or ".join(f"`{json.dumps(value)}`" for value in key.asks_nothing)
    details = f"{key.says}, or leave it at {idle}" if idle else key.says
    return details.replace("|", r"\|")


def compose_rows() -> Iterator[str]:
    """A row for each key of a compose file; keys with one reason to be refused share a row."""
    for table, place in (
        (compose.FILE, " of the file"),
        (compose.MAIN, " of `main`"),
        (compose.SIDE, " of a service"),
    ):
        refused: dict[str, list[str]] = {}
        for name, key in table.items():
            if key.treatment is not Treatment.REFUSED:
                yield f"| `{name}`{place} | {key.treatment} | {key.says} |\n"
            elif key != compose.SIDE.get(name) or table is compose.SIDE:
                refused.setdefault(key.says, []).append(f"`{name}`")
        for says, names in refused.items():
            yield f"| {', '.join(names)}{place} | refused | {says} |\n"
    yield "| `x-…` | no effect | |\n| any other | refused | by its name |\n"


def page(text: str) -> str:
    """The page with the tables of today."""
    assert _TABLE.search(text) and _COMPOSE.search(text), f"{PAGE.name} has no tables of keys"
    text = _TABLE.sub(lambda _: BEGIN + "".join(rows()), text)
    return _COMPOSE.sub(lambda _: COMPOSE + "".join(compose_rows()), text)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
