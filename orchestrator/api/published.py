"""The answers to published tasks."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from orchestrator.api.arguments import each_of, words


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """The answers to one call of `Run.publish`. `refused`: submission → reason, one sentence, final for that submission id. `unanswered`: no
    orchestrator answered in time; the tasks may still be accepted, and publishing them again is a no-op then."""

    accepted: tuple[str, ...]
    refused: Mapping[str, str]
    unanswered: tuple[str, ...]

    @property
    def submissions(self) -> tuple[str, ...]:
        """The ids of all published tasks: accepted, refused, then unanswered."""
        return (*self.accepted, *self.refused, *self.unanswered)


def accepted_in(submissions: "Published | Iterable[str]") -> tuple[str, ...]:
    """The accepted submissions of a `Published`, or the given ids."""
    given = submissions.accepted if isinstance(submissions, Published) else submissions
    given = (given,) if isinstance(given, str) else given
    return each_of("submissions", given, words)
