"""The settings of a sandbox's programs in the last stage of a Dockerfile, read without a build: WORKDIR, USER, ENTRYPOINT, VOLUME, and COPY, also
without WORKDIR."""

import json
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.contracts.quote import quoted
from orchestrator.tasks.copies import Copied, copied
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
class LastStage:
    """`work`: WORKDIR, an absolute path; None: that of the base image; `work_at`: its instruction. `user`: the instruction that counts and its
    user, without a group; None in its place: a variable of the base image. `entrypoint`: the instruction that counts. `astray`: the first COPY or ADD
    to a relative place above any WORKDIR. `copies`: each COPY and ADD of files of the context, with its target as an absolute path; None: not
    known."""

    work: str | None = None
    work_at: Instruction | None = None
    user: tuple[Instruction, str | None] | None = None
    entrypoint: Instruction | None = None
    volumes: tuple[Volume, ...] = ()
    astray: Instruction | None = None
    copies: tuple[tuple[Copied, str | None], ...] = ()


def last_stage(text: str) -> LastStage:
    """Read a Dockerfile. ValueError for one that cannot be read at all. Lines that a build refuses are passed over."""
    lines = logical_lines(text)
    arguments = arguments_of(lines)
    variables = _Variables()
    stages: dict[str, tuple[LastStage, _Variables]] = {"scratch": (LastStage(work="/"), _Variables())}
    here, alias = LastStage(), ""
    for line, logical in lines:
        name, *rest = logical.split(None, 1)
        instruction = Instruction(
            line=line, name=name.upper(), rest="".join(rest), words=(), flags={}, is_json=False
        )
        match instruction.name:
            case "FROM":
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
            case "COPY" | "ADD" if (taken := copied(line, logical)) is not None:
                target = _entered(instruction, here.work, variables, taken.target)
                here = replace(here, copies=(*here.copies, (taken, target)))
                if here.work_at is None and here.astray is None and not taken.target.startswith(("/", "$")):
                    here = replace(here, astray=instruction)  # as far as no variable hides it
            case "VOLUME":
                more = tuple(
                    Volume(instruction=instruction, path=_entered(instruction, "/", variables, word))
                    for word in _listed(instruction)
                )
                here = replace(here, volumes=(*here.volumes, *more))
        stages[alias] = (here, variables)
    return here


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
