"""A bubblewrap sandbox on an image: the image read-only around its places, and a layer of its own over the image's work directory and over those of
its directories that hold data (places.py)."""

from __future__ import annotations

import errno
import os
import posixpath
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from sandboxes import artifacts, cgroups, moves, tree
from sandboxes.base import (
    PLACED,
    WORK,
    WRITABLE,
    ArtifactLimits,
    Artifacts,
    SandboxSpec,
)
from sandboxes.bubblewrap_sandbox import BubblewrapSandbox
from sandboxes.elsewhere import lies_elsewhere, place_of
from sandboxes.image_mount import ELSEWHERE, OF_WORK
from sandboxes.images import changes, view
from sandboxes.images.mounted import Layer, Layering, open_layer
from sandboxes.images.owners import OF_ROOT, ROOT, Ids, Owners, give, of_places
from sandboxes.images.store import Image
from sandboxes.machine import fault
from sandboxes.users import Range

T = TypeVar("T")
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
    """Which kind of layer this machine takes: found with the first sandbox, and kept. `chosen`: this one alone."""

    def __init__(self, chosen: Layering | None = None) -> None:
        self.chosen = chosen
        self.refused: dict[Layering, str] = {}

    def open(
        self,
        image: Image,
        directory: Path,
        owner: Ids | None,
        *,
        places: Sequence[str] = (),
        places_of: Ids | None = None,
        kinds: Collection[Layering] | None = None,
    ) -> Layer:
        """A layer of the chosen kind, or of the best one among `kinds`; arguments as for `open_layer`. SandboxError if none can be made."""
        opened = partial(
            open_layer, image=image, directory=directory, owner=owner, places=places, places_of=places_of
        )
        if self.chosen is not None and (kinds is None or self.chosen in kinds):
            try:
                return opened(self.chosen)
            except OSError as error:
                raise fault(
                    error, f"a layer over an image cannot be made by {self.chosen}: {error}"
                ) from error
        for kind in Layering.candidates(own_user=owner is not None):
            if kinds is not None and kind not in kinds:
                continue
            try:
                layer = opened(kind)
            except OSError as error:
                if kind is Layering.COPY or error.errno in _PASSING:
                    raise
                self.refused[kind] = error.strerror or str(error)
                continue
            self.chosen = kind if kinds is None else self.chosen
            return layer
        raise AssertionError("a copy is always possible")


class ImageSandbox(BubblewrapSandbox):
    """`image` must stay in its store until the sandbox is closed. `places`: of it, which programs may write besides its work
    directory. `instead`: what it is, if it stands for another image."""

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
        places: Sequence[str] = (),
        instead: str = "",
    ) -> None:
        super().__init__(root, spec, hierarchies, own_user=own_user, users=users)
        self._owners = owners
        self.image = image
        self._layerings = layerings
        self._instead = instead
        self._layer: Layer | None = None
        self.places = tuple(places)
        """Absolute paths, none within another. A program may replace what is in them, but neither them nor what is above."""
        # Relative to the work directory, or absolute.
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
        return moves.own_places({**self.defaults(), **self.image.env, **self.spec.env, **env}, self.work)

    def base(self, name: str) -> Path:
        if name == "app":
            assert self._layer is not None
            return self._layer.base
        if name.startswith("/"):
            assert self._layer is not None
            return self._layer.elsewhere / name.lstrip("/")
        return super().base(name)

    def locate(self, inside: str) -> tuple[str, list[str]]:
        place = self._place_of(inside)
        if place and posixpath.normpath(inside) == inside:
            return place, inside.removeprefix(f"{place}/").split("/")
        try:
            return super().locate(self._in_work(inside))
        except ValueError as error:
            if not lies_elsewhere(inside):
                raise
            raise ValueError(
                f"{inside!r} cannot be placed: on the image {self.image.digest[:12]} nothing can be written there, because it serves programs from it"
                " or reaches it by a link (ops/guides/images.md)"
            ) from error

    def _in_work(self, inside: str) -> str:
        """A path of data elsewhere, as a caller names it who does not know the image, by the name of the work directory if it is there."""
        if lies_elsewhere(inside) and inside.startswith(f"{self.work}/"):
            return WORK + inside.removeprefix(self.work)
        return inside

    def _place_of(self, inside: str) -> str:
        """The place that holds `inside`; "" for none."""
        return next((each for each in self.places if inside.startswith(f"{each}/")), "")

    def lay(self) -> None:
        places, users = self.places, self.users
        if users is None:
            self._layer = self._layerings.open(
                self.image, self.directory, self.files_of, places=places, places_of=self.files_of
            )
        else:
            self._lay_for(users)
        for place in places:
            self._make_place(place)
        for path in self._absent:
            base, parts = self._located(path) if path.startswith("/") else (self.base("app"), path.split("/"))
            tree.clear(base, parts)
        self._give_way()

    def _lay_for(self, users: Range) -> None:
        """A layer in which every file has the owner that the image's author gave it."""
        usual = users.outside(*self._owners.usual)
        # Overlayfs does not see what changes later.
        os.chown(self.directory / OF_WORK.upper, *usual)
        self._layer = self._layerings.open(
            self.image,
            self.directory,
            usual,
            places=self.places,
            places_of=users.outside(*ROOT),
            kinds=_WITH_OWNERS,
        )
        give(self.base("app"), {path: users.outside(*ids) for path, ids in self._owners.others.items()})
        if self.places:
            known = of_places(self._owners, self.places, users)
            give(self._layer.elsewhere, {path: users.outside(*ids) for path, ids in known.items()})

    def _make_place(self, place: str) -> None:
        """Make a place, and what is above it, if the image lacks them."""
        assert self._layer is not None
        parts = place.strip("/").split("/")
        if not self._layer.elsewhere.joinpath(*parts).is_dir():
            tree.make(self._layer.elsewhere, parts, self.files_of)

    def _located(self, path: str) -> tuple[Path, list[str]]:
        name, parts = self.locate(path)
        return self.base(name), parts

    def _give_way(self) -> None:
        """Remove what the image has of another kind where something is placed: a directory in place of a file or link, or the reverse."""
        spec = self.spec
        for inside in (*spec.files, *spec.links):
            tree.clear(*self._located(inside), kind=tree.Kind.DIRECTORY)
        for inside in (*spec.directories, *spec.modes):
            tree.clear(*self._located(inside), kind=tree.Kind.OTHER)

    def enter(self) -> Sequence[str]:
        assert self._layer is not None
        return self._layer.enter

    def writable(self) -> list[tuple[str, str]]:
        assert self._layer is not None
        work = str(self._layer.work)
        others = [(outside, inside) for outside, inside in super().writable() if inside != WORK]
        own = [(work, WORK), *([(work, self.image.work)] if self.image.work != WORK else [])]
        beyond = [(f"{self._layer.whole}{place}", place) for place in self.places]
        return [*own, *beyond, *others]

    def system_options(self) -> list[str]:
        assert self._layer is not None
        places = {*_OWN, self.image.work, *self.places, *self.spec.binds.values()}
        return view.view(self.image.root, self._layer.system, places)

    def compare(self, limits: ArtifactLimits) -> Artifacts:
        found = self._compared("", self.image.work, self.directory / OF_WORK.upper, limits)
        if any(self._in_work(path) != path or path == self.work for path in self.spec.writable):
            found = artifacts.renamed(found, self._as_requested)
        for place in self.places:
            upper = self.directory / ELSEWHERE.upper / place.lstrip("/")
            if upper.is_dir():
                more = self._compared(place, place, upper, artifacts.left_of(limits, found))
                found = artifacts.together(found, more, place)
        return found

    def _as_requested(self, path: str) -> str:
        """The absolute path of a change of the work directory if the caller, who did not know that it is there, requested it by that path."""
        full = f"{self.work}/{path}"
        requested = any(f"{full}/".startswith(f"{each}/") for each in self.spec.writable if place_of(each))
        return full if requested else path

    def _compared(self, at: str, lies_at: str, upper: Path, limits: ArtifactLimits) -> Artifacts:
        """The changes of the work directory, or of the place `at`."""
        assert self._layer is not None
        lower = self.image.root / lies_at.lstrip("/")
        placed = {path: entry for path, entry in self._placed.items() if not path.startswith("/")}
        absent = [path for path in self._absent if not path.startswith("/")]
        if at:
            placed = _below(at, self._placed)
            absent = list(_below(at, dict.fromkeys(self._absent)))
        if self._layer.kind is not Layering.COPY:
            return changes.changed(
                upper,
                lower,
                placed,
                absent,
                limits,
                called=self.work,
                spool=self.spool(),
                at=at,
                fuse=self._layer.kind is Layering.FUSE,
            )
        known = dict(changes.everything(lower, absent)) if lower.is_dir() else {}
        return artifacts.changed(
            upper,
            {**known, **placed},
            limits,
            called=self.work,
            spool=self.spool(),
            at=at,
            leads=artifacts.stays_in_image,
        )

    def _remove(self) -> None:
        if self._layer is not None:
            self._layer.close()
            self._layer = None
        super()._remove()


def _below(at: str, entries: Mapping[str, T]) -> dict[str, T]:
    """The entries whose path lies below `at`, by path relative to it."""
    return {path[len(at) + 1 :]: entry for path, entry in entries.items() if path.startswith(f"{at}/")}


def check_spec(spec: SandboxSpec, image: Image) -> None:
    """`ValueError` for a path that is bound where the image's work directory is."""
    for outside, inside in spec.binds.items():
        if f"{inside}/".startswith(f"{image.work}/") or f"{image.work}/".startswith(f"{inside}/"):
            raise ValueError(
                f"cannot bind {outside} at {inside!r}, where the image's work directory is: choose another path"
            )
