"""Exit statuses that a script uses and that are always 0: those of `tee`, `tail` or `cat` at the end of a pipeline, and of `local x=$(…)`.

`set -e` uses the status of every statement.
"""

import re
from itertools import takewhile
from typing import Final

from tree_sitter import Node

from orchestrator.tasks.traps.agent_text import AgentText
from orchestrator.tasks.traps.commands import INTERPRETERS, SHELLS, TOOLS
from orchestrator.tasks.traps.exit_status import Statuses, is_test, may_look, next_of, statement_of
from orchestrator.tasks.traps.launch import words
from orchestrator.tasks.traps.somewhere import GREPS, is_negated, is_wanted
from orchestrator.tasks.traps.tree import above, every, is_safe, listed, options, plain, source_of

_ALWAYS_0: Final = listed("tee tail head cat sed tr sort cut uniq column nl tac fold ts")
_COMPARES: Final = GREPS | {"cmp", "diff", "comm", "test"}
_SUMS: Final = re.compile(r"(?:md5|sha\d+|b2|ck)sum")
_LOG: Final = re.compile(r"/dev/(?:null|stdout|stderr)|.*\.log")
_USES: Final = re.compile(
    r"(?:\[\[?|\(\(|\btest)\s[^;\n]*\$\{?\?|\(\(\s*!?\s*\$\{?\?|\b(?:exit|return)\s+[\"']?\$\{?\?"
)
_PREPARES: Final = listed("install venv ensurepip pip init add sync ci build fetch restore")
"""Words of commands that prepare the tests and decide nothing."""
_CHECKS: Final = re.compile(r"(?:test|check|verify|judge|grade|score)\w*")
_SETTINGS: Final = re.compile(r"(?:.*/)?(?:env|activate|nvm\.sh|\.bashrc|\.profile)")
"""Scripts that only set variables: `. "$HOME/.local/bin/env"`."""
_TESTS: Final = frozenset({"if_statement", "case_statement", "while_statement"})
_KEEPS: Final = re.compile(r"\s*(?:local\s+|declare\s+)?(\w+)=[\"']?\$\{?\?")


class LostStatus:
    """The pipelines and declarations of one script."""

    def __init__(self, root: Node, text: AgentText) -> None:
        self._text, self._statuses = text, Statuses(root, text)
        nodes = self._nodes = [*every(root)]
        sets = [source_of(n) for n in nodes if n.type == "command" and re.match(r"set|shopt", source_of(n))]
        shebang = source_of(root).partition("\n")[0] if source_of(root).startswith("#!") else ""
        self._kept = any("pipefail" in one for one in [*sets, shebang]) or "PIPESTATUS" in source_of(root)
        self._conditions = [source for _, source in text.conditions]
        self._conditions += [
            source_of(n) for n in nodes if n.type in ("arithmetic_expansion", "case_statement")
        ]
        self._conditions += [source_of(n) for n in nodes if re.match(r"(?:exit|return)\b", source_of(n))]

    def decides(self, node: Node) -> bool:
        """Whether the tests use the status of a pipeline or declaration in which the status of their comparison is lost."""
        if any(a.type in ("command_substitution", "process_substitution") for a in above(node)):
            return False
        if node.type == "declaration_command":
            return self._keeps_output(node) and self._is_used(node)
        if node.type != "pipeline" or len(node.named_children) < 2:
            return False
        if not self._loses(node) or not any(map(self._compares, node.named_children[:-1])):
            return False
        return self._is_used(node) or self._is_all_that_ends(node)

    def _loses(self, pipeline: Node) -> bool:
        return not self._kept and self._is_always_0(pipeline.named_children[-1])

    def _is_all_that_ends(self, pipeline: Node) -> bool:
        """`set -e; check.py | tee log; echo 1 > reward.txt`: nothing else of the script may end it where the answer is wrong."""
        statement = statement_of(pipeline)
        if statement.parent is None or statement.parent.type != "program":
            return False
        if not (self._statuses.stops_at_failure(pipeline) and self._statuses.pays_after(statement)):
            return False
        if any(map(self._prepares, (n for n in every(pipeline) if n.type == "command"))):
            return False
        if any((n.type in _TESTS or is_test(n)) and n.start_byte > pipeline.end_byte for n in self._nodes):
            return False
        if any(self._text.names_in(test) for test, _ in self._text.conditions):
            return False
        return not any(n.type == "command" and self._may_end(n) for n in self._nodes)

    def _may_end(self, command: Node) -> bool:
        """Whether a command may be a check whose status counts. Without pipefail, that of the last part of a pipeline alone does."""
        if any(a.type == "pipeline" and self._loses(a) for a in above(command)):
            return False
        pipelines = (a for a in above(command) if a.type == "pipeline")
        if any(command.end_byte <= each.named_children[-1].start_byte for each in pipelines):
            return False
        found = words(command)
        fed = len(found) == 1 and self._text.name(found[0]) in SHELLS  # curl … | sh
        sets = len(found) == 2 and plain(found[0]) in ("source", ".") and _SETTINGS.fullmatch(plain(found[1]))
        if fed or sets or self._prepares(command):
            return False
        return self._compares(command) or may_look(command, self._text)

    def _prepares(self, command: Node) -> bool:
        """Whether a command makes the tests ready, as far as its words tell: `uv venv`, `pip install …`, `make -C /tests`."""
        found = words(command)
        given = [plain(word) for word in found[1:]]
        if found and self._text.name(found[0]) in ("make", "gmake", "cmake", "ninja"):
            return not any(map(_CHECKS.fullmatch, given))
        return any(word in _PREPARES for word in given[:3])

    def _is_always_0(self, last: Node) -> bool:
        """Whether the last part of a pipeline only prints what it reads, and keeps none of it as data."""
        commands = [n for n in every(last) if n.type == "command"]
        found = words(commands[0]) if len(commands) == 1 else []
        if not found or self._text.name(found[0]) not in _ALWAYS_0:
            return False
        whole = takewhile(lambda a: a.type in ("pipeline", "redirected_statement"), above(last))
        targets = [
            c.named_children[-1]
            for a in (last, *whole)
            for c in a.named_children
            if c.type == "file_redirect" and ">" in source_of(c) and c.named_children
        ]
        return all(_LOG.fullmatch(self._text.text(t)) or plain(t).isdigit() for t in targets)

    def _compares(self, node: Node) -> bool:
        """Whether a part holds a command whose exit status is a verdict of the tests."""
        for command in (n for n in every(node) if n.type == "command"):
            found = [] if self._text.wrapped(command) else words(command)
            if not found:
                continue
            path, name = self._text.text(found[0]), self._text.name(found[0])
            own = name in _COMPARES or name in INTERPRETERS or name in TOOLS or name in self._text.functions
            sums = _SUMS.fullmatch(name) is not None and "c" in options(found[1:])
            if (
                own
                or sums
                or (name == "jq" and "e" in options(found[1:]))
                or (path.startswith("/tests/") and is_safe(path))
            ):
                return True
        return any(n.type == "test_command" for n in every(node))

    def _keeps_output(self, node: Node) -> bool:
        """`local r=$(cmp out /tests/want)`, of whose output nothing is compared."""
        assigned = [c for c in node.named_children if c.type == "variable_assignment"]
        values = [n for c in assigned for n in every(c) if n.type == "command_substitution"]
        names = "|".join(re.escape(source_of(c.named_children[0])) for c in assigned)
        return any(map(self._compares, values)) and not any(
            re.search(rf"\$\{{?(?:{names})\b", source) for source in self._conditions
        )

    def _is_used(self, node: Node) -> bool:
        """Whether the tests succeed by this status: `… && ok=1`, `if …`, `$?` in the next statement, or kept for a later one."""
        for ancestor in above(node):
            if ancestor.type in ("list", "negated_command"):
                first = ancestor.named_children[0]
                if ancestor.type == "negated_command" or first.end_byte >= node.end_byte:
                    return is_wanted(node, holds=not is_negated(node))
            elif ancestor.type in ("if_statement", "elif_clause"):
                condition = ancestor.named_children[0]
                if condition.start_byte <= node.start_byte < condition.end_byte:
                    return is_wanted(node, holds=not is_negated(node))
                break
            elif ancestor.type != "redirected_statement":
                break
        after = next_of(statement_of(node))
        if after is None:
            return False
        kept = _KEEPS.match(source_of(after))
        if kept is not None:
            return any(re.search(rf"\b{kept[1]}\b", source) for source in self._conditions)
        return _USES.search(source_of(after).partition("\n")[0]) is not None
