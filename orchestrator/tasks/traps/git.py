"""Commands of git that run nothing of what a work directory's `.git` configures."""

from typing import Final

from tree_sitter import Node

from orchestrator.tasks.traps.agent_text import AgentText
from orchestrator.tasks.traps.tree import plain

_VALUED: Final = ("-C", "-c")
_OF_THE_USER: Final = frozenset({"--global", "--system"})
_EDITS: Final = ("-e", "--edit", "edit")
_BRINGS: Final = ("--template", "--separate-git-dir")
"""Options of `git init` with a directory whose hooks it copies, or to which it moves the repository."""


def runs_nothing(arguments: list[Node], text: AgentText) -> bool:
    """`git config --global …` without an editor, `git init` without a template, `git --version`. Later commands have their own rules."""
    if any(map(text.carries, arguments)):
        return False
    given = [plain(argument) for argument in arguments]
    while given[:1] and given[0] in _VALUED:
        given = given[2:]
    match given:
        case ["version" | "--version", *_]:
            return True
        case ["config", *rest]:
            return bool(_OF_THE_USER & set(rest)) and not any(word in _EDITS for word in rest)
        case ["init", *rest]:
            return not any(word.startswith(_BRINGS) for word in rest)
    return False
