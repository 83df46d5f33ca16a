"""The record that Penstock does not write: submissions that a client published, answers that an agent program received, completions that a
rollout server delivered. Files in the run's directory, written line by line, so that a killed run has all but its last line.

    submissions.txt    ids, before they are published
    answers.jsonl      {session: sha256 of its token, digest: of the message as it was received}
    generations.jsonl  {of: rollout:attempt, ids: token ids}
    calls.jsonl        {of: rollout:attempt, ids: delivered token ids or null, s: seconds} of every requested completion
    faults.jsonl       every fault when it starts, and its outcome
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from io import TextIOWrapper
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ops.lab.chaos.regenerated import AttemptCall
from orchestrator.audit.i3_external_record import ANSWERS, GENERATIONS

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
        """Record submissions that are about to be published."""
        self._submissions.writelines(f"{submission}\n" for submission in ids)
        self._submissions.flush()

    def answered(self, received: bytes) -> None:
        """Record the report of an agent program. Only whole lines count."""
        for line in received.decode("utf-8", "replace").splitlines():
            try:
                entry = json.loads(line)
                self._answers.write(
                    json.dumps({"session": str(entry["session"]), "digest": str(entry["digest"])}) + "\n"
                )
            except (ValueError, KeyError, TypeError):
                continue  # the program was killed while it wrote
            self.answers += 1

    def called(self, call: AttemptCall) -> None:
        """Record one completion that the rollout server delivered, or was working on when it was cut off."""
        if call.ids is not None:
            self._generations.write(json.dumps({"of": call.of, "ids": call.ids}) + "\n")
        self._calls.write(json.dumps({"of": call.of, "ids": call.ids, "s": round(call.seconds, 6)}) + "\n")

    def fault(self, entry: dict[str, Any]) -> None:
        """Record the start of a fault, or its outcome."""
        self._faults.write(json.dumps(entry) + "\n")


def lines(path: Path) -> list[str]:
    """The whole lines of a file of the ledger; none if the file is missing."""
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def faults_of(directory: Path) -> Iterator[dict[str, Any]]:
    """The entries of `faults.jsonl`."""
    return _entries(directory / FAULTS)


def calls_of(directory: Path) -> Iterator[AttemptCall]:
    """The calls in `calls.jsonl`."""
    return map(AttemptCall.read, _entries(directory / CALLS))


def _entries(path: Path) -> Iterator[dict[str, Any]]:
    for line in lines(path):
        try:
            yield json.loads(line)
        except ValueError:
            continue  # cut off
