"""The result of a Dockerfile of FROM, WORKDIR, COPY and ENV, and the refusals of everything else."""

import re
from typing import Any

import pytest

from orchestrator.runtime import plugins
from orchestrator.settings.sandbox import SandboxSection
from orchestrator.tasks.admit import check_admissible
from orchestrator.tasks.bundle import Bundle
from orchestrator.tasks.environment import Environment, read_environment
from orchestrator.tasks.harbor import Task
from sandboxes.base import DEFAULT_ENV, File, Limits

CONTEXT = {
    "files/a.txt": b"a",
    "files/b.txt": b"b",
    "files/deep/c.md": b"c",
    "run me.sh": b"#!/bin/sh\n",
    "top.txt": b"t",
}
BASES = SandboxSection().base_images


def read(*lines: str, begin: str = "FROM debian:12", context: dict[str, bytes] | None = None) -> Environment:
    dockerfile = "\n".join([begin, *lines]).encode()
    return read_environment(Bundle.of({**CONTEXT, **(context or {}), "Dockerfile": dockerfile}), BASES)


def refused(*lines: str, **options: Any) -> str:
    with pytest.raises(ValueError) as error:
        read(*lines, **options)
    return str(error.value)


def bodies(*lines: str) -> dict[str, bytes]:
    return {path: file.data for path, file in read(*lines).files.items()}


def test_comments_continuation_lines_case_and_white_space_are_read_as_docker_does() -> None:
    text = (
        "# syntax=docker/dockerfile:1\n# escape=\\\n\r\n  from\tdebian:12   AS base\r\n"
        "env A=1 \\\n  # a comment between\n\n    B=2\n\nCopy   top.txt \\\n  files/a.txt \\\n  /app/in/\n#COPY gone /app/\nWORKDIR in\n"
    )
    found = read_environment(Bundle.of({**CONTEXT, "Dockerfile": text.encode()}), BASES)
    assert found.env == {"A": "1", "B": "2"} and found.work_dir == "/app/in"
    assert {path: file.data for path, file in found.files.items()} == {
        "/app/in/top.txt": b"t",
        "/app/in/a.txt": b"a",
    }


@pytest.mark.parametrize(
    ("line", "env"),
    [
        ('ENV A=1 B=\'x y\' C="d \\"e\\"" D=f\\ g', {"A": "1", "B": "x y", "C": 'd "e"', "D": "f g"}),
        ("ENV A the rest  of the line", {"A": "the rest  of the line"}),
        ("ENV A=", {"A": ""}),
        ("ENV P=/app/bin:$PATH", {"P": f"/app/bin:{DEFAULT_ENV['PATH']}"}),
        (
            "ENV A=${X:-none} B=${HOME:+yes} C=${X:+no} D=\\$HOME E='$HOME' F=\"${HOME}\"",
            {"A": "none", "B": "yes", "C": "", "D": "$HOME", "E": "$HOME", "F": "/home/agent"},
        ),
        ("ENV A=1 B=$A", {"A": "1", "B": ""}),
        (
            'ENV E=\nENV A=${E-x}${X-y} B=${E+b}${X+x} C=${X:-"p q"} D=${X:-${E:-$HOME}}',
            {"E": "", "A": "y", "B": "b", "C": "p q", "D": "/home/agent"},
        ),
        ("ENV A=1\nENV B=$A$A", {"A": "1", "B": "11"}),
        ("ENV A=x=y#z # is not a comment=", {"A": "x=y#z"}),
    ],
)
def test_variables_are_set_quoted_and_filled_in(line: str, env: dict[str, str]) -> None:
    if "# is" in line:
        assert "'#' is not of the form NAME=value" in refused(line)
        return
    assert read(*line.split("\n")).env == env


def test_the_work_directory_begins_at_app_and_each_one_is_relative_to_the_last() -> None:
    assert (read().work_dir, read().directories) == ("/app", ())
    found = read("ENV D=two", "WORKDIR one", "WORKDIR $D/../three", "COPY top.txt .")
    assert found.work_dir == "/app/one/three" and found.directories == ("/app/one", "/app/one/three")
    assert list(found.files) == ["/app/one/three/top.txt"]


@pytest.mark.parametrize(
    ("line", "files"),
    [
        ("COPY top.txt /app/", {"/app/top.txt": b"t"}),
        ("COPY top.txt /app", {"/app/top.txt": b"t"}),
        ("COPY top.txt other", {"/app/other": b"t"}),
        ("COPY /files/../top.txt ./x/y", None),
        ("COPY ./top.txt /tmp/x/", {"/tmp/x/top.txt": b"t"}),
        (
            "COPY files /home/agent",
            {"/home/agent/a.txt": b"a", "/home/agent/b.txt": b"b", "/home/agent/deep/c.md": b"c"},
        ),
        ("COPY files/deep/ top.txt /app/d/", {"/app/d/c.md": b"c", "/app/d/top.txt": b"t"}),
        ("COPY files/*.txt .", {"/app/a.txt": b"a", "/app/b.txt": b"b"}),
        ("COPY files/[b-z].tx? kept", {"/app/kept": b"b"}),
        ("COPY files/[^b].txt kept", {"/app/kept": b"a"}),
        ("COPY file* .", {"/app/a.txt": b"a", "/app/b.txt": b"b", "/app/deep/c.md": b"c"}),
        ('COPY ["run me.sh", "$HOME"]', {"/app/$HOME": b"#!/bin/sh\n"}),
        ('COPY "run me.sh" run', {"/app/run": b"#!/bin/sh\n"}),
        ("WORKDIR made\nWORKDIR /app\nCOPY top.txt made", {"/app/made/top.txt": b"t"}),
        ("COPY top.txt x\nCOPY files/a.txt x", {"/app/x": b"a"}),
    ],
)
def test_files_and_directories_are_copied_as_docker_does(line: str, files: dict[str, bytes] | None) -> None:
    if files is None:
        assert "cannot be left with .." in refused(line)
        return
    assert bodies(*line.split("\n")) == files


def test_everything_is_copied_with_the_dockerfile_and_modes_are_as_requested() -> None:
    assert set(bodies("COPY . .")) == {f"/app/{path}" for path in (*CONTEXT, "Dockerfile")}
    assert read("COPY --chmod=755 top.txt x", "COPY top.txt y").files == {
        "/app/x": File(b"t", 0o755),
        "/app/y": File(b"t"),
    }


@pytest.mark.parametrize(
    "name", ['"debian:12"', "debian:bookworm", "docker.io/library/python:3.11-slim", "python:3.11 as base"]
)
def test_a_base_that_the_sandbox_stands_for_is_accepted(name: str) -> None:
    assert read(begin=f"FROM {name}") == Environment(files={})
    assert (
        read(begin="FROM own:1").files == {} if "own:1" in BASES else "own:1" in refused(begin="FROM own:1")
    )


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        (["RUN apt-get install -y jq"], "line 2: RUN is not one of FROM, WORKDIR, COPY and ENV: only a sandbox provider with container"),
        (["", "ADD x /app/"], "line 3: ADD is not one of"),
        (["ENV A=1 \\", " B=2", "VOLUME /x"], "line 4: VOLUME is not one of"),
        (["FROM debian:12"], "line 2: FROM begins a second stage"),
        (["COPY --from=base /x /app/"], "line 2: COPY has the flag --from"),
        (["COPY --chown=1:1 top.txt /app/"], "line 2: COPY has the flag --chown"),
        (["COPY --chmod=u+x top.txt /app/"], "--chmod=u+x must be three octal digits"),
        (["COPY <<EOF /app/x", "hi", "EOF"], "line 2: COPY has a here-document"),
        (["COPY ../secret /app/"], "line 2: COPY ../secret: a source lies in environment/"),
        (["COPY files/../../secret /app/"], "cannot be left with .."),
        (["COPY absent.txt /app/"], "line 2: COPY absent.txt: environment/absent.txt does not exist in the task"),
        (["COPY *.nope /app/"], "environment/*.nope does not exist"),
        (["COPY top.txt"], "line 2: COPY must be COPY source … destination"),
        (["COPY top.txt /etc/passwd"], "/etc/passwd: files can be placed below /app, /tmp, /logs, /home/agent only"),
        (["COPY top.txt /app/../usr/x"], "/usr/x: files can be placed below"),
        (["COPY top.txt /tests/test.sh"], "/tests/test.sh: files can be placed below"),
        (["COPY top.txt x", "COPY top.txt x/y"], "line 3: COPY /app/x/y: there is a directory where a file is to be"),
        (["COPY files x", "COPY --chmod=644 files/a.txt /app/x/deep/c.md/no"], "line 3: COPY"),
        (["WORKDIR /workspace"], "line 2: WORKDIR must be /app or a directory below it, where the agent's work is, got /workspace"),
        (["WORKDIR ../etc"], "got /etc"),
        (["COPY top.txt x", "WORKDIR x"], "line 3: WORKDIR /app/x is a file"),
        (["ENV"], "line 2: ENV must be ENV NAME=value"),
        (["ENV A"], "A has no value"),
        (["ENV 1A=2"], "'1A' is not of the form NAME=value"),
        (["ENV A=1 B"], "'B' is not of the form NAME=value"),
        (["ENV PENSTOCK_ANSWER=/x"], "PENSTOCK_ANSWER is reserved"),
        (["ENV A='x"], "has a quote ' without its end"),
        (["ENV A=${B%x}"], "which is none of ${NAME}, ${NAME:-default} and ${NAME:+other}"),
    ],
)  # fmt: skip
def test_what_needs_more_than_there_is_is_refused_by_line_and_instruction(
    lines: list[str], sentence: str
) -> None:
    error = refused(*lines)
    assert error.startswith("environment/Dockerfile line ") and sentence in error and "\n" not in error


@pytest.mark.parametrize(
    ("begin", "sentence"),
    [
        ("FROM ubuntu:24.04", "line 1: FROM ubuntu:24.04: the sandbox's own system stands for debian:12, "),
        ("FROM debian", "FROM debian: "),
        ("FROM debian:12@sha256:00", "FROM debian:12@sha256:00: "),
        ("FROM --platform=linux/arm64 debian:12", "FROM has the flag --platform"),
        ("FROM debian:12 base", "must be FROM image or FROM image AS name"),
        ("ARG A=1\nFROM debian:12", "line 1: ARG is not one of"),
        ("ENV A=1", "must begin with FROM"),
        ("# nothing", "must begin with FROM"),
        ("# escape=`\nFROM debian:12", "line 1: the escape character must be \\"),
    ],
)
def test_a_base_that_it_does_not_stand_for_is_refused(begin: str, sentence: str) -> None:
    assert sentence in refused(begin=begin)


@pytest.mark.parametrize("name", [".dockerignore", "Dockerfile.dockerignore"])
def test_an_ignore_file_is_refused_rather_than_overlooked(name: str) -> None:
    assert f"environment/{name} is not read" in refused(context={name: b"*"})
    linked = Bundle(
        files={"Dockerfile": File(b"FROM debian:12\n"), "patterns": File(b"*")}, links={name: "patterns"}
    )
    with pytest.raises(ValueError, match=f"environment/{name} is not read"):
        read_environment(linked, None)


def a_task(dockerfile: str, **more: bytes) -> Task:
    return Task.from_files(
        {
            "task.toml": b"[metadata]\nname = 'boxed'",
            "instruction.md": b"x",
            "tests/test.sh": b"x",
            "environment/Dockerfile": dockerfile.encode(),
            "environment/files/seed.txt": b"seed",
        }
    )


def test_with_a_dockerfile_nothing_is_placed_that_it_does_not_copy() -> None:
    assert a_task("FROM debian:12").environment(BASES).files == {}
    copied = a_task("FROM debian:12\nCOPY files/ /app/").environment(BASES)
    assert copied.files == {"/app/seed.txt": File(b"seed")}


def test_a_provider_with_container_support_is_given_the_build_context_whatever_it_holds() -> None:
    task = a_task("FROM ubuntu:24.04\nRUN make")
    found = task.environment(BASES, containers=True)
    assert found.build == {
        "Dockerfile": File(b"FROM ubuntu:24.04\nRUN make"),
        "files/seed.txt": File(b"seed"),
    }
    assert found.spec({}, Limits()).build == found.build


class Containers:
    """The capabilities of a provider with container support."""

    name = "engine"
    containers = True


def test_publishing_asks_the_runs_provider_whether_it_builds_images(monkeypatch: pytest.MonkeyPatch) -> None:
    task = a_task("FROM ubuntu:24.04\nRUN make")
    with pytest.raises(ValueError, match="line 2: RUN is not one of"):
        check_admissible(task, SandboxSection(provider="local"))
    monkeypatch.setattr(
        plugins, "load", lambda group, name: {("sandboxes", "engine"): Containers}[group, name]
    )
    check_admissible(task, SandboxSection(provider="engine"))


def test_a_task_is_refused_before_it_is_published_with_its_name_and_the_line() -> None:
    section = SandboxSection()
    check_admissible(a_task("FROM debian:12"), section)
    with pytest.raises(ValueError, match=r"^task boxed: environment/Dockerfile line 2: RUN is not one of"):
        check_admissible(a_task("FROM debian:12\nRUN make"), section)
    other = a_task("FROM registry.example/own:1")
    with pytest.raises(ValueError, match=re.escape("FROM registry.example/own:1: ")):
        check_admissible(other, section)
    check_admissible(other, SandboxSection(base_images=("registry.example/own:1",)))


def test_a_dockerfile_with_several_instructions_that_are_refused_names_them_together() -> None:
    text = b"FROM ubuntu:24.04\nRUN apt-get update\nVOLUME /a\nCOPY a /app/"
    with pytest.raises(
        ValueError,
        match=r"line 2: RUN is not one of .*; line 3: VOLUME is not one of .*; line 1: FROM ubuntu:24\.04: ",
    ) as refused:
        read_environment(Bundle.of({"Dockerfile": text}), BASES)
    assert str(refused.value).count("container support (`containers`) can build that") == 1
