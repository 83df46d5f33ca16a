"""The directory in which an agent's programs begin, read from its Dockerfile without a build. Artifacts are named relative to it."""

import posixpath
from typing import Any

from orchestrator.tasks.dockerfile import Instruction, expand, logical_lines, stage_of, variables_in
from orchestrator.tasks.environment import DOCKERFILE, Environment
from sandboxes.base import File, StoredFile
from sandboxes.images.adapt import work_directory


class _Unknown(Exception):
    """Signals a variable that only the base image can tell."""


class _Variables(dict[str, str]):
    """Those that a stage knows."""

    def get(self, key: str, _: Any = None) -> str:
        try:
            return self[key]
        except KeyError:
            raise _Unknown from None


def begins_in(environment: Environment) -> str | None:
    """The directory in which programs of an environment begin, as they see it. None: that of a base image, which is not known here.
    ImageRefused for one that a sandbox needs itself."""
    if environment.build is None:
        return environment.work_dir
    dockerfile = environment.build[DOCKERFILE]
    assert isinstance(dockerfile, File | StoredFile)
    work = workdir_of(dockerfile.data.decode(errors="replace"))
    return None if work is None else work_directory(work)


def workdir_of(text: str) -> str | None:
    """The WORKDIR of the last stage of a Dockerfile, as an absolute path; None: that of its base image, or a Dockerfile that cannot be read.

    >>> workdir_of("FROM debian:12 AS base\\nENV TOP=/srv\\nWORKDIR $TOP/w\\nFROM base\\nWORKDIR x")
    '/srv/w/x'
    >>> workdir_of("FROM debian:12\\nRUN true") is None
    True
    """
    arguments = variables = _Variables()  # before the first FROM
    stages: dict[str, tuple[str | None, _Variables]] = {"scratch": ("/", _Variables())}
    work, alias = None, ""
    try:
        for line, logical in logical_lines(text):
            name, *rest = logical.split(None, 1)
            here = Instruction(
                line=line, name=name.upper(), rest="".join(rest), words=(), flags={}, is_json=False
            )
            if here.name == "FROM":
                base, alias = stage_of(logical)
                work, known = stages.get(base, (None, {}))
                variables = _Variables(known)
            elif here.name in ("ENV", "ARG"):
                _set(here, variables, arguments)
            elif here.name == "WORKDIR":
                work = _entered(here, work, variables)
            stages[alias] = (work, variables)
    except ValueError:  # a build refuses it as well
        return None
    return work


def _entered(instruction: Instruction, work: str | None, variables: _Variables) -> str | None:
    try:
        path = expand(instruction, instruction.rest, variables)
    except _Unknown:
        return None
    if not path.startswith("/") and work is None:
        return None
    return "/" + posixpath.normpath(posixpath.join(work or "/", path)).lstrip("/")


def _set(instruction: Instruction, variables: _Variables, arguments: _Variables) -> None:
    found: dict[str, str | None] = {}
    for name, value in variables_in(instruction):
        try:
            found[name] = arguments.get(name) if value is None else expand(instruction, value, variables)
        except _Unknown:
            found[name] = None
    for name, text in found.items():
        if text is None:
            variables.pop(name, None)
        else:
            variables[name] = text
