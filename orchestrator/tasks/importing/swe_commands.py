"""The test command of a row of SWE-bench or a relative, and the files that it runs."""

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Final

from orchestrator.contracts.quote import quoted
from orchestrator.tasks.bundle import check_path
from orchestrator.tasks.importing.patch import Patch
from orchestrator.tasks.importing.swe_rows import Row

FILES: Final = "{files}"
"""In a test command: the files that hold the named tests."""
MODULES: Final = "{modules}"
"""In a test command: these files as dotted names of modules below tests/."""
_PYTHON: Final = '"$(command -v python || command -v python3)"'
_IN_PYTEST: Final = re.compile(r"\S+\.py::")
PYTEST: Final = f"{_PYTHON} -m pytest -rap --tb=short -q -p no:cacheprovider {FILES}"
OWN: Final[Mapping[str, str]] = {
    "django/django": f"LC_ALL=C.UTF-8 {_PYTHON} ./tests/runtests.py --verbosity 2 --settings=test_sqlite --parallel 1 {MODULES}",
    "sympy/sympy": f"PYTHONWARNINGS=ignore::UserWarning,ignore::SyntaxWarning {_PYTHON} bin/test -C --verbose {FILES}",
}
"""By repository: the command of SWE-bench's own harness where tests have no names in pytest's form."""
PRINTERS: Final[Mapping[str, Sequence[str]]] = {
    "django/django": ("django/test/runner.py",),
    "sympy/sympy": ("sympy/testing/runtests.py", "sympy/utilities/runtests.py", "bin/get_sympy.py"),
}
"""By repository: the modules with which its own runner prints the results. Each version has some of them."""


def command_of(row: Row, given: str | None) -> tuple[str, list[str]]:
    """The test command, and the files for its place. `given`: in place of the row's own, which goes before that of the repository and pytest.
    ValueError if nothing says how the tests run, or no file is there for a place."""
    command, own = given or row.command, OWN.get(row.repo)
    # Names in the form of unittest may be sentences, with :: in them.
    names = [name for name in (*row.to_fix, *row.to_keep) if own is None or _IN_PYTEST.match(name)]
    if named := files_of(names):
        command = command or PYTEST
        return (command if _has_place(command) else f"{command} {FILES}"), named
    if command is None and own is None:
        raise ValueError(
            f"{quoted(row.to_fix[0])} is not the name of a test in pytest's form (file::test): give --test-command"
        )
    if command is None:
        command = own or ""
    elif given is None and own is not None and not _has_place(command):
        command = f"{command} {MODULES if 'runtests' in command else FILES}"
    files = _patched(row)
    if _has_place(command) and not files:
        place = FILES if FILES in command else MODULES
        raise ValueError(f"its test patch leaves no file for {place}: give a --test-command without it")
    return command, files


def filled(command: str, files: Sequence[str]) -> str:
    """A command with files in its places."""
    modules = [path.removesuffix(".py").removeprefix("tests/").replace("/", ".") for path in files]
    return command.replace(FILES, _words(files)).replace(MODULES, _words(modules))


def without_places(command: str) -> str:
    """The words of a command that are its own."""
    return command.replace(FILES, "").replace(MODULES, "")


def files_of(names: Sequence[str]) -> list[str]:
    """The files of tests in pytest's form."""
    found = dict.fromkeys(name.partition("::")[0] for name in names if "::" in name)
    for path in found:
        check_path(path)
    return list(found)


def _patched(row: Row) -> list[str]:
    """The Python files that the test patch leaves, without those that make packages; without any of Python, all."""
    if not row.tests:
        return []
    patch = Patch.of(row.tests, "test_patch")
    left = [path for path in patch.paths if path not in patch.gone]
    python = [path for path in left if path.endswith(".py") and not path.endswith("__init__.py")]
    return python or left


def _has_place(command: str) -> bool:
    return FILES in command or MODULES in command


def _words(names: Sequence[str]) -> str:
    return " ".join(shlex.quote(name) for name in names)
