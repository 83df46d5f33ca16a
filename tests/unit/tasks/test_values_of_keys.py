"""Every key of task.toml with values of every type: each is taken, or refused in sentences, and none ends the check of a set."""

import pytest

from orchestrator.settings.providers import ImagesSection
from orchestrator.settings.sandbox import SandboxSection
from orchestrator.tasks.admit import faults
from orchestrator.tasks.harbor import Task
from orchestrator.tasks.keys import KEYS

VALUES = (
    "1", "-1", "0", "1.5", "nan", "inf", "true", "1979-05-27", "99999999999999999999", "9" * 400,
    '"x"', '""', '"2048MB"', '"2G"', '"/a"', '"${A}"', '"a\\u0000b"',
    "[]", "[1]", '["x"]', "[[]]", "[{}]", '[{ name = "a" }]', "{}", "{ a = 1 }", '{ A = "b" }', "{ a = { b = [1] } }",
)  # fmt: skip
SECTIONS = [
    SandboxSection(),
    SandboxSection(images=ImagesSection(directory="/srv/images")),
    SandboxSection(provider="container"),
]


def written(key: str, value: str) -> str:
    """A task.toml with one key."""
    head, *rest = key.split(".")
    for part in reversed(rest):
        value = f"{{ {part} = {value} }}"
    if head in ("steps", "artifacts") and rest:
        value = (
            f'[{{ name = "one", source = "a", {value.strip("{}")} }}]'
            if rest[0] not in ("name", "source")
            else f"[{value}]"
        )
    return f"{head} = {value}\n"


@pytest.mark.parametrize("key", sorted(KEYS))
def test_a_value_of_any_type_is_taken_or_refused_in_sentences(key: str) -> None:
    for value in VALUES:
        files = {
            "task.toml": written(key, value),
            "instruction.md": "Do it.",
            "tests/test.sh": "true",
            "environment/Dockerfile": "FROM debian:12\nWORKDIR /app\n",
        }
        if key.startswith("steps"):
            files |= {"steps/one/instruction.md": "Do it.", "steps/one/tests/test.sh": "true"}
            del files["instruction.md"]
        try:
            task = Task.from_files({path: text.encode() for path, text in files.items()})
        except ValueError as error:
            assert "task.toml" in str(error) or "instruction.md" in str(error), (value, error)
            continue
        for section in SECTIONS:
            assert all(isinstance(fault, str) and fault for fault in faults(task, section)), value
