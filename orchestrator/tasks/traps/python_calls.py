"""Calls of Python that run, load or import what the agent wrote."""

import ast
import re
import shlex
from collections.abc import Iterator
from typing import Final

from orchestrator.tasks.traps.python_names import WRAPPER, PythonNames
from orchestrator.tasks.traps.python_text import Texts
from orchestrator.tasks.traps.rules import Rule
from orchestrator.tasks.traps.script import rules_of_line
from orchestrator.tasks.traps.tree import is_safe, listed

_TEXTS: Final = listed(
    "eval exec builtins.eval builtins.exec pickle.loads marshal.loads dill.loads cloudpickle.loads jsonpickle.decode pandas.eval sympify "
    "sympy.sympify parse_expr sympy.parse_expr sympy.parsing.sympy_parser.parse_expr numexpr.evaluate jinja2.Template mako.template.Template "
    "logging.config.dictConfig pickle.Unpickler code.InteractiveInterpreter timeit.timeit yaml.unsafe_load yaml.full_load yaml.unsafe_load_all "
    "yaml.full_load_all nbclient.NotebookClient nbclient.client.NotebookClient nbclient.execute"
)
"""They run the text that they are given."""
_FILES: Final = listed(
    "pickle.load marshal.load dill.load cloudpickle.load joblib.load shelve.open pandas.read_pickle torch.load yaml.load yaml.load_all "
    "torch.hub.load logging.config.fileConfig doctest.testfile papermill.execute_notebook keras.models.load_model tensorflow.keras.models.load_model"
)
"""They run code in the file that they are given."""
_IMPORTS: Final = listed(
    "importlib.util.spec_from_file_location runpy.run_path runpy.run_module importlib.machinery.SourceFileLoader imp.load_source "
    "imp.load_module zipimport.zipimporter site.addsitedir"
)
_LIBRARIES: Final = frozenset({"CDLL", "PyDLL", "LoadLibrary", "dlopen", "load_library", "load_extension"})
_ARGV: Final = listed(
    "subprocess.run subprocess.Popen subprocess.call subprocess.check_call subprocess.check_output pty.spawn anyio.run_process anyio.open_process"
)
_SHELL: Final = listed(
    "os.system os.popen subprocess.getoutput subprocess.getstatusoutput asyncio.create_subprocess_shell pexpect.run pexpect.spawn"
)
_WORDS: Final = {"asyncio.create_subprocess_exec": 0, "pexpect.popen_spawn.PopenSpawn": 0}
_STARTS: Final = ("os.exec", "os.spawn", "os.posix_spawn", "pytest.main")
_VARIABLE: Final = "${AGENT}"
_AGENT: Final = f'"{_VARIABLE}"'
_PERCENT: Final = re.compile(r"%[-#+ .\d]*[a-zA-Z]|%\(\w+\)[a-zA-Z]")
_BRACES: Final = re.compile(r"\{[^{}]*\}")


class Calls:
    """The rules for the calls of one source."""

    def __init__(self, names: PythonNames, texts: Texts, agent_modules: frozenset[str]) -> None:
        self._names, self._texts, self._modules = names, texts, agent_modules

    def rules(self, node: ast.Call) -> Iterator[Rule]:
        """The rules that a call breaks."""
        name = self._names.called(node.func)
        short = name.rpartition(".")[2]
        argument = node.args[0] if node.args else None
        given = {k.arg: k.value for k in node.keywords if k.arg is not None}
        if self._loads(name, short, argument, node, given):
            yield Rule.PROGRAM_TEXT
        if short in _LIBRARIES and argument is not None and self._is_library(argument):
            yield Rule.AGENT_PROGRAM
        if short in ("extractall", "unpack_archive") and self._unpacks(node, given):
            yield Rule.COPIED
        linked = name == "shutil.copytree" and _is_true(given.get("symlinks"))
        if linked and argument is not None and self._names.is_agents(argument):
            yield Rule.COPIED
        places = [*node.args, *given.values()]
        if name in _IMPORTS and any(
            not any(is_safe(self._names.path(a) or "") for a in places) for _ in self._names.each(node)
        ):
            yield Rule.IMPORTED
        elif short == "discover" and "oader" in name:
            start = argument if argument is not None else given.get("start_dir")
            if start is not None and self._names.in_work_directory(start):
                yield Rule.IMPORTED
        elif name in ("importlib.import_module", "__import__") and argument is not None:
            module = self._names.path(argument)
            open_end = module is None or ("{}" in module and not self._names.is_tests(argument))
            if module is None or open_end or module.partition(".")[0] in self._modules:
                yield Rule.IMPORTED
        elif (
            name in ("sys.path.insert", "sys.path.append", "sys.path.extend") or short == "syspath_prepend"
        ) and self.adds(node.args):
            yield Rule.IMPORTED
        if name in _ARGV | _SHELL | _WORDS.keys() or name.startswith(_STARTS):
            for _ in self._names.each(node):
                yield from self._runs(name, node, given)

    def runs_agents(self, node: ast.Call) -> bool:
        """Whether a call starts a program of the agent's under the wrapper."""
        name = self._names.called(node.func)
        given = {k.arg: k.value for k in node.keywords if k.arg is not None}
        if name == "os.system" or (name in _ARGV and _is_true(given.get("shell"))):
            words = [] if not node.args else self._text(self._names.value(node.args[0])).split()
        elif name in _ARGV:
            words = self._argv(name, node, given) or []
        else:
            return False
        at = next((n for n, word in enumerate(words) if WRAPPER in word), len(words))
        rules = rules_of_line(" ".join(words[at + 2 :]), frozenset({"AGENT"}))
        return bool(rules & {Rule.AGENT_PROGRAM, Rule.BUILD_TOOL})

    def adds(self, values: list[ast.expr]) -> bool:
        """Whether values that are added to `sys.path` hold the work directory, or a directory in it."""
        inner = [i for v in values for i in ([*v.elts] if isinstance(v, ast.List | ast.Tuple) else [v])]
        parts = [
            p
            for i in inner
            for p in ([i.left, i.right] if isinstance(i, ast.BinOp) and isinstance(i.op, ast.Add) else [i])
        ]
        if len(parts) > len(inner) or any(isinstance(p, ast.List | ast.Tuple) for p in parts):
            return self.adds(parts)
        return any(map(self._names.in_work_directory, parts))

    def _loads(
        self, name: str, short: str, argument: ast.expr | None, node: ast.Call, given: dict[str, ast.expr]
    ) -> bool:
        if _is_true(given.get("trust_remote_code")):
            return True
        if name in _TEXTS or self._runs_notebook(node):
            if (
                isinstance(argument, ast.Call)
                and self._names.called(argument.func) == "compile"
                and argument.args
            ):
                argument = argument.args[0]
            return (
                argument is not None
                and not isinstance(self._names.value(argument), ast.Constant)
                and not self._names.is_tests(argument)
            )
        if short == "eval" and argument is not None and isinstance(node.func, ast.Attribute):
            return not isinstance(self._names.value(argument), ast.Constant)
        if short == "load" and "allow_pickle" in given:
            pickled = not (
                isinstance(given["allow_pickle"], ast.Constant) and not given["allow_pickle"].value
            )
            return pickled and not (argument is not None and self._names.is_tests(argument))
        if name not in _FILES or argument is None or self._names.is_tests(argument):
            return False
        if name in ("yaml.load", "yaml.load_all"):
            loader = given.get("Loader") or (node.args[1] if len(node.args) > 1 else None)
            return loader is None or not self._names.called(loader).endswith(("SafeLoader", "BaseLoader"))
        return not (name == "torch.load" and _is_true(given.get("weights_only")))

    def _runs_notebook(self, node: ast.Call) -> bool:
        """`ExecutePreprocessor(timeout=9).preprocess(notebook)` of nbconvert."""
        owner = self._names.value(node.func.value) if isinstance(node.func, ast.Attribute) else None
        if not isinstance(owner, ast.Call) or not ast.unparse(node.func).endswith(".preprocess"):
            return False
        return self._names.called(owner.func).endswith("ExecutePreprocessor")

    def _is_library(self, argument: ast.expr) -> bool:
        value = self._names.value(argument)
        path = self._names.path(argument)
        if isinstance(value, ast.Constant) and value.value is None:
            return False
        return path is None or ("/" in path and not is_safe(path))

    def _unpacks(self, node: ast.Call, given: dict[str, ast.expr]) -> bool:
        """Whether unpacking creates links of an archive of the agent's, with any target. zipfile creates none."""
        chosen = given.get("filter")
        if isinstance(chosen, ast.Constant) and chosen.value == "data":  # "tar" allows links to any target
            return False
        if isinstance(node.func, ast.Attribute) and node.func.attr == "extractall":
            archive = node.func.value
        elif node.args:
            archive = node.args[0]
        else:
            return True
        value = self._names.value(archive)
        first = value.args[0] if isinstance(value, ast.Call) and value.args else value
        path = self._names.path(first) or ""
        return not ("ZipFile" in ast.unparse(value) or is_safe(path) or path.endswith(".zip"))

    def _runs(self, name: str, node: ast.Call, given: dict[str, ast.expr]) -> Iterator[Rule]:
        shell = name in _SHELL or (name in _ARGV and _is_true(given.get("shell")))
        if shell:
            command = node.args[0] if node.args else given.get("args")
            text = None if command is None else self._names.path(command)
            if text is None or "{}" in text:
                if command is not None and not (isinstance(self._names.value(command), ast.List | ast.Tuple)):
                    yield Rule.PROGRAM_TEXT
                return
            line = text
        else:
            words = self._argv(name, node, given)
            if words is None:
                return
            line = " ".join(words)
        directory = given.get("cwd")
        if directory is not None and is_safe(self._names.path(directory) or ""):
            line = f"cd /tests; {line}"
        fed = given.get("input") or given.get("stdin")
        if fed is not None and (self._texts.carries(fed)):
            line += f" <<< {_AGENT}"
        yield from rules_of_line(line, frozenset({"AGENT"}))

    def _argv(self, name: str, node: ast.Call, given: dict[str, ast.expr]) -> list[str] | None:
        """The words of a command as a shell writes them."""
        arguments = node.args
        if name in _ARGV or name == "pytest.main":
            command = arguments[0] if arguments else given.get("args")
            words = [] if command is None else self._words(self._names.value(command))
            return ["pytest", *words] if name == "pytest.main" else words
        if name in _WORDS:
            return [self._word(a) for a in arguments[_WORDS[name] :]]
        if name.startswith("os."):
            rest = arguments[1:] if name.startswith("os.spawn") else arguments
            if "execl" in name or "spawnl" in name:
                return [self._word(a) for a in (rest[:1] + rest[2:])]
            listed = self._words(self._names.value(rest[1])) if len(rest) > 1 else []
            return [*(self._word(a) for a in rest[:1]), *listed[1:]]
        return None

    def _text(self, command: ast.expr) -> str:
        """A command for a shell, with the wrapper's name where an f-string has its variable."""
        if not isinstance(command, ast.JoinedStr):
            return self._names.path(command) or ""
        parts = [
            (
                f"${WRAPPER}"
                if WRAPPER in ast.unparse(self._names.value(v.value)) and not self._texts.carries(v.value)
                else self._names.path(v.value)
            )
            if isinstance(v, ast.FormattedValue)
            else self._names.path(v)
            for v in command.values
        ]
        return "".join(part or "{}" for part in parts)

    def _words(self, command: ast.expr) -> list[str]:
        if isinstance(command, ast.List | ast.Tuple):
            return [word for e in command.elts for word in self._element(e)]
        if isinstance(command, ast.BinOp) and isinstance(command.op, ast.Add):
            return self._words(self._names.value(command.left)) + self._words(
                self._names.value(command.right)
            )
        if isinstance(command, ast.Call) and ast.unparse(command.func).endswith("split") and command.args:
            command = command.args[0]
        text = self._names.path(command)
        return [self._word(command)] if text is None else [shlex.quote(word) for word in text.split()]

    def _element(self, node: ast.expr) -> list[str]:
        return (
            self._words(self._names.value(node.value))
            if isinstance(node, ast.Starred)
            else [self._word(node)]
        )

    def _word(self, node: ast.expr) -> str:
        value = self._names.value(node)
        if self._texts.carries(node):
            return f'"{self._filled(value)}"'
        source = ast.unparse(value)
        if WRAPPER in source:
            return f'"${WRAPPER}"'
        if source in ("sys.executable", "str(sys.executable)"):
            return "python3"
        path = self._names.path(node)
        return '"$_"' if path is None else shlex.quote(path)

    def _filled(self, node: ast.expr) -> str:
        """The text of a word between double quotes, with the agent's variable where the text is the agent's."""
        match node:
            case ast.JoinedStr(values):
                return "".join(
                    self._filled(v.value if isinstance(v, ast.FormattedValue) else v) for v in values
                )
            case ast.BinOp(left, ast.Add(), right):
                return self._filled(left) + self._filled(right)
            case ast.BinOp(ast.Constant(str(text)), ast.Mod()) if self._texts.carries(node):
                return _PERCENT.sub(_VARIABLE, _escaped(text))
            case ast.Call(ast.Attribute(ast.Constant(str(text)), "format")) if self._texts.carries(node):
                return _BRACES.sub(_VARIABLE, _escaped(text))
        if self._texts.carries(node):
            return _VARIABLE
        path = self._names.path(node)
        return "$_" if path is None else _escaped(path)


def _escaped(text: str) -> str:
    """A text between double quotes of a shell."""
    return re.sub(r'([\\"$`])', r"\\\1", text)


def _is_true(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and bool(node.value)
