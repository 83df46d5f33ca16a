"""Python in which the agent's text is the pattern, or the part that is looked for in what is expected."""

import ast
from collections.abc import Iterator
from functools import cached_property
from typing import Final

from orchestrator.tasks.traps.python_names import PythonNames
from orchestrator.tasks.traps.python_text import Texts
from orchestrator.tasks.traps.python_tree import names_where, nodes_of, parents_of
from orchestrator.tasks.traps.rules import Rule
from orchestrator.tasks.traps.tree import listed

_PATTERNS: Final = listed("search match fullmatch findall finditer sub subn split compile")
_NAMES: Final = {"fnmatch.fnmatch": 1, "fnmatch.fnmatchcase": 1, "fnmatch.filter": 1}
"""Functions that take a pattern of file names, and the place of that argument."""
_SAME: Final = listed("strip lstrip rstrip lower upper casefold read read_text decode")
"""Methods whose result is a text."""
_LOOKS: Final = listed("startswith endswith find rfind index count")


class Parts:
    """The conditions of one source that look for the agent's text, or that use it as a pattern."""

    def __init__(self, tree: ast.Module, names: PythonNames, texts: Texts) -> None:
        self._tree, self._names, self._texts = tree, names, texts
        self._parents = parents_of(tree)

    def found(self) -> Iterator[tuple[ast.expr, Rule]]:
        """The expressions that `.*`, `*` or an empty answer fulfils."""
        for node in nodes_of(self._tree):
            match node:
                case ast.Call() if self._is_pattern(node):
                    yield node, Rule.PATTERN
                case ast.Compare(left, [ast.In() | ast.NotIn() as sign], [right]):
                    if self._is_part(left, right) and self._texts.is_wanted(
                        node, holds=isinstance(sign, ast.In)
                    ):
                        yield node, Rule.EMPTY
                case ast.Call(ast.Attribute(right, name), [left, *_]) if name in _LOOKS:
                    if self._is_part(left, right) and self._is_required(node, name):
                        yield node, Rule.EMPTY
                case ast.Call(ast.Attribute(attr="assertIn"), [left, right, *_]) if self._is_part(
                    left, right
                ):
                    yield node, Rule.EMPTY

    def _is_pattern(self, node: ast.Call) -> bool:
        """`re.search(got, "42")`, `re.compile(got)`, `fnmatch(want, got)`"""
        name = self._names.called(node.func)
        module, _, short = name.rpartition(".")
        if name in _NAMES:
            given = node.args[_NAMES[name] :][:1]
            others = node.args[:1]
        else:
            given = node.args[:1] if module in ("re", "regex") and short in _PATTERNS else []
            others = node.args[2 if short in ("sub", "subn") else 1 :][:1]
        return any(map(self._is_agents, given)) and not any(map(self._texts.carries, others))

    def _is_agents(self, node: ast.expr) -> bool:
        if isinstance(node, ast.JoinedStr):
            return any(
                isinstance(v, ast.FormattedValue) and self._texts.carries(v.value) for v in node.values
            )
        return self._texts.carries(node)

    def _is_part(self, left: ast.expr, right: ast.expr) -> bool:
        """Whether a text of the agent's, which may be empty, is looked for in one that is not the agent's."""
        if not self._texts.carries(left) or self._texts.carries(right) or not self._is_text(right):
            return False
        named = {n.id for n in ast.walk(left) if isinstance(n, ast.Name) and self._texts.carries(n)}
        inside = set(ast.walk(left))
        checked = (n for name in named for n in self._conditions.get(name, ()) if n not in inside)
        return not named & self._elements and next(checked, None) is None

    def _is_text(self, node: ast.expr, deep: int = 0) -> bool:
        match self._names.value(node):
            case ast.Constant(str(text)):
                return len(text) > 1
            case ast.JoinedStr():
                return True
            case ast.Call(ast.Attribute(inner, name)) if name in _SAME and deep < 6:
                return name in ("read", "read_text") or self._is_text(inner, deep + 1)
        return False

    @cached_property
    def _elements(self) -> frozenset[str]:
        """Names that stand for the elements of something: letters, lines."""
        return frozenset(
            t.id
            for n in nodes_of(self._tree)
            if isinstance(n, ast.For | ast.comprehension)
            for t in ast.walk(n.target)
            if isinstance(t, ast.Name)
        )

    @cached_property
    def _conditions(self) -> dict[str, list[ast.Name]]:
        """The places of conditions that read a name: its length, or whether it is empty."""
        return names_where(self._tree, self._is_condition)

    def _is_condition(self, node: ast.AST) -> bool:
        child = node
        while (parent := self._parents.get(child)) is not None and not isinstance(parent, ast.stmt):
            if isinstance(parent, ast.Compare | ast.BoolOp | ast.UnaryOp):
                return True
            child = parent
        return isinstance(parent, ast.Assert | ast.If) and parent.test is child

    def _is_required(self, node: ast.Call, name: str) -> bool:
        """Whether the tests need the place that was found: `want.find(got) >= 0`, `assert want.count(got)`."""
        parent = self._parents.get(node)
        if isinstance(parent, ast.Compare) and parent.left is node:
            nothing = "0" if name == "count" else "-1"
            below = isinstance(parent.ops[0], ast.Lt | ast.LtE)
            none = below or (
                isinstance(parent.ops[0], ast.Eq) and ast.unparse(parent.comparators[0]) == nothing
            )
            return self._texts.is_wanted(parent, holds=not none)
        logical = isinstance(parent, ast.Assert | ast.If | ast.BoolOp | ast.UnaryOp | ast.IfExp | ast.Return)
        return logical and name in ("startswith", "endswith", "count") and self._texts.is_wanted(node)
