"""The settings of a sandbox's programs in the last stage of a Dockerfile, read without a build: WORKDIR, USER, ENTRYPOINT, VOLUME, and COPY, also
without WORKDIR."""

import json
import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from orchestrator.contracts.quote import quoted
from orchestrator.tasks.carried import carried, overlap, together
from orchestrator.tasks.copies import Copied, copied_from, literal, triggered, without_flags
from orchestrator.tasks.dockerfile import (
    Instruction,
    arguments_of,
    entry_point,
    expand,
    logical_lines,
    refuse_entry_point,
    split,
    stage_of,
    variables_in,
)

_MOUNT: Final = re.compile(r"--mount=(\S+)")


class _Unknown(Exception):
    """Signals a variable that only the base image can tell."""


class _Variables(dict[str, str | None]):
    """Those that a stage knows; None: an ARG without a value, which is unset."""

    def get(self, key: str, _: Any = None) -> str | None:
        try:
            return self[key]
        except KeyError:
            raise _Unknown from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """One directory of a VOLUME: `path` counts from the root, whatever WORKDIR says (docker); None where only the base image can tell it."""

    instruction: Instruction
    path: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Brought:
    """Files of another stage: what a COPY takes from it, or a RUN that mounts it. `target`: as in `LastStage.copies`."""

    stage: "LastStage"
    sources: tuple[str, ...]
    target: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LastStage:
    """`work`: WORKDIR, an absolute path; None: that of the base image; `work_at`: its instruction. `user`: the instruction that counts and its
    user, without a group; None in its place: a variable of the base image. `entrypoint`: the instruction that counts. `astray`: the first COPY or ADD
    to a relative place above any WORKDIR. `copies`: each COPY and ADD of files of the context, with its target as an absolute path; None: not
    known. `brought`: files of other stages. `mounted`: files of the context that a RUN sees. `carried`: paths whose files a RUN may copy. These four
    also count the instructions of ONBUILD."""

    work: str | None = None
    work_at: Instruction | None = None
    user: tuple[Instruction, str | None] | None = None
    entrypoint: Instruction | None = None
    volumes: tuple[Volume, ...] = ()
    astray: Instruction | None = None
    copies: tuple[tuple[Copied, str | None], ...] = ()
    brought: tuple[Brought, ...] = ()
    mounted: tuple[tuple[Copied, str | None], ...] = ()
    carried: tuple[str, ...] = ()


def last_stage(text: str) -> LastStage:
    """Read a Dockerfile. ValueError for one that cannot be read at all. Lines that a build refuses are passed over."""
    lines = logical_lines(text)
    arguments = arguments_of(lines)
    variables = _Variables()
    stages: dict[str, tuple[LastStage, _Variables]] = {"scratch": (LastStage(work="/"), _Variables())}
    origins: dict[str, LastStage] = {}
    here, alias, number = LastStage(), "", -1
    for line, written in lines:
        logical = triggered(written)
        is_own = logical == written
        name, *rest = logical.split(None, 1) or [""]
        instruction = Instruction(
            line=line, name=name.upper(), rest="".join(rest), words=(), flags={}, is_json=False
        )
        match instruction.name:
            case "COPY" | "ADD" if (found := copied_from(line, logical)) is not None:
                here = _with_files(here, instruction, variables, origins, found, is_own=is_own)
            case "RUN":
                here = _with_run(here, instruction, origins)
            case _ if not is_own:
                pass
            case "FROM":
                number += 1
                base, alias = stage_of(logical, arguments)
                here, known = stages.get(base, (LastStage(), _Variables()))
                variables = _Variables(known)
            case "ENV" | "ARG":
                _set(instruction, variables, arguments)
            case "WORKDIR":
                here = replace(here, work=_entered(instruction, here.work, variables), work_at=instruction)
            case "USER":
                user = _expanded(instruction, instruction.rest.strip(), variables)
                here = replace(here, user=(instruction, None if user is None else user.partition(":")[0]))
            case "ENTRYPOINT":
                here = replace(here, entrypoint=instruction)
            case "VOLUME":
                more = tuple(
                    Volume(instruction=instruction, path=_entered(instruction, "/", variables, word))
                    for word in _listed(instruction)
                )
                here = replace(here, volumes=(*here.volumes, *more))
        stages[alias] = (here, variables)
        origins[alias or str(number)] = origins[str(number)] = here
    return here


def _with_files(
    here: LastStage,
    instruction: Instruction,
    variables: _Variables,
    origins: Mapping[str, LastStage],
    found: tuple[str, Copied],
    *,
    is_own: bool,
) -> LastStage:
    """The stage after a COPY or ADD. `is_own`: not by ONBUILD, whose relative target counts from the WORKDIR of another stage."""
    origin, taken = found
    target = _entered(instruction, here.work if is_own else None, variables, taken.target)
    if "$" in origin:  # its name depends on the build: files of any stage
        return replace(here, mounted=(*here.mounted, (Copied((origin,), taken.target), None)))
    if origin:
        more = _brought(origins, origin, tuple(f"/{source}" for source in taken.sources), target)
        return replace(here, brought=(*here.brought, *more))
    here = replace(here, copies=(*here.copies, (taken, target)))
    if is_own and not (here.work_at or here.astray) and not taken.target.startswith(("/", "$")):
        here = replace(here, astray=instruction)  # as far as no variable hides it
    return here


def _with_run(here: LastStage, instruction: Instruction, origins: Mapping[str, LastStage]) -> LastStage:
    """The stage after a RUN."""
    flags, command = without_flags(instruction.rest)
    paths = carried(command, here.work)
    here = replace(here, carried=together(here.carried, paths))
    for mount in _MOUNT.findall(flags) if paths else ():
        given = {key: value for key, _, value in (part.partition("=") for part in mount.split(","))}
        place = given.get("target") or given.get("dst") or given.get("destination")
        if given.get("type", "bind") != "bind" or not place:
            continue
        source = posixpath.normpath(f"/{given.get('source') or given.get('src') or ''}")
        place = posixpath.normpath(posixpath.join(here.work or "/", place))
        if origin := given.get("from"):
            if any(overlap(place, path) for path in paths):
                here = replace(
                    here, brought=(*here.brought, *_brought(origins, origin.lower(), (source,), None))
                )
        else:
            here = replace(
                here, mounted=(*here.mounted, (Copied((literal(source.lstrip("/")),), place), place))
            )
    return here


def _brought(
    origins: Mapping[str, LastStage], origin: str, sources: tuple[str, ...], target: str | None
) -> tuple[Brought, ...]:
    """Nothing for files of an image."""
    if origin not in origins:
        return ()
    return (Brought(stage=origins[origin], sources=sources, target=target),)


def workdir_of(text: str) -> str | None:
    """The WORKDIR of the last stage of a Dockerfile, as an absolute path; None: that of its base image, or a Dockerfile that cannot be read.

    >>> workdir_of("FROM debian:12 AS base\\nENV TOP=/srv\\nWORKDIR $TOP/w\\nFROM base\\nWORKDIR x")
    '/srv/w/x'
    >>> workdir_of("FROM debian:12\\nRUN true") is None
    True
    """
    try:
        return last_stage(text).work
    except ValueError:  # a build refuses it as well
        return None


def user_of(text: str) -> str:
    """The user that the last stage of a Dockerfile names by USER, without its group; empty for none and for root, who is not at work in a sandbox.
    ValueError for one that a variable of the base image names."""
    found = last_stage(text).user
    if found is None:
        return ""
    instruction, user = found
    if user is None or (not user and "$" in instruction.rest):
        instruction.refuse(
            f"{quoted(instruction.rest.strip())} is not honoured: the Dockerfile does not set its variable, write the name itself, or [agent].user "
            "in task.toml"
        )
    return "" if user in ("root", "0") else user


def check_entrypoint(text: str, instead: str = "[environment].healthcheck") -> None:
    """ValueError, one sentence, if the last stage of a Dockerfile has an ENTRYPOINT that starts something: no sandbox runs it. `instead`: where the
    task starts what it needs."""
    found = last_stage(text).entrypoint
    if found is not None and (command := entry_point(found)):
        refuse_entry_point(found, command, instead)


def _listed(instruction: Instruction) -> tuple[str, ...]:
    try:
        words = json.loads(instruction.rest)
    except (ValueError, RecursionError):
        words = None
    if isinstance(words, list):
        return tuple(word for word in words if isinstance(word, str))
    try:
        return split(instruction, instruction.rest)
    except ValueError:
        return ()


def _expanded(instruction: Instruction, word: str, variables: _Variables) -> str | None:
    try:
        return expand(instruction, word, variables)
    except (_Unknown, ValueError):
        return None


def _entered(
    instruction: Instruction, work: str | None, variables: _Variables, word: str | None = None
) -> str | None:
    path = _expanded(instruction, instruction.rest if word is None else word, variables)
    if not path or (not path.startswith("/") and work is None):
        return None
    return "/" + posixpath.normpath(posixpath.join(work or "/", path)).lstrip("/")


def _set(instruction: Instruction, variables: _Variables, arguments: Mapping[str, str]) -> None:
    try:
        pairs = variables_in(instruction)
    except ValueError:
        return
    found: dict[str, tuple[str | None, bool]] = {}
    for name, value in pairs:
        text = arguments.get(name) if value is None else _expanded(instruction, value, variables)
        found[name] = text, value is None or text is not None
    for name, (text, is_known) in found.items():
        if is_known:
            variables[name] = text
        else:
            variables.pop(name, None)
