"""The checks of generated tasks and the `tests/test.sh` that runs them.

Expected values are written into the script, so the agent's files cannot change them. The agent's files are read, never executed: a reader of
the syntax tree judges a module; it knows functions, assignments and integer arithmetic. A check passes on a regular file with exactly the
wanted content; a link, a folder, a missing file fails.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from orchestrator.tasks.verdict import ANSWER_VARIABLE, LOGS_VARIABLE, RESULTS_FILE, REWARD_FILE


@dataclass(frozen=True, slots=True)
class OutputCheck:
    """`reader` with its arguments must print `want`; `name` identifies the check in the results."""

    name: str
    want: str
    reader: tuple[str, ...]

    def line(self) -> str:
        """The shell line that runs this check."""
        return shlex.join(("expect", self.name, self.want, *self.reader))


def answer_is(text: str) -> OutputCheck:
    """The final message is `text`, ignoring surrounding white space."""
    return OutputCheck("answer", text.strip(), ("answer",))


def file_is(path: str, text: str) -> OutputCheck:
    """`path` is a regular file that holds `text`, ignoring newlines at the end."""
    assert text.strip(), "an empty file looks the same as a missing one"
    return OutputCheck(path, text.rstrip("\n"), ("content", path))


def is_absent(path: str) -> OutputCheck:
    """Nothing exists at `path`."""
    return OutputCheck(path, "absent", ("presence", path))


def module_gives(path: str, values: Mapping[str, int | None]) -> OutputCheck:
    """The module at `path` gives each value: `{"oak()": 3, "elm(2)": 8, "fig": 5, "moss": None}`, None for an absent name."""
    expected = " ".join("absent" if value is None else str(value) for value in values.values())
    return OutputCheck(path, expected, ("module", path, *values))


def script(title: str, checks: Sequence[OutputCheck]) -> str:
    """The text of `tests/test.sh`: reward 1 when every check passes, else 0. `title` makes it unique among tasks."""
    assert checks
    reads_python = any(check.reader[0] == "module" for check in checks)
    parts = (
        f"#!/bin/bash\n# {title}: the reward is 1 when every check below holds, else 0.\n",
        _EXPECT,
        _MODULE if reads_python else "",
        "".join(check.line() + "\n" for check in checks),
        _REPORT,
    )
    return "".join(parts)


_EXPECT: Final = f"""\
reward=1 results=
plain() {{ printf %.80s "$1" | tr '\\n' ' ' | tr -cd 'A-Za-z0-9 .,:_/()=+-'; }}
expect() {{ # NAME WANT READER [ARGUMENT...]: READER must print WANT
  local got passed=true message=
  got=$("${{@:3}}" 2> /dev/null | tr '\\0' '?')
  if [ "$got" != "$2" ]; then
    reward=0 passed=false message="expected $(plain "$2"), got $(plain "$got")"
  fi
  results+="${{results:+, }}{{\\"name\\": \\"$(plain "$1")\\", \\"passed\\": $passed, \\"message\\": \\"$message\\"}}"
}}
answer() {{ tr '\\r' '\\n' < "${ANSWER_VARIABLE}" | {{ read -r -d '' text; printf %s "$text"; }}; }}
content() {{ [ -f "$1" ] && [ ! -L "$1" ] && head -c 65536 "$1"; }}
presence() {{ if [ -e "$1" ] || [ -L "$1" ]; then echo present; else echo absent; fi; }}
"""

_LOGS: Final = "/logs"
_VERIFIER_DIR: Final = REWARD_FILE.removeprefix(_LOGS).rpartition("/")[0]
_REPORT: Final = f"""\
logs=${{{LOGS_VARIABLE}:-{_LOGS}}}
mkdir -p "$logs{_VERIFIER_DIR}"
echo "[$results]" > "$logs{RESULTS_FILE.removeprefix(_LOGS)}"
echo "$reward" > "$logs{REWARD_FILE.removeprefix(_LOGS)}"
"""

_MODULE: Final = r"""module() { # PATH EXPRESSION...: the values of the expressions on a module that is read, not run
  content "$1" | python3 -I -S -B -c '
import ast
import operator
import sys

OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}

def assign(statement, names):
    if isinstance(statement, ast.Assign):
        (target,) = statement.targets
        names[target.id] = value(statement.value, names)
    elif not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):
        raise ValueError("only functions, assignments and docstrings are read")

def call(function, arguments, names):
    plain = ast.arguments(posonlyargs=[], args=function.args.args, kwonlyargs=[], kw_defaults=[], defaults=[])
    if function.decorator_list or ast.dump(function.args) != ast.dump(plain):
        raise ValueError("only plain functions are read")
    names = names | dict(zip((a.arg for a in function.args.args), arguments, strict=True))
    for statement in function.body:
        if isinstance(statement, ast.Return):
            return value(statement.value, names)
        assign(statement, names)

def value(node, names):
    if isinstance(node, ast.Constant) and type(node.value) is int:
        result = node.value
    elif isinstance(node, ast.Name):
        result = names[node.id]
    elif isinstance(node, ast.BinOp):
        result = OPERATORS[type(node.op)](value(node.left, names), value(node.right, names))
    else:
        raise ValueError("only integer arithmetic is read")
    if type(result) is not int or abs(result) > 10**9:
        raise ValueError("only small integers are read")
    return result

def ask(question, names):
    if isinstance(question, ast.Call):
        return call(names[question.func.id], [value(a, names) for a in question.args], names)
    return names.get(question.id, "absent")

names = {}
for statement in ast.parse(sys.stdin.read()).body:
    if isinstance(statement, ast.FunctionDef):
        names[statement.name] = statement
    else:
        assign(statement, names)
print(*(ask(ast.parse(text, mode="eval").body, names) for text in sys.argv[1:]))
' "${@:2}"
}
"""
