"""Repositories on this machine: the files of a commit without history, and patches over them."""

import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from orchestrator.contracts.quote import quoted
from orchestrator.tasks.bundle import check_path
from orchestrator.tasks.importing.git import Git

_HUNK: Final = re.compile(r"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")
_SIDE: Final = re.compile(r"(?:---|\+\+\+) (?:[ab]/)?([^\t]+)")
_MOVED: Final = re.compile(r"(?:rename|copy) (?:from|to) (.+)")
_DIFF: Final = re.compile(r"diff --git a/(\S+) b/(\S+)")
_NOTHING: Final = "/dev/null"


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """The paths that a patch changes, and those of them that it makes."""

    text: str
    paths: tuple[str, ...]
    new: tuple[str, ...]

    @classmethod
    def of(cls, text: str, column: str) -> "Patch":
        """Read a unified diff. ValueError if it changes nothing, or a path outside of the repository."""
        paths, new = _changed(text)
        if not paths:
            raise ValueError(f"{column} is not a patch that git made")
        for path in paths:
            try:
                check_path(path)
            except ValueError as error:
                raise ValueError(f"{column}: {error}") from None
            if ".git" in path.split("/"):
                raise ValueError(f"{column}: {quoted(path)} is a file of git itself")
        ended = text if text.endswith("\n") else text + "\n"
        return cls(text=ended, paths=tuple(dict.fromkeys(paths)), new=tuple(dict.fromkeys(new)))


class Repositories:
    """The repositories of one folder, as `owner/name`, `owner__name` or `name`; bare ones with or without `.git`."""

    def __init__(self, folder: Path, scratch: Path, program: Git) -> None:
        if not folder.is_dir():
            raise ValueError(f"{folder} is not a directory: give the one with the repositories")
        self._folder, self._scratch, self._git = folder, scratch, program
        self._exported: tuple[str, str] | None = None

    def files(self, repo: str, commit: str) -> Path:
        """A directory with the files of a commit, until the next call for another one. ValueError if repository or commit are not there."""
        place = self._scratch / "base"
        if self._exported == (repo, commit):
            return place
        self._exported = None
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        index = self._scratch / "index"
        index.unlink(missing_ok=True)
        found = self._find(repo)
        ceiling = {"GIT_CEILING_DIRECTORIES": str(found.resolve().parent)}
        own = self._git.run("rev-parse", "--absolute-git-dir", at=found, environment=ceiling).decode().strip()
        self._git.run(
            f"--git-dir={own}", f"--work-tree={place}", "checkout", "-q", "-f", commit, "--", ".",
            at=place, environment={"GIT_INDEX_FILE": str(index)},
        )  # fmt: skip
        self._exported = (repo, commit)
        return place

    def patched(self, base: Path, patch: Patch, column: str) -> Path:
        """A directory with the files that a patch changes, after it. ValueError if it does not apply to those of `base`."""
        place = self._scratch / "patched"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        copy(base, place, patch.paths)
        (self._scratch / "patch").write_text(patch.text, encoding="utf-8", errors="surrogateescape")
        try:
            self._git.run(
                "apply",
                "--whitespace=nowarn",
                str(self._scratch / "patch"),
                at=place,
                environment={"GIT_CEILING_DIRECTORIES": str(place.resolve().parent)},
            )
        except ValueError as error:
            raise ValueError(f"{column} does not apply to the repository: {error}") from None
        return place

    def reverse(self, base: Path, patched: Path, paths: Sequence[str]) -> str:
        """A patch that leads from `patched` back to `base`."""
        place = self._scratch / "reverse"
        shutil.rmtree(place, ignore_errors=True)
        for name, source in (("a", patched), ("b", base)):
            (place / name).mkdir(parents=True)
            copy(source, place / name, paths)
        return self._git.diff("a", "b", at=place)

    def _find(self, repo: str) -> Path:
        owner, name = repo.split("/")
        stems = (f"{owner}/{name}", f"{owner}__{name}", name)
        for stem in (*stems, *(f"{each}.git" for each in stems)):
            if (place := self._folder / stem).is_dir():
                return place
        raise ValueError(
            f"{self._folder} has no repository {repo}: clone it as {owner}/{name} or {owner}__{name}"
        )


def _changed(text: str) -> tuple[list[str], list[str]]:
    """(the paths that a patch names outside of its hunks, those of new files)."""
    paths: list[str] = []
    new: list[str] = []
    old_lines = new_lines = 0  # of the hunk, still to come
    before = ""
    for line in text.splitlines():
        if old_lines > 0 or new_lines > 0:
            old_lines -= not line.startswith(("+", "\\"))
            new_lines -= not line.startswith(("-", "\\"))
        elif found := _HUNK.match(line):
            old_lines, new_lines = int(found[1] or 1), int(found[2] or 1)
        elif found := _DIFF.fullmatch(line):
            paths += found.groups()
        elif (found := _MOVED.fullmatch(line)) or (found := _SIDE.match(line)):
            if line.startswith("+++") and before == _NOTHING:
                new.append(found[1])
            before = found[1]
            paths += [found[1]] if found[1] != _NOTHING else []
    return paths, new


def copy(source: Path, target: Path, paths: Sequence[str]) -> None:
    """Copy those of the files that are there. ValueError for a link among them."""
    for path in paths:
        found, to = source / path, target / path
        if found.is_symlink() or not found.resolve().is_relative_to(source.resolve()):
            raise ValueError(f"{path} is a link in the repository: such a file cannot be patched here")
        if found.is_file():
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(found, to)
