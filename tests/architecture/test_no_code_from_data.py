"""Nothing that comes in from outside is run: no pickles, no evaluation, no shell, no unpacking of archives, no yaml but the safe kind."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.test_architecture import CODE, REPOSITORY

MODULES = {
    "pickle",
    "cPickle",
    "_pickle",
    "dill",
    "cloudpickle",
    "joblib",
    "shelve",
    "marshal",
    "pty",
    "commands",
}
BUILTINS = {"eval", "exec", "__import__"}
CALLS = {
    "os.system", "os.popen", "os.execl", "subprocess.getoutput", "subprocess.getstatusoutput", "shutil.unpack_archive",
    "asyncio.create_subprocess_shell", "tempfile.mktemp", "torch.load", "yaml.load", "yaml.load_all", "yaml.full_load",
    "yaml.unsafe_load", "ssl._create_unverified_context", "np.load", "numpy.load",
}  # fmt: skip
METHODS = {"extractall", "extract", "allow_pickle", "create_subprocess_shell"}
FLAGS = {
    ("shell", True),
    ("allow_pickle", True),
    ("verify", False),
    ("trust_remote_code", True),
    ("weights_only", False),
}


def dangers(source: str) -> Iterator[tuple[int, str]]:
    """(line, what) for every use of a function that could run or unpack content from outside."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, n.name) for n in names if n.name.partition(".")[0] in MODULES)
            case ast.ImportFrom(module=str(module), level=0) if module.partition(".")[0] in MODULES:
                yield node.lineno, module
            case ast.Call(func=function, keywords=keywords):
                name = ast.unparse(function)
                last = name.rpartition(".")[2]
                if name in BUILTINS | CALLS or (name not in (last, "func.extract") and last in METHODS):
                    yield node.lineno, name
                for keyword in keywords:
                    if (
                        isinstance(keyword.value, ast.Constant)
                        and (keyword.arg, keyword.value.value) in FLAGS
                    ):
                        yield node.lineno, f"{keyword.arg}={keyword.value.value!r}"


PRODUCT = [path for path in CODE if path.relative_to(REPOSITORY).parts[0] != "tests"]


def test_nothing_unpickles_evaluates_unpacks_or_asks_a_shell() -> None:
    found = [
        f"{path.relative_to(REPOSITORY)}:{line}: {what}"
        for path in PRODUCT
        for line, what in dangers(path.read_text())
    ]
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle", "from dill import loads", "import shelve as s", "eval(x)", "exec(x)", "subprocess.run(x, shell=True)",
        "os.system(x)", "yaml.load(x)", "tarfile.open(x).extractall(y)", "archive.extract(member)", "torch.load(x)",
        "np.load(x, allow_pickle=True)", "shutil.unpack_archive(x)", "load(x, weights_only=False)",
        "AutoModel.from_pretrained(x, trust_remote_code=True)", "requests.get(x, verify=False)",
        "def f():\n    import marshal", "await asyncio.create_subprocess_shell(x)",
    ],
)  # fmt: skip
def test_the_look_finds_each_of_them(source: str) -> None:
    assert list(dangers(source))


@pytest.mark.parametrize(
    "source", ["model.eval()", "yaml.safe_load(x)", "ast.literal_eval(x)", "subprocess.run(x, shell=False)"]
)
def test_the_look_leaves_alone_what_is_harmless(source: str) -> None:
    assert list(dangers(source)) == []


def test_every_process_takes_the_database_role_of_its_kind() -> None:
    """Every file that opens the data pool as its owner is on this list; gateway, runners, trainer and readers are not."""
    owners = {
        "orchestrator/app.py",
        "orchestrator/deploy/stack.py",
        "orchestrator/cli",
        "orchestrator/deploy/cluster/wait.py",
        "migrations",
        "ops/lab/benchmarks",
        "ops/lab/chaos",
        "orchestrator/deploy/embedded/configured.py",
    }

    def role(call: ast.Call) -> str:
        given = [*call.args[1:2], *(k.value for k in call.keywords if k.arg == "role")]
        return ast.unparse(given[0]) if given else "Role.OWNER"

    opened: dict[str, set[str]] = {}
    for path in PRODUCT:
        name = path.relative_to(REPOSITORY).as_posix()
        if name.startswith("sandboxes/"):  # a leaf, which knows no database
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in (
                "open_engine",
                "create_async_engine",
                "opened",
                "opened_run",
            ):
                opened.setdefault(name, set()).add(role(node))
    for makes in ("orchestrator/pool/engine.py", "orchestrator/pool/opened.py"):
        opened.pop(makes)
    as_owner = {name for name, roles in opened.items() if "Role.OWNER" in roles}
    assert {
        name for name in as_owner if not any(Path(name).is_relative_to(owner) for owner in owners)
    } == set()
    assert opened["orchestrator/gateway/server.py"] == {"Role.GATEWAY"}
    assert opened["orchestrator/runner/worker.py"] == {"Role.RUNNER"}
    assert opened["trainer/loop.py"] == {"Role.TRAINER"}
