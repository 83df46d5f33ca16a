"""Why a build failed, from its output: one sentence with the step, then the last lines that it printed."""

import re
from typing import Final

_STEP: Final = re.compile(r"^STEP (\d+/\d+): (.*)$", re.MULTILINE)
_ERROR: Final = re.compile(
    r'^Error: building at STEP "(?P<step>.*)": (?:while running runtime: )?(?P<why>.*)$', re.MULTILINE
)
_NOISE: Final = re.compile(r"^(Error: building at STEP .*|subprocess exited with status \d+)$")
_UNKNOWN: Final = re.compile(r"only supports? the .*flag|is not supported|unknown flag", re.IGNORECASE)
_SINCE: Final = {
    "RUN --network": "1.30",
    "ADD --checksum": "1.33",
    "ADD --exclude": "1.38",
    "COPY --exclude": "1.38",
    "COPY --parents": "1.40",
}
"""The version of buildah that added a flag of an instruction."""
_FLAG: Final = re.compile(r"(?<=\s)--[a-z-]+(?=[=\s])")
_SHOWN, _MESSAGE = 120, 800
_LINES: Final = 12
_UNREACHED: Final = re.compile(
    r"could not resolve|unable to resolve host address|no such host|ENOTFOUND"
    r"|temporary failure (in name resolution|resolving)|name or service not known|network is unreachable|EAI_AGAIN",
    re.IGNORECASE,
)
_UNSERVED: Final = re.compile(
    r"\b(?:error:?|http|status(?: code)?:?|returned|response:?) ?(?:code )?(?:429|50[0234]|52[0-7])\b"
    r"|\b50[0234] +(?:internal server|bad gateway|service un|gateway time)"
    r"|connection (?:timed out|reset|refused)|connection failed|could(?: not|n't) connect to|(?:failed|unable) to connect to"
    r"|(?:read|operation|handshake|i/o) time(?:d )?out"
    r"|mirror sync in progress|hash sum mismatch|socket timeout|timeout was reached|early EOF|SSL_ERROR_SYSCALL|ECONNREFUSED"
    r"|ETIMEDOUT|ECONNRESET|unexpected eof while reading|remote end hung up|max retries exceeded|incomplete ?read",
    re.IGNORECASE,
)
_NO_SPACE: Final = re.compile(r"no space left on device|disk quota exceeded|ENOSPC|EDQUOT", re.IGNORECASE)
_HINTS: Final = (
    (
        re.compile(r"--mount=\S*type=(secret|ssh)\b"),
        "a build gets no secrets: remove the mount, or give all builds a file by sandbox.images.build_files",
    ),
    (
        _UNREACHED,
        "a host could not be reached: sandbox.images.build_env names mirrors of packages",
    ),
    (
        _NO_SPACE,
        "the disk is full: free space, files (df -i) or quota, or name another one in sandbox.images.directory",
    ),
    (
        _UNSERVED,
        "a download failed: try again later, or name mirrors of packages in sandbox.images.build_env",
    ),
)


def complaint(what: str, text: str) -> str:
    """The sentence about a failed program whose output ends with `text`. `what`: how the sentence begins."""
    last, shown, error = _failed(text)
    step = error["step"] if error is not None else last[2] if last is not None else ""
    says = f"{what} failed" + (f" at {_short(step)}" if step else "")
    if error is not None:
        says += f" ({error['why'].strip()})"
    if error is not None and _UNKNOWN.search(error["why"]):
        says += _needed(step)
    for pattern, hint in _HINTS:
        if pattern.search(f"{step}\n{shown}"):
            says += f"; {hint}"
            break
    printed = " | ".join(_last_lines(shown))[-_MESSAGE:]
    return says + (f"; its last lines: {printed}" if printed else "")


def is_download(text: str) -> bool:
    """Whether the last lines of a failed program name a server or a network that failed it."""
    named = _end(text)
    return any(pattern.search(named) for pattern in (_UNREACHED, _UNSERVED))


def is_out_of_space(text: str) -> bool:
    """Whether the last lines of a failed program say that it found no room to write."""
    return _NO_SPACE.search(_end(text)) is not None


def _end(text: str) -> str:
    """The last lines of an output, and the error that buildah names."""
    _, shown, error = _failed(text)
    return "\n".join([*_last_lines(shown), error["why"] if error is not None else ""])


def has_ended_itself(text: str) -> bool:
    """Whether buildah came to the end of a failed step: it then names the error."""
    return _failed(text)[2] is not None


def _failed(text: str) -> tuple[re.Match[str] | None, str, re.Match[str] | None]:
    """The last step of an output, what follows it, and the error that buildah names there."""
    last = next(reversed(list(_STEP.finditer(text))), None)
    shown = text if last is None else text[last.end() :]
    return last, shown, _ERROR.search(shown)


def _last_lines(shown: str) -> list[str]:
    lines = [line.strip() for line in shown.splitlines() if line.strip() and not _NOISE.match(line.strip())]
    return lines[-_LINES:]


def _needed(step: str) -> str:
    """The versions of buildah that the flags of a step need, for the end of a sentence; empty: they are unknown."""
    name = step.split(None, 1)[0].upper()
    flags = [f"{name} {flag}" for flag in _FLAG.findall(step)]
    needs = [
        f"{flag} needs buildah {_SINCE[flag]} or later" for flag in dict.fromkeys(flags) if flag in _SINCE
    ]
    if not needs:
        return ""
    instead = ", or check the file in a RUN (sha256sum -c)" if "ADD --checksum" in flags else ", or remove it"
    return f"; {' and '.join(needs)}: install that on this machine{instead}"


def at_step(text: str) -> str:
    """The step that a limit ended, for the end of a sentence; empty: no step ran."""
    last = next(reversed(list(_STEP.finditer(text))), None)
    return "" if last is None else f" at {_short(last[2])}"


def _short(step: str) -> str:
    return step if len(step) <= _SHOWN else f"{step[:_SHOWN]}…"
