"""Requests that do not hold in the sandboxes of a run are named when tasks are checked, and nothing else is."""

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from orchestrator.cli.main import app
from orchestrator.cli.task_notes import notes
from orchestrator.settings.sandbox import SandboxSection
from orchestrator.tasks.harbor import Task
from sandboxes import cgroups


def task(
    toml: str = "",
    solution: str = "true",
    dockerfile: str = "FROM debian:12\nWORKDIR /app\n",
    instruction: str = "Do it in /app/x, see https://example.org/data/x.",
) -> Task:
    files = {
        "task.toml": toml,
        "instruction.md": instruction,
        "tests/test.sh": "true",
        "solution/solve.sh": solution,
        "environment/Dockerfile": dockerfile,
    }
    return Task.from_files({path: text.encode() for path, text in files.items()})


def reads(line: str) -> dict[str, str]:
    """A task that names /data, with one line of its Dockerfile."""
    return {"instruction": "Read /data/in.csv.", "dockerfile": f"FROM debian:12\nWORKDIR /app\n{line}\n"}


@pytest.mark.parametrize(
    ("provider", "cpus", "limited", "named"),
    [
        ("bubblewrap", 1, False, True),
        ("bubblewrap", 1, True, False),
        ("bubblewrap", 8, False, False),
        ("local", 1, True, True),
        ("container", 1, False, False),
    ],
)
def test_cpus_that_do_not_hold_are_named(
    monkeypatch: pytest.MonkeyPatch, provider: str, cpus: int, limited: bool, named: bool
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    tasks = [task(f"[environment]\ncpus = {cpus}\n"), task()]
    found = list(notes(tasks, SandboxSection(provider=provider), lambda: limited))
    assert [each.partition(",")[0] for each in found] == (["1 task with `cpus`"] if named else [])


@pytest.mark.parametrize("as_json", [False, True])
def test_the_check_takes_a_task_whose_cores_do_not_hold_and_names_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, as_json: bool
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(cgroups, "detect", lambda: None)
    task("[environment]\ncpus = 1\n").write(tmp_path / "one")
    done = CliRunner().invoke(
        app, ["tasks", "check", str(tmp_path / "one"), *(["--json"] if as_json else [])]
    )
    assert done.exit_code == 0, done.output
    notes = json.loads(done.stdout)["notes"] if as_json else done.stderr.splitlines()
    assert [each.partition(":")[0] for each in notes] == [
        "1 task with `cpus`, which does not hold on this machine"
    ]


def test_a_machine_is_looked_at_only_for_tasks_that_name_cores() -> None:
    def looked() -> bool:
        raise AssertionError

    assert list(notes([task()], SandboxSection(), looked)) == []


STEPS = '[[steps]]\nname = "a"\nagent.timeout_sec = 700\n[[steps]]\nname = "b"\n'


@pytest.mark.parametrize(
    ("toml", "words"),
    [
        ("[agent]\nstall_s = 900", ""),
        ("[agent]\nstall_s = 901", "901 s of 900 s"),
        ("[agent]\ntimeout_sec = 20\nstall_s = 600", "600 s of 20 s"),
        ("[agent]\ntimeout_sec = 20", ""),
        (f"{STEPS}[agent]\ntimeout_sec = 20\nstall_s = 600", ""),
        (f"{STEPS}[agent]\ntimeout_sec = 20\nstall_s = 800", "800 s of 700 s"),
    ],
)
def test_a_silence_that_no_attempt_reaches_is_named(toml: str, words: str) -> None:
    found = list(notes([task(toml), task()], SandboxSection()))
    assert len(found) == bool(words) and all(f": {words}): raise" in each for each in found), found


OUT = {"solution": "echo 1 > /data/out"}
USERS = {"instruction": "Serve the route /api/users."}


@pytest.mark.parametrize(
    ("provider", "own", "named"),
    [
        ("container", OUT, True),
        ("kubernetes", {"solution": "sed -i s/a/b/ /srv/config"}, True),
        ("container", {**OUT, "dockerfile": "FROM debian:12\nWORKDIR /data\n"}, False),
        ("container", {"solution": "/usr/bin/make >/tmp/x; cat /etc/passwd"}, False),
        ("container", {**OUT, "dockerfile": "FROM debian:12\n"}, False),
        ("bubblewrap", OUT, False),
        # A path of the instruction is a place only if the image or the solution has its first name.
        ("container", USERS, False),
        ("container", {**USERS, "solution": "mkdir -p /api/users"}, True),
        ("container", reads("COPY in.csv /data/"), True),
        ("container", reads("RUN apt-get update && \\\n  mkdir -p /data"), True),
        ("container", reads('VOLUME ["/data"]'), True),
        ("container", reads("RUN ls /data"), False),
    ],
)
def test_a_place_outside_of_the_work_directory_is_named_where_programs_cannot_write_there(
    provider: str, own: dict[str, str], named: bool
) -> None:
    found = list(notes([task(**own)], SandboxSection(provider=provider)))
    assert len(found) == named and all(
        f"the provider {provider} let programs write" in each for each in found
    )


@pytest.mark.parametrize(
    ("lines", "place"),
    [
        (
            "COPY a.txt /app/a.txt\nRUN mkdir -p /workspace\nWORKDIR /workspace",
            "/app/a.txt, with WORKDIR /workspace",
        ),
        ("WORKDIR /app\nCOPY a.txt .\nWORKDIR /srv/x", "/app, with WORKDIR /srv/x"),
        ("RUN true\nWORKDIR /app/src\nCOPY a.txt /app/", "/app, with WORKDIR /app/src"),
        ("WORKDIR /app\nCOPY a.txt /tests/data/", "/tests/data, with WORKDIR /app"),
        ("RUN true\nWORKDIR /app\nADD a.txt /logs/in", "/logs/in, with WORKDIR /app"),
        (
            "RUN true\nWORKDIR /app\nCOPY a.txt /app/\nCOPY b /home/agent/.b",
            "/home/agent/.b, with WORKDIR /app",
        ),
        ("COPY a.txt /app/a.txt\nWORKDIR /home", "/app/a.txt, with WORKDIR /home"),
        ("COPY a.txt /app/\nRUN pip install -r /app/a.txt\nWORKDIR /srv", ""),
        ("WORKDIR /app\nCOPY a.txt .\nRUN pip install -r a.txt\nWORKDIR /srv", ""),
        ("RUN true\nWORKDIR /app\nCOPY a.txt /tmp/", ""),
        ("WORKDIR /app\nCOPY a.txt /home/agent/", ""),
        ("WORKDIR /app/src\nCOPY a.txt /app/", ""),
        ("WORKDIR /home\nCOPY a.txt /home/agent/x", ""),
        ("RUN true\nCOPY a.txt /app/", ""),
        ("WORKDIR /srv\nCOPY a.txt /opt/\nCOPY a.txt /application/\nCOPY a.txt $UNKNOWN", ""),
        ("COPY a.txt /app/\nWORKDIR /srv\nFROM debian:12\nWORKDIR /srv", ""),
    ],
)
def test_a_copy_to_a_place_of_the_sandbox_own_is_named(lines: str, place: str) -> None:
    tasks = [task(dockerfile=f"FROM debian:12\n{lines}\n"), task()]
    found = list(notes(tasks, SandboxSection()))
    assert len(found) == bool(place)
    assert all(f"{place}): /app shows WORKDIR" in each for each in found)
    assert list(notes(tasks, SandboxSection(provider="container"))) == []


def test_the_work_directory_of_the_settings_counts() -> None:
    lines = "FROM debian:12\nRUN true\nWORKDIR /app\nCOPY a.txt /app/\n"
    assert (
        len(list(notes([task('[environment]\nworkdir = "/srv"\n', dockerfile=lines)], SandboxSection()))) == 1
    )
    assert list(notes([task(dockerfile=lines)], SandboxSection())) == []


@pytest.mark.parametrize(
    ("lines", "line"),
    [
        ("COPY a .", 2),
        ("RUN true\nADD --chmod=755 a sub/", 3),
        ('COPY ["a", "b c", "./"]', 2),
        ("COPY a .\nWORKDIR /app", 2),
        ("WORKDIR sub\nCOPY a .", 0),
        ("WORKDIR /app\nCOPY a .", 0),
        ("COPY a /app/\nCOPY a $UNKNOWN", 0),
        ("COPY a .\nFROM debian:12\nCOPY --from=0 /a /b", 0),
        ("RUN true\nFROM scratch\nCOPY a .", 4),
    ],
)
def test_a_copy_to_a_relative_place_without_a_workdir_is_named(lines: str, line: int) -> None:
    tasks = [task(dockerfile=f"FROM debian:12\n{lines}\n"), task()]
    found = list(notes(tasks, SandboxSection()))
    assert len(found) == bool(line)
    for each in found:
        assert each.startswith(
            "1 task whose Dockerfile copies to a relative place without a WORKDIR above it"
        )
        assert f", line {line}):" in each
