"""The rules for Python files of the tests, and for Python in scripts."""

import ast
from collections.abc import Iterator
from typing import Final

from orchestrator.tasks.traps.draws import draws_in_python
from orchestrator.tasks.traps.programs import PROGRAM_PATHS
from orchestrator.tasks.traps.python_calls import Calls
from orchestrator.tasks.traps.python_lengths import Lengths
from orchestrator.tasks.traps.python_lists import Lists
from orchestrator.tasks.traps.python_missing import Missing
from orchestrator.tasks.traps.python_named import named_files
from orchestrator.tasks.traps.python_names import PythonNames
from orchestrator.tasks.traps.python_numbers import Numbers
from orchestrator.tasks.traps.python_parts import Parts
from orchestrator.tasks.traps.python_text import Texts
from orchestrator.tasks.traps.python_tree import nodes_of
from orchestrator.tasks.traps.python_word import OwnWord
from orchestrator.tasks.traps.rules import Rule, Trap, lines_of

_UNREADABLE: Final = "this is not Python 3, so it was not checked: {}"


def python_traps(
    file: str,
    source: str,
    agent_modules: frozenset[str],
    first: int = 1,
    seeded: frozenset[str] = frozenset(),
) -> list[Trap]:
    """The traps of one Python source whose first line is line `first` of the file. `seeded`: modules that draw, and that another file seeds."""
    lines = lines_of(source)
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = min(getattr(error, "lineno", None) or 1, len(lines) - 1)
        note = _UNREADABLE.format(getattr(error, "msg", None) or error)
        return [
            Trap(
                rule=Rule.UNREADABLE,
                file=file,
                line=max(line, 1) + first - 1,
                text=lines[line].strip(),
                note=note,
            )
        ]
    found = {(node.lineno, rule) for node, rule in _found(tree, agent_modules, seeded)}
    return [
        Trap(rule=rule, file=file, line=line + first - 1, text=lines[line].strip())
        for line, rule in sorted(found)
    ]


def _found(
    tree: ast.Module, agent_modules: frozenset[str], seeded: frozenset[str]
) -> Iterator[tuple[ast.expr | ast.stmt, Rule]]:
    names = PythonNames(tree)
    texts = Texts(tree, names)
    calls = Calls(names, texts, agent_modules)
    yield from ((node, Rule.SOMEWHERE) for node in texts.somewhere())
    lists = Lists(tree, names, texts)
    yield from ((node, Rule.SOMEWHERE) for node in lists.somewhere())
    lengths = Lengths(tree, names=names, texts=texts, lists=lists)
    yield from ((node, Rule.EMPTY) for node in lengths.empty())
    missing = Missing(tree, names=names, texts=texts, lists=lists, agent_modules=agent_modules)
    yield from ((node, Rule.EMPTY) for node in missing.found())
    yield from Parts(tree, names, texts).found()
    numbers = Numbers(tree, names=names, texts=texts, lists=lists)
    yield from ((node, Rule.NOT_A_NUMBER) for node in numbers.not_a_number())
    yield from OwnWord(tree, names=names, texts=texts, calls=calls).found()
    yield from ((node, Rule.NAMED_FILE) for node in named_files(tree, names, texts))
    yield from ((node, Rule.DRAWS) for node in draws_in_python(tree, names, seeded))
    for node in nodes_of(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            modules = (
                [node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
            )
            if any(name.partition(".")[0] in agent_modules for name in modules):
                yield node, Rule.IMPORTED
        elif isinstance(node, ast.Assign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(map(_is_search_path, targets)) and names.is_agents(node.value):
                yield node, Rule.AGENT_PROGRAM
            changed = any(
                ast.unparse(t.value if isinstance(t, ast.Subscript) else t) == "sys.path" for t in targets
            )
            if changed and calls.adds([node.value]):
                yield node, Rule.IMPORTED
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and key.value in PROGRAM_PATHS and names.is_agents(value):
                    yield value, Rule.AGENT_PROGRAM
        elif isinstance(node, ast.Call):
            yield from ((node, rule) for rule in calls.rules(node))


def _is_search_path(target: ast.expr) -> bool:
    """`os.environ["PATH"]`, and other variables that lead programs to code."""
    match target:
        case ast.Subscript(ast.Attribute(attr="environ") | ast.Name("environ"), ast.Constant(str(name))):
            return name in PROGRAM_PATHS
    return False
