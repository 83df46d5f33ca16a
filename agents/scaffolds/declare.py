"""Two ways to declare a scaffold, with one result.

A class with a decorator::

    @scaffold(name="shell", version="1")
    class Shell:
        async def run(self, task, llm, sandbox, ctx): ...

or a `scaffold.toml`, without Python: see `scaffolds.scaffold_toml`.
"""

import hashlib
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from scaffolds.base import (
    BlackBox,
    Conversations,
    Hints,
    Manifest,
    Needs,
    Program,
    Scaffold,
    ScaffoldKind,
    WhiteBox,
    Wire,
)

ATTRIBUTE = "__scaffold__"
"""The attribute of a class that holds its declaration as a `Scaffold`."""
# `orchestrator.contracts.ids.NAME`, which this package cannot import
_NAME = re.compile(r"[a-z0-9_-]{1,32}")

C = TypeVar("C", bound=type)


def scaffold(
    *,
    name: str,
    version: str,
    wire: Wire = "native",
    auxiliary: tuple[str, ...] = (),
    timeout_s: float | None = None,
    program: Program | None = None,
    needs: Needs | None = None,
    check: Hints | None = None,
    replayable: bool | None = None,
    conversations: Conversations | None = None,
    sub_agents: tuple[str, ...] = (),
    solution: bool = False,
    trains: bool = True,
    mcp: bool = False,
    skills: str = "",
    env: tuple[str, ...] = (),
) -> Callable[[C], C]:
    """Declare a class as a scaffold: a white box if it has `run`, a black box if it has `launch`. A white box is always `replayable` (see
    `Manifest`); a black box must state it. A black box may also set `conversations` to many: no sandbox has a white box's token."""

    def declare(cls: C) -> C:
        white = issubclass(cls, WhiteBox)
        if not white and not issubclass(cls, BlackBox):
            raise ValueError(
                f"scaffold {cls.__name__}: a white box needs `run`, a black box `launch` (derive it from BlackBoxDefaults)"
            )
        if white != (wire == "native"):
            raise ValueError(
                f"scaffold {cls.__name__}: a white box speaks the wire native, a black box another one"
            )
        source = Path(inspect.getfile(cls))
        root = source.parent if source.name == "__init__.py" else source
        manifest = Manifest(
            name=checked_name(name),
            version=version,
            kind=ScaffoldKind.WHITE if white else ScaffoldKind.BLACK,
            wire=wire,
            sha=source_sha(root),
            auxiliary=auxiliary,
            timeout_s=timeout_s,
            program=program,
            needs=needs or Needs(),
            check=check or Hints(),
            replayable=white if replayable is None else replayable,
            conversations=conversations or ("many" if white else "one"),
            sub_agents=sub_agents,
            solution=solution,
            trains=trains,
            mcp=mcp,
            skills=skills,
            env=env,
        )
        setattr(cls, ATTRIBUTE, Scaffold(manifest, cls))
        return cls

    return declare


def source_sha(root: Path) -> str:
    """Hex sha256 over a file, or over every file of a directory (except byte code) with its relative path, in order."""
    digest = hashlib.sha256()
    files = [root] if root.is_file() else sorted(p for p in root.rglob("*") if p.is_file())
    for path in files:
        if "__pycache__" in path.parts:
            continue
        name = path.name if root.is_file() else path.relative_to(root).as_posix()
        for part in (name.encode(), path.read_bytes()):
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)
    return digest.hexdigest()


def checked_name(name: str) -> str:
    """The name itself. Raises ValueError unless it is valid as the name of a scaffold."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(
            f"scaffold {name!r:.80} is not a valid name: use 1 to 32 characters of a-z, 0-9, _ and -"
        )
    return name
