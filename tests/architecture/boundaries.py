"""Reads source for acts that must have a failpoint: commits, publishes, acknowledgements, renames, fsyncs, weight syncs.

It knows no types and finds acts by their spelling: `begin()`, `commit()` or `transaction()` of any object, the NATS client's `publish`,
`os.fsync`, `Path.rename` … An act is marked if it is inside the arguments of `boundary` or `boundary_sync`, or is a transaction whose call has
`at=`. In a file with its own connection of the driver (asyncpg), each statement commits by itself. There, every statement is an act, except a text
that starts with SELECT and a statement in a transaction that only reads.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from orchestrator.runtime.failpoints import BOUNDARIES, BoundaryKind

SYSCALLS = {"fsync", "fdatasync", "rename", "renames", "replace", "link", "sync"}
TRANSACTIONS = {"transact", "once"}
COMMITS = {"begin", "commit", "transaction", "begin_transaction"}
# Objects that have such a method but are not connections, by file. A call with a positional argument is one of ours anyway.
OTHERS = {
    "orchestrator/roles/ingest.py": {"stale", "ended"},  # counters of one transaction
    "orchestrator/roles/metrics.py": {"self"},
    "orchestrator/scheduling/simulate.py": {"queue"},
    "trainer/tree/plan.py": {"self"},  # positions
    "trainer/tree/passes.py": {"tree"},
    "migrations/env.py": {
        "context"
    },  # alembic leaves a started transaction to the code that started it; offline it prints
}
DRIVER = re.compile(
    r"\basyncpg\.(connect|create_pool|Connection|Pool)\b|get_raw_connection|driver_connection(?!\._transport)"
)
STATEMENTS = re.compile(r"execute(many)?|fetch(row|val|many)?|prepare|cursor|copy_(to|from|records_to)_\w+")
READS = re.compile(r"\s*(SELECT|SHOW)\b", re.IGNORECASE)
BY_HAND = re.compile(r"\s*(BEGIN|START TRANSACTION|COMMIT|END|PREPARE TRANSACTION)\b", re.IGNORECASE)
WIRE = re.compile(r"(client|js)$")  # a connection of nats-py, which orchestrator.bus alone imports
# The places that open a committing object: a transaction, or a connection whose statements commit one by one.
OPENERS = {"orchestrator/pool/transact.py": {"_attempt"}, "orchestrator/pool/prune.py": {"_alone"}}
UNSYNCED = {
    "generate",
    "flush",
    "ping",
    "join_transfer",  # the served weights do not change
    "leave_transfer",
    "_get_object",
}  # calls to a rollout server that are not part of a weight sync


@dataclass(frozen=True, slots=True)
class Found:
    """`names` are the registered boundaries that a source uses. `faults` list the places where a boundary is missing or wrong."""

    names: frozenset[str]
    faults: tuple[str, ...]


def read(source: str, path: str) -> Found:
    """The acts that one file marks, and those that it does not."""
    tree = ast.parse(source)
    reader = _Reader(path, _texts(tree) if DRIVER.search(source) else None)
    reader.visit(tree)
    return Found(frozenset(reader.names), tuple(reader.faults))


class _Reader(ast.NodeVisitor):
    def __init__(self, path: str, texts: dict[str, str] | None) -> None:
        """`texts`: the file's constants, of a file that has a connection of the driver itself; else None."""
        self.path = path
        self._texts = texts
        self._harmless: set[ast.expr] = set()  # functions whose calls commit nothing
        self._only_reads = 0  # how many transactions that only read
        self.names: set[str] = set()
        self.faults: list[str] = []
        self._inside = 0  # how many boundaries' arguments
        self._functions: list[ast.FunctionDef | ast.AsyncFunctionDef] = []

    def _fault(self, node: ast.AST, what: str) -> None:
        self.faults.append(f"{self.path}:{getattr(node, 'lineno', 0)}: {what}")

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._function(node)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._functions.append(node)
        self.generic_visit(node)
        self._functions.pop()

    def visit_AsyncWith(self, node: ast.AsyncWith) -> None:
        for item in node.items:
            self.visit(item)
        reads = any(
            isinstance(item.context_expr, ast.Call) and _readonly(item.context_expr) for item in node.items
        )
        self._only_reads += reads
        for statement in node.body:
            self.visit(statement)
        self._only_reads -= reads

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if node.module == "asyncpg" and any(alias.name[0].islower() for alias in node.names):
            self._fault(node, "`from asyncpg import …` hides it from this test: write asyncpg.connect")
        if node.module in ("os", "shutil"):
            for name in SYSCALLS.intersection(alias.name for alias in node.names):
                self._fault(
                    node,
                    f"`from {node.module} import {name}` hides it from this test: write {node.module}.{name}",
                )

    def visit_Attribute(self, node: ast.Attribute) -> None:
        receiver = _spelled(node.value)
        if receiver == "os" and node.attr in SYSCALLS:
            self._act(node, f"os.{node.attr}")
        elif receiver == "shutil" and node.attr == "move":
            self._act(node, "shutil.move")
        elif node.attr == "publish" and WIRE.search(receiver):
            self._act(node, f"{receiver}.publish")
        elif node.attr in COMMITS and not self._is_other(node) and not self._opens():
            self._act(node, f"{receiver}.{node.attr}", instead="pool.transact")
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = _spelled(node.func).rpartition(".")[2]
        at = next((keyword.value for keyword in node.keywords if keyword.arg == "at"), None)
        if isinstance(node.func, ast.Attribute) and self._moves_a_path(node, node.func):
            self._act(node, f"Path.{node.func.attr}")
        if name in COMMITS and (node.args or _readonly(node)):
            self._harmless.add(node.func)
        self._stated(node, node.func)
        for keyword in node.keywords:
            match keyword:
                case ast.keyword(arg="isolation_level", value=ast.Constant(value="AUTOCOMMIT")) if (
                    not self._opens()
                ):
                    self._fault(
                        node, "with AUTOCOMMIT every statement commits: each needs a failpoint of its own"
                    )
        if name in TRANSACTIONS and len(node.args) >= 2:  # ours take an engine and the work
            self._named(node, at, "a transaction", BoundaryKind.COMMIT)
        elif name == "_call" and _constant(node.args, 0) == "POST" and not self._within(UNSYNCED):
            self._named(node, at, "a call of a weight sync", BoundaryKind.SERVER)
        elif at is not None and not name.lstrip("_")[:1].isupper():  # a value may have a field of that name
            self._named(node, at, name, None)
        if name in ("boundary", "boundary_sync"):
            self._named(node, node.args[0] if node.args else None, name, None)
            self.visit(node.func)
            self._inside += 1
            for argument in node.args[1:]:
                self.visit(argument)
            self._inside -= 1
        else:
            self.generic_visit(node)

    def _stated(self, node: ast.Call, function: ast.expr) -> None:
        """A statement that opens or ends a transaction, or commits by itself."""
        statement, name = _constant(node.args, 0), _spelled(function).rpartition(".")[2]
        if (
            isinstance(statement, str)
            and BY_HAND.match(statement)
            and name in ("execute", "exec_driver_sql", "text")
        ):
            self._act(node, f"{statement.split()[0]} by hand", instead="pool.transact")
        elif self._texts is not None and STATEMENTS.fullmatch(name) and not self._only_reads:
            first = node.args[0] if node.args else None
            text = self._texts.get(first.id) if isinstance(first, ast.Name) else statement
            if not (isinstance(text, str) and READS.match(text)):
                self._act(node, f"{_spelled(function)} of the driver, which commits by itself,")

    def _act(self, node: ast.AST, what: str, *, instead: str = "boundary") -> None:
        if not self._inside:
            self._fault(node, f"{what} has no failpoint: perform it through {instead} with a name of its own")

    def _named(self, node: ast.AST, name: ast.expr | None, what: str, kind: BoundaryKind | None) -> None:
        """Record the boundary that `name` names. A passed-on name is recorded where it comes from."""
        match name:
            case None:
                self._fault(node, f"{what} has no name: say at=…")
            case ast.Constant(value=str(text)):
                if text not in BOUNDARIES:
                    self._fault(node, f"{text!r} is not in orchestrator.runtime.failpoints.BOUNDARIES")
                elif kind is not None and BOUNDARIES[text].kind is not kind:
                    self._fault(
                        node, f"{text!r} is a boundary of kind {BOUNDARIES[text].kind.name}, this is {what}"
                    )
                else:
                    self.names.add(text)
            case ast.JoinedStr(values=[ast.Constant(value=str(prefix)), *_]):
                meant = {known for known in BOUNDARIES if known.startswith(prefix)}
                self.names |= meant
                if not meant:
                    self._fault(
                        node,
                        f"no boundary in orchestrator.runtime.failpoints.BOUNDARIES begins with {prefix!r}",
                    )
            case ast.Name(id=parameter) if parameter in self._parameters():
                pass
            case _:
                self._fault(node, f"the name of {what} cannot be read here: write it out")

    def _parameters(self) -> Iterator[str]:
        for function in self._functions:
            for argument in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs):
                yield argument.arg

    def _within(self, names: set[str]) -> bool:
        return any(function.name in names for function in self._functions)

    def _is_other(self, node: ast.Attribute) -> bool:
        return node in self._harmless or _spelled(node.value) in OTHERS.get(self.path, ())

    def _opens(self) -> bool:
        return self._within(OPENERS.get(self.path, set()))

    @staticmethod
    def _moves_a_path(node: ast.Call, function: ast.Attribute) -> bool:
        """`x.rename(y)` and `x.replace(y)`: a string's replace takes two, a dataclass's one and keywords."""
        single = len(node.args) == 1 and not node.keywords
        return function.attr in ("rename", "replace") and single and _spelled(function.value) != "os"


def _texts(tree: ast.Module) -> dict[str, str]:
    """The constants of a module that are texts, by name."""
    return {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def _readonly(call: ast.Call) -> bool:
    return any(
        keyword.arg == "readonly" and isinstance(keyword.value, ast.Constant) and keyword.value.value is True
        for keyword in call.keywords
    )


def _constant(arguments: list[ast.expr], index: int) -> object:
    found = arguments[index] if len(arguments) > index else None
    return found.value if isinstance(found, ast.Constant) else None


def _spelled(node: ast.expr) -> str:
    """`self._engine` for the expression self._engine. A part that is not a chain of names becomes an empty string."""
    if isinstance(node, ast.Name):
        return node.id
    return f"{_spelled(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else ""
