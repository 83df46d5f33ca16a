"""Declaring and finding scaffolds."""

import re
from pathlib import Path

import pytest
from scaffolds import find
from scaffolds.base import AgentLimits, BlackBoxDefaults, Context, Endpoint, Launch, Llm, TaskView
from scaffolds.declare import checked_name, scaffold, source_sha
from scaffolds.scaffold_toml import from_toml

from orchestrator.contracts.ids import check_name, is_name
from orchestrator.contracts.limits import MAX_KEPT_LOG
from orchestrator.runner.kept_log import kept_log
from orchestrator.tasks.extras import replaced
from sandboxes.base import ExecResult, KilledBy, Sandbox, SandboxSpec
from sandboxes.bubblewrap import BubblewrapProvider

TASK = TaskView(name="t", domain="general", instruction="say {gateway.token}")
ENDPOINT = Endpoint("http://gateway/s/x/v1", "x", "/run/penstock/gateway.sock")
LIMITS = AgentLimits(turns=4, context=2048, tool_timeout_s=10.0, timeout_s=30.0)
MINIMAL = (
    'name = "echo"\nversion = "1"\nargv = ["/bin/echo", "{limits.turns} {unknown.key} {gateway.token}"]\n'
)


class White:
    async def run(self, task: TaskView, llm: Llm, sandbox: Sandbox, ctx: Context) -> str:
        return ""


class Black(BlackBoxDefaults):
    def launch(self, task: TaskView, gateway: Endpoint, limits: AgentLimits) -> Launch:
        return Launch(argv=["true"])


def written(directory: Path, toml: str) -> Path:
    path = directory / "scaffold.toml"
    path.write_text(toml)
    return path


def test_a_class_with_run_is_a_white_box_and_one_with_launch_a_black_box() -> None:
    white = find.scaffold_of(scaffold(name="w", version="1")(White))
    black = find.scaffold_of(scaffold(name="b", version="2", wire="chat")(Black))
    assert (white.manifest.kind, black.manifest.kind) == ("white", "black")
    assert white.manifest.sha == source_sha(Path(__file__)) == black.manifest.sha
    assert isinstance(white.white(), White) and white.white() is not white.white()
    with pytest.raises(ValueError, match="a white box needs `run`"):
        scaffold(name="n", version="1")(type("Neither", (), {}))
    with pytest.raises(ValueError, match="a white box speaks the wire native"):
        scaffold(name="w", version="1", wire="chat")(White)


@pytest.mark.parametrize("name", ["", "Demo", "a.b", "a b", "a\n", "ü", "x" * 33, "x" * 32, "a-b_9"])
def test_a_scaffold_has_the_rule_and_the_sentence_of_every_other_name(name: str) -> None:
    if is_name(name):
        assert checked_name(name) == name
        return
    with pytest.raises(ValueError, match="is not a valid name: use") as other:
        check_name("scaffold", name)
    with pytest.raises(ValueError, match="^" + re.escape(str(other.value)) + "$"):
        checked_name(name)


@pytest.mark.parametrize("name", find.known())
def test_a_scaffold_declares_each_variable_that_replaces_the_tasks(name: str) -> None:
    found = find.find(name)
    given = found.black().launch(TASK, ENDPOINT, LIMITS).env if found.manifest.kind == "black" else {}
    assert set(found.manifest.env) == set(given)
    sentences = list(replaced(["MY_OWN", *given], found.manifest))
    assert len(sentences) == len(given) and all(
        f"not honoured by the scaffold {name}" in each for each in sentences
    )


def test_the_digest_changes_with_any_source_file_and_with_no_byte_code(tmp_path: Path) -> None:
    written(tmp_path, MINIMAL)
    before = source_sha(tmp_path)
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "x.pyc").write_bytes(b"x")
    assert source_sha(tmp_path) == before
    (tmp_path / "more.py").write_text("")
    assert source_sha(tmp_path) != before


def test_a_toml_scaffold_fills_in_placeholders_once_and_leaves_other_braces_alone(tmp_path: Path) -> None:
    (tmp_path / "run.py").write_bytes(b"print('{task.instruction}')")
    (tmp_path / "blob").write_bytes(b"\xff{task.name}")
    files = '[files]\n"/home/agent/run.py" = "run.py"\n"/home/agent/blob" = "blob"\n[env]\nURL = "{gateway.base_url}"\n'
    found = from_toml(written(tmp_path, MINIMAL + files))
    black = found.black()
    launch = black.launch(TASK, ENDPOINT, LIMITS)
    relayed, argv = launch.argv[:5], launch.argv[5:]
    assert argv == ["/bin/echo", "4 {unknown.key} x"] and relayed[3] == ENDPOINT.socket
    assert launch.env == {"URL": f"http://127.0.0.1:{relayed[4]}/s/x/v1"}
    placed = black.files(TASK, ENDPOINT, LIMITS)
    assert placed["/home/agent/run.py"].data == b"print('say {gateway.token}')"
    assert placed["/home/agent/blob"].data == b"\xff{task.name}"
    assert (found.manifest.kind, found.manifest.wire, found.manifest.name) == ("black", "chat", "echo")


def test_a_toml_scaffold_that_wants_no_tcp_gets_the_socket_alone(tmp_path: Path) -> None:
    black = from_toml(
        written(tmp_path, "tcp = false\n" + MINIMAL + '[env]\nURL = "{gateway.root_url}"\n')
    ).black()
    launch = black.launch(TASK, ENDPOINT, LIMITS)
    assert launch.argv == ["/bin/echo", "4 {unknown.key} x"] and launch.env == {"URL": "http://gateway/s/x"}
    assert not black.files(TASK, ENDPOINT, LIMITS)


@pytest.mark.parametrize(
    ("toml", "problem"),
    [
        ('version = "1"\nargv = ["x"]', "name must be text"),
        ('name = "A b"\nversion = "1"\nargv = ["x"]', "scaffold 'A b' is not a valid name"),
        ('name = "a"\nversion = "1"', "argv must name the program"),
        (MINIMAL + 'wire = "native"', "wire must be chat, responses or anthropic"),
        (MINIMAL + "timeout_s = -1", "timeout_s must be a number of seconds"),
        (MINIMAL + "speed = 1", "speed is not a known key"),
        (
            MINIMAL + 'stdin = "{task.instrucion}"',
            r"stdin has the unknown placeholder \{task.instrucion\}; did you mean \{task.instruction\}",
        ),
        (
            MINIMAL + '[env]\nURL = "{gatway.base_url}"',
            r"\[env\] has .*\{gatway.base_url\}; did you mean \{gateway.base_url\}",
        ),
        (
            MINIMAL + 'stdin = "{limits.patience_in_days}"',
            r"stdin has .*; known: gateway.base_url, .*limits.turns",
        ),
        (MINIMAL + '[files]\n"/x" = "absent"', r"\[files\] /x: "),
        (MINIMAL + '[files]\n"x" = "scaffold.toml"', r"\[files\] has 'x': write the absolute path"),
        (MINIMAL + '[files]\n"/a/../x" = "scaffold.toml"', r"\[files\] has '/a/../x': write the absolute"),
        (MINIMAL + '[env]\n"A=B" = "x"', r"\[env\]: 'A=B' is not a valid environment variable name"),
        (MINIMAL + '[env]\nA = "\\u0000"', r"\[env\] has a NUL character"),
        (MINIMAL + 'install = ["a\\u0000"]', "install has a NUL character"),
        (MINIMAL + 'answer = "all"', "answer must be one of last line, stdout, none"),
        (
            MINIMAL + 'harvest = ["/logs/a"]\nanswer = "stdout"',
            "answer has no effect next to harvest: remove one",
        ),
        (MINIMAL + 'harvest = ["/logs/a"]\nanswer = "last line"', "answer has no effect next to harvest"),
        (MINIMAL + 'skills = "/home/agent/../x"', "skills must be a directory below /home/agent, without .."),
        (MINIMAL + 'skills = "/home/agent/a\\u0000"', "skills must be a directory below /home/agent"),
        (MINIMAL + 'skills = "/opt/x"', "skills must be a directory below /home/agent"),
        (MINIMAL + '[program]\nnpm = "scaffold.toml"\ninside = "/opt/../x"', r"\[program\] .* without \.\."),
        (MINIMAL + 'tcp = "yes"', "tcp must be true or false"),
        (MINIMAL + '[program]\nnpm = "x.json"', r"\[program\] must hold npm or python"),
        (
            MINIMAL + '[program]\nnpm = "x.json"\ninside = "/opt/x"',
            r"\[program\] npm: .*x.json does not exist",
        ),
        (MINIMAL + "[needs]\nmemory = 1", r"\[needs\] must hold whole numbers from 0 on for memory_mb"),
        (MINIMAL + '[check]\nend = "x"', r"\[check\] end is not a known key"),
        ("name =", "scaffold.toml is not valid TOML: "),
    ],
)
def test_a_bad_toml_scaffold_gets_one_sentence_with_the_key(tmp_path: Path, toml: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        from_toml(written(tmp_path, toml))


def test_tools_that_begin_conversations_need_many_of_them(tmp_path: Path) -> None:
    many = 'conversations = "many"\nsub_agents = ["task"]\n'
    assert from_toml(written(tmp_path, many + MINIMAL)).manifest.sub_agents == ("task",)
    with pytest.raises(ValueError, match='sub_agents needs conversations = "many"'):
        from_toml(written(tmp_path, 'sub_agents = ["task"]\n' + MINIMAL))


def test_a_scaffold_is_found_by_path_by_module_and_by_name(tmp_path: Path) -> None:
    path = written(tmp_path, MINIMAL)
    assert find.find(str(path)).manifest == find.find(str(tmp_path)).manifest == from_toml(path).manifest
    assert find.find("scaffolds.shell:Shell") is find.find("shell")
    assert "shell" in find.known()
    for unknown in ("shel", "scaffolds.shell:Absent", "no_such_module:X", str(tmp_path / "absent.toml")):
        with pytest.raises(ValueError, match=r"known: .*shell|cannot be imported|does not exist"):
            find.find(unknown)
    with pytest.raises(ValueError, match="is not declared as a scaffold"):
        find.find("scaffolds.base:TaskView")


def test_exit_0_is_success_and_anything_else_the_platform_s_fault_unless_declared(tmp_path: Path) -> None:
    black = from_toml(written(tmp_path, MINIMAL + "policy_exit_codes = [3]")).black()

    def fault(code: int, killed_by: KilledBy = KilledBy.NONE) -> str | None:
        found = black.classify(
            ExecResult(
                exit_code=code,
                stdout=b"",
                stderr=b"",
                truncated=False,
                killed_by=killed_by,
                wall_s=0.0,
                cpu_s=0.0,
            ),
            None,
        )
        return found.kind if found else None

    assert [fault(0), fault(3), fault(1), fault(137, KilledBy.TIMEOUT)] == [
        None,
        "policy",
        "infra",
        "timeout",
    ]


def test_a_directory_stands_for_its_toml_or_its_only_python_file(tmp_path: Path) -> None:
    source = (
        'from scaffolds.declare import scaffold\n\n@scaffold(name="{}", version="1")\nclass Mine:\n'
        '    async def run(self, task, llm, sandbox, ctx):\n        return ""\n'
    )
    (tmp_path / "mine.py").write_text(source.format("mine"))
    assert find.find(f"{tmp_path}/").manifest.name == "mine"
    (tmp_path / "other.py").write_text(source.format("other"))
    with pytest.raises(ValueError, match=r"has no scaffold.toml and 2 Python files: name the one"):
        find.find(f"{tmp_path}/")
    (tmp_path / "scaffold.toml").write_text(MINIMAL)
    assert find.find(f"{tmp_path}/").manifest.name == "echo"


def test_a_white_box_is_replayable_unless_it_says_no_and_a_program_only_if_it_says_so(tmp_path: Path) -> None:
    declared = [
        find.scaffold_of(scaffold(name="w", version="1")(type("One", (White,), {}))),
        find.scaffold_of(scaffold(name="w", version="1", replayable=False)(type("Two", (White,), {}))),
        find.scaffold_of(scaffold(name="b", version="1", wire="chat")(type("Three", (Black,), {}))),
        find.scaffold_of(
            scaffold(name="b", version="1", wire="chat", replayable=True)(type("Four", (Black,), {}))
        ),
        from_toml(written(tmp_path, MINIMAL)),
        from_toml(written(tmp_path, "replayable = true\n" + MINIMAL)),
    ]
    assert [found.manifest.replayable for found in declared] == [True, False, False, True, False, True]


@pytest.mark.anyio
@pytest.mark.parametrize("answer", ["last line", "stdout"])
async def test_a_program_that_prints_more_than_a_sandbox_keeps_has_no_answer_and_its_log_says_so(
    tmp_path: Path, answer: str
) -> None:
    black = from_toml(written(tmp_path, f'{MINIMAL}answer = "{answer}"\n')).black()
    printed = "import sys\nfor n in range(100_000): print(f'{n:017}')\nprint('The final answer is 42')\n"
    async with BubblewrapProvider().open(SandboxSpec(files={})) as sandbox:
        ended = await sandbox.exec(["python3", "-c", printed])
        assert ended.ok and await black.harvest(sandbox, ended) is None
        assert kept_log(ended).endswith("\n[more was printed, and dropped]")
        assert len(kept_log(ended)) == MAX_KEPT_LOG
        ended = await sandbox.exec(["python3", "-c", f"{printed}print('Done', file=sys.stderr)"])
        assert kept_log(ended).endswith("\n[more was printed, and dropped]\nDone\n")
        ended = await sandbox.exec(["python3", "-c", f"{printed.replace('print(f', 'sys.stderr.write(f')}"])
        assert kept_log(ended).endswith("\n[more was printed, and dropped]")
        assert ended.truncated and await black.harvest(sandbox, ended) == "The final answer is 42"
        ended = await sandbox.exec(["echo", "42"])
        assert (await black.harvest(sandbox, ended), kept_log(ended)) == ("42", "42\n")


@pytest.mark.anyio
async def test_the_name_of_a_harvested_file_is_one_name_whatever_it_holds(tmp_path: Path) -> None:
    black = from_toml(written(tmp_path, MINIMAL + 'wire = "chat"\nharvest = ["/logs/answer*.txt"]')).black()
    async with BubblewrapProvider().open(SandboxSpec(files={})) as sandbox:
        assert await black.harvest(sandbox, await sandbox.exec(["true"])) is None
        ended = await sandbox.exec(
            ["bash", "-c", r"echo 7 > $'/logs/answer 1\n\r.txt'; echo 8 > /logs/answer"]
        )
        assert await black.harvest(sandbox, ended) == "7\n"
