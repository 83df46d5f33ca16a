"""No task takes the memory or the time of the process that reads it: what is parsed has limits, and work grows with its length alone."""

import contextlib
import time
import tomllib
from collections.abc import Callable

import pytest

from orchestrator.settings.sandbox import SandboxSection
from orchestrator.tasks.admit import check_admissible
from orchestrator.tasks.harbor import Task
from orchestrator.tasks.sizes import (
    DOCKERFILE_BYTES,
    MAX_DEPTH,
    MAX_INSTRUCTIONS,
    TASK_TOML_BYTES,
    VARIABLE_BYTES,
    TooLarge,
    read_task_toml,
)

BASE = {
    "task.toml": b"",
    "instruction.md": b"x",
    "tests/test.sh": b"echo 1 > /logs/verifier/reward.txt",
}
FROM = "FROM debian:12\n"
COMPOSE = "services:\n  main:\n    environment:\n"


def admit(files: dict[str, str], section: SandboxSection | None = None) -> Task:
    task = Task.from_files({**BASE, **{path: text.encode() for path, text in files.items()}})
    check_admissible(task, section or SandboxSection())
    return task


def dockerfile(text: str) -> dict[str, str]:
    return {"environment/Dockerfile": FROM + text}


def toml(text: str) -> dict[str, str]:
    return {"task.toml": text}


REFUSED: dict[str, tuple[dict[str, str], str]] = {
    "instructions": (
        dockerfile("".join(f"ENV A{i}=1\n" for i in range(15_000))),
        f"environment/Dockerfile has more than {MAX_INSTRUCTIONS:,} instructions: write several variables into one ENV",
    ),
    "bytes": (
        dockerfile("#" * DOCKERFILE_BYTES),
        f"bytes, and may have {DOCKERFILE_BYTES:,}: put its long parts into files that it copies",
    ),
    "doubling": (
        dockerfile("ENV A=xx\n" + "ENV A=$A$A\n" * 40),
        f"environment/Dockerfile line 18: ENV gives A more than {VARIABLE_BYTES:,} bytes, with which no program starts",
    ),
    "one value": (
        dockerfile(f"ENV A={'x' * 140_000}\n"),
        f"environment/Dockerfile line 2: ENV: the variable 'A' has more than {VARIABLE_BYTES:,} bytes",
    ),
    "values of many bytes a character": (
        dockerfile(f"ENV A={'é' * 70_000}\n"),
        f"the variable 'A' has more than {VARIABLE_BYTES:,} bytes",
    ),
    "many values": (
        dockerfile(f"ENV A={'x' * 100_000}\n" + "".join(f"ENV B{i}=$A\n" for i in range(20))),
        "ENV: the variables have more than 1,048,576 bytes in all, with which no program starts",
    ),
    "many values of one line": (
        dockerfile(f"ENV A={'x' * 100_000}\nENV " + " ".join(f"B{i}=$A" for i in range(1000))),
        "environment/Dockerfile line 3: ENV: the variables have more than 1,048,576 bytes in all",
    ),
    "words": (
        {**dockerfile(f"ENV A={'x' * 100_000}\nCOPY {'$A ' * 40_000} /app/\n"), "environment/a": "x"},
        "environment/Dockerfile line 3: COPY has more than 1,048,576 characters",
    ),
    "directories": (
        {
            **dockerfile(f"COPY {'d ' * 40_000} /app/\nCOPY d?/x /app/\n"),
            **{f"environment/{n}": "x" for n in range(500)},
            "environment/d/x": "x",
        },
        "environment/Dockerfile line 2: COPY: the lines up to this one search through more than 2,000,000 files",
    ),
    "compose": (
        {
            "environment/docker-compose.yaml": COMPOSE + f"      A: {'x' * 90_000}\n",
            **dockerfile("".join(f"ENV B{i}={'x' * 48_000}\n" for i in range(5)) + f"ENV C=$B0$B0 {''.join(f' D{i}=$B0$B0' for i in range(8))}\n"),
        },
        "the variables have more than 1,048,576 bytes in all",
    ),
    "dotted": (
        toml("[metadata]\nx." + "a." * 16_000 + "a = 1\n"),
        f"task.toml line 2 has a key of more than {MAX_DEPTH} parts between dots: use fewer tables inside of each other",
    ),
    "dotted in quotes": (toml("[metadata]\n" + "'a b' . \"c\"." * 20 + "a = 1\n"), "task.toml line 2 has a key of more than"),
    "name of a table": (toml(f"[[metadata{'.b' * MAX_DEPTH}]]\n"), "task.toml line 1 has a key of more than"),
    "nested": (toml(f"a = {'[' * 33}{']' * 33}"), f"it is nested more than {MAX_DEPTH} levels deep, use fewer lists and tables"),
    "settings": (toml("#" * (TASK_TOML_BYTES + 1)), f"task.toml has 262,145 bytes, and may have {TASK_TOML_BYTES:,}"),
    "command": (
        toml(f"[environment.healthcheck]\ncommand = '{'x' * 70_000}'"),
        "must be a shell command of at most 64 KB",
    ),
    "arguments": (
        toml(f"[[environment.mcp_servers]]\nname = 'a'\ncommand = 'b'\nargs = ['{'x' * 70_000}']"),
        "must be a list of texts of at most 64 KB in all",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_fill_the_process_is_refused_with_the_limit(name: str) -> None:
    files, sentence = REFUSED[name]
    with pytest.raises(ValueError) as error:
        admit(files)
    assert sentence in str(error.value) and len(str(error.value)) < 500


@pytest.mark.parametrize("provider", ["bubblewrap", "container"])
@pytest.mark.parametrize("name", ["instructions", "bytes", "doubling", "one value", "many values"])
def test_no_image_is_built_of_it_either(name: str, provider: str) -> None:
    files, sentence = REFUSED[name]
    with pytest.raises(ValueError, match=r"environment/Dockerfile") as error:
        admit(files, SandboxSection(provider=provider))
    if provider == "bubblewrap":
        assert sentence in str(error.value)


@pytest.mark.parametrize("word", ["$A$A", "${A#x}${A:-1}", '"$A" B=$A$A', "${B:-$A$A}"])
def test_values_that_grow_are_found_behind_lines_that_only_a_build_reads(word: str) -> None:
    lines = "RUN make\nENV A=xx\n" + f"ENV A={word}\nARG A=$A$B$A\n" * 20
    with pytest.raises(ValueError, match=r"environment/Dockerfile line \d+: (ENV|ARG) gives"):
        admit(dockerfile(lines), SandboxSection(provider="container"))
    admit(dockerfile("RUN make\n" + "ENV PATH=/opt/bin:$PATH\n" * 900), SandboxSection(provider="container"))


def test_tests_with_variables_of_three_places_have_the_limit_together() -> None:
    lines = "".join(f"ENV A{i}={'x' * 20_000}\nENV B{i}=$A{i}$A{i}$A{i}$A{i}\n" for i in range(10))
    admit({**dockerfile(lines), **toml("")})
    more = toml(f"[verifier.env]\nC = '{'x' * 60_000}'")
    with pytest.raises(ValueError, match=r"the environment of tests/test.sh: the variables have more than"):
        admit({**dockerfile(lines), **more})
    solution = toml(f"[solution.env]\nC = '{'x' * 60_000}'")
    with pytest.raises(ValueError, match=r"the environment of the reference solution: the variables have"):
        admit({**dockerfile(lines), **solution})


@pytest.mark.parametrize(
    "text",
    [
        "[metadata]\nx = 'see a.b" + ".c" * 100 + "'",
        '[metadata]\nx = "see \\" a.b' + ".c" * 100 + '"',
        "# a" + ".c" * 100 + " it's \"\nversion = '1.0'",
        '[metadata]\nx = """\n"a" ' + "1.2.3 [[[ " * 100 + '\\""""""\ny = 1',
        "[metadata]\nx = '''\n' " + "..." * 100 + "[[[[" * 100 + "'''\ny = '#'",
        "[metadata]\nx = [" + "1.5, " * 1000 + "]\ny = [" + "[1.5], " * 1000 + "]",
        f"[metadata{'.a' * (MAX_DEPTH - 1)}]\ny = 2024-01-01T00:00:00.5Z",
    ],
)
def test_dots_and_brackets_in_texts_comments_and_numbers_do_not_count(text: str) -> None:
    assert read_task_toml(text) == tomllib.loads(text)
    admit(toml(text))


@pytest.mark.parametrize("begin", ['"""', "'''", '"', "'", '"""\\', '"\\'])
def test_a_text_that_does_not_end_hides_no_deep_key_and_is_scanned_once(begin: str) -> None:
    with pytest.raises(ValueError) as error:
        read_task_toml(f"a = {begin}" + '\\"""' * 50_000)
    assert not isinstance(error.value, TooLarge)
    with pytest.raises(TooLarge):
        read_task_toml(f"{'a.' * 50}b = {begin}")


MADE: dict[str, Callable[[int], dict[str, str]]] = {
    "ENV": lambda n: dockerfile("".join(f"ENV A{i}=1\n" for i in range(n))),
    "continuation lines": lambda n: dockerfile("ENV A=1 " + "\\\n " * (n * 30) + "B=2\n"),
    "here-documents": lambda n: dockerfile("COPY " + "<<A " * n * 15 + "/app/\n" + "B\n" * n * 30),
    "unknown keys": lambda n: toml("".join(f"agent_{i} = 1\n" for i in range(n * 8))),
    "keys of a compose file": lambda n: {
        "environment/docker-compose.yaml": COMPOSE + "".join(f"      A{i}: 1\n" for i in range(n))
    },
}


@pytest.mark.parametrize("name", MADE)
def test_the_work_grows_with_the_length(name: str) -> None:
    """CPU time of a text within its limits, compared with that of a text of a quarter of its length."""

    def measured(n: int) -> float:
        started = time.process_time()
        with contextlib.suppress(ValueError):
            admit(MADE[name](n))
        return time.process_time() - started

    draws = [(measured(1900), measured(475)) for _ in range(3)]
    assert sum(long < 0.2 or long < 9 * short for long, short in draws) >= 2, draws
