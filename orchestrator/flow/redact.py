"""Takes a session's token out of what an attempt leaves behind: a program that prints its configuration prints its key.

What the policy itself was shown stays: those tokens are the truth of the step, and the session is over when anybody reads them.
"""

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from orchestrator.contracts.events import ArtifactFile
from orchestrator.contracts.ids import b64, unb64
from orchestrator.flow.outcome import Outcome

INSTEAD = "[token]"


def redacted(outcome: Outcome, token: str) -> Outcome:
    """The outcome without the token in its texts."""
    answer = None if outcome.answer is None else outcome.answer.replace(token, INSTEAD)
    return replace(
        outcome,
        reason=outcome.reason.replace(token, INSTEAD),
        log=outcome.log.replace(token, INSTEAD),
        answer=answer,
    )


def redacted_files(files: Sequence[ArtifactFile], token: str) -> list[ArtifactFile]:
    """The files without it, each of the size that it had."""
    secret, blank = token.encode(), b"x" * len(token)
    found = []
    for file in files:
        data = b"" if file.body is None else unb64(file.body)
        found.append(
            msgspec.structs.replace(file, body=b64(data.replace(secret, blank))) if secret in data else file
        )
    return found
