"""Output of `penstock scaffold new`: the guide's own examples, under a given name."""

import re
from importlib.resources import files
from pathlib import Path
from typing import Final

from scaffolds.declare import checked_name

from orchestrator.contracts.quote import quoted

KINDS: Final = ("manifest", "black-box", "white-box")
_FILES: Final = {
    "manifest": ("scaffold.toml", "agent.py"),
    "black-box": ("black_box.py", "agent.py"),
    "white-box": ("white_box.py",),
}
_TEMPLATES: Final = "scaffolds.examples"


def write(directory: Path, kind: str) -> list[Path]:
    """Write a scaffold with the name of `directory`. Raises ValueError, one sentence; never overwrites existing files."""
    if kind not in KINDS:
        raise ValueError(f"unknown kind {quoted(kind)}; known: {', '.join(KINDS)}")
    name = checked_name(directory.resolve().name)
    if directory.exists() and any(directory.iterdir()):
        raise ValueError(f"{directory} is not empty; choose another directory")
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for file in _FILES[kind]:
        source = files(_TEMPLATES).joinpath(file).read_text(encoding="utf-8")
        target = directory / (f"{_module(name)}.py" if file in ("black_box.py", "white_box.py") else file)
        target.write_text(_named(source, name), encoding="utf-8")
        written.append(target)
    return written


def reference(directory: Path, kind: str) -> str:
    """The reference to the written scaffold, for use in commands."""
    if kind == "manifest":
        return str(directory) if "/" in str(directory) else f"./{directory}"
    module = _module(directory.resolve().name)
    return f"{directory / module}.py"


def _module(name: str) -> str:
    return re.sub("[^a-z0-9_]", "_", f"agent_{name}" if name[0].isdigit() else name)


def _named(source: str, name: str) -> str:
    return source.replace("example-agent", name)
