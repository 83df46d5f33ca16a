"""Python that looks for the right text anywhere in what the agent wrote or printed."""

import ast
import re
from collections.abc import Iterator
from typing import Final

from orchestrator.tasks.traps.python_names import PythonNames, bindings, given_by_definition, known_as
from orchestrator.tasks.traps.python_single import Singles
from orchestrator.tasks.traps.python_tree import nodes_of, parents_of
from orchestrator.tasks.traps.tree import listed

_READS: Final = frozenset({"read", "read_text", "read_bytes", "readlines", "readline"})
_OUTPUT: Final = frozenset({"stdout", "stderr", "output"})
_KEEPS: Final = listed(
    "strip lstrip rstrip lower upper casefold decode encode split splitlines rsplit replace expandtabs join"
)
"""Methods of texts that keep what the agent wrote."""
_FETCHES: Final = re.compile(r"(?:requests|httpx)\.(?:get|post|put|patch|delete|request)")
_COLLECTS: Final = frozenset({"str", "list", "set", "tuple", "sorted", "frozenset", "map"})
_SEARCHES: Final = frozenset({"re.search", "re.findall", "re.match", "re.finditer", "regex.search"})
_STARTS: Final = frozenset({"startswith", "endswith"})
_COUNTS: Final = frozenset({"find", "rfind", "count", "index"})


class Texts:
    """The expressions of one source that carry text of the agent, and the conditions on them."""

    def __init__(self, tree: ast.Module, names: PythonNames) -> None:
        self._names, self._tree, self._singles = names, tree, Singles(tree)
        self._parents = parents_of(tree)
        self._carrying: set[str] = set()
        self._replies: set[str] = set()
        bound = [
            pair
            for node in nodes_of(tree)
            for pair in [
                *((known_as(target), value) for target, value in bindings(node)),
                *given_by_definition(node),
                *_returned(node),
            ]
        ]
        self._replies = {name for name, value in bound if name and self._is_reply(value)}
        before = -1
        while before != len(self._carrying):
            before = len(self._carrying)
            self._carrying |= {name for name, value in bound if name and self.carries(value)}

    def carries(self, node: ast.expr) -> bool:
        """Whether an expression is text that the agent wrote or printed."""
        if isinstance(node, ast.Name):
            return node.id in self._carrying
        if isinstance(node, ast.Attribute):
            fetched = node.attr in ("text", "content") and self._is_reply(node.value)
            return (
                fetched
                or known_as(node) in self._carrying
                or (node.attr in _OUTPUT and ast.unparse(node.value) != "sys")
            )
        if isinstance(node, ast.Subscript | ast.Starred):
            return self.carries(node.value)
        if isinstance(node, ast.BinOp):
            return self.carries(node.left) or self.carries(node.right)
        if isinstance(node, ast.JoinedStr):
            return any(isinstance(v, ast.FormattedValue) and self.carries(v.value) for v in node.values)
        if isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp):
            return any(self.carries(part.iter) for part in node.generators) and self.carries(node.elt)
        if isinstance(node, ast.Call):
            return self._called(node)
        return False

    def _is_reply(self, node: ast.expr) -> bool:
        """`requests.get("http://localhost")`, which a server of the agent's answers."""
        if isinstance(node, ast.Name):
            return node.id in self._replies
        return isinstance(node, ast.Call) and _FETCHES.fullmatch(self._names.called(node.func)) is not None

    def _called(self, node: ast.Call) -> bool:
        name = self._names.called(node.func)
        if name in ("open", "io.open", "codecs.open"):
            return not self._names.is_tests(node)
        called = node.func.attr if isinstance(node.func, ast.Attribute) else name
        if name.endswith(("check_output", "getoutput")) or name == "input" or f"{called}()" in self._carrying:
            return True
        if isinstance(node.func, ast.Attribute):
            if node.func.attr in _READS:
                return not self._names.is_tests(node.func.value)
            if node.func.attr in _KEEPS or node.func.attr == "format":
                given = [*node.args, *(keyword.value for keyword in node.keywords)]
                return self.carries(node.func.value) or any(map(self.carries, given))
        return name in _COLLECTS and any(map(self.carries, node.args))

    def somewhere(self) -> Iterator[ast.expr | ast.stmt]:
        """The conditions that one part of the agent's text fulfils."""
        for node in nodes_of(self._tree):
            if isinstance(node, ast.Compare):
                found = len(node.ops) == 1 and self._compares(node)
            elif isinstance(node, ast.Call):
                found = self._calls(node)
            elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd):
                found = self.carries(node.left) != self.carries(node.right) and self._is_condition(node)
            else:
                found = isinstance(node, ast.For) and self.carries(node.iter) and self._any_of_loop(node)
            if found and isinstance(node, ast.expr | ast.stmt):
                yield node

    def _compares(self, node: ast.Compare) -> bool:
        operator, right = node.ops[0], node.comparators[0]
        if isinstance(operator, ast.In | ast.NotIn):
            return self.carries(right) and self.is_wanted(node, holds=isinstance(operator, ast.In))
        if isinstance(operator, ast.LtE | ast.Lt) and self.carries(right) and _is_set(right):
            return self.is_wanted(node)
        if isinstance(operator, ast.GtE | ast.Gt) and self.carries(node.left) and _is_set(node.left):
            return self.is_wanted(node)
        if not (isinstance(node.left, ast.Call) and isinstance(node.left.func, ast.Attribute)):
            return False
        call = node.left.func
        if call.attr not in _COUNTS or not self.carries(call.value) or not node.left.args:
            return False
        nothing = ast.unparse(right) == "0" if call.attr == "count" else ast.unparse(right) == "-1"
        none = isinstance(operator, ast.Eq) and nothing
        if isinstance(operator, ast.Lt | ast.LtE):
            none = True
        return self.is_wanted(node, holds=not none)

    def _calls(self, node: ast.Call) -> bool:
        name, arguments = self._names.called(node.func), node.args
        short = name.rpartition(".")[2]
        if short in ("assertIn", "assertRegex", "assert_in") and len(arguments) > 1:
            return self.carries(arguments[0] if short == "assertRegex" else arguments[1])
        if name in _SEARCHES and len(arguments) > 1:
            return (
                self.carries(arguments[1])
                and not self._is_whole(arguments[0], name)
                and self._is_condition(node)
            )
        if short == "issubset" and arguments:
            return self.carries(arguments[0]) and self.is_wanted(node)
        if (
            short == "any"
            and isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Compare)
        ):
            return isinstance(node.func.value.ops[0], ast.Eq) and self.is_wanted(node)  # a column of a table
        if name == "any" and arguments and isinstance(arguments[0], ast.Call):
            return self.carries(arguments[0]) and self.is_wanted(node)
        if name == "any" and arguments and isinstance(arguments[0], ast.GeneratorExp | ast.ListComp):
            found = arguments[0]
            equal = any(
                isinstance(c, ast.Compare) and isinstance(c.ops[0], ast.Eq) for c in ast.walk(found.elt)
            )
            own = any(self.carries(p.iter) and not self.has_one(p.iter) for p in found.generators)
            return equal and own and self.is_wanted(node)
        if isinstance(node.func, ast.Attribute) and arguments and self.carries(node.func.value):
            if short in ("issuperset", "intersection"):
                return self._is_condition(node)
            if short in _STARTS:
                return self._is_required(node)
            return short in ("count", "index") and self._is_condition(node)
        return False

    def _is_whole(self, pattern: ast.expr, name: str) -> bool:
        text = self._names.path(pattern) or ""
        start = name == "re.match" or text.startswith(("^", r"\A"))
        return start and text.endswith(("$", r"\Z"))

    def _any_of_loop(self, loop: ast.For) -> bool:
        """`for line in lines: if line == "42": found = True`"""
        target = {n.id for n in ast.walk(loop.target) if isinstance(n, ast.Name)}
        return any(
            isinstance(node, ast.If)
            and isinstance(node.test, ast.Compare)
            and isinstance(node.test.ops[0], ast.Eq)
            and any(isinstance(n, ast.Name) and n.id in target for n in ast.walk(node.test.left))
            and any(map(_succeeds, node.body))
            for node in ast.walk(loop)
        )

    def _is_condition(self, node: ast.expr) -> bool:
        """Whether an expression is itself a condition that must hold, not a value."""
        parent = self._parents.get(node)
        if isinstance(parent, ast.Compare) and ast.unparse(parent.comparators[0]) == "None":
            return self.is_wanted(parent, holds=isinstance(parent.ops[0], ast.IsNot | ast.NotEq))
        logical = isinstance(parent, ast.Assert | ast.If | ast.BoolOp | ast.UnaryOp | ast.IfExp)
        return (
            logical
            or (
                isinstance(parent, ast.Call)
                and ast.unparse(parent.func) in ("bool", "any", "self.assertTrue")
            )
        ) and self.is_wanted(node)

    def has_one(self, node: ast.expr) -> bool:
        """Whether the tests have failed before if a list has another number of entries than one."""
        return self._singles.holds(node)

    def _is_required(self, node: ast.expr) -> bool:
        """Whether the tests fail if a condition does not hold."""
        top: ast.AST | None = node
        while isinstance(top, ast.expr):
            top = self._parents.get(top)
        return (
            isinstance(top, ast.Assert) or (isinstance(top, ast.If) and any(map(fails, top.body)))
            if self.is_wanted(node)
            else False
        )

    def is_wanted(self, node: ast.expr, *, holds: bool = True) -> bool:
        """Whether success depends on a condition: it leads to success, or its opposite leads to failure."""
        child: ast.AST = node
        while (parent := self._parents.get(child)) is not None:
            if _turns(parent):
                holds = not holds
            elif isinstance(parent, ast.While | ast.comprehension):
                return False
            elif isinstance(parent, ast.If) and parent.test is child:
                return holds != any(map(fails, parent.body))
            elif isinstance(parent, ast.stmt):
                break
            child = parent
        return holds


def _returned(node: ast.AST) -> list[tuple[str, ast.expr]]:
    """Texts that a function of the file returns, under its name with brackets. Fixtures are known by their name alone."""
    if not isinstance(node, ast.FunctionDef) or given_by_definition(node):
        return []
    return [(f"{node.name}()", n.value) for n in ast.walk(node) if isinstance(n, ast.Return) and n.value]


def _is_set(node: ast.expr) -> bool:
    return isinstance(node, ast.Name | ast.SetComp) or (
        isinstance(node, ast.Call) and "set" in ast.unparse(node.func)
    )


def _turns(node: ast.AST) -> bool:
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.Not)
    return isinstance(node, ast.Call) and ast.unparse(node.func).endswith("assertFalse")


def fails(node: ast.stmt) -> bool:
    """Whether a statement is a failure: it raises, exits with another status than 0, or sets something to false."""
    if isinstance(node, ast.Raise | ast.Continue):
        return True
    if isinstance(node, ast.Assert):
        return isinstance(node.test, ast.Constant) and not node.test.value
    if isinstance(node, ast.Return | ast.Assign):
        return isinstance(node.value, ast.Constant) and node.value.value is not None and not node.value.value
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        name = ast.unparse(node.value.func)
        if name.endswith("exit"):
            return bool(node.value.args) and ast.unparse(node.value.args[0]) not in ("0", "None")
        return any(word in ast.unparse(node.value).lower() for word in ("fail", "error", "wrong", "missing"))
    return isinstance(node, ast.If) and any(map(fails, node.body))


def _succeeds(node: ast.stmt) -> bool:
    if isinstance(node, ast.Break):
        return True
    if isinstance(node, ast.Return | ast.Assign):
        return isinstance(node.value, ast.Constant) and bool(node.value.value)
    if isinstance(node, ast.AugAssign):
        return True
    return isinstance(node, ast.Expr) and ast.unparse(node.value) in ("sys.exit(0)", "exit(0)", "sys.exit()")
