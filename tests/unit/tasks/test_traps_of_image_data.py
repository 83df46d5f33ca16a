"""Files that an image brings in a directory of data, where the agent can write them, and that the tests trust."""

import pytest

from orchestrator.tasks.harbor import Task
from orchestrator.tasks.traps import Rule, traps_of

SOLUTION = "python3 make.py > /app/out.csv\n"


def lines(dockerfile: str, test: str, solution: str = SOLUTION, **more: str) -> list[int]:
    """The lines of tests/test.sh with the rule."""
    files = {
        "task.toml": "",
        "instruction.md": "Write out.csv.",
        "environment/Dockerfile": dockerfile,
        "environment/data/want.csv": "1,2\n",
        "environment/data/deep/more.csv": "3\n",
        "tests/test.sh": test,
        "solution/solve.sh": solution,
        **more,
    }
    task = Task.from_files({path: text.encode() for path, text in files.items()})
    return [
        trap.line for trap in traps_of(task) if trap.rule is Rule.IMAGE_DATA and trap.file == "tests/test.sh"
    ]


@pytest.mark.parametrize(
    ("copy", "path"),
    [
        ("COPY data /data", "/data/want.csv"),
        ("COPY . /srv/", "/srv/data/want.csv"),
        ("COPY data/want.csv /data/", "/data/want.csv"),
        ('COPY --chown=a:b ["data/want.csv", "/data/other.csv"]', "/data/other.csv"),
        ("COPY data/*.csv /workspace/", "/workspace/want.csv"),
        ('COPY "data/want.csv" /data/', "/data/want.csv"),
        ("ADD data/ /srv/x", "/srv/x/deep/more.csv"),
        ("COPY data /opt/data\nVOLUME /opt/data", "/opt/data/want.csv"),
        ("COPY data /data\nFROM base\nRUN true", "/data/want.csv"),
    ],
)
def test_a_file_of_the_image_that_the_agent_can_write_is_named_where_tests_read_it(
    copy: str, path: str
) -> None:
    test = f"# {path}\ncmp -s out.csv {path} && echo 1 > /logs/verifier/reward.txt\n"
    assert lines(f"FROM debian:12 AS base\nWORKDIR /app\n{copy}\n", test) == [2]


@pytest.mark.parametrize(
    ("dockerfile", "test", "solution"),
    [
        ("FROM debian:12\nWORKDIR /app\nCOPY data /data\n", "cmp -s out.csv /tests/want.csv\n", SOLUTION),
        ("FROM debian:12\nWORKDIR /app\nCOPY data /data\n", "cmp -s /data/out.csv /tests/x\n", SOLUTION),
        ("FROM debian:12\nWORKDIR /app\nCOPY data /usr/share/data\n", "cmp out /usr/share/data/want.csv\n", SOLUTION),
        ("FROM debian:12\nWORKDIR /app\nCOPY data /data\n", "cmp -s /data/want.csv /tests/x\n", "sed -i s/1/2/ /data/want.csv\n"),
        ("FROM debian:12 AS a\nCOPY data /data\nFROM debian:12\nWORKDIR /app\n", "cmp out /data/want.csv\n", SOLUTION),
        ("FROM debian:12\nWORKDIR /app\nCOPY *.csv /data/\n", "cmp out /data/want.csv\n", SOLUTION),
        ("FROM debian:12\nWORKDIR /app\nCOPY --from=a data /data\n", "cmp out /data/want.csv\n", SOLUTION),
        ("FROM debian:12\nWORKDIR /app\nCOPY data /opt/data\n", "cmp out /opt/data/want.csv\n", SOLUTION),
        ("FROM debian:12\nWORKDIR /app\nCOPY data /var/data\nVOLUME /var/other\n", "cmp out /var/data/want.csv\n", SOLUTION),
        ("FROM debian:12\nWORKDIR /app\nCOPY data/want.csv /want.csv\n", "cmp out /want.csv\n", SOLUTION),
        ("FROM debian:12\nWORKDIR /app\nCOPY data/want.csv /\n", "cmp out /want.csv\n", SOLUTION),
        ("FROM debian:12\nWORKDIR /app\nCOPY data /data\n", "cp -f /tests/clean.csv /data/want.csv\ncmp out /data/want.csv\n", SOLUTION),
    ],
)  # fmt: skip
def test_files_of_the_tests_of_the_system_and_of_the_work_are_not_named(
    dockerfile: str, test: str, solution: str
) -> None:
    assert lines(dockerfile, test, solution) == []


@pytest.mark.parametrize(
    ("artifact", "place"),
    [("/var/data", "/var/data"), ("/var/data/want.csv", "/var/data"), ("/want.csv", "/")],
)
def test_a_file_in_a_place_that_artifacts_name_is_named(artifact: str, place: str) -> None:
    dockerfile = f"FROM debian:12\nWORKDIR /app\nCOPY data {place}\n"
    toml = f'artifacts = ["{artifact}"]\n'
    test = f"cmp out {place.rstrip('/')}/want.csv\n"
    assert lines(dockerfile, test, **{"task.toml": toml}) == [1]


def test_a_comment_allows_it() -> None:
    test = "cmp -s out.csv /data/want.csv # penstock-allow PT123: it is an input\n"
    assert lines("FROM debian:12\nWORKDIR /app\nCOPY data /data\n", test) == []
