"""Words in front of a command that only start it, and words that a shell reads as a script."""

import re
from collections.abc import Iterator
from itertools import pairwise, takewhile
from typing import Final

from tree_sitter import Node

from orchestrator.tasks.traps.tree import operands, plain

_REDIRECTS: Final = ("variable_assignment", "file_redirect", "herestring_redirect", "heredoc_redirect")
LAUNCHERS: Final[dict[str, tuple[str, int]]] = {
    **dict.fromkeys(
        ("nohup", "unbuffer", "command", "builtin", "setsid", "coproc", "valgrind", "unshare", "setpriv", "prlimit", "fakeroot", "fakechroot",
         "rlwrap", "catchsegv", "dbus-run-session", "busybox", "toybox", "chronic", "eatmydata", "numactl", "torsocks", "proxychains",
         "proxychains4", "hyperfine", "firejail", "!"),
        ("", 0),
    ),
    **dict.fromkeys(("timeout", "gtimeout"), ("ks", 1)),
    **dict.fromkeys(("taskset", "chrt", "chroot", "faketime", "perf", "rr", "setarch"), ("", 1)),
    **dict.fromkeys(("strace", "ltrace"), ("aeoOsSuEPXbI", 0)),
    "env": ("uCS", 0), "nice": ("n", 0), "ionice": ("cn", 0), "time": ("fo", 0), "stdbuf": ("ioe", 0), "exec": ("a", 0), "sudo": ("ughpCDRT", 0),
    "doas": ("uC", 0), "xvfb-run": ("efnpsw", 0), "flock": ("wEc", 1), "runuser": ("ugGsc", 0), "systemd-run": ("pu", 0), "nsenter": ("tSG", 0),
    "cpulimit": ("lep", 0), "xargs": ("adEILnPs", 0), "parallel": ("jaNIS", 0),
}  # fmt: skip
"""Commands that start the command behind them: the letters of options with a value, and the number of operands in front of that command."""
_TEXTS: Final = frozenset(
    {"bash", "sh", "dash", "zsh", "ksh", "mksh", "ash", "fish", "su", "runuser", "script", "flock", "rbash"}
)
_C: Final = re.compile(r"-[a-zA-Z]*c|--command")
_SPLIT: Final = re.compile(r"-[a-zA-Z]*S|--split-string")
FOUND: Final = "{}"
"""The word in whose place `find` puts each path."""
_EXECUTES: Final = ("-exec", "-execdir", "-ok", "-okdir")
_ENDS: Final = (";", "\\;", "+")
_ASKS: Final = re.compile(r"-[a-zA-Z]*[vV][a-zA-Z]*")
"""With this option, `command` says what a name stands for and starts nothing."""
_TIMES: Final = re.compile(r"[\d.]+[smhd]?")
_ASSIGNED: Final = re.compile(r"\w+\+?=")


def base(word: Node) -> str:
    """The name of a command without its directory."""
    return plain(word).rpartition("/")[2]


def stages(command: Node) -> Iterator[list[Node]]:
    """The words of a command, then again without each word in front that only starts it (timeout 3, env A=b, nice -n 5)."""
    yield from _levels([child for child in command.named_children if child.type not in _REDIRECTS])


def found_for(command: Node) -> Iterator[list[list[Node]]]:
    """The stages of every command that `find` starts for what it finds: `-exec COMMAND {} ;`."""
    found = words(command)
    if not found or base(found[0]) != "find":
        return
    texts = [plain(word) for word in found]
    for at, word in enumerate(texts):
        if word in _EXECUTES:
            end = next((n for n in range(at + 1, len(texts)) if texts[n] in _ENDS), len(texts))
            yield [*_levels(found[at + 1 : end])]


def _levels(found: list[Node]) -> Iterator[list[Node]]:
    while found:
        yield found
        launcher = LAUNCHERS.get(base(found[0]))
        if launcher is None or _only_asks(found):
            return
        found = _behind(found[1:], *launcher)


def _only_asks(found: list[Node]) -> bool:
    """`command -v uv`"""
    if base(found[0]) != "command":
        return False
    options = takewhile(lambda text: text.startswith("-") and text != "--", map(plain, found[1:]))
    return any(map(_ASKS.fullmatch, options))


def words(command: Node) -> list[Node]:
    """Name and arguments of the command that is started in the end; none if there is only a launcher."""
    *_, last = [*stages(command)] or [[]]
    return [] if not last or base(last[0]) in LAUNCHERS else last


def _behind(found: list[Node], letters: str, operands_before: int) -> list[Node]:
    at = 0
    while at < len(found):
        text = plain(found[at])
        if text.startswith("-") and text != "-":
            at += 2 if not text.startswith("--") and text[-1] in letters else 1
        elif operands_before:
            operands_before -= 1
            at += 1
        elif _TIMES.fullmatch(text) or _ASSIGNED.match(text):
            at += 1
        else:
            break
    return found[at:]


def shell_texts(found: list[Node]) -> list[Node]:
    """The arguments that a shell reads as a script: `bash -c TEXT`, `su -c TEXT`, `watch TEXT`, `trap TEXT EXIT`."""
    name, arguments = base(found[0]), found[1:]
    if name in ("eval", "watch", "hyperfine"):
        return operands(arguments)
    if name == "trap":
        return operands(arguments)[:1]
    sign = _SPLIT if name == "env" else _C if name in _TEXTS else None
    if sign is None:
        return []
    return [value for before, value in pairwise(arguments) if sign.fullmatch(plain(before))]
