"""How the orchestrator answered the submissions of one `penstock tasks publish`, counted and in words."""

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Any

from orchestrator.contracts.states import SubmissionStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """`accepted`: all that are accepted, among them `already` by an earlier command; `rejected`: the reason of each rejected submission;
    `earlier`: the submissions, accepted or rejected, whose answer is that of an earlier command; `unanswered`: their number."""

    accepted: int
    already: int
    rejected: Mapping[str, str]
    earlier: Set[str]
    unanswered: int

    @classmethod
    def of(
        cls,
        submitted: int,
        answers: Mapping[str, tuple[SubmissionStatus, str | None]],
        earlier: Set[str],
    ) -> "Answers":
        """Count the answers to `submitted` submissions."""
        rejected = {
            submission: reason or ""
            for submission, (status, reason) in answers.items()
            if status is SubmissionStatus.REJECTED
        }
        return cls(
            accepted=len(answers) - len(rejected),
            already=len(earlier - rejected.keys()),
            rejected=rejected,
            earlier=earlier,
            unanswered=submitted - len(answers),
        )

    @property
    def complete(self) -> bool:
        """Whether every submission is accepted."""
        return not self.rejected and not self.unanswered

    def counts(self) -> dict[str, Any]:
        """The form that --json prints."""
        return {
            "accepted": self.accepted,
            "already": self.already,
            "rejected": dict(self.rejected),
            "unanswered": self.unanswered,
        }

    def summary(self) -> str:
        """The numbers, in one line."""
        new = self.accepted - self.already
        parts = [f"{new} accepted"] if new or not self.already else []
        if self.already:
            parts.append(f"{self.already} accepted already")
        return ", ".join([*parts, f"{len(self.rejected)} rejected", f"{self.unanswered} unanswered"])

    def reasons(self) -> Iterator[str]:
        """A line for each reason, with the submission or the number of submissions that it rejects."""
        by_reason: dict[tuple[str, bool], list[str]] = {}
        for submission, reason in self.rejected.items():
            by_reason.setdefault((reason, submission in self.earlier), []).append(submission)
        for (reason, old), submissions in by_reason.items():
            subject = submissions[0] if len(submissions) == 1 else f"{len(submissions)} tasks"
            stays = " (answered earlier, and that stays: use another --label)" if old else ""
            yield f"{subject}: {reason}{stays}"
