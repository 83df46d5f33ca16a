"""A bubblewrap sandbox on an image: the image read-only around its places, and a layer of its own over the image's work directory."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from sandboxes import artifacts, cgroups
from sandboxes.base import (
    PLACED,
    WORK,
    WRITABLE,
    ArtifactLimits,
    Artifacts,
    SandboxError,
    SandboxSpec,
)
from sandboxes.bubblewrap_sandbox import BubblewrapSandbox
from sandboxes.images import changes, hold, view
from sandboxes.images.mounted import Layer, Layering, open_layer
from sandboxes.images.owners import OF_ROOT, Ids, Owners, give
from sandboxes.images.store import Image
from sandboxes.users import Range

_PASSING = frozenset(
    {
        errno.ENOMEM,
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EMFILE,
        errno.ENFILE,
        errno.EAGAIN,
        errno.EIO,
        errno.EROFS,
    }
)
"""Errors that do not mean that this machine refuses a kind of layer."""
_WITH_OWNERS = (Layering.IDMAPPED, Layering.COPY)
"""Kinds of layers that keep several users apart."""
_OWN = (*WRITABLE, *PLACED, "/proc", "/dev", "/sys", "/run")
"""Places inside that are never the image's."""


class Layerings:
    """Which kind of layer this machine takes: found with the first sandbox, and kept. `forced`: this one alone."""

    def __init__(self, forced: Layering | None = None) -> None:
        self.forced = forced
        self.chosen = forced
        self.refused: dict[Layering, str] = {}

    def open(
        self, image: Image, directory: Path, owner: Ids | None, *, kinds: Collection[Layering] | None = None
    ) -> Layer:
        """A layer of the chosen kind, or of the best one among `kinds`. SandboxError if none can be made."""
        if self.chosen is not None and (kinds is None or self.chosen in kinds):
            try:
                return open_layer(self.chosen, image, directory, owner)
            except OSError as error:
                raise SandboxError(
                    f"a layer over an image cannot be made by {self.chosen}: {error}"
                ) from error
        for kind in Layering.candidates(own_user=owner is not None):
            if kinds is not None and kind not in kinds:
                continue
            try:
                layer = open_layer(kind, image, directory, owner)
            except OSError as error:
                if kind is Layering.COPY or error.errno in _PASSING:
                    raise
                self.refused[kind] = error.strerror or str(error)
                continue
            self.chosen = kind if kinds is None else self.chosen
            return layer
        raise AssertionError("a copy is always possible")


class ImageSandbox(BubblewrapSandbox):
    """`image` must stay in its store until the sandbox is closed. `instead`: what it is, if it stands for another image."""

    def __init__(
        self,
        root: Path,
        spec: SandboxSpec,
        hierarchies: cgroups.Hierarchies | None,
        *,
        own_user: bool,
        image: Image,
        layerings: Layerings,
        users: Range | None = None,
        owners: Owners = OF_ROOT,
        instead: str = "",
    ) -> None:
        super().__init__(root, spec, hierarchies, own_user=own_user, users=users)
        self._owners = owners
        self.image = image
        self._layerings = layerings
        self._instead = instead
        self._layer: Layer | None = None
        self._absent = tuple(path.removeprefix(f"{WORK}/") for path in spec.without)

    @property
    def begins(self) -> str:
        cwd = self.spec.cwd
        return self.image.work + cwd.removeprefix(WORK) if f"{cwd}/".startswith(f"{WORK}/") else cwd

    @property
    def work(self) -> str:
        return self.image.work

    @property
    def system(self) -> str:
        return self.image.reference + (f" ({self._instead})" if self._instead else "")

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        return {**self.defaults(), **self.image.env, **self.spec.env, **env}

    def base(self, name: str) -> Path:
        if name == "app":
            assert self._layer is not None
            return self._layer.base
        return super().base(name)

    def lay(self) -> None:
        if self.users is None:
            self._layer = self._layerings.open(self.image, self.directory, self.files_of)
        else:
            self._lay_for(self.users)
        for path in self._absent:
            self._leave_out(path)

    def _lay_for(self, users: Range) -> None:
        """A layer in which every file has the owner that the image's author gave it."""
        usual = users.outside(*self._owners.usual)
        self._layer = self._layerings.open(self.image, self.directory, usual, kinds=_WITH_OWNERS)
        os.chown(self.directory / "files" / "app", *usual)
        give(self.base("app"), {path: users.outside(*ids) for path, ids in self._owners.others.items()})

    def _leave_out(self, path: str) -> None:
        parent, _, name = path.rpartition("/")
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            fd = os.open(self.base("app"), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                for part in filter(None, parent.split("/")):
                    inner = os.open(
                        part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd
                    )
                    os.close(fd)
                    fd = inner
                if stat.S_ISDIR(os.lstat(name, dir_fd=fd).st_mode):
                    shutil.rmtree(name, dir_fd=fd)
                else:
                    os.unlink(name, dir_fd=fd)
            finally:
                os.close(fd)

    def enter(self) -> Sequence[str]:
        assert self._layer is not None
        return self._layer.enter

    def hold(self) -> Sequence[str]:
        return hold.hold()[0]

    def writable(self) -> list[tuple[str, str]]:
        assert self._layer is not None
        work = str(self._layer.work)
        others = [(outside, inside) for outside, inside in super().writable() if inside != WORK]
        return [(work, WORK), *([(work, self.image.work)] if self.image.work != WORK else []), *others]

    def system_options(self) -> list[str]:
        assert self._layer is not None
        places = {*_OWN, self.image.work, *self.spec.binds.values()}
        return [*view.view(self.image.root, self._layer.system, places), *hold.hold()[1]]

    def compare(self, limits: ArtifactLimits) -> Artifacts:
        assert self._layer is not None
        lower = self.image.root / self.image.work.lstrip("/")
        upper = self.directory / "files" / "app"
        if self._layer.kind is Layering.COPY:
            known = dict(changes.everything(lower, self._absent))
            placed = {**known, **self._placed}
            return artifacts.changed(upper, placed, limits, called=self.work, spool=self.spool())
        return changes.changed(
            upper, lower, self._placed, self._absent, limits, called=self.work, spool=self.spool()
        )

    def _remove(self) -> None:
        if self._layer is not None:
            self._layer.close()
            self._layer = None
        super()._remove()


def check_spec(spec: SandboxSpec, image: Image) -> None:
    """`ValueError` for a path that is bound where the image's work directory is."""
    for outside, inside in spec.binds.items():
        if f"{inside}/".startswith(f"{image.work}/") or f"{image.work}/".startswith(f"{inside}/"):
            raise ValueError(
                f"cannot bind {outside} at {inside!r}, where the image's work directory is: choose another path"
            )
