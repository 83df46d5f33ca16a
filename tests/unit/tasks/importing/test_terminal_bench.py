"""`penstock tasks import terminal-bench`: terminal tasks of the older form."""

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from datetime import date
from pathlib import Path

import pytest

from orchestrator.tasks.harbor import Task, load
from orchestrator.tasks.importing.terminal_bench import SWEBENCH_SCRIPT, TEST_SCRIPT, in_a_copy
from orchestrator.tasks.traps import Rule, traps_of
from sandboxes.images.architecture import machine
from tests.import_sets import TERMINAL_BENCH, committed, write
from tests.unit.tasks.importing.rig import Reported, imported, refused


def one(tmp_path: Path, files: Mapping[str, str | bytes | None], **more: str) -> Reported:
    """The import of one task with other files; None removes one."""
    changed = {**TERMINAL_BENCH, **files}
    write(tmp_path / "set" / "sum", {path: body for path, body in changed.items() if body is not None})
    return imported("terminal-bench", tmp_path / "set", tmp_path / "to")


def why(tmp_path: Path, files: Mapping[str, str | bytes | None]) -> str:
    """Why a task with these files is refused."""
    found = one(tmp_path, files)
    assert found.outcomes == {"sum": "refused"}
    return found.reasons["sum"]


def task(tmp_path: Path) -> Task:
    return load(tmp_path / "to" / "sum")


def test_each_part_of_the_older_form_has_its_place(tmp_path: Path) -> None:
    found = one(tmp_path, {"data/more.bin": b"\0\1"})
    assert (found.code, found.outcomes, found.run) == (0, {"sum": "imported"}, {})
    made = task(tmp_path)
    assert [trap for trap in traps_of(made) if trap.file == "tests/test.sh"] == []
    assert made.instruction.startswith("Add the two numbers")
    assert (made.name, made.settings.metadata.category) == ("sum", "data")
    assert (made.settings.metadata.difficulty, made.settings.metadata.tags) == ("easy", ("numbers",))
    assert (made.settings.agent.timeout_sec, made.settings.verifier.timeout_sec) == (300.0, 45.0)
    assert made.settings.verifier.env == {}
    assert made.settings.environment == {"env": {"UNIT": "apples"}}
    assert made.solution == "#!/bin/bash\necho $((20 + 22)) > sum.txt\n"
    environment = {path for path in made.files if path.startswith("environment/")}
    assert environment == {f"environment/{name}" for name in ("Dockerfile", "numbers.txt", "data/more.bin")}
    assert {path for path in made.files if path.startswith("tests/")} == {
        "tests/test.sh",
        "tests/run-tests.sh",
        "tests/want",
    }
    assert imported("terminal-bench", tmp_path / "set" / "sum", tmp_path / "to").outcomes == {
        "sum": "unchanged"
    }


def test_a_solution_script_descriptions_and_a_folder_to_build_are_read(tmp_path: Path) -> None:
    found = one(
        tmp_path,
        {
            "task.yaml": "descriptions:\n  - {key: hard, description: no}\n  - {key: base, description: Add them.}\n",
            "solution.yaml": None,
            "solution.sh": "#!/bin/bash\necho 42 > sum.txt\n",
            "docker-compose.yaml": "services: {client: {build: {context: ./client, dockerfile: Own}, working_dir: /app/in}}\n",
            "client/Own": "FROM python:3.11\nCOPY numbers.txt tests/ /app/\n",
            "client/numbers.txt": "1\n2\n",
            "client/tests/visible": "not the hidden ones\n",
        },
    )
    assert found.code == 0, found.reasons
    made = task(tmp_path)
    assert made.instruction == "Add them." and made.solution == "#!/bin/bash\necho 42 > sum.txt\n"
    assert made.settings.environment == {"workdir": "/app/in"}
    assert {path for path in made.files if path.startswith("environment/")} == {
        f"environment/{name}" for name in ("Dockerfile", "numbers.txt", "tests/visible")
    }


@pytest.mark.parametrize(
    "copied",
    [
        "COPY numbers.txt tests/",
        "COPY numbers.txt /app/numbers.txt ./tests",
        'COPY ["numbers.txt", "tests"]',
        "COPY --from=first /numbers.txt tests",
        "COPY --from=first tests/ /app/",
        "RUN <<END\nCOPY tests /app/\nEND",
        "# COPY tests /app/",
    ],
)
def test_a_dockerfile_may_name_tests_where_it_takes_none_of_the_folder(tmp_path: Path, copied: str) -> None:
    found = one(tmp_path, {"Dockerfile": f"FROM a AS first\nFROM first\nWORKDIR /app\n{copied}\n"})
    assert found.outcomes == {"sum": "imported"}, found.reasons
    assert "environment/tests/want" not in task(tmp_path).files


def test_git_of_a_task_that_is_a_repository_is_not_in_its_environment(tmp_path: Path) -> None:
    committed(write(tmp_path / "set" / "sum", TERMINAL_BENCH))
    assert one(tmp_path, {}).outcomes == {"sum": "imported"}
    assert not any(".git" in path for path in task(tmp_path).bundle.paths)


def test_the_ignore_file_of_the_named_dockerfile_keeps_its_meaning(tmp_path: Path) -> None:
    files: dict[str, str | bytes | None] = {
        COMPOSE: "services: {client: {build: {context: ., dockerfile: docker/Own}}}\n",
        "Dockerfile": None,
        "docker/Own": "FROM debian:12\nCOPY . /app\n",
        ".dockerignore": "general\n",
        "Dockerfile.dockerignore": "of another one\n",
    }
    assert one(tmp_path / "a", files).outcomes == {"sum": "imported"}
    made = task(tmp_path / "a").files
    assert made["environment/.dockerignore"].data == b"general\n"
    assert "environment/Dockerfile.dockerignore" not in made
    assert one(tmp_path / "b", {**files, "docker/Own.dockerignore": "own\n"}).outcomes == {"sum": "imported"}
    assert task(tmp_path / "b").files["environment/Dockerfile.dockerignore"].data == b"own\n"


def test_an_image_by_name_replaces_the_dockerfile(tmp_path: Path) -> None:
    compose = "services: {client: {image: 'example.org/sum:1', command: sleep infinity}}\n"
    found = one(tmp_path, {"docker-compose.yaml": compose, "Dockerfile": None})
    assert found.code == 0 and "[environment].docker_image = 'example.org/sum:1'" in found.run["sum"]
    assert not any(path.startswith("environment/") for path in task(tmp_path).files)


COMPOSE = "docker-compose.yaml"


@pytest.mark.parametrize(
    "written",
    [
        f"platform: linux/{machine()}", "user: root", "user: 0", "user: '0:0'", "stop_grace_period: 5s", "stop_signal: SIGKILL",
        "pull_policy: never", "network_mode: bridge", "volumes: ['${T_BENCH_TASK_LOGS_PATH}:${T_BENCH_CONTAINER_LOGS_PATH}:rw']",
    ],
)  # fmt: skip
def test_keys_of_the_compose_file_that_ask_for_what_is_there_anyway_are_taken(
    tmp_path: Path, written: str
) -> None:
    found = one(tmp_path, {COMPOSE: f"services: {{client: {{build: ., {written}}}}}\n"})
    assert found.outcomes == {"sum": "imported"}, found.reasons
    assert task(tmp_path).settings.environment == {}


def test_root_of_the_compose_file_is_the_sandboxes_own_user_on_an_image_by_name_too(tmp_path: Path) -> None:
    compose = "services: {client: {image: 'debian:12', user: root}}\n"
    found = one(tmp_path, {COMPOSE: compose, "Dockerfile": None})
    assert found.outcomes == {"sum": "imported"}, found.reasons
    assert task(tmp_path).settings.agent.user == task(tmp_path).settings.verifier.user == ""


def test_limits_defaults_of_variables_and_merged_values_of_the_compose_file_are_the_tasks(
    tmp_path: Path,
) -> None:
    compose = """
x-limits: &limits {resources: {limits: {cpus: '2', memory: 1.5g}, reservations: {cpus: '1'}}}
x-own: &own {UNIT: pears, MODE: "${MODE:-slow}"}
networks: {inner: {}}
services:
  client:
    build: .
    deploy: *limits
    networks: [inner]
    environment: {<<: *own, UNIT: plums}
"""
    assert one(tmp_path, {COMPOSE: compose}).code == 0
    assert task(tmp_path).settings.environment == {
        "cpus": 2,
        "memory_mb": 1536,
        "env": {"UNIT": "plums", "MODE": "slow"},
    }


def test_what_the_older_form_does_not_read_is_kept_as_a_description(tmp_path: Path) -> None:
    described = (
        "instruction: Add.\nauthor: me\nlanguage: python\nname: sum\nlevels: [1, two, true]\nversion: 2\n"
        "created: 2026-01-01\nurl: https://a.org\nseen: null\ntags: [2024, a]\n"
    )
    assert one(tmp_path, {"task.yaml": described}).code == 0
    kept = tomllib.loads((tmp_path / "to" / "sum" / "task.toml").read_text())["metadata"]
    assert kept == {
        "name": "sum",
        "author": "me",
        "language": "python",
        "levels": [1, "two", True],
        "version": 2,
        "created": date(2026, 1, 1),
        "url": "https://a.org",
        "tags": ["2024", "a"],
    }


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"task.yaml": "instruction: [\n"}, "task.yaml line 2 is not YAML"),
        ({"task.yaml": "- a\n"}, "task.yaml must be a mapping with keys, got ['a']"),
        ({"task.yaml": "instruction: !!python/object/apply:os.system [ls]\n"}, "is not YAML"),
        ({"task.yaml": "a: &a [*a]\n"}, "task.yaml line 1 is not YAML: an alias names what holds it"),
        ({"task.yaml": "difficulty: easy\n"}, "task.yaml: instruction is missing, or not text"),
        ({"task.yaml": "instruction: a\ncolour: {red: 1}\n"}, "task.yaml: 'colour' is not known: remove it"),
        ({"task.yaml": "instruction: a\ntimeout_sec: 5\n"}, "'timeout_sec' has no effect in the older form: remove it; if timeout_sec of"),
        ({"task.yaml": "instruction: a\ntimeout: 5\n"}, "'timeout' has no effect in the older form"),
        ({"task.yaml": "instruction: a\ndocker_image: x\n"}, "'docker_image' has no effect in the older form"),
        ({"task.yaml": "instruction: a\nallow_internet: true\n"}, "'allow_internet' has no effect in the older form"),
        ({"task.yaml": "instruction: a\nenvironment: 5\n"}, "'environment' has no effect in the older form"),
        ({"task.yaml": "instruction: a\nname: other\n"}, "name = 'other' is not honoured: the folder 'sum' names the task"),
        ({"task.yaml": "instruction: a\nx: [1, null]\n"}, "'x' is not known: remove it"),
        ({"task.yaml": "instruction: a\ntags: [a, null]\n"}, "tags must be text, a number or a list of texts, got ['a', None]"),
        ({"task.yaml": "instruction: a\ntags: [{a: 1}]\n"}, "tags must be text, a number or a list of texts"),
        ({"task.yaml": "instruction: a\nmax_agent_timeout: 9\n"}, "'max_agent_timeout' is not known: write max_agent_timeout_sec"),
        ({"task.yaml": "instruction: a\nparser_name: own\n"}, "parser_name = 'own' is not honoured: only pytest and swebench are"),
        ({"task.yaml": "instruction: a\nrun_tests_in_same_shell: true\n"}, "run_tests_in_same_shell is not honoured"),
        ({"task.yaml": "instruction: a\ntest_scripts: [setup.sh]\n"}, "test_scripts is not honoured"),
        ({"task.yaml": "instruction: a\nmax_test_timeout_sec: long\n"}, "max_test_timeout_sec must be a number"),
        ({"task.yaml": "instruction: a\ntags: {a: 1}\n"}, "tags must be text, a number or a list"),
        ({"task.yaml": b"instruction: \xff\n"}, "task.yaml is not UTF-8 text"),
        ({"task.yaml": b"#" * 1_100_000}, "task.yaml has more than 1,048,576 bytes"),
        ({"run-tests.sh": None}, "run-tests.sh is missing"),
        ({"Dockerfile": None}, "Dockerfile is missing: it makes the environment"),
        ({"Dockerfile": "FROM a\nCOPY ./tests \\\n  /app/\n"}, "gives the agent tests, which must stay hidden"),
        ({"Dockerfile": "FROM a\nCOPY .git/ /app/.git\n"}, "gives the agent .git, which must stay hidden"),
        ({"Dockerfile": 'FROM a\nADD ["solution.yaml", "/"]\n'}, "gives the agent solution.yaml"),
        ({"Dockerfile": "FROM a\nCOPY --chown=1 numbers.txt 'tests' /tests/x /app/\n"}, "gives the agent tests, which"),
        ({"tests/test.sh": "exit 1\n"}, "tests/test.sh has a name that the Harbor form needs"),
        ({"solution.yaml": "a: 1\n"}, "solution.yaml must be a list of commands"),
        ({"solution.yaml": "- {command: i, append_enter: false}\n"}, "solution.yaml item 1 types keys into a program"),
        ({"solution.yaml": "- 7\n"}, "solution.yaml item 1 has no command"),
        ({COMPOSE: "services: {client: {build: .}, db: {image: a}, api: {}}\n"}, "has the further services api, db"),
        ({COMPOSE: "services: {}\n"}, "has no services"),
        ({COMPOSE: "services: [a]\n"}, "has no services"),
        ({COMPOSE: "services: {a: 7}\n"}, "the service 'a' must be a mapping, got 7"),
        ({COMPOSE: "volumes: {a: {}}\nservices: {a: {build: .}}\n"}, "'volumes' is not honoured"),
        ({COMPOSE: "services: {a: {build: ., privileged: true}}\n"}, "'privileged' of the service is not honoured, got True"),
        ({COMPOSE: "services: {a: {build: ., privileged: true}}\n"}, ": services have few rights, and keep them: remove it"),
        ({COMPOSE: "services: {a: {build: ., mem_limit: 2g}}\n"}, "got '2g': write it as deploy.resources.limits.memory"),
        ({COMPOSE: "services: {a: {build: ., cpus: 2}}\n"}, "got 2: write it as deploy.resources.limits.cpus"),
        ({COMPOSE: "services: {a: {build: ., network_mode: none}}\n"}, "got 'none': a sandbox has no network, unless"),
        ({COMPOSE: "services: {a: {build: ., network_mode: host}}\n"}, "got 'host': a sandbox has no network, unless"),
        ({COMPOSE: "services: {a: {build: ., shm_size: 1g}}\n"}, "got '1g': each service has the limits of a sandbox: remove it"),
        ({COMPOSE: "services: {a: {build: ., platform: linux/s390x}}\n"}, "got 'linux/s390x': services run on this machine's processors: name"),
        ({COMPOSE: "services: {a: {build: ., user: root}}\n", "Dockerfile": "FROM a\nUSER bob\n"}, "is root, and its Dockerfile has USER bob"),
        ({COMPOSE: "services: {a: {build: ., volumes: ['${T_BENCH_TASK_LOGS_PATH}:/x:rw']}}\n"}, "'volumes' of the service has"),
        ({COMPOSE: "services: {a: {build: ., user: me}}\n"}, "got 'me': write it as USER into the Dockerfile"),
        ({COMPOSE: "services: {a: {build: ., entrypoint: serve}}\n"}, "got 'serve': the agent begins in a sandbox where nothing runs"),
        ({COMPOSE: "services: {a: {build: ., command: serve}}\n"}, "'command' of the service is not honoured"),
        ({COMPOSE: "services: {a: {build: ., volumes: ['/:/host']}}\n"}, "'volumes' of the service has '/:/host': nothing of the task's folder"),
        ({COMPOSE: "services: {a: {build: ., volumes: ['./tests:/app/tests:ro']}}\n"}, "gives the agent tests, which must stay hidden"),
        ({COMPOSE: "services: {a: {build: ., volumes: ['.:/app']}}\n"}, "gives the agent tests and solution, which must stay hidden"),
        ({COMPOSE: "services: {a: {build: ., volumes: [{type: bind, source: ./solution.sh, target: /s}]}}\n"}, "gives the agent solution.sh"),
        ({COMPOSE: "services: {a: {build: ., deploy: {replicas: 2}}}\n"}, "write resources.limits with cpus and memory alone"),
        ({COMPOSE: "services: {a: {build: ., deploy: {resources: {reservations: {devices: []}}}}}\n"}, "'deploy' of the service is not honoured"),
        ({COMPOSE: "services: {a: {build: ., deploy: {resources: {limits: {cpus: all}}}}}\n"}, "limits.cpus must be a number above 0"),
        ({COMPOSE: "services: {a: {build: ., deploy: {resources: {limits: {cpus: 1%s}}}}}\n" % ("0" * 400)}, "limits.cpus must be a number above 0"),
        ({COMPOSE: "services: {a: {build: ., deploy: {resources: {limits: {memory: big}}}}}\n"}, "limits.memory must be a size such as 512M"),
        ({COMPOSE: "services: {a: {build: {args: {A: 1}}}}\n"}, "build.args is not honoured"),
        ({COMPOSE: "services: {a: {build: 7}}\n"}, "build must be a folder or a mapping, got 7"),
        ({COMPOSE: "services: {a: {build: ../other}}\n"}, "build.context: '../other' is not a plain relative path"),
        ({COMPOSE: "services: {a: {build: ., environment: ['A=${HOME}']}}\n"}, "environment.A = '${HOME}' takes a variable of the machine"),
        ({COMPOSE: "services: {a: {build: ., environment: 7}}\n"}, "environment must be a list or a mapping"),
    ],
)  # fmt: skip
def test_what_has_no_counterpart_or_cannot_be_read_is_refused_by_name(
    tmp_path: Path, files: Mapping[str, str | bytes | None], words: str
) -> None:
    assert words in why(tmp_path, files)
    assert list((tmp_path / "to").iterdir()) == []


def test_links_that_lead_out_devices_and_huge_files_refuse_one_task_alone(tmp_path: Path) -> None:
    for name in ("link", "script", "pipe", "huge", "good"):
        write(tmp_path / "set" / name, TERMINAL_BENCH)
    (tmp_path / "set" / "link" / "secrets").symlink_to("/etc/passwd")
    (tmp_path / "set" / "script" / "run-tests.sh").unlink()
    (tmp_path / "set" / "script" / "run-tests.sh").symlink_to("/etc/passwd")
    os.mkfifo(tmp_path / "set" / "pipe" / "tests" / "fifo")
    with (tmp_path / "set" / "huge" / "data").open("wb") as file:
        file.truncate(65 << 20)
    found = imported("terminal-bench", tmp_path / "set", tmp_path / "to")
    assert found.reasons == {
        "link": "secrets is a link that leads out of its folder: put the file there instead",
        "script": "run-tests.sh is a link that leads out of the task: put the file there instead",
        "pipe": "tests/fifo is neither a file nor a folder",
        "huge": "data is too large: a file of a task has at most 64 MB, all together 256 MB",
    }
    assert found.outcomes["good"] == "imported"


def test_tasks_are_found_at_any_depth_but_not_below_a_task_or_a_hidden_folder(tmp_path: Path) -> None:
    for place in ("sum", "sub/two", "sub/deep/three", "sum/tests/inner", ".git/four"):
        write(tmp_path / "set" / place, TERMINAL_BENCH)
    found = imported("terminal-bench", tmp_path / "set", tmp_path / "to")
    assert found.outcomes == dict.fromkeys(("sum", "two", "three"), "imported")
    found = imported("terminal-bench", tmp_path / "set" / "sub", tmp_path / "to")
    assert found.outcomes == dict.fromkeys(("two", "three"), "unchanged")


def test_links_of_the_folder_itself_to_tasks_elsewhere_are_tasks(tmp_path: Path) -> None:
    for place in ("set/sum", "all/two", "all/deep/three"):
        write(tmp_path / place, TERMINAL_BENCH)
    for name, to in {
        "two": "all/two",
        "same": "set/sum",
        "more": "all",
        "loop": "set",
        "gone": "none",
    }.items():
        (tmp_path / "set" / name).symlink_to(tmp_path / to)
    found = imported("terminal-bench", tmp_path / "set", tmp_path / "to")
    assert found.outcomes == dict.fromkeys(("sum", "two"), "imported")
    assert load(tmp_path / "to" / "two").files["environment/Dockerfile"].data


def test_a_source_without_tasks_is_refused_as_a_whole(tmp_path: Path) -> None:
    archive = tmp_path / "tasks.zip"
    archive.write_bytes(b"PK\3\4")
    (tmp_path / "empty").mkdir()
    to = tmp_path / "to"
    assert "is not a directory: unpack an archive first" in refused("terminal-bench", archive, to)
    assert "does not exist" in refused("terminal-bench", tmp_path / "none", to)
    assert "holds no task: each is a folder with task.yaml" in refused(
        "terminal-bench", tmp_path / "empty", to
    )


STARTS, ENDS = "echo SWEBench results starts here", "echo SWEBench results ends here"


def graded(tests: Path, script: str) -> str:
    """The reward of an imported test.sh, for the tests in a directory."""
    temporary = tests.with_name(f"{tests.name}-tmp")
    temporary.mkdir(exist_ok=True)
    text = re.sub(r"/tests\b", str(tests), script).replace("/logs/", f"{tests}/logs/")
    done = subprocess.run(
        ["bash", "-c", text],
        env={**os.environ, "TMPDIR": str(temporary)},
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == 0, done
    return (tests / "logs/verifier/reward.txt").read_text().strip()


@pytest.mark.parametrize(
    ("script", "reward"),
    [
        ("echo '===== 1 passed in 0.01s ====='; exit 0", "1"),
        ("echo '2 passed, 1 skipped, 3 warnings in 0.01s'; exit 0", "1"),
        ("echo 'PASSED tests/a.py::b'; exit 0", "1"),
        ("printf '\\e[32mPASSED\\e[0m tests/a.py::b\\n'; exit 0", "1"),
        ("exit 0", "0"),
        ("pytest-that-cannot-start -rA | tee /dev/null", "0"),
        ("echo '== 2 skipped in 0.01s =='; exit 0", "0"),
        ("echo 'no tests ran in 0.01s'; exit 0", "0"),
        ("echo '3 passed the door'; exit 0", "0"),
        ("echo 'PASSED tests/a.py::b'; exit 1", "0"),
        ("echo 'PASSED tests/a.py::a'; echo 'FAILED tests/a.py::b - no'; exit 0", "0"),
        ("echo 'PASSED tests/a.py::a'; printf '\\e[31mFAILED\\e[0m tests/a.py::b\\n'; exit 0", "0"),
        ("echo 'PASSED tests/a.py::a'; echo 'ERROR tests/a.py'; exit 0", "0"),
        ("echo '=== 1 failed, 2 passed in 0.01s ==='; exit 0", "0"),
        ("echo '2 passed, 1 error in 0.01s'; exit 0", "0"),
        ("echo '1 passed in 0.01s'; echo '0 failed in 1 s'; exit 0", "1"),
        ("echo '1 passed in 0.01s'; kill -9 $$", "0"),
    ],
)
def test_the_verdict_needs_success_a_passed_test_and_no_failed_one(
    tmp_path: Path, script: str, reward: str
) -> None:
    write(tmp_path, {"run-tests.sh": script, "logs/x": ""})
    assert graded(tmp_path, TEST_SCRIPT) == reward


@pytest.mark.parametrize("script", [TEST_SCRIPT, SWEBENCH_SCRIPT])
def test_tests_may_edit_their_own_files_and_a_copy_gets_the_edit(tmp_path: Path, script: str) -> None:
    edits = f"""\
sed -i s/@Disabled// "$TEST_DIR/second" || exit 1
echo more > "$(dirname "$0")/new" && [ -x "$TEST_DIR/run" ] && [ -f "$TEST_DIR/new" ] || exit 1
[ "$(stat -c %a "$TEST_DIR")" = 700 ] || exit 1
{STARTS}
grep -q @Disabled "$TEST_DIR/second" && echo "FAILED second" || echo "PASSED "
{ENDS}
"""
    write(tmp_path, {"run-tests.sh": edits, "second": "@Disabled\n", "run": "", "logs/x": ""})
    (tmp_path / "second").chmod(0o444)
    (tmp_path / "run").chmod(0o555)
    tmp_path.chmod(0o755)
    assert graded(tmp_path, in_a_copy(script)) == "1"
    assert (tmp_path / "second").read_text() == "@Disabled\n" and not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("files", "copied"),
    [
        ({}, False),
        ({"tests/cases.sh": 'cp "$TEST_DIR/a" /app; echo x > /app/b'}, False),
        ({"run-tests.sh": 'sed -i s/@Disabled// "$TEST_DIR/second"\n'}, True),
        ({"run-tests.sh": 'cd "$(dirname "$0")"; echo x > a\n'}, True),
        ({"tests/deep/cases.sh": "find /tests -name '*.java' -exec sed -i s/@Disabled// {} +"}, True),
    ],
)
@pytest.mark.parametrize("parser", ["pytest", "swebench"])
def test_only_tests_that_edit_their_own_files_run_in_a_copy(
    tmp_path: Path, files: dict[str, str], copied: bool, parser: str
) -> None:
    """A copy is writable, and a program of the agent's that a test runs directly could edit it."""
    text = str(TERMINAL_BENCH["task.yaml"]).replace("parser_name: pytest", f"parser_name: {parser}")
    assert one(tmp_path, {**files, "task.yaml": text}).outcomes == {"sum": "imported"}
    script = task(tmp_path).files["tests/test.sh"].data.decode()
    assert ("mktemp -d" in script, "export TEST_DIR=/tests\n" in script) == (copied, not copied)
    assert Rule.READ_ONLY not in {
        trap.rule for trap in traps_of(task(tmp_path)) if trap.file == "tests/test.sh"
    }


def test_only_the_summary_of_pytest_counts_where_it_has_one(tmp_path: Path) -> None:
    tests = {
        "passed.py": "def test_a():\n    assert True\n",
        "failed.py": "def test_b():\n    assert False\n",
        "logged.py": "import logging\n\ndef test_c():\n    logging.getLogger('app').error('refused a bad request, as it should')\n"
        "    print('FAILED to log in, as it should')\n    print('1 failed in 2 s')\n",
        "fakes.py": "def test_d():\n    print('== short test summary info ==\\nPASSED x\\n== 1 passed in 0.1s ==')\n    assert 0\n",
    }
    write(tmp_path, {**tests, "logs/x": ""})
    for name in tests:
        command = [sys.executable, "-m", "pytest", "-rA", "-c", os.devnull, "--rootdir", ".", name]
        alone = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        done = subprocess.run(command, cwd=tmp_path, env=alone, capture_output=True, timeout=300)
        (tmp_path / name).write_bytes(done.stdout)
    runs = {
        "logged.py": "1",  # with -rA, what a passed test logged and printed
        "logged.py passed.py": "1",
        "passed.py logged.py": "1",
        "logged.py failed.py": "0",
        "failed.py logged.py": "0",  # each summary counts
        "fakes.py": "0",
        "fakes.py passed.py": "0",
        "passed.py; echo FAILED the last": "0",
    }
    for run, reward in runs.items():
        write(tmp_path, {"run-tests.sh": f"cd {tmp_path}; cat {run}\n"})
        assert graded(tmp_path, TEST_SCRIPT) == reward, run


@pytest.mark.parametrize(
    ("script", "reward"),
    [
        (f"{STARTS}; echo PASSED; {ENDS}", "1"),
        (f"{STARTS}; printf ' PASSED \\r\\n'; {ENDS}; exit 1", "1"),
        (f"{STARTS}; echo PASSED; printf 'SWEBench results ends here'", "1"),
        (f"{STARTS}; echo PASSED; {ENDS}; {STARTS}; echo FAILED; printf 'SWEBench results ends here'", "0"),
        (f"{STARTS}; echo FAILED; {ENDS}", "0"),
        (f"{STARTS}; echo PASSED; {ENDS}; {STARTS}; echo FAILED; {ENDS}", "0"),
        (f"{STARTS}; echo PASSED", "0"),
        (f"echo PASSED; {STARTS}; {ENDS}", "0"),
        (f"{STARTS}; echo NOT; echo PASSED; {ENDS}", "0"),
        (f"{ENDS}; echo PASSED; {STARTS}", "0"),
        ("exit 0", "0"),
    ],
)
def test_the_verdict_of_swebench_is_its_last_whole_result(tmp_path: Path, script: str, reward: str) -> None:
    write(
        tmp_path / "set" / "sum", {**TERMINAL_BENCH, "task.yaml": "instruction: a\nparser_name: swebench\n"}
    )
    imported("terminal-bench", tmp_path / "set", tmp_path / "to")
    assert (tmp_path / "to" / "sum" / "tests" / "test.sh").read_text() == SWEBENCH_SCRIPT
    write(tmp_path, {"run-tests.sh": script, "logs/x": ""})
    assert graded(tmp_path, SWEBENCH_SCRIPT) == reward
