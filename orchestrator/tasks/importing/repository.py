"""Repositories on this machine: the files of a commit without history, and patches over them."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from orchestrator.tasks.importing.git import Git
from orchestrator.tasks.importing.patch import Patch


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


def copy(source: Path, target: Path, paths: Sequence[str]) -> None:
    """Copy those of the files that are there. ValueError for a link among them."""
    for path in paths:
        found, to = source / path, target / path
        if found.is_symlink() or not found.resolve().is_relative_to(source.resolve()):
            raise ValueError(f"{path} is a link in the repository: such a file cannot be patched here")
        if found.is_file():
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(found, to)
