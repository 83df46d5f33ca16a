"""System programs that sandboxes need: the first on PATH that is new enough."""

import contextlib
import os
import re
import subprocess
from functools import lru_cache
from pathlib import Path
from typing import Final

OLDEST_BWRAP: Final = (0, 8)  # --disable-userns
_ASK_S: Final = 20.0


def bwrap() -> str:
    """The path of bubblewrap. ValueError, one sentence, if none is new enough. An older one is skipped if a newer one
    follows it on PATH."""
    return _bwrap(os.environ.get("PATH", os.defpath))


@lru_cache(maxsize=8)
def _bwrap(path: str) -> str:
    outdated, unknown = [], []
    for program in on_path("bwrap", path):
        version = version_of(program)
        if version >= OLDEST_BWRAP:
            return str(program)
        if version:
            outdated.append(f"{program} is {'.'.join(map(str, version))}")
        else:
            unknown.append(program)
    if unknown:  # it reports itself why it fails
        return str(unknown[0])
    if outdated:
        raise ValueError(
            f"bubblewrap is too old: {', '.join(outdated)}, and {'.'.join(map(str, OLDEST_BWRAP))} or newer is needed; "
            "put a newer one on PATH (apt-get install bubblewrap)"
        )
    raise ValueError("bwrap is not on PATH; apt-get install bubblewrap")


def older(name: str, least: tuple[int, ...]) -> list[str]:
    """The programs on PATH that are older than `least`, each with its version: they are skipped."""
    found = [(program, version_of(program)) for program in on_path(name)]
    return [
        f"{program} is {'.'.join(map(str, version))}"
        for program, version in found
        if version and version < least
    ]


def on_path(name: str, path: str | None = None) -> list[Path]:
    """Every executable of that name on PATH, in its order, each once. An entry that cannot be searched has none, as for a shell."""
    found: dict[Path, Path] = {}
    for directory in (os.environ.get("PATH", os.defpath) if path is None else path).split(os.pathsep):
        program = Path(directory or ".") / name
        with contextlib.suppress(OSError):  # a directory that this user may not search, or no possible path
            if program.is_file() and os.access(program, os.X_OK):
                found.setdefault(program.resolve(), program.absolute())
    return list(found.values())


def version_of(program: Path) -> tuple[int, ...]:
    """(2, 15, 0) of a program that answers `--version` with `nats-server: v2.15.0` or the like; () if it does not."""
    try:
        result = subprocess.run(
            [program, "--version"], capture_output=True, text=True, errors="replace", timeout=_ASK_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return ()
    match = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", result.stdout) if result.returncode == 0 else None
    return tuple(int(part) for part in match.groups() if part is not None) if match else ()
