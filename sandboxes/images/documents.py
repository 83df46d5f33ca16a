r"""Here-documents of a Dockerfile, in a form that every buildah knows: those before 1.33 take the lines of one for instructions.

    RUN <<EOF        →  RUN ["/bin/sh", "-c", "make\n"]
    make
    EOF

    COPY <<EOF /a/   →  RUN ["/bin/sh", "-c", "mkdir -p /a; cat >/a/EOF <<EOF\n…"]

Each instruction keeps its number of lines, so that errors name the line that the author wrote. The shell of RUN is the one that SHELL names: an OCI
image has no such setting, so buildah would pass over it.
"""

from __future__ import annotations

import json
import posixpath
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sandboxes.images.lines import Document, instructions
from sandboxes.images.words import Arguments

_INSTRUCTION = re.compile(r"\s*(RUN|COPY|ADD)\s+(.*)$", re.IGNORECASE | re.DOTALL)
_SHELL = re.compile(r"\s*SHELL\s+(\[.*\])\s*$", re.IGNORECASE | re.DOTALL)
_ARG = re.compile(r"ARG\s+(.*)$", re.IGNORECASE | re.DOTALL)
_USER = re.compile(r"\s*USER\s+(\S+)\s*$", re.IGNORECASE)
_EXPANDED = re.compile(r"[\w./@:+-]*\$[\w./@:+${}-]*", re.ASCII)
_FROM = re.compile(r"\s*FROM\s+(?:--\S+\s+)*(\S+)(?:\s+AS\s+(\S+))?\s*$", re.IGNORECASE)
_FLAGS = re.compile(r"(?:--\S+\s+)*")
_BLANKS = re.compile(r"<<[ \t]+")
_COMMANDS = re.compile(r"(\\.)|(`|\$(?=\())", re.DOTALL)
"""The parts of a document that a shell runs, and COPY does not; a pair of a backslash and a character comes first and stays."""
_TO = "_copied_to"
"""The variable of a script that holds where a document is written. A document would expand it, too."""
_SH = ("/bin/sh", "-c")
_PROGRAM = 'mkdir -p /tmp && f=/tmp/.document-$$ && printf %s "$1" >"$f" && chmod 755 "$f" && "$f"; s=$?; rm -f "$f"; exit $s'
"""Runs a text that names its own interpreter."""


@dataclass(frozen=True, slots=True)
class _Stage:
    """SHELL and USER of a stage; `user` is empty for root."""

    shell: tuple[str, ...] = _SH
    user: str = ""


def without_documents(lines: Sequence[str]) -> list[str]:
    """The lines of a Dockerfile with its here-documents as arguments of a shell. A COPY that cannot be written so stays as it is."""
    found: list[str] = []
    stages: dict[str, _Stage] = {}
    here, alias, has_from = _Stage(), "", False
    arguments = Arguments()
    at = 0
    for each in instructions(lines):
        found += lines[at : each.first]
        at = each.after
        if stage := _FROM.match(each.text):
            base, has_from = arguments.expanded(stage[1]).lower(), True
            here, alias = stages.get(base, _Stage()), (stage[2] or "").lower()
        elif not has_from and (argument := _ARG.match(each.text)):
            arguments.read(argument[1])
        before, here = here, _after(each.text, here)
        stages[alias] = here
        room = each.after - each.first
        instead = _instead(each.text, each.documents, here, room)
        if before.shell != here.shell and _SHELL.match(each.text):
            instead = []
        found += lines[each.first : at] if instead is None else [*instead, *[""] * (room - len(instead))]
    return [*found, *lines[at:]]


def _after(instruction: str, here: _Stage) -> _Stage:
    if chosen := _SHELL.match(instruction):
        return replace(here, shell=_words(chosen[1]) or here.shell)
    if user := _USER.match(instruction):
        return replace(here, user="" if user[1] in ("root", "0") else user[1])
    return here


def _instead(text: str, documents: Sequence[Document], here: _Stage, room: int) -> list[str] | None:
    """The instructions that stand for one with here-documents or in another shell, at most `room`; None if it stays as it is."""
    instruction = _INSTRUCTION.match(text)
    if instruction is None:
        return None
    flags = _FLAGS.match(instruction[2])
    assert flags is not None
    rest = instruction[2][flags.end() :]
    if instruction[1].upper() == "RUN":
        if not documents and (here.shell == _SH or _words(rest)):
            return None
        body = [line for each in documents for line in each.lines]
        alone = len(documents) == 1 and rest.strip().lstrip("0123456789") == documents[0].beginning
        return [f"RUN {flags[0]}{json.dumps(_run(rest, body, here.shell, alone=alone))}"]
    script = _copy(flags[0].split(), _BLANKS.sub("<<", rest).split(), documents) if documents else ""
    if not script:
        return None
    copied = [f"RUN {json.dumps([*_SH, script])}"]
    if here.user:  # COPY writes as root
        copied = ["USER root", *copied, f"USER {here.user}"]
    return copied if len(copied) <= room else None


def _words(text: str) -> tuple[str, ...]:
    """The words of a list in the JSON form; none for another text, which a build refuses."""
    try:
        words = json.loads(text)
    except (ValueError, RecursionError):
        return ()
    return tuple(words) if isinstance(words, list) and all(isinstance(word, str) for word in words) else ()


def _run(command: str, body: Sequence[str], shell: Sequence[str], *, alone: bool) -> list[str]:
    """`alone`: the here-document is the whole command."""
    if not body:
        return [*shell, command]
    if not alone:
        return [*shell, "\n".join([command, *body]) + "\n"]
    # no shell strips the tabs of a text that is an argument
    lines = [line.lstrip("\t") for line in body[:-1]] if "<<-" in command else body[:-1]
    script = "".join(f"{line}\n" for line in lines)
    return [*_SH, _PROGRAM, "sh", script] if script.startswith("#!") else [*shell, script]


def _copy(flags: Sequence[str], words: Sequence[str], documents: Sequence[Document]) -> str:
    """A script that writes the documents of a COPY; "" if it copies other files, too, or has other flags than those of modes and owners."""
    known = dict(_flag(flag) for flag in flags)
    target = words[-1]
    if known.keys() - {"chmod", "chown", "link"} or len(words) != len(documents) + 1 or "<<" in target:
        return ""
    into = target.rpartition("/")[2] in ("", ".", "..") or len(documents) > 1
    script = ["set -e"]
    for each in documents:
        path = posixpath.join(target, each.end) if into else target
        place = _quoted(path)
        if not into:  # only the image tells whether it is a directory, into which COPY writes
            script.append(f'{_TO}={place}; [ ! -d "${_TO}" ] || {_TO}=${_TO}/{_quoted(each.end)}')
            place = f'"${_TO}"'
        script.append(f"mkdir -p {_quoted(posixpath.dirname(path) or '.')} && cat >{place} {each.beginning}")
        script += each.lines if each.is_quoted else _without_commands(each.lines)
        script += [f"{name} {_quoted(known[name])} {place}" for name in ("chown", "chmod") if known.get(name)]
    return "\n".join([*script, ""])


def _without_commands(lines: Sequence[str]) -> list[str]:
    """The lines of a document as a shell must read them to expand variables alone, as COPY does."""
    text = _COMMANDS.sub(lambda found: found[1] or f"\\{found[2]}", "\n".join(lines))
    return text.split("\n")


def _quoted(text: str) -> str:
    """A word of a shell, with its variables, which COPY expands as well."""
    return f'"{text}"' if _EXPANDED.fullmatch(text) else shlex.quote(text)


def _flag(flag: str) -> tuple[str, str]:
    name, _, value = flag.removeprefix("--").partition("=")
    return name, value
