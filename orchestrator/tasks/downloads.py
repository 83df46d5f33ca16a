"""Commands of a test script that plainly download something, and so need a network. A command inside a text or a comment is none."""

import re
from collections.abc import Iterator
from typing import Final

from orchestrator.contracts.network import NetworkMode
from orchestrator.tasks.harbor import TEST_SCRIPT, Task
from orchestrator.tasks.multi_step import steps_of
from orchestrator.tasks.network import of_tests

_SEPARATORS: Final = re.compile(r"[\n;&|]")
_READ: Final = 2_000
"""Characters of one command that are read: the work for one is that of a search from each of its words."""
_BEGINS: Final = (
    r"(?:^|[({]|\b(?:if|then|else|do|while|until|sudo|time|exec)\s)[ \t!]*(?:-\S+\s+)*(?:\w+=\S*[ \t]+)*"
)
_OPTIONS: Final = r"(?:\s+-\S+)*\s+"
_COMMAND: Final = re.compile(
    _BEGINS + r"(?P<command>"
    rf"(?:apt-get|apt){_OPTIONS}(?:install|update)\b"
    rf"|apk{_OPTIONS}add\b|(?:dnf|yum){_OPTIONS}install\b"
    rf"|(?:python[\d.]*\s+-m\s+)?pip[\d.]*{_OPTIONS}(?:install|download)\b"
    rf"|uvx\s|uv{_OPTIONS}(?:pip\s+install|add|sync|tool\s+(?:run|install)|run(?=\s.*--with))\b"
    rf"|npm{_OPTIONS}(?:install|i|ci)\b"
    rf"|git{_OPTIONS}clone\b(?=.*https?://)"
    r"|(?:curl|wget)\s(?=.*https?://(?!localhost|127\.|\[::1))"
    r")(?P<rest>.*)"
)
_OFFLINE: Final = re.compile(r"\s--(?:no-index|offline|no-build-isolation)\b|\s(?:-h|--help|--version)\b")


def downloads(script: str) -> str:
    """The first command of a shell script that downloads, such as `apt-get install`; empty: none plainly does.

    >>> downloads("if ! command -v uvx; then curl -Ls https://example.org/uv.sh | sh; fi")
    'curl'
    """
    for line in _SEPARATORS.split(script.replace("\\\n", "  ")):
        found = _COMMAND.search(line[:_READ])
        if found is not None and not _OFFLINE.search(f"{found['command']} {found['rest']}"):
            words = (word for word in found["command"].split() if not word.startswith("-") or word == "-m")
            return " ".join(words)
    return ""


def without_network(task: Task) -> Iterator[tuple[str, str]]:
    """The test scripts of a task that download and have no network, with the command."""
    for step in steps_of(task):
        script = step.task.files.get(TEST_SCRIPT)
        if script is None or of_tests(step.task.settings).mode is not NetworkMode.NONE:
            continue
        if command := downloads(script.data.decode(errors="replace")):
            yield TEST_SCRIPT if step.name is None else f"step {step.name}: {TEST_SCRIPT}", command
