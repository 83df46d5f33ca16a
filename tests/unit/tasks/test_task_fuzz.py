"""Any task, from a directory, a message or a TOML file, and any scaffold.toml: loaded, or refused in one sentence that is a ValueError."""

import json
import os
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scaffolds.find import find

from orchestrator.contracts.events import ArtifactFile
from orchestrator.tasks.artifacts import with_artifacts
from orchestrator.tasks.environment import Environment
from orchestrator.tasks.harbor import Task, load
from orchestrator.tasks.settings import parse_settings
from orchestrator.tasks.verdict import parse_results, parse_reward

hurried = settings(deadline=None, max_examples=int(os.environ.get("PENSTOCK_FUZZ_EXAMPLES", "60")))
NAMES = [
    "task.toml",
    "instruction.md",
    "tests/test.sh",
    "solution/solve.sh",
    "environment/Dockerfile",
    "environment/files/a",
    "tests",
]
ODD = [
    "../x",
    "/etc/passwd",
    "a//b",
    "a/./b",
    "a\\b",
    "a\nb",
    "\ud800",
    "",
    ".",
    "environment/files/.git/HEAD",
    "x" * 5000,
    "a/../../b",
]
paths = st.sampled_from(NAMES + ODD) | st.text(max_size=12)
INSTRUCTIONS = [
    "FROM debian:12", "FROM x", "COPY a /app/a", "COPY . /", "WORKDIR /x/../..", "ENV A=$B", "ENV A ${", "RUN x", "ADD http://x y", "\\", "# x",
    "COPY --from=0 a b", 'COPY ["a"', 'ENV "', "WORKDIR relative", "COPY ../.. /app", "SHELL []", "ENV =", "WORKDIR $\\{",
]  # fmt: skip
SETTINGS = [
    "[agent]", "[metadata]", "[verifier]", "timeout_sec = nan", "timeout_sec = -1", "timeout_sec = 1e400", "name = 1", "tags = [[]]",
    "domain = 'x'", "version = '1'", "max_turns = 0", "max_turns = 99999999999999999999", "a = {", "\x00", "stall_s = inf", "a.b.c = 1",
]  # fmt: skip
dockerfiles = st.lists(st.sampled_from(INSTRUCTIONS), max_size=5).map("\n".join)
tomls = st.lists(st.sampled_from(SETTINGS), max_size=5).map("\n".join)
bodies = st.binary(max_size=30) | dockerfiles.map(str.encode) | tomls.map(str.encode)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(paths, inner, max_size=3),
    max_leaves=8,
)
GOOD = {"task.toml": b"", "instruction.md": b"do", "tests/test.sh": b"true"}


def one_sentence(error: ValueError) -> None:
    assert str(error) and "\n" not in str(error) and len(str(error)) < 2000, str(error)
    str(error).encode()  # messages for people can be shown


def used(task: Task) -> None:
    """The uses of a loaded task by intake, runners and verifiers."""
    json.dumps(task.to_message())
    assert task.instruction and task.name and len(task.content_hash) == 64
    for containers in (True, False):
        try:
            environment = task.environment(("debian:12",), containers=containers)
        except ValueError as error:
            one_sentence(error)
        else:
            assert all(".." not in path.split("/") and path.startswith("/") for path in environment.files)
    assert all(".." not in path.split("/") and not path.startswith("/") for path in task.tests_files())


@hurried
@given(changes=st.dictionaries(paths, bodies, max_size=4))
def test_a_task_of_any_files_is_usable_or_refused(changes: dict[str, bytes]) -> None:
    try:
        task = Task.from_files(GOOD | changes)
        used(task)
    except ValueError as error:
        one_sentence(error)


@hurried
@given(
    message=anything
    | st.fixed_dictionaries({"files": anything, "files_b64": anything})
    | st.builds(
        lambda files, odd: {"files": {**{p: b.decode() for p, b in GOOD.items()}, **files}, "files_b64": odd},
        st.dictionaries(paths, dockerfiles | tomls),
        st.dictionaries(paths, st.text(max_size=12), max_size=2),
    )
)
def test_any_message_is_a_task_or_is_refused(message: Any) -> None:
    try:
        used(Task.from_message(message))
    except ValueError as error:
        one_sentence(error)


@hurried
@given(text=tomls | st.text(max_size=80))
def test_any_settings_are_read_or_refused(text: str) -> None:
    try:
        parse_settings(text)
    except ValueError as error:
        one_sentence(error)


@hurried
@given(
    reward=st.text(max_size=30) | st.floats().map(str),
    results=st.text(max_size=80) | anything.map(lambda v: json.dumps(v)),
)
def test_any_reward_file_is_a_number_from_0_to_1_or_refused(reward: str, results: str) -> None:
    try:
        assert 0.0 <= parse_reward(reward).reward <= 1.0
    except ValueError as error:
        one_sentence(error)
    try:
        parse_results(results)
    except ValueError as error:
        assert str(error)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scaffold")


MANIFEST = {
    "name": '"a"', "version": '"1"', "wire": '"chat"', "argv": '["/bin/true"]', "install": "[]", "timeout_s": "1", "harvest": '["/logs/x"]',
    "answer": '"stdout"', "auxiliary": "[]", "policy_exit_codes": "[3]", "tcp": "true", "replayable": "false",
}  # fmt: skip
TABLES = [
    "[files]\n'/etc/x' = '../../etc/passwd'", "[files]\n'relative' = 'run.py'", "[files]\n'/home/agent/x' = 1", "[env]\nA = 1",
    "[env]\nA = '{gateway.nothing}'", "[needs]\nmemory_mb = -1", "[needs]\nx = 1", "[program]\nnpm = '../lock'", "[check]\nfinish = 1",
    "[files]\n'/home/agent/x' = 'link'", "[nothing]",
]  # fmt: skip
values = st.sampled_from(
    [
        "1",
        "-1",
        "nan",
        "''",
        "'../x'",
        "[]",
        "[1]",
        "['']",
        "['{gateway.x}']",
        "{a = 1}",
        "true",
        "'x\\u0000y'",
        "[[]]",
        "1979-05-27",
        "''' '''",
    ]
)


@hurried
@given(
    changes=st.dictionaries(st.sampled_from([*MANIFEST, "unknown"]), values, max_size=3),
    tables=st.lists(st.sampled_from(TABLES), max_size=2),
    raw=st.none() | st.binary(max_size=40),
)
def test_any_scaffold_toml_is_a_scaffold_or_refused(
    place: Path, changes: dict[str, str], tables: list[str], raw: bytes | None
) -> None:
    if not (place / "link").is_symlink():
        (place / "link").symlink_to("/etc/passwd")
    lines = [f"{key} = {value}" for key, value in {**MANIFEST, **changes}.items()]
    (place / "scaffold.toml").write_bytes("\n".join([*lines, *tables]).encode() if raw is None else raw)
    try:
        found = find(str(place))
        assert found.manifest.kind == "black" and found.manifest.name
    except ValueError as error:
        assert str(error)


def test_a_directory_with_pipes_or_links_that_lead_out_of_it_is_refused(tmp_path: Path) -> None:
    for name, body in GOOD.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(body)
    assert load(tmp_path).instruction == "do"
    makers: dict[str, Callable[[Path], None]] = {
        "link": lambda path: path.symlink_to("/etc/passwd"),
        "a link to a folder": lambda path: path.symlink_to("/etc"),
        "pipe": lambda path: os.mkfifo(path),
        "a dangling link": lambda path: path.symlink_to(tmp_path / "nowhere"),
        "a link upwards": lambda path: path.symlink_to("../../solution"),
    }
    for what, make in makers.items():
        odd = tmp_path / "environment" / "files" / "odd"
        odd.parent.mkdir(parents=True, exist_ok=True)
        make(odd)
        with pytest.raises(ValueError, match=r"odd is (a link|neither a file nor a folder)"):
            load(tmp_path).environment(None)
        odd.unlink()
        assert not odd.exists(), what


@hurried
@given(path=st.text(alphabet=string.ascii_letters + "/.\\", max_size=12))
def test_artifacts_never_leave_the_work_directory(path: str) -> None:
    """A path that a result names as a file is placed below /app or is refused by the sandbox, for any path that a runner writes."""
    from sandboxes.directory import locate

    files = with_artifacts(Environment(files={}), [ArtifactFile(path=path, body="eA==")]).files
    for where in files:
        try:
            name, parts = locate(where)
        except ValueError:
            continue
        assert name == "app" and ".." not in parts and "" not in parts
