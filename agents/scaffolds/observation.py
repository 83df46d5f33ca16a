"""An agent's view of a command's output: a few short lines, never empty."""

from typing import Final

MAX_LINES: Final = 3
MAX_LINE_CHARACTERS: Final = 80

_SHELL_PREFIX: Final = "bash: line 1: "


def observe(stdout: bytes, stderr: bytes, exit_code: int) -> str:
    """The observation of one `bash -c` command: its first 3 lines, 80 characters each.

    Standard output comes first, then standard error without the shell's own prefix. Without output it is `ok` after
    exit 0 and `exit N` otherwise. Bytes that are not UTF-8 become U+FFFD.

    >>> observe(b"7\\n", b"", 0)
    '7'
    >>> observe(b"", b"bash: line 1: oak: command not found\\n", 127)
    'oak: command not found'
    >>> observe(b"", b"", 1)
    'exit 1'
    """
    text = stdout.decode("utf-8", "replace")
    if text and not text.endswith("\n"):
        text += "\n"
    text += stderr.decode("utf-8", "replace")
    if not text.strip():
        return "ok" if exit_code == 0 else f"exit {exit_code}"
    lines = text.rstrip().split("\n")[:MAX_LINES]
    return "\n".join(line.removeprefix(_SHELL_PREFIX)[:MAX_LINE_CHARACTERS] for line in lines)
