"""Which files of `environment/` an agent may find in the image that is built from it, read without a build.

A file counts as kept unless it is certain that it is not: no COPY or ADD of the last stage takes it, also not from a stage that has it,
`.dockerignore` leaves it out, or it is copied into a place that a sandbox has of its own, such as /tmp, and no `cp`, `mv`, `ln` or `install` of a RUN
names it there. Another program of RUN may keep a copy of any file, and may remove one: the control `leak` of `penstock tasks vet` reads the image
itself.
"""

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from orchestrator.tasks.bundle import Bundle
from orchestrator.tasks.carried import fixed_source, lies_in, overlap
from orchestrator.tasks.compose.services import COMPOSE
from orchestrator.tasks.copies import Copied
from orchestrator.tasks.dockerfile import logical_lines
from orchestrator.tasks.environment import DOCKERFILE, IGNORES
from orchestrator.tasks.last_stage import LastStage, last_stage
from orchestrator.tasks.sizes import dockerfile_text
from sandboxes.base import HOME, PLACED
from sandboxes.docker_patterns import IgnoreFile, is_valid

FOLDER: Final = "environment/"
_OWN: Final = ("/tmp", "/logs", HOME, *PLACED)
"""Places that a sandbox has of its own in place of the image's, unless the work directory is one of them (sandboxes.moves)."""
_OTHER_IGNORES: Final = (".containerignore", f"{DOCKERFILE}.containerignore")
"""That some builders read in place of those that all do."""
_MAX_PATTERNS: Final = 200
"""Of an ignore file, and sources of COPY. With more of them every file counts as kept, so that the work for one task is bounded."""
_MAX_PATHS: Final = 2000
"""That are compared with a file's."""
_MAX_FILES: Final = 1000
"""That are looked at for one task."""
_UNREAD: Final = re.compile(r"[\\$]|\*\*")
"""In sources of COPY that a variable or quotes decide, or a builder's own rules."""


@dataclass(frozen=True, slots=True)
class _Line:
    """A COPY or ADD and its target. `reached`: the paths of its stage that lead to the agent; None: all do."""

    copied: Copied
    target: str | None
    reached: tuple[str, ...] | None

    def keeps(self, inside: str) -> bool:
        if any(_UNREAD.search(source) or not is_valid(source) for source in self.copied.sources):
            return True
        if (taken := self.copied.taken(inside)) is None:
            return False
        if self.target is None or self.reached is None:
            return True
        below = inside[len(taken) :].lstrip("/")
        places = [posixpath.join(self.target, below)] if below else []
        if not below:  # the target is the file's name or its directory
            places += [self.target, posixpath.join(self.target, posixpath.basename(inside))]
        return any(overlap(place, path) for place in places for path in self.reached)


class KeptInImage:
    """The files of one task. `table`: its `[environment]`."""

    def __init__(self, bundle: Bundle, table: Mapping[str, Any]) -> None:
        self._ignored = IgnoreFile("")
        self._lines: tuple[_Line, ...] | None = None
        self._reached: frozenset[str] = frozenset()
        self._own: tuple[str, ...] = ()
        self._left = _MAX_FILES
        dockerfile = f"{FOLDER}{DOCKERFILE}"
        others = f"{FOLDER}{COMPOSE}" in bundle.files or table.get("docker_image") is not None
        if others or dockerfile not in bundle.files:
            return  # no image has the files, or also another one
        try:
            text = dockerfile_text(bundle.files[dockerfile], dockerfile)
            stage, lines = last_stage(text), logical_lines(text)
        except ValueError:  # a build refuses it as well
            return
        if any(line.split(None, 1)[0].upper() == "RUN" for _, line in lines):  # else it needs no image
            given = table.get("workdir")
            begins = given if isinstance(given, str) and given else stage.work
            work = posixpath.normpath(posixpath.join("/", begins or ""))
            self._own = tuple(
                place for place in _OWN if place != work and (work == "/" or not lies_in(place, work))
            )
        self._lines = self._leading(stage)
        self._ignored = IgnoreFile(_patterns(bundle))
        self._reached = frozenset(
            _reached(path, target) for path, target in bundle.links.items() if path.startswith(FOLDER)
        )

    def may_keep(self, path: str) -> bool:
        """Whether an agent may find a file of the task in its image. True for one outside of `environment/`, and for the Dockerfile, which holds
        the text of its here-documents."""
        inside = path.removeprefix(FOLDER)
        self._left -= 1
        if self._lines is None or inside in (path, DOCKERFILE) or self._left < 0:
            return True
        if any(above in self._reached for above in _with_parents(path)):
            return True  # COPY of a link takes the file to which it leads
        return not self._ignored.leaves_out(inside) and any(line.keeps(inside) for line in self._lines)

    def _leading(self, last: LastStage) -> tuple[_Line, ...] | None:
        """The lines of all stages that may bring a file to the agent; None for too many of them."""
        found = [
            _Line(copied, target, last.carried if self._is_hidden(target) else None)
            for copied, target in last.copies
        ]
        found += [_Line(copied, target, last.carried) for copied, target in last.mounted]
        todo = [
            (each, not self._is_hidden(each.target) or _meets(each.target, last.carried))
            for each in last.brought
        ]
        seen: set[int] = set()
        while todo:
            brought, leads = todo.pop()
            if not leads or id(brought) in seen:
                continue
            seen.add(id(brought))
            stage = brought.stage
            reached = (*map(fixed_source, brought.sources), *stage.carried)
            found += [_Line(copied, target, reached) for copied, target in (*stage.copies, *stage.mounted)]
            todo += [(each, _meets(each.target, reached)) for each in stage.brought]
            if len(seen) + len(found) > _MAX_PATTERNS:
                return None
        if sum(len(line.copied.sources) for line in found) > _MAX_PATTERNS:
            return None
        if sum(len(line.reached or ()) for line in found) > _MAX_PATHS:
            return None
        return tuple(found)

    def _is_hidden(self, target: str | None) -> bool:
        return target is not None and any(lies_in(target, place) for place in self._own)


def _reached(path: str, target: str) -> str:
    """Where a link leads for a builder: the root of an absolute target is that of the build's folder."""
    if target.startswith("/"):
        return FOLDER + posixpath.normpath(target).lstrip("/")
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), target))


def _patterns(bundle: Bundle) -> str:
    """The text of the ignore file. Which of several counts, and whether a link does, depends on the builder: they leave out nothing."""
    present = {*bundle.files, *bundle.links}
    names = [name for name in (*IGNORES, *_OTHER_IGNORES) if f"{FOLDER}{name}" in present]
    if len(names) != 1 or names[0] in _OTHER_IGNORES or f"{FOLDER}{names[0]}" in bundle.links:
        return ""
    text = bundle.files[f"{FOLDER}{names[0]}"].data.decode(errors="replace")
    return text if text.count("\n") < _MAX_PATTERNS else ""


def _with_parents(path: str) -> Iterator[str]:
    while path:
        yield path
        path = posixpath.dirname(path)


def _meets(target: str | None, paths: Sequence[str]) -> bool:
    return target is None or any(overlap(target, path) for path in paths)
