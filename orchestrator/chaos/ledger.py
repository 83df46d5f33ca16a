"""What Penstock does not write: submissions that a client published, answers that an agent program received, completions that a rollout
server delivered. Files in the run's directory, one line at a time, so that a killed run has all but its last line.

    submissions.txt    ids, before they are published
    answers.jsonl      {session: sha256 of its token, digest: of the message as it was received}
    generations.jsonl  {of: rollout:attempt, ids: token ids}
    calls.jsonl        {of: rollout:attempt, ids: what was delivered or null, s: seconds} of every completion that was asked for
    faults.jsonl       every fault as it begins, and what came of it
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from io import TextIOWrapper
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from orchestrator.audit.witness import ANSWERS, GENERATIONS
from orchestrator.chaos.again import Call

SUBMISSIONS, CALLS, FAULTS = "submissions.txt", "calls.jsonl", "faults.jsonl"


class Ledger:
    """Open for one run; an existing one is continued."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.answers = len(lines(directory / ANSWERS))
        self._files = ExitStack()
        self._submissions = self._open(SUBMISSIONS)
        self._answers = self._open(ANSWERS)
        self._generations = self._open(GENERATIONS)
        self._calls = self._open(CALLS)
        self._faults = self._open(FAULTS)

    def _open(self, name: str) -> TextIOWrapper:
        path = self.directory / name
        if path.exists() and (text := path.read_bytes()) and not text.endswith(b"\n"):
            path.write_bytes(text[: text.rfind(b"\n") + 1])  # a line that a kill cut off
        return self._files.enter_context(path.open("a", encoding="utf-8", buffering=1))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._files.close()

    def submits(self, ids: Sequence[str]) -> None:
        """These are about to be published."""
        self._submissions.writelines(f"{submission}\n" for submission in ids)
        self._submissions.flush()

    def answered(self, said: bytes) -> None:
        """What an agent program told: whole lines alone count."""
        for line in said.decode("utf-8", "replace").splitlines():
            try:
                entry = json.loads(line)
                self._answers.write(
                    json.dumps({"session": str(entry["session"]), "digest": str(entry["digest"])}) + "\n"
                )
            except (ValueError, KeyError, TypeError):
                continue  # a program that was killed while it spoke
            self.answers += 1

    def called(self, call: Call) -> None:
        """The rollout server delivered one completion, or was cut off while it worked on one."""
        if call.ids is not None:
            self._generations.write(json.dumps({"of": call.of, "ids": call.ids}) + "\n")
        self._calls.write(json.dumps({"of": call.of, "ids": call.ids, "s": round(call.seconds, 6)}) + "\n")

    def fault(self, entry: dict[str, Any]) -> None:
        """One line of what is done, or of what came of it."""
        self._faults.write(json.dumps(entry) + "\n")


def lines(path: Path) -> list[str]:
    """The whole lines of a file of the ledger; none where there is no file."""
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def faults_of(directory: Path) -> Iterator[dict[str, Any]]:
    """What `faults.jsonl` says."""
    return _entries(directory / FAULTS)


def calls_of(directory: Path) -> Iterator[Call]:
    """What `calls.jsonl` says."""
    return map(Call.read, _entries(directory / CALLS))


def _entries(path: Path) -> Iterator[dict[str, Any]]:
    for line in lines(path):
        try:
            yield json.loads(line)
        except ValueError:
            continue  # cut off
