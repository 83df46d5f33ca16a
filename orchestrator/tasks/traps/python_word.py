"""Python that takes the agent's word for it: a reward that it wrote, two files of its own that are equal, the exit status of its program."""

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Final

from orchestrator.tasks.traps.paid_text import REWARD
from orchestrator.tasks.traps.python_calls import Calls
from orchestrator.tasks.traps.python_names import PythonNames
from orchestrator.tasks.traps.python_text import Texts
from orchestrator.tasks.traps.python_tree import nodes_of
from orchestrator.tasks.traps.rules import Rule
from orchestrator.tasks.traps.tree import listed

_KEEPS: Final = listed("float int round min max str json.load json.loads json.dumps abs")
_COPIES: Final = frozenset({"shutil.copy", "shutil.copyfile", "shutil.move"})
_READS: Final = frozenset({"read", "read_text", "read_bytes"})
_TIMES: Final = frozenset({"os.path.getmtime", "os.path.getctime", "os.path.getatime"})
_CLOCKS: Final = frozenset({"time.time", "time.monotonic", "time.perf_counter"})
_STATUS: Final = frozenset({"returncode", "exit_code", "returncode()", "exitstatus"})


class OwnWord:
    """The rules of one source."""

    def __init__(self, tree: ast.Module, *, names: PythonNames, texts: Texts, calls: Calls) -> None:
        self._tree, self._names, self._texts, self._calls = tree, names, texts, calls

    def found(self) -> Iterator[tuple[ast.expr, Rule]]:
        """The expressions that take the agent's word."""
        known = set(self._known())
        for node in nodes_of(self._tree):
            if isinstance(node, ast.Call) and self._pays(node):
                yield node, Rule.PAID
            if isinstance(node, ast.Compare) and self._by_times(node):
                yield node, Rule.TIMES
            if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq):
                sides = [self._own_file(node.left), self._own_file(node.comparators[0])]
                own = None not in sides and sides[0] != sides[1] and not known.intersection(sides)
                if own and self._texts.is_wanted(node):
                    yield node, Rule.BOTH_SIDES
            if isinstance(node, ast.Call) and self._compares_own(node) and self._texts.is_wanted(node):
                yield node, Rule.BOTH_SIDES
        yield from ((node, Rule.BOTH_SIDES) for node in self._by_two_runs())
        yield from ((node, Rule.STATUS) for node in self._by_status())

    def _by_two_runs(self) -> Iterator[ast.expr]:
        """The comparisons of one output of the agent's programs with another, if nothing else but exit statuses decides."""
        conditions = [*self._conditions()]
        both = [node for node in conditions if self._compares_prints(node)]
        if all(node in both or self._is_ended(node) or self._is_status(node) for node in conditions):
            yield from (n for n in both if isinstance(n, ast.Call) or self._texts.is_wanted(n))

    def _compares_prints(self, node: ast.expr) -> bool:
        """`run(3) == run(3)`, `a.stdout != b.stdout`, `self.assertEqual(run(3), run(3))`"""
        match node:
            case ast.Compare(left, [ast.Eq() | ast.NotEq()], [right]):
                return self._is_print(left) and self._is_print(right)
            case ast.Call(ast.Attribute(attr="assertEqual" | "assertNotEqual"), [left, right, *_]):
                return self._is_print(left) and self._is_print(right)
        return False

    def _is_print(self, node: ast.expr, deep: int = 0) -> bool:
        """Whether an expression is what a program printed that is not of the tests, and nothing else."""
        if deep > 6 or self._names_tests(node):
            return False
        value = self._names.value(node)
        match value:
            case ast.Attribute(_, "stdout" | "stderr" | "output"):
                return self._texts.carries(value)
            case ast.Call(ast.Attribute(inner, "strip" | "rstrip" | "decode" | "splitlines" | "split")):
                return self._is_print(inner, deep + 1)
            case ast.Call(ast.Name(name)) if name in self._returns:
                return all(self._is_print(found, deep + 1) for found in self._returns[name])
            case ast.Call(func):
                return self._names.called(func).endswith(("check_output", "getoutput"))
        return False

    def _names_tests(self, node: ast.expr) -> bool:
        """Whether an expression, or what its names stand for, has a path of the tests: a reference program, `Path(__file__).with_name("ref")`."""
        values = [self._names.value(n) for n in ast.walk(node) if isinstance(n, ast.expr)]
        return any(re.search(r"/tests\b|__file__", ast.unparse(value)) for value in values)

    @cached_property
    def _returns(self) -> dict[str, list[ast.expr]]:
        """The values that each function of the source returns."""
        found: dict[str, list[ast.expr]] = {}
        for node in nodes_of(self._tree):
            if isinstance(node, ast.FunctionDef):
                values = [
                    n.value for n in ast.walk(node) if isinstance(n, ast.Return) and n.value is not None
                ]
                found |= {node.name: values} if values else {}
        return found

    def _by_times(self, node: ast.Compare) -> bool:
        """Whether a condition compares the times of a file of the agent's: `os.path.getmtime("/app/out") > t`, `.stat().st_mtime`."""
        sides = [self._names.value(side) for side in (node.left, *node.comparators)]
        return any(map(self._is_time, (inner for side in sides for inner in ast.walk(side))))

    def _is_time(self, node: ast.AST) -> bool:
        match node:
            case ast.Call(func, [place]) if self._names.called(func) in _TIMES:
                return self._names.in_work_directory(place)
            case ast.Attribute(ast.Call(func, places), name) if name.startswith(
                ("st_mtime", "st_ctime", "st_atime")
            ):
                if self._names.called(func) in ("os.stat", "os.lstat"):
                    return any(map(self._names.in_work_directory, places[:1]))
                return isinstance(func, ast.Attribute) and self._names.in_work_directory(func.value)
        return False

    def _known(self) -> Iterator[str | None]:
        """The files of the work directory that the tests also compare with something that is not the agent's."""
        for node in nodes_of(self._tree):
            match node:
                case ast.Compare(left, [ast.Eq()], [right]) if self._texts.is_wanted(node):
                    for one, other in ((left, right), (right, left)):
                        if self._own_file(other) is None and not self._texts.carries(other):
                            yield self._own_file(one)

    def _compares_own(self, node: ast.Call) -> bool:
        """`filecmp.cmp("/app/out", "/app/expected")`"""
        both = self._names.called(node.func) == "filecmp.cmp" and len(node.args) > 1
        return both and all(map(self._names.in_work_directory, node.args[:2]))

    def _pays(self, node: ast.Call) -> bool:
        """`Path("/logs/verifier/reward.txt").write_text(…)`, `file.write(…)`, `json.dump(…, file)`, `shutil.copy(…)` with what the agent wrote."""
        if self._names.called(node.func) in _COPIES and len(node.args) > 1:
            return self._is_reward(node.args[1]) and self._names.is_agents(node.args[0])
        if self._calls.runs_agents(node):
            return any(k.arg == "stdout" and self._is_reward(k.value) for k in node.keywords)
        written = self._written(node)
        return written is not None and self._is_reward(written[0]) and any(map(self._is_given, written[1]))

    def _written(self, node: ast.Call) -> tuple[ast.expr, list[ast.expr]] | None:
        """The file that a call writes, and what it writes."""
        name = self._names.called(node.func)
        if name == "json.dump" and len(node.args) > 1:
            return node.args[1], node.args[:1]
        if name == "print":
            target = next((k.value for k in node.keywords if k.arg == "file"), None)
            return None if target is None else (target, node.args)
        if not isinstance(node.func, ast.Attribute) or node.func.attr not in ("write", "write_text"):
            return None
        return node.func.value, node.args

    def _is_reward(self, node: ast.expr) -> bool:
        value = self._names.value(node)
        if isinstance(value, ast.Call) and self._names.called(value.func) == "open" and value.args:
            value = value.args[0]
        return REWARD.search(self._names.path(value) or "") is not None

    def _is_given(self, node: ast.expr, deep: int = 0) -> bool:
        """Whether a value is one that the agent wrote, perhaps as another type or within bounds."""
        value = self._names.value(node)
        if deep > 8 or self._texts.carries(value):
            return deep <= 8
        match value:
            case ast.JoinedStr(values):
                return any(
                    self._is_given(v.value, deep + 1) for v in values if isinstance(v, ast.FormattedValue)
                )
            case ast.Subscript(inner) | ast.Call(ast.Attribute(inner, "get")):
                return self._is_given(inner, deep + 1)
            case ast.Dict(keys, values):
                named = [k.value if isinstance(k, ast.Constant) else None for k in keys]
                # Where `reward` is a key, the others are notes; else each is a reward.
                counts = ("reward", None) if "reward" in named else named
                return any(
                    self._is_given(v, deep + 1) for k, v in zip(named, values, strict=True) if k in counts
                )
            case ast.Call(func, given) if self._names.called(func) in _KEEPS:
                return any(self._is_given(v, deep + 1) for v in given)
        return False

    def _own_file(self, node: ast.expr, deep: int = 0) -> str | None:
        """The path of the work directory that an expression reads, and reads alone."""
        value = self._names.value(node)
        match value:
            case ast.Call(ast.Name("open"), [place, *_]):
                return self._names.path(place) if self._names.in_work_directory(place) else None
            case ast.Call(ast.Attribute(inner, attribute)) if attribute in _READS:
                opened = self._own_file(inner, deep + 1) if deep < 6 else None
                return opened or (self._names.path(inner) if self._names.in_work_directory(inner) else None)
            case ast.Call(ast.Attribute(inner, "strip" | "splitlines" | "split")):
                return self._own_file(inner, deep + 1) if deep < 6 else None
            case ast.Call(func, [inner]) if self._names.called(func) in (
                "json.load",
                "json.loads",
                "sorted",
                "list",
            ):
                return self._own_file(inner, deep + 1) if deep < 6 else None
        return None

    def _by_status(self) -> Iterator[ast.Call]:
        """The starts of the agent's programs, if nothing but their exit statuses decides."""
        conditions = [*self._conditions()]
        ended = [*map(self._is_ended, conditions)]
        if any(map(self._is_of_manner, conditions)) and self._looks_at_work(conditions):
            return
        if not all(known or self._is_status(node) for known, node in zip(ended, conditions, strict=True)):
            return
        nodes = nodes_of(self._tree)
        started = [n for n in nodes if isinstance(n, ast.Call) and self._calls.runs_agents(n)]
        known = {id(node) for node in conditions}
        kept = any(
            isinstance(n, ast.Compare) and id(n) not in known and self._is_number(n.left) for n in nodes
        )
        if conditions and not any(ended) and not kept:
            yield from started
        elif not self._looks_at_work():
            pays = self._pays_one()
            ends = any(ended) or kept
            yield from (n for n in started if ends or (self._ends_tests(n) and (pays or self._is_outside(n))))

    def _is_outside(self, node: ast.Call) -> bool:
        """Whether a call stands in no function."""
        return not any(
            isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef) and any(i is node for i in ast.walk(n))
            for n in nodes_of(self._tree)
        )

    def _is_ended(self, node: ast.expr) -> bool:
        """Whether a condition looks at an exit status alone in another form: `r.returncode != 0`, `os.system(…)`, `ok = r.returncode == 0`."""
        named, node = isinstance(node, ast.Name), self._names.value(node)
        match node:
            case ast.Compare(left, [ast.NotEq() | ast.Gt()], [ast.Constant(0)]):
                return self._is_number(left)
            case ast.UnaryOp(ast.Not(), left) | ast.Compare(left, [ast.Eq()], [ast.Constant(0)]):
                return self._is_number(left) and (named or isinstance(self._names.value(left), ast.Call))
        return self._is_number(node)

    def _is_number(self, node: ast.expr) -> bool:
        """Whether an expression is an exit status."""
        value = self._names.value(node)
        if isinstance(value, ast.Call):
            return self._names.called(value.func) in ("os.system", "subprocess.call")
        return isinstance(value, ast.Attribute) and value.attr in _STATUS

    def _ends_tests(self, node: ast.Call) -> bool:
        """Whether a failure of the program that a call starts is an exception: `check_call(…)`, `run(…, check=True)`."""
        checks = any(
            k.arg == "check" and isinstance(k.value, ast.Constant) and k.value.value for k in node.keywords
        )
        return checks or self._names.called(node.func) == "subprocess.check_call"

    def _pays_one(self) -> bool:
        """Whether the tests write a fixed reward, or are functions of pytest or unittest."""
        for node in nodes_of(self._tree):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test"):
                return True
            written = self._written(node) if isinstance(node, ast.Call) else None
            if written is not None and self._is_reward(written[0]):
                return True
        return False

    def _looks_at_work(self, apart: Iterable[ast.expr] = ()) -> bool:
        """Whether an expression uses what the agent wrote or printed, except to print it or to name a failure, and in the conditions `apart`."""
        notes = {inner for node in apart for inner in ast.walk(node)}
        read = {n.id for n in nodes_of(self._tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
        for node in nodes_of(self._tree):
            match node:
                case ast.Assign([ast.Name(name)]) if name not in read:
                    notes.update(ast.walk(node))
                case ast.Call(func) if self._names.called(func) in ("print", "sys.exit", "SystemExit"):
                    notes.update(ast.walk(node))
                case ast.Assert(msg=ast.expr() as message):
                    notes.update(ast.walk(message))
                case ast.Raise(exc=ast.expr() as error):
                    notes.update(ast.walk(error))
                case ast.Compare(ast.Constant(), [ast.NotIn()], [right]):
                    notes.update(ast.walk(right))
        return any(
            isinstance(node, ast.expr)
            and node not in notes
            and not self._is_written(node)
            and self._texts.carries(node)
            for node in nodes_of(self._tree)
        )

    def _is_written(self, node: ast.expr) -> bool:
        """`open("/logs/verifier/reward.txt", "w")`"""
        match node:
            case ast.Call(func, [place, *_]) if self._names.called(func) == "open":
                return self._is_reward(place)
            case ast.Name():
                return self._is_reward(node)
        return False

    def _conditions(self) -> Iterator[ast.expr]:
        """The conditions that the tests require: of `assert`, `assertEqual`, and conditions of `if`."""
        for node in nodes_of(self._tree):
            if isinstance(node, ast.Assert | ast.If | ast.IfExp):
                if "__name__" not in ast.unparse(node.test):
                    yield node.test
            elif (
                isinstance(node, ast.Compare)
                and any(map(self._texts.carries, (node.left, *node.comparators)))
            ) or (
                isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2].startswith("assert")
            ):
                yield node

    def _is_of_manner(self, node: ast.expr) -> bool:
        """Whether a condition looks only at how a program ran: `r.stderr == ""`, `time.time() - start < 2`."""
        match node:
            case ast.Compare(left, [ast.Eq()], [ast.Constant("" | b"")]) | ast.UnaryOp(ast.Not(), left):
                if isinstance(left, ast.Call) and isinstance(left.func, ast.Attribute):
                    left = left.func.value
                return isinstance(left, ast.Attribute) and left.attr == "stderr"
            case ast.Compare(left, [ast.Lt() | ast.LtE()], [right]):
                sides = [self._names.value(side) for side in (left, right)]
                called = (
                    self._names.called(n.func) for s in sides for n in ast.walk(s) if isinstance(n, ast.Call)
                )
                return any(name in _CLOCKS for name in called)
        return False

    def _is_status(self, node: ast.expr) -> bool:
        """Whether a condition looks at an exit status alone, or only at how the program ran."""
        if self._is_of_manner(node):
            return True
        match node:
            case ast.Compare(left, [ast.Eq()], [ast.Constant(0)]) | ast.Call(_, [left, ast.Constant(0), *_]):
                value = self._names.value(left)
                return isinstance(value, ast.Attribute) and value.attr in _STATUS
            case ast.Compare(ast.Constant(), [ast.NotIn()], [right]):  # `"failed" not in r.stdout`
                return self._texts.carries(right)
            case ast.UnaryOp(ast.Not(), left):
                value = self._names.value(left)
                return isinstance(value, ast.Attribute) and value.attr in _STATUS
        return False
