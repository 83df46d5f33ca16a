"""Messages whose handling fails for a reason that may be theirs, ours or the platform's: behaviour decides.

What Postgres or a codec refuses because of a message's content is plainly the message's fault (`transact.of_content`). An error of our own code, or
one of Postgres that no class explains, is not. Such a message is delivered again, later and later. It is at fault once it has failed `TRIES` times
while other messages of its consumer passed. While none passes, the platform is at fault, and every message waits for its repair.
"""

import hashlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from orchestrator.bus.base import Delivery, Outgoing
from orchestrator.runtime.backoff import backoff

Message = Delivery | Outgoing
TRIES = 3
"""Failed tries after which a message is at fault if others have passed."""
FIRST_WAIT_S, MAX_WAIT_S = 0.5, 30.0
GONE_S = 600.0
"""A message that does not come again for so long was settled by another process."""


@dataclass(slots=True, kw_only=True)
class _Suspect:
    passed: int
    """Messages that had passed when this one failed first."""
    failed: int = 0
    at: float = 0.0
    """When it failed last, on the monotonic clock."""
    waits: Iterator[float] = field(default_factory=lambda: backoff(FIRST_WAIT_S, MAX_WAIT_S))


@dataclass(slots=True)
class Suspects:
    """The failing messages of one consumer in this process."""

    passed: int = 0
    """Messages that were handled."""
    _failing: dict[bytes, _Suspect] = field(default_factory=dict)

    def failed(self, message: Message, *, last: bool = False) -> float | None:
        """Count a failed try of `message`. Returns the seconds until its next one; None: it is at fault, or that was its `last` try, since the bus
        delivers a message no more often."""
        self._forget()
        suspect = self._failing.setdefault(identity(message), _Suspect(passed=self.passed))
        suspect.failed += 1
        suspect.at = time.monotonic()
        if last or (suspect.failed >= TRIES and self.passed > suspect.passed):
            return None
        return next(suspect.waits)

    @property
    def failing(self) -> bool:
        """Whether a message waits for its next try."""
        self._forget()
        return bool(self._failing)

    def _forget(self) -> None:
        gone = time.monotonic() - GONE_S
        for identity in [each for each, suspect in self._failing.items() if suspect.at < gone]:
            del self._failing[identity]

    def settled(self, message: Message) -> None:
        """`message` was handled or refused, and comes no more."""
        if self._failing:
            self._failing.pop(identity(message), None)


def identity(message: Message) -> bytes:
    """The same for each delivery of a message. An equal body under another schema is another message."""
    names = f"{message.subject}\0{message.msg_id}\0{message.schema}\0"
    return hashlib.sha256(names.encode() + message.body).digest()
