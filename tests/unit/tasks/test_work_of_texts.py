"""The work of reading a text of a task grows with its length, not with the square of it."""

import contextlib
import time
from collections.abc import Callable

import pytest

from orchestrator.settings.sandbox import SandboxSection
from orchestrator.tasks.admit import faults
from orchestrator.tasks.downloads import downloads
from orchestrator.tasks.harbor import Task
from orchestrator.tasks.traps.image_data import image_data_traps
from orchestrator.tasks.traps.shell import shell_traps

pytestmark = pytest.mark.tier("tasks")

SHORT, LONG = 6_000, 24_000
TEST = "#!/bin/bash\necho 1 > /logs/verifier/reward.txt\n"
BASE = {"task.toml": "", "instruction.md": "x", "tests/test.sh": TEST}
BUILDS = SandboxSection(provider="container")


def read(files: dict[str, str]) -> None:
    """As intake and a runner read a task."""
    with contextlib.suppress(ValueError):
        task = Task.from_files({path: text.encode() for path, text in (BASE | files).items()})
        list(faults(task, BUILDS))
        task.tests_files()


def instruction(text: str) -> None:
    read({"instruction.md": text})


def line(text: str) -> None:
    read({"environment/Dockerfile": f"FROM debian:12\n{text}\nWORKDIR /app\n"})


def script(text: str) -> None:
    read({"tests/test.sh": f"{TEST}{text}"})


IMAGE_DATA = {
    **BASE,
    "environment/Dockerfile": "FROM debian:12\nWORKDIR /app\nCOPY data /data\n",
    "environment/data/want.csv": "1,2\n",
    "solution/solve.sh": "python3 make.py > /app/out.csv\n",
}


def awk(text: str) -> None:
    shell_traps("tests/test.sh", f"awk '{text} }}' /app/out && ok=1\n", frozenset())


def perl(text: str) -> None:
    shell_traps("tests/test.sh", f"perl -ne '{text}' /app/out && ok=1\n", frozenset())


def shell(text: str) -> None:
    shell_traps("tests/test.sh", text, frozenset())


def copies(text: str) -> None:
    task = Task.from_files({path: text.encode() for path, text in IMAGE_DATA.items()})
    list(image_data_traps(task, {"tests/test.sh": text.encode()}))


Reads = Callable[[str], object]
REPEATED: list[tuple[Reads, str, str]] = [
    *((instruction, "<!--", each) for each in ("canary", "<!--canary", "-->canary", "\n<!--canary-->")),
    *((instruction, "#", each) for each in ("canary", "\n", "\n# canary")),
    *((line, "RUN ", each) for each in ("do/", "exec a/", "sudo ", "( ", "(a/", "|a/", "install ", "do a/install")),
    *((line, "RUN ", each) for each in ("cp ", "cd ", "sh -a ", "--a ", " -t", "'", '"', "`", "$(", "<<A ", "<<A\n")),
    *((line, begin, each) for begin in ("ENV ", "ONBUILD ", "COPY ") for each in ("A=b ", "ONBUILD ", "--a=b ", "--")),
    *((line, begin, each) for begin in ("ENTRYPOINT ", "FROM ") for each in ("sh -a ", "a/", "env ", "tini -a ", "--a ")),
    *((script, "", each) for each in ("sh a.sh", "sh ", "sh $(", '"\\\r\n', "<<A\r\n", "<<'a", "$'\\", "-a\n")),
    *((downloads, "", each) for each in ("-a\n", "-a ", ";-a", ";a=", "(a=", "(-a", "do curl ", "(apt -", "|apt -")),
    *((downloads, "", each) for each in ("(git clone ", "do uv run ", "sudo -a ", "pip -a", "a= ", "(pip", "python -m")),
    *((awk, begin, each) for begin in ("{ exit", "{ bad = 1 } END { exit bad", "{ exit ($1") for each in (" ", "\t")),
    *((awk, begin, "{ bad = 1 } END { exit bad") for begin in ("BEGIN{", "BEGIN { bad = 0 }")),
    *((perl, "", each) for each in ('"', '\\"', "/", "(/", "( ", "m{", "m!", "eval ")),
    (shell, "ok=1\n", "while read a; do [ $a = 4 ] || ok=0; done < out\n"),
    (shell, "", "[ $g -eq 4 ]; [ $? -ne 1 ]\n"),
    *((copies, begin, each) for begin in ("", "cp ") for each in ("cp ", " /tests/a", "/tests/", " /tests/a /b")),
]  # fmt: skip


@pytest.mark.parametrize(("reads", "begin", "repeated"), REPEATED)
def test_the_work_of_a_text_of_a_task_grows_with_its_length(reads: Reads, begin: str, repeated: str) -> None:
    """CPU time of a text, compared with that of one of a quarter of its length."""

    def measured(length: int) -> float:
        text = begin + repeated * (length // len(repeated))
        started = time.process_time()
        reads(text)
        return time.process_time() - started

    draws = [(measured(LONG), measured(SHORT)) for _ in range(3)]
    assert sum(long < 0.2 or long < 9 * short for long, short in draws) >= 2, draws
