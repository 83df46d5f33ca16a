"""Random numbers that the tests take from elsewhere than `$PENSTOCK_SEED`: another try of the same work can have another verdict.

bash's RANDOM and PYTHONHASHSEED repeat by themselves (`orchestrator.runner.verification_limits.draws`), and so does what is seeded from a text or a
number.
"""

import ast
import re
from collections.abc import Iterator
from typing import Final

from tree_sitter import Node

from orchestrator.tasks.traps.launch import words
from orchestrator.tasks.traps.python_names import PythonNames
from orchestrator.tasks.traps.python_tree import nodes_of
from orchestrator.tasks.traps.tree import above, listed, plain, source_of

_DEVICE: Final = re.compile(r"(?:\w+=)?/dev/u?random")
_BY_TIME: Final = re.compile(r"\bsrand\(\s*\)")  # awk
_NAMED_UUID: Final = re.compile(r"-[mNns]+|--(?:md5|sha1|name|namespace)\b.*")
_SOURCE: Final = "--random-source"
_CALLS: Final = listed("os.urandom os.getrandom uuid.uuid1 uuid.uuid4 random.SystemRandom")
_GENERATORS: Final = listed(
    "random.Random numpy.random.default_rng numpy.random.RandomState numpy.random.SeedSequence numpy.random.PCG64 numpy.random.MT19937 "
    "numpy.random.Philox numpy.random.SFC64"
)
"""They draw from their first argument."""
_SHARED: Final = ("random", "numpy.random")
"""Modules with one generator for all, which their `seed` sets."""
_NO_DRAWS: Final = listed("seed getstate setstate get_state set_state Generator Random SystemRandom")
_CHANGES: Final = re.compile(r"\b(?:time|datetime|urandom|getrandom|getpid|uuid\d|secrets|SystemRandom)\b")


def draws_in_shell(node: Node) -> bool:
    """Whether a node of a script draws."""
    if node.type in ("variable_name", "word") and source_of(node) == "SRANDOM":
        return node.parent is None or node.parent.type not in (
            "variable_assignment",
            "command",
            "command_name",
        )
    if node.type in ("word", "string", "raw_string") and _DEVICE.fullmatch(plain(node)):
        return not any(around.type == "test_command" for around in above(node))
    found = words(node) if node.type == "command" else []
    if not found:
        return False
    name, given = plain(found[0]).rpartition("/")[2], [plain(word) for word in found[1:]]
    if name in ("shuf", "sort") and any(word.startswith(_SOURCE) for word in given):
        return False
    if name == "sort":
        letters = "".join(word for word in given if word.startswith("-") and not word.startswith("--"))
        return "R" in letters or bool({"--random-sort", "--sort=random"} & set(given))
    if name == "uuidgen":
        return not any(map(_NAMED_UUID.fullmatch, given))
    if name in ("awk", "gawk", "mawk", "nawk"):
        return any(map(_BY_TIME.search, given))
    return name == "shuf" or (name == "openssl" and given[:1] == ["rand"])


def draws_in_python(tree: ast.Module, names: PythonNames, seeded: frozenset[str]) -> Iterator[ast.Call]:
    """The calls that draw. `seeded`: modules whose generator another file of the tests seeds."""
    seeded |= seeds(tree, names)
    for node in nodes_of(tree):
        if not isinstance(node, ast.Call):
            continue
        name = names.called(node.func)
        module, _, short = name.rpartition(".")
        if not names.imports(name):
            continue
        if name in _GENERATORS:
            draws = not _is_seed(node)
        elif module in _SHARED and short not in _NO_DRAWS:
            draws = module not in seeded
        else:
            draws = name in _CALLS or (module == "secrets" and short != "compare_digest")
        if draws:
            yield node


def seeds_of(source: str) -> frozenset[str]:
    """`seeds` of a source; none for one that is not Python."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return frozenset()
    return seeds(tree, PythonNames(tree))


def seeds(tree: ast.Module, names: PythonNames) -> frozenset[str]:
    """The modules whose generator a source seeds with a value that repeats."""
    calls = [node for node in nodes_of(tree) if isinstance(node, ast.Call)]
    return frozenset(
        module
        for module in _SHARED
        if any(names.called(call.func) == f"{module}.seed" and _is_seed(call) for call in calls)
    )


def _is_seed(call: ast.Call) -> bool:
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    return bool(given) and ast.unparse(given[0]) != "None" and not _CHANGES.search(ast.unparse(given[0]))
