r"""Here-documents of a Dockerfile, in a form that every buildah knows: those before 1.33 take the lines of one for instructions.

    RUN <<EOF        →  RUN ["/bin/sh", "-c", "make\n"]
    make
    EOF

    COPY <<EOF /a    →  RUN ["/bin/sh", "-c", "mkdir -p /; cat >/a <<EOF\n…"]

Each instruction keeps its number of lines, so that errors name the line that the author wrote.
"""

from __future__ import annotations

import json
import posixpath
import re
import shlex
from collections.abc import Sequence

_INSTRUCTION = re.compile(r"\s*(RUN|COPY|ADD)\s+(.*)$", re.IGNORECASE | re.DOTALL)
_DOCUMENT = re.compile(r"(?:^|(?<=[\s|;&(]))\d?<<(-?)(['\"]?)([A-Za-z_]\w*)\2(?=$|[\s|;&)])")
_FLAGS = re.compile(r"(?:--\S+\s+)*")


def without_documents(lines: Sequence[str]) -> list[str]:
    """The lines of a Dockerfile with its here-documents as arguments of a shell. Those of a COPY with flags or several sources stay as they are."""
    found: list[str] = []
    at = 0
    while at < len(lines):
        last = at
        while last + 1 < len(lines) and lines[last].rstrip().endswith("\\"):
            last += 1
        head = [line for line in lines[at : last + 1] if not line.lstrip().startswith("#")]
        text = "\n".join(head)
        instruction = _INSTRUCTION.match(text)
        ends = _DOCUMENT.findall(instruction[2]) if instruction else []
        after = last + 1
        for dash, _, end in ends:
            while after < len(lines) and (lines[after].lstrip("\t") if dash else lines[after]) != end:
                after += 1
            after += 1
        body = lines[last + 1 : after]
        shell = (
            _shell(instruction[1].upper(), instruction[2], body)
            if instruction and ends and after <= len(lines)
            else None
        )
        if shell is None:
            found += lines[at:after]
        else:
            found += [shell, *[""] * (after - at - 1)]
        at = after
    return found


def _shell(name: str, rest: str, body: Sequence[str]) -> str | None:
    flags = _FLAGS.match(rest)
    assert flags is not None
    command = rest[flags.end() :]
    if name == "RUN":
        if _DOCUMENT.fullmatch(command.strip()):
            if body[0].startswith("#!"):
                return None
            script = "\n".join(body[:-1])
        else:
            script = "\n".join([command, *body])
        return f"RUN {flags[0]}{json.dumps(['/bin/sh', '-c', script + chr(10)])}"
    words = command.split()
    if flags[0] or len(words) != 2 or words[1].endswith("/") or not words[1].startswith("/"):
        return None
    target = shlex.quote(words[1])
    script = "\n".join(
        [f"mkdir -p {shlex.quote(posixpath.dirname(words[1]))} && cat >{target} {words[0]}", *body]
    )
    return f"RUN {json.dumps(['/bin/sh', '-c', script + chr(10)])}"
