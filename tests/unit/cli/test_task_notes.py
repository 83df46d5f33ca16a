"""What does not hold in the sandboxes of a run is named when tasks are checked, and nothing else is."""

import os

import pytest

from orchestrator.cli.task_notes import notes
from orchestrator.settings.sandbox import SandboxSection
from orchestrator.tasks.harbor import Task


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


def test_a_machine_is_looked_at_only_for_tasks_that_name_cores() -> None:
    def looked() -> bool:
        raise AssertionError

    assert list(notes([task()], SandboxSection(), looked)) == []


@pytest.mark.parametrize(
    ("provider", "solution", "dockerfile", "named"),
    [
        ("container", "echo 1 > /data/out", "FROM debian:12\nWORKDIR /app\n", True),
        ("kubernetes", "sed -i s/a/b/ /srv/config", "FROM debian:12\nWORKDIR /app\n", True),
        ("container", "echo 1 > /data/out", "FROM debian:12\nWORKDIR /data\n", False),
        ("container", "/usr/bin/make >/tmp/x; cat /etc/passwd", "FROM debian:12\nWORKDIR /app\n", False),
        ("container", "echo 1 > /data/out", "FROM debian:12\n", False),
        ("bubblewrap", "echo 1 > /data/out", "FROM debian:12\nWORKDIR /app\n", False),
    ],
)
def test_work_outside_of_the_work_directory_is_named_where_programs_cannot_do_it(
    provider: str, solution: str, dockerfile: str, named: bool
) -> None:
    found = list(notes([task(solution=solution, dockerfile=dockerfile)], SandboxSection(provider=provider)))
    assert len(found) == named and all(
        f"the provider {provider} let programs write" in each for each in found
    )


@pytest.mark.parametrize(
    ("instruction", "dockerfile", "solution", "named"),
    [
        ("Serve the route /api/users.", "", "true", False),
        ("Serve the route /api/users.", "", "mkdir -p /api/users", True),
        ("Read /data/in.csv.", "COPY in.csv /data/\n", "true", True),
        ("Read /data/in.csv.", "RUN apt-get update && \\\n  mkdir -p /data\n", "true", True),
        ("Write /data/out.csv.", 'VOLUME ["/data"]\n', "true", True),
        ("Write /data/out.csv.", "RUN ls /data\n", "true", False),
    ],
)
def test_a_path_of_the_instruction_is_a_place_if_the_image_or_the_solution_has_its_first_name(
    instruction: str, dockerfile: str, solution: str, named: bool
) -> None:
    own = task(
        instruction=instruction, dockerfile=f"FROM debian:12\nWORKDIR /app\n{dockerfile}", solution=solution
    )
    assert len(list(notes([own], SandboxSection(provider="container")))) == named
