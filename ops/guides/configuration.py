"""Writes configuration.md from the keys themselves: `.venv/bin/python ops/guides/configuration.py`. A test compares what is committed."""

import json
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from orchestrator.settings.config import Config
from orchestrator.settings.keys import Key, keys
from orchestrator.settings.scope import model_in

HERE = Path(__file__).resolve().parent
BEGINNING = """# Every key of `penstock.toml`

This page is generated from the keys themselves (`.venv/bin/python ops/guides/configuration.py`).
A terminal shows the same, with the value that counts for a run:

```sh
penstock config --explain -c runs/first
penstock config --explain queue trainer.lr -c runs/first
```

- **Scope `run`**: the run keeps the value that it began with. Another value in the file is ignored, and `penstock up` names the key.
- **Scope `process`**: every process reads the value from the file at its start.
- A path in the file is relative to the file's directory; a path in `--set` is relative to the working directory. Scaffolds (`agent.py:Mine`) and
  programs with a slash are paths.
- The file is UTF-8. A byte order mark and line ends of Windows do no harm; another encoding is refused by its name.
- `NAME` stands for a name of your own. Durations are seconds. A key that the file does not know is refused.
"""


def page() -> str:
    """The whole page."""
    return "".join(
        [BEGINNING, *(table(name, list(rows)) for name, rows in groupby(keys(), lambda key: key.section))]
    )


def table(section: str, rows: list[Key]) -> str:
    """One section: what it is for, and a row for each key."""
    model = model_in(Config.model_fields[section].annotation)
    assert model is not None
    about = " ".join((model.__doc__ or "").split())
    return "\n".join(["", f"## `[{section}]`", "", about, "", *_lines(rows), ""])


def _lines(rows: list[Key]) -> Iterator[str]:
    yield "| key | default | scope | meaning |"
    yield "|---|---|---|---|"
    for row in rows:
        yield f"| `{row.name}` | {_default(row.default)} | {row.scope.value} | {_escaped(row.sentence)} |"


def _default(value: Any) -> str:
    """The default as a cell.

    >>> _default(""), _default(8), _default({}), _default(["a"])
    ('empty', '`8`', 'empty', '`["a"]`')
    """
    if value is None:
        return "none"
    return "empty" if value in ("", [], {}) else f"`{_escaped(json.dumps(value, ensure_ascii=False))}`"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    (HERE / "configuration.md").write_text(page(), encoding="utf-8")
