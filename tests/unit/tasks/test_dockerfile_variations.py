"""Dockerfiles and test scripts as public task sets have them: what is admitted, with images and without, and that each refusal is true."""

import json

import pytest

from orchestrator.settings.providers import ImagesSection
from orchestrator.settings.sandbox import SandboxSection
from orchestrator.tasks.admit import check_admissible
from orchestrator.tasks.harbor import Task
from orchestrator.tasks.last_stage import last_stage, user_of
from orchestrator.vetting.built import fetching_line, network_error
from sandboxes.images import recipe

ON = SandboxSection(images=ImagesSection(directory="/srv/images"))
OFF = SandboxSection()
TOML = """\
version = "1.0"
[metadata]
author_name = "A"
author_email = "a@example.org"
difficulty = "easy"
category = "programming"
tags = ["x"]
[verifier]
timeout_sec = 120.0
[agent]
timeout_sec = 120.0
[environment]
build_timeout_sec = 600.0
cpus = 1
memory_mb = 2048
storage_mb = 10240
"""


def a_task(dockerfile: str, **more: str) -> Task:
    files = {
        "task.toml": TOML,
        "instruction.md": "Do it.",
        "tests/test.sh": "#!/bin/bash\nset -uo pipefail\n[ -f /app/out.txt ] && echo 1 > /logs/verifier/reward.txt\n",
        "solution/solve.sh": "#!/bin/bash\necho hi > /app/out.txt\n",
        "environment/Dockerfile": dockerfile,
        "environment/x": "1",
    }
    return Task.from_files({path: body.encode() for path, body in (files | more).items()})


def refused(task: Task, section: SandboxSection) -> str:
    try:
        check_admissible(task, section, "T")
    except ValueError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    "text",
    [
        "FROM debian:12\nWORKDIR /app\nCOPY . /app\n",
        "from debian:12 as base\nworkdir /app\n",
        'FROM debian:12\nWORKDIR /app\nCMD ["bash"]\n',
        'FROM debian:12\nLABEL a="b c" d=e\nEXPOSE 80 443\nMAINTAINER someone\nSTOPSIGNAL 9\nCMD sleep infinity\n',
        'FROM debian:12\nENV A b c\nENV B=1 C="2 3"\nWORKDIR /app\n',
    ],
)
def test_a_dockerfile_that_needs_no_image_is_admitted_without_images(text: str) -> None:
    assert refused(a_task(text), OFF) == "" and refused(a_task(text), ON) == ""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("# syntax=docker/dockerfile:1\nFROM ubuntu:24.04\nWORKDIR /app\n", "line 2: FROM ubuntu:24.04: "),
        (
            "FROM debian:12\nRUN apt-get update && \\\n    # a comment\n    apt-get install -y x\n",
            "line 2: RUN is",
        ),
        ("FROM debian:12\r\nRUN a \\\r\n && b\r\n", "line 2: RUN is"),
        (
            "ARG V=24.04\nFROM golang:1 AS build\nRUN make\nFROM ubuntu:${V}\nCOPY --from=build /a /a\n",
            "line 3: RUN is",
        ),
        (
            "FROM debian:12\nRUN <<EOF\napt-get update\nEOF\nCOPY <<A /x\nhi\nA\nVOLUME /data\n",
            "line 8: VOLUME is",
        ),
        ("FROM debian:12\nCOPY --chown=root:root x /app/\n", "line 2: COPY has the flag --chown"),
        ("FROM debian:12\nADD https://example.com/x /app/x\n", "line 2: ADD is"),
        ("FROM debian:12\nUSER worker\nWORKDIR /app\n", "line 2: USER is"),
        ("FROM debian:12\nWORKDIR /workspace\n", "line 2: WORKDIR must be /app"),
        ('FROM debian:12\nSHELL ["/bin/bash", "-c"]\nRUN true\n', "line 3: RUN is"),
        ("FROM --platform=linux/amd64 debian:12\nWORKDIR /app\n", "line 1: FROM has the flag --platform"),
    ],
)
def test_a_dockerfile_that_needs_one_is_refused_by_its_line_without_images_and_admitted_with_them(
    text: str, says: str
) -> None:
    assert says in refused(a_task(text), OFF) and "environment/Dockerfile" in refused(a_task(text), OFF)
    if "--platform" not in text:  # the tests run on more than one architecture
        assert refused(a_task(text), ON) == ""


def test_lines_of_a_here_document_are_no_instructions() -> None:
    text = "FROM debian:12\nRUN cat <<'A' <<-B > /x\nCMD nonsense\nA\n\tNOPE\n\tB\nCOPY x /app/\n"
    found = refused(a_task(text), OFF)
    assert "line 2: RUN" in found and "NOPE" not in found and "; line" not in found


@pytest.mark.parametrize(
    "line",
    [
        'RUN echo "usage: cat <<EOF x"',
        "RUN echo 'cat <<EOF'",
        "RUN echo a\\ <<EOF",
        "RUN cat <<MISSING",
        "RUN cat <<EOF\n\tEOF\nEOF",
        "RUN cat <<END-X\nUSER other\nEND-X",
        "RUN cat <<'a b' <<-\"C\" 3<<D\nUSER other\na b\n\tC\nUSER other\nD",
        "ONBUILD RUN cat <<EOF\nUSER other\nEOF",
    ],
)
def test_only_a_word_outside_of_quotes_whose_end_is_there_opens_a_here_document(line: str) -> None:
    text = f'FROM debian:12\n{line}\nUSER app\nWORKDIR /srv\nENTRYPOINT ["serve"]\n'
    found = last_stage(text)
    assert (user_of(text), found.work) == ("app", "/srv") and found.entrypoint is not None
    lines, _ = recipe.read(text.encode())
    assert lines[-3:] == text.splitlines()[-3:], "the builder reads the same instructions"


@pytest.mark.parametrize("character", ["\f", "\v", "\x1c", "\x85", "\u2028", "\r"])
def test_no_character_but_lf_ends_a_line(character: str) -> None:
    run = f"RUN printf 'a{character}USER x' > /f"
    text = f"FROM debian:12\n{run}\nUSER app\r\nRUN cat <<EOF\n{character}USER x\nEOF\n"
    assert user_of(text) == "app"
    lines, _ = recipe.read(text.encode())
    assert lines[1] == run and len(lines) == len(text.split("\n")) - 1
    command = json.loads(lines[3].removeprefix("RUN "))
    assert command[-1] == f"cat <<EOF\n{character}USER x\nEOF\n"


def test_a_base_without_images_names_the_key_that_switches_them_on() -> None:
    assert "or set sandbox.images.directory" in refused(a_task("FROM alpine:3\n"), OFF)


@pytest.mark.parametrize(
    "line",
    [
        'ENTRYPOINT ["/bin/bash"]',
        'ENTRYPOINT ["tini", "--"]',
        'ENTRYPOINT ["/usr/bin/tini", "--", "/bin/bash", "-l"]',
        "ENTRYPOINT sleep infinity",
        "ENTRYPOINT exec tail -f /dev/null",
        "ENTRYPOINT []",
        'ENTRYPOINT ["/bin/sh", "-c"]',
        'ENTRYPOINT ["/bin/sh", "-c", "sleep infinity"]',
        'entrypoint\t["bash", "-c", "while true; do sleep 30; done"]',
        'ENTRYPOINT ["/usr/bin/env", "bash"]',
        'ENTRYPOINT ["bash", "-o", "pipefail", "-c"]',
        'ENTRYPOINT ["/bin/bash", "--norc", "-euxo", "pipefail", "+O", "extglob", "-c", "sleep infinity"]',
        'ENTRYPOINT ["bash", "--login", "--"]',
    ],
)
def test_an_entry_point_that_starts_nothing_is_admitted(line: str) -> None:
    assert refused(a_task(f"FROM debian:12\nRUN true\n{line}\n"), ON) == ""
    assert refused(a_task(f"FROM debian:12\n{line}\n"), OFF) == "", "nor is an image needed"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('FROM debian:12\nRUN true\nENTRYPOINT ["/start.sh", "--all"]\n', 3),
        ("FROM debian:12 AS a\nENTRYPOINT /start.sh --all\nFROM a\nRUN true\n", 2),
        ("FROM debian:12\nRUN true\nentrypoint\t/start.sh\t--all\n", 3),
    ],
)
def test_an_entry_point_that_starts_a_service_is_refused_because_nothing_would_start_it(
    text: str, line: int
) -> None:
    found = refused(a_task(text), ON)
    assert found.startswith(
        f"T: environment/Dockerfile line {line}: ENTRYPOINT starts '/start.sh --all', and no"
    )
    assert "start what the task needs in [environment].healthcheck" in found
    assert refused(a_task("FROM debian:12 AS a\nRUN true\nENTRYPOINT /start.sh\nFROM debian:12\n"), ON) == ""


def test_an_entry_point_of_the_image_of_separate_tests_is_refused_where_it_stands() -> None:
    separate = TOML.replace("[verifier]\n", '[verifier]\nenvironment_mode = "separate"\n')
    own = 'FROM debian:12\nRUN true\nENTRYPOINT ["/start-db.sh"]\n'
    found = refused(a_task("FROM debian:12\n", **{"task.toml": separate, "tests/Dockerfile": own}), ON)
    assert found.startswith("T: tests/Dockerfile line 3: ENTRYPOINT starts '/start-db.sh', and no"), found
    assert found.endswith("start what the task needs in tests/test.sh")
    shared = {"task.toml": TOML, "tests/Dockerfile": own}
    assert "ENTRYPOINT" not in refused(a_task("FROM debian:12\n", **shared), ON)


@pytest.mark.parametrize(
    "options",
    [
        "--init-file=/start.sh",
        "--rcfile /start.sh -i",
        "-o pipefail /start.sh",
        "-- /start.sh",
        "-c /start.sh",
    ],
)
def test_a_shell_that_runs_a_file_is_an_entry_point_that_starts_something(options: str) -> None:
    found = refused(a_task(f"FROM debian:12\nENTRYPOINT bash {options}\n"), OFF)
    assert f"line 2: ENTRYPOINT starts 'bash {options}'" in found


def test_a_dockerfile_of_the_tests_is_named_as_that() -> None:
    toml = TOML.replace("[verifier]\n", '[verifier]\nenvironment_mode = "separate"\n')
    more = {"task.toml": toml, "tests/Dockerfile": "FROM debian:12\nRUN pip install pytest\n"}
    found = refused(a_task("FROM debian:12\n", **more), OFF)
    assert found.startswith("T: tests/Dockerfile line 2: RUN is not one of"), found
    assert refused(a_task("FROM debian:12\n", **more), ON) == ""


@pytest.mark.parametrize(
    "log",
    [
        "curl: (6) Could not resolve host: astral.sh",
        "Err:1 http://deb.debian.org/debian bookworm InRelease\n  Temporary failure resolving 'deb.debian.org'",
        "Failed to establish a new connection: [Errno -3] Temporary failure in name resolution",
        "npm error code EAI_AGAIN",
        "fatal: unable to access 'https://example.com/': Could not resolve host: example.com",
    ],
)
def test_the_errors_of_programs_without_a_network_are_known(log: str) -> None:
    assert network_error(f"one\n{log}\nmore") and network_error("3 passed in 0.1s\nE  assert 1 == 2") == ""


def test_the_line_of_a_script_that_fetches_is_named() -> None:
    script = "#!/bin/bash\n# pip install x\ncd /app\nuvx -w pytest==8.4.1 pytest /tests\n"
    assert fetching_line(scripted(script)) == "tests/test.sh line 4 (uvx -w pytest==8.4.1 pytest /tests)"
    assert fetching_line(scripted("cd /app\npytest /tests\n")) == ""
    steps = {
        "task.toml": '[[steps]]\nname = "one"\n[[steps]]\nname = "two"\n',
        **{f"steps/{name}/instruction.md": "Go on." for name in ("one", "two")},
        "steps/one/tests/test.sh": "true\n",
        "steps/two/tests/test.sh": "true\ncurl example.org\n",
    }
    task = Task.from_files({path: text.encode() for path, text in steps.items()})
    assert fetching_line(task) == "steps/two/tests/test.sh line 2 (curl example.org)"


def scripted(script: str) -> Task:
    files = {"task.toml": "", "instruction.md": "Go on.", "tests/test.sh": script}
    return Task.from_files({path: text.encode() for path, text in files.items()})


def test_what_only_an_image_has_changes_nothing_without_one() -> None:
    lines = 'HEALTHCHECK CMD true\nSHELL ["/bin/bash", "-c"]\nONBUILD RUN true\nEXPOSE 80\nCMD x\n'
    assert refused(a_task(f"FROM debian:12\n{lines}"), OFF) == ""
    found = refused(a_task("FROM debian:12\nENTRYPOINT /start.sh\n"), OFF)
    assert "line 2: ENTRYPOINT starts '/start.sh', and no program of an image is started" in found


def test_a_comment_that_ends_with_a_backslash_is_one_line() -> None:
    text = "# begin \\\nFROM debian:12\n# more \\\nRUN a \\\n  # and \\\n\n  b\n"
    assert refused(a_task(text), ON) == ""
    assert "line 4: RUN is" in refused(a_task(text), OFF)
