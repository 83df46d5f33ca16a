"""Every key of a task's settings is honoured, descriptive, or refused by name; the guide lists which."""

import re
import runpy
from pathlib import Path

import pytest

from orchestrator.contracts.network import Grant
from orchestrator.settings.sandbox import SandboxSection
from orchestrator.tasks.admit import check_admissible
from orchestrator.tasks.harbor import Task
from orchestrator.tasks.keys import KEYS, Treatment, check_keys
from orchestrator.tasks.resources import granted
from orchestrator.tasks.settings import parse_settings
from sandboxes.base import File, Limits

GUIDE = Path(__file__).resolve().parents[3] / "ops" / "guides" / "task-keys.md"
FILES = {"instruction.md": b"do it", "tests/test.sh": b"echo 1 > /logs/verifier/reward.txt"}


def task(toml: str = "", **files: bytes) -> Task:
    return Task.from_files({**FILES, "task.toml": toml.encode(), **files})


@pytest.mark.parametrize(
    "toml",
    [
        "",
        'version = "1.0"',
        'version = "2.0"',
        'schema_version = "1.4"',
        'source = "x/y"',
        '[task]\nname = "a/b"\ndescription = "d"\nauthors = [{name = "n"}]\nkeywords = ["k"]\nversion = "3"',
        '[task]\nname = "a/b"\nformat = "single_turn"\nlanguages = ["c", "go"]\nid = 7',
        '[task]\ntags = ["a"]\nurl = "https://a.org"\nservices = "db"\nauthor = "n"\nsource = "x"\nlicense = "MIT"',
        "[task]\ncreated = 2026-01-01\nat = [2026-01-01T10:00:00Z, 10:00:00]",
        "[metadata]\nanything = {at = [1, 2]}",
        "[environment]\ncpus = 2\nmemory_mb = 2048\nstorage_mb = 1024\nbuild_timeout_sec = 600.0",
        '[environment]\nmemory = "2G"\nstorage = "512M"\ngpus = 0\nallow_internet = false\nos = "linux"',
        '[environment]\nnetwork_mode = "no-network"\nallow_internet = false',
        '[environment]\nmemory_mb = 2048.0\nstorage_mb = 512.0\ngpus = 0.0\nos = "Linux"',
        '[environment.healthcheck]\ncommand = "true"\nretries = 2.0',
        '[environment]\nenv = {A = "pre ${FOO}", B = "${FOO:-b}", C = "${FOO:-}", D = "${", E = "${A}${B}"}',
        '[environment]\nnetwork_mode = "no-network"\nmcp_servers = []\nallowed_hosts = []\nenv = {A = "1"}',
        '[verifier]\nenvironment_mode = "separate"\ncollect = []\nenv = {EXPECTED = "a$b"}',
        '[solution]\nenv = {A = ""}',
        '[verifier]\nperformance = "tests_passed"',
        '[verifier]\nenvironment_mode = "shared"',
        '[verifier.environment]\ndocker_image = "debian:12"\nworkdir = "/app/x"\nenv = {A = "1"}\nmemory_mb = 100\nnetwork_mode = "no-network"',
        '[environment]\ndocker_image = "debian:12"',
        '[environment.healthcheck]\ncommand = "true"\ninterval_sec = 0\ntimeout_sec = 1.5\nstart_period_sec = 2\nstart_interval_sec = 1\nretries = 1',
        "artifacts = []\nsteps = []",
        'artifacts = ["/app/out", "out", "/tmp/x", {source = "/logs/artifacts", exclude = ["*.log"], destination = "a", service = "main"}]',
        '[[verifier.collect]]\ncommand = "true"\nservice = "main"\ntimeout_sec = 5',
    ],
)
def test_a_task_that_asks_for_nothing_else_is_taken(toml: str) -> None:
    check_admissible(task(toml), SandboxSection())


@pytest.mark.parametrize(
    ("toml", "sentence"),
    [
        ('[task]\ntimeout = "600"', "[task].timeout is not known"),
        ('[task]\nnames = "a"', "[task].names is not known: write [task].name"),
        ('[task]\nartifact = "/app/out"', "[task].artifact is not known: remove it, or keep it below [metadata]"),
        ("[task]\nmin_reward = 0.5", "[task].min_reward is not known"),
        ('[task]\ndomain = "coding"', "[task].domain is not known: write [metadata].domain"),
        ('[task]\ndifficulty = "hard"', "[task].difficulty is not known: write [metadata].difficulty"),
        ('[task]\ncategory = "x"', "[task].category is not known: write [metadata].category"),
        ("[task]\nscoring = {method = 1}", "[task].scoring is not known"),
        ('[environment]\ndocker_image = "a"', "[environment].docker_image = 'a': the sandbox's own system stands for debian:12, "),
        ('[environment]\ndocker_image = "a b"', "[environment].docker_image must be the name of an image, got 'a b'"),
        ("[environment]\ngpus = 1", "[environment].gpus = 1 is not honoured: sandboxes have no GPU"),
        ("[environment]\ngpus = false", "[environment].gpus = False is not honoured"),
        ("[environment]\nallow_internet = true", "[environment].allow_internet = True is not honoured: sandboxes"),
        ('[environment]\nnetwork_mode = "public"', "[environment].network_mode = 'public' is not honoured"),
        ('[agent]\nallowed_hosts = ["a.org"]', "[agent].allowed_hosts = ['a.org'] is not honoured"),
        ("[environment.healthcheck]", "[environment].healthcheck.command is missing"),
        ("[environment]\nhealthcheck = 1", "[environment].healthcheck must be a table, got 1"),
        ('[environment.healthcheck]\ncommand = ""', "[environment].healthcheck.command must be a shell command, got ''"),
        ('[environment.healthcheck]\ncommand = "a"\nretries = 0', "[environment].healthcheck.retries must be a whole number from 1 to 1000, got 0"),
        ('[environment.healthcheck]\ncommand = "a"\ninterval_sec = inf', "[environment].healthcheck.interval_sec must be seconds from 0 to 3600"),
        ('[environment.healthcheck]\ncommand = "a"\ninterval_s = 3', ".interval_s is not known: write [environment].healthcheck.interval_sec"),
        ('[environment]\n"healthcheck.command" = "a"', "has the key 'healthcheck.command', which is not known: write it without"),
        ('[[environment.mcp_servers]]\nname = "m"', "[environment].mcp_servers.command is missing"),
        ('[[environment.mcp_servers]]\nname = "m m"\ncommand = "a"', "[environment].mcp_servers.name must be 1 to 64 letters"),
        ('[[environment.mcp_servers]]\nname = "m"\nurl = "http://a"', ".mcp_servers.url = 'http://a' is not honoured: agents are given servers"),
        ('[[environment.mcp_servers]]\nname = "m"\ntransport = "sse"', "[environment].mcp_servers.transport = 'sse' is not honoured"),
        ('[[environment.mcp_servers]]\nname = "m"\ncommand = "a"\nargs = "b"', ".mcp_servers.args must be a list of texts"),
        ('[environment]\nmcp_servers = [{name = "m", command = "a"}, {name = "m", command = "b"}]', "must be servers of different names"),
        ('[agent]\nuser = "a:b"', "[agent].user must be the name of a user or its uid, without a group, got 'a:b'"),
        ("[agent]\nuser = -1", "[agent].user must be the name of a user or its uid, without a group, got -1"),
        ("[verifier]\nuser = true", "[verifier].user must be the name of a user or its uid, without a group, got True"),
        ('[verifier]\nuser = " "', "[verifier].user must be the name of a user or its uid"),
        ('[verifier]\nenvironment_mode = "own"', '[verifier].environment_mode must be "shared" or "separate", got \'own\''),
        ('[verifier]\nenvironment_mode = "shared"\nenvironment = {}', 'needs environment_mode = "separate"'),
        ("[verifier.environment]\nmemory_mb = 9000", "[verifier].environment.memory_mb = 9000 is more than a sandbox of this run may have"),
        ("[verifier.environment]\ngpus = 1", "[verifier].environment.gpus = 1 is not honoured: sandboxes have no GPU"),
        ('[verifier.environment]\nskills_dir = "a"', "[verifier].environment.skills_dir = 'a' is not honoured: no agent runs there"),
        ('[verifier.environment]\ndocker_image = "a"', "docker_image = 'a': the sandbox's own system stands for"),
        ('artifacts = ["/app/../x"]', "artifacts must be a list of paths without .., not '/app/../x'"),
        ('artifacts = ["/etc/x"]', "artifacts has '/etc/x': files can be taken from /app, /logs/artifacts and /tmp alone"),
        ('artifacts = ["/home/agent/x"]', "artifacts has '/home/agent/x': files can be taken from"),
        ('artifacts = ["/logs/verifier"]', "artifacts has '/logs/verifier': files can be taken from"),
        ('artifacts = [{source = "/tmp/x", service = "db"}]', "artifacts must be of the service main"),
        ('artifacts = [{destination = "out"}]', "artifacts must be a list of artifacts, each with a `source`"),
        ('artifacts = [{source = "out", sources = 1}]', "artifacts must be a list of tables with source, destination, exclude and service"),
        ('[[verifier.collect]]\nservice = "main"', "[verifier].collect.command is missing"),
        ('[[verifier.collect]]\ncommand = "a"\nservice = "db"', "[verifier].collect.service = 'db' is not honoured"),
        ('[[verifier.collect]]\ncommand = "a"\nuser = "root"', "[verifier].collect.user = 'root' is not honoured"),
        ('[verifier.collect]\ncommand = "a"', "[verifier].collect must be a list of tables"),
        ("[environment]\nmemory_mb = 8192", "[environment].memory_mb = 8192 is more than a sandbox of this run may have: lower it to 4096"),
        ('[environment]\nmemory = "8G"', "have: lower it to \"4096M\", or begin a new run with a larger sandbox.max_memory_mb"),
        ("[environment]\nmemory_mb = nan", "[environment].memory_mb must be a whole number above 0, got nan"),
        ('[environment]\ncpus = "2"', "[environment].cpus must be a number above 0, got '2'"),
        ("[environment]\ncpus = true", "[environment].cpus must be a number above 0, got True"),
        ('[environment]\nworkdir = "/etc"', "[environment].workdir must be /app or a directory below it"),
        ("[verifier]\nperformance = 1", "[verifier].performance must be the name of a number in reward.json, got 1"),
        ('schema_version = "2.0"', "schema_version must be a version 1"),
        ("[agent]\ntimeout_secs = 5", "[agent].timeout_secs is not known: write [agent].timeout_sec"),
        ("[verifer]\ntimeout_sec = 5", "[verifer] is not known: write [verifier]"),
        ('difficulty = "hard"', "difficulty is not known: write it below [metadata]"),
        ('[tags]\na = "b"', "[tags] is not known: write it below [metadata]"),
        ("[solution]\ntimeout_sec = 5", "[solution].timeout_sec is not known: remove it: a solution has the time of an agent"),
        ('[step]\nname = "a"', "[step] is not known: write [[steps]]"),
        ("[[stepss]]\nagent = {}", "stepss is not known: write [[steps]]"),
        ('[[environment.mcp_server]]\ncommand = "x"', "[environment].mcp_server is not known: write [environment].mcp_servers"),
        ("timeout_sec = 5", "timeout_sec is not known: write [agent].timeout_sec"),
        ("[agent]\nparser_name = 6", "[agent].parser_name is not known: remove it, or keep it below [metadata]"),
        ('[verifier]\nenv = {A = "x\\u0000"}', "[verifier].env must be a table of texts without NUL characters"),
        ('[environment]\nos = "Windows"', "os = 'Windows' is not honoured: sandboxes run Linux"),
        ("[environment]\nmemory_mb = 2048.5", "memory_mb must be a whole number above 0, got 2048.5"),
        ('[verifier]\nenv = {A = "${HOME}"}', "nothing of the machine's own variables reaches a sandbox"),
        ("[verifier]\nenv = {A = 1}", "write the value of A in quotes"),
        ('[environment]\nenv = {PENSTOCK_SEED = "1"}', "names that begin with PENSTOCK_ are reserved"),
        ('[environment]\nenv = {BASH_ENV = "/app/rc"}', "BASH_ENV is reserved: Penstock sets it, so that $RANDOM repeats in the tests"),
        ('[verifier]\nenv = {BASH_ENV = "/app/rc"}', "[verifier].env must be without BASH_ENV: BASH_ENV is reserved"),
        ('[solution]\nenv = {"A=B" = "1"}', "'A=B' is not a valid environment variable name; use letters, digits and _"),
        ("[environment]\nalow_internet = true", "[environment].alow_internet is not known: write [environment].allow_internet"),
        ("[environment]\nalow_internet = false", "[environment].alow_internet is not known: write [environment].allow_internet"),
        ('[environment]\nmemory_m = "8"', "[environment].memory_m is not known: write [environment].memory_mb, which must be a whole number"),
        (
            '[environment]\nnetwork_mode = "no-network"\nallow_internet = true',
            "[environment].network_mode and .allow_internet say different things: remove allow_internet",
        ),
        ('[environment]\nnetwork_mode = "public"\nallow_internet = false', "[environment].network_mode and .allow_internet say different"),
        (
            '[verifier.environment]\nnetwork_mode = "no-network"\nallow_internet = true',
            "[verifier].environment.network_mode and .allow_internet say different things",
        ),
        ("allow_internet = true", "allow_internet is not known: write [environment].allow_internet"),
        ('user = "root"', "user is not known: write [agent].user"),
        ('"" = 1', '"" is not known: remove it'),
        ('[agent]\n"" = 1', '[agent]."" is not known: remove it'),
        ('"." = 3', "'.' is not known: remove it"),
        ('"https://x.y" = 1', "'https://x.y' is not known: remove it"),
        ('"agent.timeout_sec" = 5', "'agent.timeout_sec' is not known: write its key below the table [agent]"),
        ("[agent]\nx = 1\ny = 2", "[agent].x is not known: remove it, or keep it below [metadata], which is yours; [agent].y"),
    ],
)  # fmt: skip
def test_a_key_that_would_not_hold_is_refused_by_its_name(toml: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        check_admissible(task(toml), SandboxSection())
    parse_settings(toml)  # of a task that was accepted before


@pytest.mark.parametrize(
    ("path", "body", "sentence"),
    [
        (
            "tests/docker-compose.yaml",
            b"services: {}",
            "tests/docker-compose.yaml is not honoured: only environment/docker-compose.yaml is",
        ),
        (
            "steps/one/instruction.md",
            b"x",
            "steps/one/instruction.md belongs to no step: task.toml has no [[steps]]",
        ),
        ("trajectory.json", b"{}", "trajectory.json is not honoured"),
        (
            "tests/test.sh",
            b"#!/usr/bin/env python3\nprint(1)",
            "tests/test.sh begins with '#!/usr/bin/env python3'",
        ),
        ("solution/solve.sh", b"#!/usr/bin/perl\n1", "solution/solve.sh begins with '#!/usr/bin/perl'"),
        ("instruction.md", b"a\0b", "instruction.md holds a NUL character (byte 1)"),
    ],
)
def test_a_file_that_would_not_mean_what_the_format_says_is_refused_by_its_name(
    path: str, body: bytes, sentence: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        check_admissible(task(toml="", **{path: body}), SandboxSection())


@pytest.mark.parametrize(
    ("toml", "files", "sentence"),
    [
        (
            "",
            {"environment/Dockerfile": b"FROM debian:12\nENV A=1 \\\n  BASH_ENV=/app/rc"},
            "environment/Dockerfile line 2: ENV sets BASH_ENV: ",
        ),
        (
            "",
            {"environment/Dockerfile": b"FROM debian:12\nENV BASH_ENV /app/rc"},
            "environment/Dockerfile line 2: ENV sets BASH_ENV: ",
        ),
        (
            '[verifier]\nenvironment_mode = "separate"',
            {"tests/Dockerfile": b"FROM debian:12\nENV BASH_ENV=/x"},
            "tests/Dockerfile line 2: ENV sets BASH_ENV: ",
        ),
        (
            "",
            {"environment/docker-compose.yaml": b"services: {main: {environment: {BASH_ENV: /x}}}"},
            "environment/docker-compose.yaml: the environment of main sets BASH_ENV: ",
        ),
        (
            '[environment]\nenv = {https_proxy = "http://db"}\n[agent]\nnetwork_mode = "public"',
            {},
            "task.toml: [environment].env sets https_proxy: https_proxy is reserved in a task with a network",
        ),
    ],
)
def test_a_variable_that_penstock_replaces_is_refused_where_it_is_set(
    toml: str, files: dict[str, bytes], sentence: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        check_admissible(task(toml, **files), SandboxSection(egress=Grant.PUBLIC))


def test_a_task_without_a_network_may_name_a_proxy_of_its_own_and_a_seed_of_hashes() -> None:
    check_admissible(
        task('[environment]\nenv = {http_proxy = "http://db", PYTHONHASHSEED = "0"}'), SandboxSection()
    )


def test_variables_and_the_work_directory_of_the_settings_hold_above_those_of_the_dockerfile() -> None:
    toml = '[environment]\nworkdir = "/app/src"\nenv = {A = "2", B = "3"}'
    found = task(toml, **{"environment/Dockerfile": b"FROM debian:12\nENV A=1 C=4"}).environment(None)
    assert (found.work_dir, found.directories) == ("/app/src", ("/app/src",))
    assert found.env == {"A": "2", "B": "3", "C": "4"}


def test_an_image_stands_for_the_dockerfile_and_its_work_directory_and_cores_are_the_tasks() -> None:
    toml = '[environment]\ndocker_image = "debian:12"\nworkdir = "/srv/a"\ncpus = 1.5\nbuild_timeout_sec = 30'
    found = task(toml, **{"environment/a": b"1"})
    built = found.environment(None, containers=True)
    assert built.build == built.prebuilt
    found = task(toml, **{"environment/Dockerfile": b"FROM x", "environment/files/a": b"1"})
    assert built.build == {"Dockerfile": File(b"FROM debian:12\n\nWORKDIR /srv/a\n")} and set(
        built.files
    ) == {"/app/a"}
    spec = built.spec(built.files, Limits())
    assert (spec.limits.cpus, spec.build_timeout_s) == (1.5, 30)
    with pytest.raises(ValueError, match="must be a path of letters, digits"):
        task('[environment]\ndocker_image = "a"\nworkdir = "/a b"').environment(None, containers=True)
    own = task('[environment]\ndocker_image = "docker.io/library/debian:12"', **{"environment/a": b"1"})
    assert own.environment(["debian:12"]) == task("", **{"environment/files/a": b"1"}).environment([])


@pytest.mark.parametrize(
    ("empty", "unset"),
    [
        ('[environment]\ndocker_image = ""\ncpus = 1', "[environment]\ncpus = 1"),
        ('[verifier.environment]\ndocker_image = ""', "[verifier.environment]"),
        (
            '[[steps]]\nname = "a"\n[steps.verifier.environment]\ndocker_image = ""',
            '[[steps]]\nname = "a"\n[steps.verifier.environment]',
        ),
        ('[environment]\nworkdir = ""\nskills_dir = ""\ncpus = 1', "[environment]\ncpus = 1"),
        ('[verifier.environment]\nworkdir = ""\nskills_dir = ""', "[verifier.environment]"),
        ('[agent]\nuser = ""\n[verifier]\nuser = ""', ""),
        (
            '[agent]\nuser = "7"\n[[steps]]\nname = "a"\n[steps.agent]\nuser = ""\n[steps.verifier]\nuser = ""',
            '[agent]\nuser = "7"\n[[steps]]\nname = "a"\n[steps.agent]\n[steps.verifier]',
        ),
    ],
)
def test_an_empty_name_is_none(empty: str, unset: str) -> None:
    check_keys(empty)
    assert parse_settings(empty) == parse_settings(unset)


def test_a_name_of_a_space_is_refused() -> None:
    with pytest.raises(ValueError, match="docker_image must be the name of an image, got ' '"):
        check_keys('[environment]\ndocker_image = " "')


def test_a_task_is_given_what_it_asks_for_up_to_the_runs_maximum() -> None:
    section = SandboxSection(memory_mb=1000, disk_mb=1000, max_disk_mb=2000)
    assert granted(section, {}) == section
    lowered = granted(section, {"memory": "512M", "storage_mb": 100})
    assert (lowered.memory_mb, lowered.disk_mb) == (512, 100)
    raised = granted(section, {"memory_mb": 5000, "storage_mb": 1500})
    assert (raised.memory_mb, raised.disk_mb) == (1000, 1500)
    check_admissible(task("[environment]\nstorage_mb = 2000"), section)
    with pytest.raises(
        ValueError, match=r"lower it to 2000, or begin a new run with a larger sandbox\.max_disk_mb"
    ):
        check_admissible(task("[environment]\nstorage_mb = 2001"), section)


def test_the_guide_has_the_table_of_todays_keys_and_a_refused_one_says_why() -> None:
    script = runpy.run_path(str(GUIDE.with_name("task_keys.py")))
    text = GUIDE.read_text(encoding="utf-8")
    assert script["page"](text) == text, "write it again: .venv/bin/python ops/guides/task_keys.py"
    assert all(key.says for key in KEYS.values() if key.treatment is Treatment.REFUSED)


def test_checks_name_at_most_a_few_keys_and_count_the_rest() -> None:
    with pytest.raises(ValueError, match=r"; and 3 more$"):
        check_keys("".join(f"zz{number} = 1\n" for number in range(8)))


def test_a_key_that_each_step_has_takes_the_place_of_one() -> None:
    steps = "".join(f'[[steps]]\nname = "s{number}"\nzz = 1\n' for number in range(8))
    with pytest.raises(
        ValueError,
        match=r"^task.toml: \[\[steps\]\]\.zz is not known: [^;]*; \[agent\]\.zz is not known: [^;]*$",
    ):
        check_keys(f"{steps}[agent]\nzz = 1\n")
