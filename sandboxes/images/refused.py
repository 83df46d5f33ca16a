"""Builds that failed by their context's fault, remembered for some minutes: all attempts of a group want the same image, and each would
build it again."""

from __future__ import annotations

import contextlib
import hashlib
import time
from pathlib import Path
from typing import Final

from sandboxes.base import ImageRefused

KEPT_S: Final = 600.0


class RefusedBuild:
    """The failure of one build. `directory`: that of all of them, with a file for each; `name`: what the build's result depends on."""

    def __init__(self, directory: Path, name: str) -> None:
        self._file = directory / hashlib.sha256(name.encode()).hexdigest()
        self._late = self._file.with_suffix(".late")

    def check(self) -> None:
        """ImageRefused, with the sentence of the build, if it failed a short time ago."""
        if _is_recent(self._file):
            with contextlib.suppress(OSError):
                if why := self._file.read_text(encoding="utf-8"):
                    raise ImageRefused(why)

    def was_late(self) -> bool:
        """Whether its time limit ended it a short time ago."""
        return _is_recent(self._late)

    def note_late(self) -> None:
        """Remember that its time limit ended it, for `was_late`."""
        with contextlib.suppress(OSError):
            self._file.parent.mkdir(exist_ok=True)
            self._late.touch()

    def note(self, error: ImageRefused) -> None:
        """Remember its failure, and forget those of other builds that are over. One builder at a time."""
        with contextlib.suppress(OSError):  # the failure itself counts
            self._file.parent.mkdir(exist_ok=True)
            for other in self._file.parent.iterdir():
                if not _is_recent(other):
                    other.unlink()
            temporary = self._file.with_suffix(".new")
            temporary.write_text(str(error), encoding="utf-8", errors="replace")
            temporary.rename(self._file)

    def forget(self) -> None:
        """Let the next one build again."""
        with contextlib.suppress(OSError):
            self._late.unlink(missing_ok=True)
            self._file.unlink()


def _is_recent(file: Path) -> bool:
    try:
        return abs(time.time() - file.stat().st_mtime) < KEPT_S
    except OSError:
        return False
