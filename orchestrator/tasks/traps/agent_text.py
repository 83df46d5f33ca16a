"""Finds the variables and substitutions of a script that carry text chosen by the agent.

The analysis is by name, not by flow: a variable that holds agent text at any point counts as agent text everywhere. Numbers that the judge counts
itself (`wc`, `grep -c`, `stat`) are not agent text.
"""

from typing import Final

from tree_sitter import Node

from orchestrator.tasks.traps.tree import above, every, is_safe, operands, options, plain, source_of, words

WRAPPER: Final = "PENSTOCK_UNTRUSTED"
ANSWER: Final = "PENSTOCK_ANSWER"
_OWN: Final = frozenset(
    {
        "echo",
        "printf",
        "seq",
        "date",
        "expr",
        "mktemp",
        "shuf",
        "true",
        "id",
        "nproc",
        "sleep",
        "cd",
        "mkdir",
        "tr",
        "test",
        "[",
    }
)
_COUNTS: Final = frozenset({"wc", "stat"})
_PROGRAM_FIRST: Final = frozenset({"grep", "egrep", "fgrep", "rg", "sed", "awk", "gawk", "jq", "tr"})
_LISTS: Final = frozenset({"ls", "find", "git", "make"})


class AgentText:
    """The variables of a script that carry agent text."""

    def __init__(self, root: Node) -> None:
        self.names: set[str] = set()
        self.called: set[str] = set()
        self.functions = {
            source_of(n.named_children[0]): n
            for n in every(root)
            if n.type == "function_definition" and n.named_children
        }
        nodes = list(every(root))
        before = -1
        while before != len(self.names) + len(self.called):
            before = len(self.names) + len(self.called)
            for node in nodes:
                self._learn(node)

    def carries(self, node: Node) -> bool:
        """Whether the text of a node holds agent text."""
        for inner in every(node):
            if inner.type in ("simple_expansion", "expansion"):
                if source_of(inner).startswith("${#"):
                    continue
                name = next(
                    (
                        source_of(c)
                        for c in inner.named_children
                        if c.type in ("variable_name", "special_variable_name", "subscript")
                    ),
                    "",
                )
                if name.partition("[")[0] in self.names or (_positional(name) and self._in_called(inner)):
                    return True
            elif inner.type in ("command_substitution", "process_substitution") and self.gives(inner):
                return True
        return False

    def names_in(self, node: Node) -> bool:
        """Like `carries`, for arithmetic contexts: a bare name is a variable."""
        return self.carries(node) or any(
            inner.type in ("variable_name", "word") and source_of(inner) in self.names
            for inner in every(node)
        )

    def unsafe(self, node: Node) -> bool:
        """Whether the file that a word names may belong to the agent."""
        path = plain(node)
        return ANSWER in path or self.carries(node) or (not path.startswith("$") and not is_safe(path))

    def gives(self, node: Node, deep: int = 0) -> bool:
        """Whether the output of commands holds agent text."""
        commands = [n for n in every(node) if n.type == "command"]
        last = words(commands[-1]) if commands else []
        if last and (plain(last[0]) in _COUNTS or ("grep" in plain(last[0]) and "c" in options(last[1:]))):
            return False
        for inner in every(node):
            if (
                inner.type == "file_redirect"
                and source_of(inner).lstrip().startswith("<")
                and any(self.unsafe(c) for c in inner.named_children)
            ):
                return True
            if inner.type == "command" and self._prints_agent_text(inner, deep):
                return True
        return False

    def _prints_agent_text(self, command: Node, deep: int) -> bool:
        found = words(command)
        if not found:
            return False
        if (
            WRAPPER in source_of(command)
            or ANSWER in source_of(command)
            or any(self.carries(arg) for arg in found)
        ):
            return True
        name, files = plain(found[0]), operands(found[1:])
        if name in _OWN:
            return False
        if name in self.functions:
            return deep < 4 and self.gives(self.functions[name], deep + 1)
        if name in _PROGRAM_FIRST:
            files = files[1:]
        elif name.startswith("python") or name in ("bash", "sh", "node", "perl"):
            files = [] if "c" in options(found[1:]) or "e" in options(found[1:]) else files[:1]
        elif name in _LISTS and not files:
            return True
        if "/" in name and not is_safe(name):
            return True
        return any(self.unsafe(file) and not plain(file).isdigit() for file in files)

    def _learn(self, node: Node) -> None:
        if node.type == "variable_assignment" and len(node.named_children) > 1:
            if self.carries(node.named_children[1]):
                self.names.add(source_of(node.named_children[0]).partition("[")[0])
        elif node.type == "for_statement":
            values = node.named_children[1:-1]
            if any(
                self.carries(v) or (v.type != "raw_string" and "*" in source_of(v) and not is_safe(plain(v)))
                for v in values
            ):
                self.names.add(source_of(node.named_children[0]))
        elif node.type == "command" and (found := words(node)):
            name = plain(found[0])
            if name in ("read", "mapfile", "readarray") and self._reads_agent_text(node):
                self.names |= {plain(word) for word in operands(found[1:]) if plain(word).isidentifier()}
            elif name in self.functions and any(self.carries(word) for word in found[1:]):
                self.called.add(name)

    def _reads_agent_text(self, command: Node) -> bool:
        """Whether the agent feeds `read`: its input is its own redirection, or the nearest one around it."""
        for node in (command, *above(command)):
            for child in node.children:
                if child.type in ("file_redirect", "herestring_redirect") and source_of(
                    child
                ).lstrip().startswith("<"):
                    return any(
                        self.unsafe(c) if child.type == "file_redirect" else self.carries(c)
                        for c in child.named_children
                    )
                if child.type == "heredoc_redirect":
                    return self.carries(child)
            if node.type == "pipeline" and node.named_children[0].end_byte < command.start_byte:
                return self.gives(node.named_children[0])
        return False

    def _in_called(self, node: Node) -> bool:
        return any(
            ancestor.type == "function_definition" and source_of(ancestor.named_children[0]) in self.called
            for ancestor in above(node)
        )


def _positional(name: str) -> bool:
    return name.isdigit() or name in ("@", "*")
