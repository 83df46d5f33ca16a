"""The command line: help for every command, one sentence on stderr for messages to people, and exit statuses."""

import codecs
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import pytest
from scaffolds.scaffold_toml import from_toml

from orchestrator.cli import main
from orchestrator.cli.sql import Answer
from orchestrator.contracts.errors import ServiceError
from orchestrator.deploy.cluster.reading import load as load_topology
from orchestrator.deploy.cluster.workload import read as read_workload
from orchestrator.deploy.home import write_template
from orchestrator.pool.engine import REVISION
from orchestrator.runtime.secret_file import shared_secret
from orchestrator.settings.config import load as load_config
from sandboxes.kubernetes.settings import KubernetesSettings
from sandboxes.text_files import read_text, read_toml
from trainer.serving.settings import parse_arguments

pytestmark = pytest.mark.tier("look")

REPOSITORY = Path(__file__).resolve().parents[3]
COMMANDS = {
    "init", "config", "up", "down", "status", "doctor", "reconcile", "sql", "tasks",
    "orchestrator", "gateway", "runner", "verifier", "trainer", "sft",
}  # fmt: skip


@dataclass(frozen=True)
class Done:
    """The end of a command."""

    code: object
    out: str
    err: str


Penstock = Callable[..., Done]


@pytest.fixture
def penstock(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Penstock:
    """Runs a command in this process, without a log of its own."""
    monkeypatch.setattr(sys.modules[main.__module__], "configure", lambda *_, **__: None)
    for variable in ("DATABASE_URL", "NATS_URL"):
        monkeypatch.delenv(variable, raising=False)

    def run(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["penstock", *arguments])
        with pytest.raises(SystemExit) as caught:
            main()
        output = capsys.readouterr()
        return Done(caught.value.code, output.out, output.err)

    return run


def process(*arguments: str, **environment: str) -> Done:
    """Runs a command in a process of its own, as people do."""
    done = subprocess.run(
        [sys.executable, "-m", "orchestrator.cli", *arguments],
        cwd=REPOSITORY,
        env={**os.environ, "COLUMNS": "200", **environment},
        capture_output=True,
        text=True,
        timeout=100,
    )
    return Done(done.returncode, done.stdout, done.stderr)


def test_help_names_every_command() -> None:
    done = process("--help")
    assert (done.code, done.err) == (0, "")
    assert {line.split()[0] for line in done.out.splitlines() if line.startswith("  ")} >= COMMANDS


def refused(done: Done) -> str:
    assert done.code == 1 and done.out == ""
    assert done.err.startswith("penstock: ") and done.err.count("\n") == 1, done.err
    return done.err


@pytest.fixture
def directory(tmp_path: Path, penstock: Penstock) -> Path:
    done = penstock("init", str(tmp_path / "first"), "--name", "first")
    assert done.code == 0 and done.out.strip() == str(tmp_path / "first" / "penstock.toml")
    return tmp_path / "first"


def test_a_command_in_a_directory_without_a_run_names_those_below_it(
    penstock: Penstock, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert penstock("init", str(directory.parent / "runs/my second")).code == 0
    monkeypatch.chdir(directory.parent)
    for arguments in (("sql", "select 1"), ("status",), ("up",), ("config", "-c", ".")):
        assert "name the run with -c DIR (found: -c first, -c 'runs/my second')" in refused(
            penstock(*arguments)
        )
    (empty := directory.parent / "empty").mkdir()
    monkeypatch.chdir(empty)
    assert "name the run with -c DIR, or write a new run's with: penstock init DIR" in refused(
        penstock("top")
    )


def test_what_is_wrong_is_one_sentence(penstock: Penstock, directory: Path, tmp_path: Path) -> None:
    here = str(directory)
    (loop := tmp_path / "loop").symlink_to("loop")
    for arguments, expected in (
        (("init", here), "penstock.toml exists already"),
        (
            ("init", str(tmp_path / "second"), "--model", str(tmp_path / "nosuch")),
            f"policy.model: directory {tmp_path / 'nosuch'} does not exist",
        ),
        (("config", "-c", here, "--set", "rollout.scaffolds={shel=1.0}"), "unknown scaffold 'shel'; known: "),
        (
            ("tasks", "check", str(directory / "penstock.toml")),
            "penstock.toml is not a task: give a task directory",
        ),
        (("config", "-c", str(tmp_path)), "does not exist; write one with: penstock init"),
        (("config", "-c", here, "--set", "queue.size=3"), "queue.size is not a known key"),
        (("sql", "-c", here, "select 1"), f"run `penstock up -c {here}`, or set DATABASE_URL"),
        (
            ("up", "-c", here, "--only", "gateway,nothing"),
            "unknown process 'nothing'; known: rollout-server, orchestrator",
        ),
        (("tasks", "check", str(tmp_path / "none")), "none does not exist"),
        (("size", str(tmp_path / "none")), "none: No such file or directory; name a topology"),
        (("config", "-c", str(loop)), "loop"),
        (
            ("tasks", "publish", here, "-c", here, "--purpose", "fun"),
            "--purpose 'fun' is unknown; known: train, eval, record",
        ),
    ):
        assert expected in refused(penstock(*arguments))


def test_init_says_what_it_wrote_and_what_comes_next_and_writes_nothing_for_a_model_that_is_not_there(
    tmp_path: Path, penstock: Penstock
) -> None:
    done = penstock("init", str(tmp_path / "a run"))
    assert done.out == f"{tmp_path / 'a run' / 'penstock.toml'}\n"
    assert done.err == (
        "the run is called 'default': 'a run' cannot name a run (1 to 32 characters of a-z, 0-9, _ and -); --name chooses another\n"
        f"a run of {tmp_path / 'a run'}; next: name a policy in it (policy.model), then: penstock up -c '{tmp_path / 'a run'}'\n"
    )
    assert penstock("init", str(tmp_path / "other"), "--model", str(tmp_path / "nosuch")).code == 1
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("directory", "given", "option"),
    [
        (".", "a run", " -c 'a run'"),
        (".", "a run/penstock.toml", " -c 'a run'"),
        (".", "a run/other.toml", " -c 'a run/other.toml'"),
        ("a run", ".", ""),
        ("a run", "penstock.toml", ""),
        ("elsewhere", "../a run", " -c '{root}/a run'"),
    ],
)
def test_a_recommended_command_names_the_run_where_it_would_not_find_it(
    directory: str,
    given: str,
    option: str,
    tmp_path: Path,
    penstock: Penstock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("a run", "elsewhere"):
        (tmp_path / name).mkdir()
    for name in ("penstock.toml", "other.toml"):
        (tmp_path / "a run" / name).touch()
    monkeypatch.chdir(tmp_path / directory)
    expected = option.format(root=tmp_path)
    done = penstock("status", "-c", given)
    assert (done.code, done.out) == (3, f"nothing is running here; start it with: penstock up{expected}\n")
    assert f"run `penstock up{expected}`, or set DATABASE_URL" in penstock("sql", "-c", given, "select 1").err


def test_a_run_made_with_a_relative_model_starts_from_every_directory(
    tmp_path: Path, penstock: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.deploy.preflight.check_model", lambda *_, **__: None)
    monkeypatch.chdir(tmp_path)
    assert penstock("init", "runs/first", "--model", "models/start").code == 0
    for directory, given in ((tmp_path, "runs/first"), (tmp_path / "runs" / "first", ".")):
        monkeypatch.chdir(directory)
        resolved = json.loads(penstock("config", "-c", given).out)
        assert resolved["policy"]["model"] == str(tmp_path / "models" / "start")


@pytest.mark.parametrize(
    "command",
    ["cluster render", "size", "scale", "config", "scaffold", "audit", "gateway", "rollout server", "pods"],
)
def test_every_file_that_people_write_may_have_a_mark_and_the_line_ends_of_windows(
    command: str, tmp_path: Path
) -> None:
    def of_windows(name: str, text: str) -> Path:
        file = tmp_path / name
        file.write_bytes(codecs.BOM_UTF8 + text.replace("\n", "\r\n").encode())
        return file

    def other_encoding(file: Path) -> None:
        file.write_bytes(file.read_text("utf-8-sig").encode("utf-16"))

    topology = (REPOSITORY / "ops/cluster/topology.toml").read_text()
    read: dict[str, tuple[Path, Callable[[Path], object]]] = {
        "cluster render": (of_windows("topology.toml", topology), load_topology),
        "size": (of_windows("workload.toml", "agent_s = 1.0\n"), read_workload),
        "scale": (of_windows("topology.toml", topology), read_toml),
        "config": (of_windows("penstock.toml", '[run]\nname = "a"\n'), load_config),
        "scaffold": (
            of_windows(
                "scaffold.toml", 'name = "echo"\nversion = "1"\nwire = "chat"\nargv = ["/bin/true"]\n'
            ),
            from_toml,
        ),
        "audit": (of_windows("ledger.txt", "one\ntwo\n"), read_text),
        "gateway": (of_windows("key", "secret\n"), shared_secret),
        "pods": (of_windows("token", "secret\n"), _token_of_a_cluster),
        "rollout server": (of_windows("key", "secret\n"), _key_of_a_rollout_server),
    }
    file, reader = read[command]
    assert (found := reader(file))
    assert not isinstance(found, str) or not found.startswith("\ufeff")
    other_encoding(file)
    with pytest.raises(ValueError, match=rf"{file} is UTF-16 text: save it as UTF-8"):
        reader(file)


def _token_of_a_cluster(file: Path) -> str:
    return KubernetesSettings(token_file=str(file)).token()


def _key_of_a_rollout_server(file: Path) -> str | None:
    return parse_arguments(["--model-path", "/model", "--key-file", str(file)]).key


def test_a_file_of_another_kind_does_not_count_as_missing(penstock: Penstock, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for option, name, words in (
        ("--ledger", "fifo", "is not a plain file: name a file with one submission id per line"),
        ("--ledger", "none", "does not exist: name a file"),
        ("--witness", "fifo", "is not a directory: name one with answers.jsonl"),
        ("--witness", "none", "does not exist: name one"),
    ):
        arguments = ["audit", option, str(tmp_path / name)]
        done = penstock(*arguments)
        assert done.code == 1 and f"{tmp_path / name} {words}" in done.err


def test_a_process_whose_services_are_away_says_so_in_one_sentence(directory: Path) -> None:
    away = {"DATABASE_URL": "postgresql://u:secret@127.0.0.1:1/x", "NATS_URL": "nats://127.0.0.1:1"}
    error = refused(process("orchestrator", "-c", str(directory), **away))
    assert "PostgreSQL at 127.0.0.1:1/x cannot be used" in error and "secret" not in error


def test_up_prints_which_services_it_uses_and_why(directory: Path) -> None:
    done = process(
        *(
            "up",
            "-c",
            str(directory),
            "--only",
            "orchestrator",
            "--set",
            "services.nats_url=nats://127.0.0.1:1",
        ),
        DATABASE_URL="postgresql://u:secret@127.0.0.1:1/x",
        NATS_URL="",
    )
    lines = done.err.splitlines()
    assert done.code == 1 and "PostgreSQL at 127.0.0.1:1/x cannot be used" in lines[-1], done.err
    assert "PostgreSQL: 127.0.0.1:1/x, named by DATABASE_URL in the environment" in lines
    assert "NATS: 127.0.0.1:1, named by services.nats_url" in lines


def test_up_prints_that_services_are_embedded_and_where(
    penstock: Penstock, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(_: Path) -> None:  # the first check after the services are printed
        raise ServiceError("no room")

    monkeypatch.setattr("orchestrator.deploy.stack.check_disk", no_room)
    done = penstock("up", "-c", str(directory), "--only", "orchestrator")
    lines = done.err.splitlines()
    assert (done.code, lines[-1]) == (1, "penstock: no room")
    for service in ("PostgreSQL", "NATS"):
        assert any(line.startswith(f"{service}: embedded, in {directory}/") for line in lines), done.err


def test_the_version_is_printed_with_the_databases_revision_and_the_python(penstock: Penstock) -> None:
    done = penstock("--version")
    expected = (
        f"penstock {version('penstock')} (database revision {REVISION}, Python {platform.python_version()})"
    )
    assert (done.code, done.out, done.err) == (0, f"{expected}\n", "")


def test_status_of_nothing_is_3_and_bad_usage_is_2(penstock: Penstock, directory: Path) -> None:
    done = penstock("status", "-c", str(directory), "--json")
    assert (done.code, done.out) == (3, "{}\n")
    assert penstock("no-such-command").code == 2
    assert penstock("sql").code == 2
    assert penstock("down", "-c", str(directory)).out == "nothing was running\n"


def test_the_resolved_configuration_is_printed_without_services(
    penstock: Penstock, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://u:secret@h/x")
    done = penstock("config", "-c", str(directory), "--set", "queue.capacity=40")
    assert done.code == 0 and '"capacity": 40' in done.out and '"window": 12' in done.out
    assert "u:secret" not in done.out


def test_generated_tasks_are_well_formed(penstock: Penstock, tmp_path: Path) -> None:
    suite = tmp_path / "suite"
    assert penstock("tasks", "generate", str(suite), "--train", "5", "--heldout", "2").code == 0
    done = penstock("tasks", "check", str(suite / "train"), str(suite / "heldout"))
    assert (done.code, done.out) == (0, "7 tasks are well-formed\n")
    assert "train exists already" in refused(penstock("tasks", "generate", str(suite)))


def test_a_dockerfile_that_cannot_be_stood_for_is_named_before_anything_is_published(
    penstock: Penstock, directory: Path, tmp_path: Path
) -> None:
    task = tmp_path / "task"
    files = {
        "task.toml": "",
        "instruction.md": "x",
        "tests/test.sh": "x",
        "environment/Dockerfile": "FROM own:1",
    }
    for path, text in files.items():
        (task / path).parent.mkdir(parents=True, exist_ok=True)
        (task / path).write_text(text)
    away = (
        "--set",
        "services.database_url=postgresql://127.0.0.1:1/x",
        "--set",
        "services.nats_url=nats://127.0.0.1:1",
    )
    listed = ("--set", 'sandbox.base_images=["own:1"]')
    expected = "environment/Dockerfile line 1: FROM own:1: the sandbox's own system stands for debian:12, "
    assert expected in refused(penstock("tasks", "check", str(task)))
    assert expected in refused(penstock("tasks", "publish", str(task), "-c", str(directory), *away))
    assert penstock("tasks", "check", str(task), "-c", str(directory), *listed).code == 0


def test_a_run_is_called_as_its_directory_where_that_can_be(penstock: Penstock, tmp_path: Path) -> None:
    for directory, named in (("first", "first"), ("My run", "default")):
        write_template(tmp_path / directory, "", 'a "b" \\ c')
        kept = json.loads(penstock("config", "-c", str(tmp_path / directory)).out)
        model = str(tmp_path / directory / 'a "b" \\ c')
        assert (kept["run"]["name"], kept["policy"]["model"]) == (named, model)
    error = refused(penstock("init", str(tmp_path / "second"), "--name", "Second"))
    assert "'Second' is not a valid name" in error and not (tmp_path / "second").exists()
    assert f"penstock init {tmp_path / 'second'}\n" in refused(
        penstock("config", "-c", str(tmp_path / "second"))
    )


def test_a_row_that_is_too_wide_for_a_table_stands_upright(
    monkeypatch: pytest.MonkeyPatch, penstock: Penstock, directory: Path
) -> None:
    async def answered(*_: object, **__: object) -> Answer:
        return Answer(columns=[f"a_long_column_{n}" for n in range(9)], rows=[tuple(range(9))])

    monkeypatch.setattr("orchestrator.cli.sql.query", answered)
    monkeypatch.setattr("orchestrator.cli.tables.looked_at", lambda: True)
    monkeypatch.setenv("DATABASE_URL", "postgresql://127.0.0.1:1/x")
    monkeypatch.setenv("NATS_URL", "nats://127.0.0.1:1")
    monkeypatch.setenv("COLUMNS", "80")
    output = penstock("sql", "-c", str(directory), "select 1").out
    assert "a_long_column_8" in output and "\u2502" in output and output.endswith("1 row\n")
    monkeypatch.setattr("orchestrator.cli.tables.looked_at", lambda: False)
    first, second = penstock("sql", "-c", str(directory), "select 1").out.splitlines()
    assert (first.split(), second.split()) == ([f"a_long_column_{n}" for n in range(9)], list("012345678"))


def test_control_characters_in_a_foreign_name_do_not_move_the_cursor(
    penstock: Penstock, tmp_path: Path
) -> None:
    error = penstock("tasks", "check", str(tmp_path / "\x1b]0;owned\x07\x1b[2Jtask")).err
    assert error.startswith("penstock: ") and "\\x1b]0;owned\\x07\\x1b[2Jtask does not exist" in error
    assert not {"\x1b", "\x07"} & set(error)


def test_config_says_what_this_machine_lacks_and_prints_all_the_same(
    penstock: Penstock, directory: Path
) -> None:
    def warnings(*assignments: str) -> list[str]:
        sets = [part for each in assignments for part in ("--set", each)]
        done = penstock("config", "-c", str(directory), *sets)
        assert done.code == 0 and json.loads(done.out)["run"]["name"] == "first"
        return [line.removeprefix("penstock: ") for line in done.err.splitlines()]

    assert warnings() == [
        "policy.model names no directory: name a Hugging Face directory, or rollout servers in servers.urls"
    ]
    urls = 'servers.urls=["http://127.0.0.1:1"]'
    assert warnings(urls) == []
    advice = ": name a Hugging Face directory, or make one (ops/guides/start.md, A policy)"
    assert warnings("policy.model=/nosuch/model") == [
        f"policy.model: directory /nosuch/model does not exist{advice}"
    ]
    assert warnings("policy.model=models/x") == [
        f"policy.model: directory {Path.cwd() / 'models/x'} does not exist{advice}"
    ]
    for assignment, sentence in (
        ("gateway.secret_file=/nosuch/secret", "gateway.secret_file: file /nosuch/secret does not exist"),
        ("servers.key_file=/nosuch/key", "servers.key_file: file /nosuch/key does not exist"),
        (
            "policy.directory=/nosuch/a/b",
            "policy.directory: directory /nosuch/a, the parent of /nosuch/a/b, does not exist",
        ),
        ('rollout.scaffolds={"./mine"=1.0}', "rollout.scaffolds: "),
    ):
        assert [line.startswith(sentence) for line in warnings(urls, assignment)] == [True]


def test_an_unknown_key_is_named_with_the_nearest_one_at_every_depth(
    penstock: Penstock, directory: Path
) -> None:
    for assignment, meant in (
        ("queue.capcity=3", "capacity"),
        ("ques.capacity=3", "queue"),
        ("sandbox.container.engin=x", "engine"),
        ("sandbox.kubernetes.namespce=x", "namespace"),
        ("timeouts.disk_retry=3", "disk_retry_s"),
    ):
        error = refused(penstock("config", "-c", str(directory), "--set", assignment))
        assert f"did you mean {meant}?" in error, error
