"""An agent's view of a command's output: its head and its tail, how it ended, never empty.

Standard library only: mini-swe-agent gets this file into its sandbox.
"""

from typing import Final

CHARACTERS: Final = 10_000
"""How much of an output an agent sees, unless a run says otherwise."""
MAX_LINE_CHARACTERS: Final = 80
"""Of each line, where only the first lines are shown."""
DROPPED: Final = "[more was printed, and dropped]"
"""The line after an output whose end a sandbox dropped."""

_SHELL_PREFIX: Final = "bash: line 1: "


def observe(
    stdout: bytes,
    stderr: bytes,
    exit_code: int,
    *,
    killed: str = "",
    truncated: bool = False,
    characters: int = CHARACTERS,
    lines: int = 0,
) -> str:
    """The observation of one `bash -c` command: standard output, then standard error without the shell's own prefix.

    At most `characters` of them remain, the head and the tail, with a mark between them; an exit code other than 0 follows in a line of its own,
    or `killed`: that and why the command was killed. `truncated`: the sandbox dropped more than these bytes; a line says so.
    Without output the observation is `ok` after exit 0. Bytes that are not UTF-8 become U+FFFD.

    With `lines` it is only the first `lines` lines, `MAX_LINE_CHARACTERS` each, and an exit code only where nothing was printed: for policies with a
    context of some hundred tokens.

    >>> observe(b"7\\n", b"", 0)
    '7'
    >>> observe(b"", b"bash: line 1: oak: command not found\\n", 127)
    'oak: command not found\\nexit 127'
    >>> observe(b"", b"bash: line 1: oak: command not found\\n", 127, lines=3)
    'oak: command not found'
    >>> observe(b"", b"", 1)
    'exit 1'
    >>> observe(b"partial\\n", b"", 137, killed="killed after 600 s")
    'partial\\nkilled after 600 s'
    >>> observe(b"0123456789" * 3, b"", 0, characters=10)
    '01234\\n[20 characters left out]\\n56789'
    """
    text = stdout.decode("utf-8", "replace")
    if text and not text.endswith("\n"):
        text += "\n"
    text += stderr.decode("utf-8", "replace")
    printed = text.rstrip().split("\n") if text.strip() else []
    end = "" if exit_code == 0 else f"exit {exit_code}"
    if lines:
        printed = [line.removeprefix(_SHELL_PREFIX)[:MAX_LINE_CHARACTERS] for line in printed[:lines]]
        return "\n".join(printed) or end or "ok"
    shown = shortened("\n".join(line.removeprefix(_SHELL_PREFIX) for line in printed), characters)
    dropped = DROPPED if truncated else ""
    return "\n".join(filter(None, [shown, dropped, killed or end])) or "ok"


def shortened(text: str, characters: int) -> str:
    """`text`, or its head and tail of `characters` together and a mark that says how much is left out between them."""
    if len(text) <= characters:
        return text
    tail = characters // 2
    head = characters - tail
    left_out = f"\n[{len(text) - characters:,} characters left out]\n"
    return text[:head] + left_out + text[len(text) - tail :]
