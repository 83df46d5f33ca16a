"""Messages that are late, or from a lease that the sender does not hold: counted in their transaction, logged here after its commit."""

import time
from collections.abc import Mapping

from orchestrator.contracts.events import RolloutFinished, StepRecorded, VerdictReached
from orchestrator.runtime.log import get
from orchestrator.settings.timeouts import timeouts

log = get(__name__)

MAX_LINES = 20  # lines in `timeouts.stale_log_interval_s`; the counters show the rest of a flood


class Stale:
    """The refusals of one consumer. `what` is the name of its messages, as in the counter `<what>_stale`."""

    def __init__(self, what: str) -> None:
        self._what = what
        # (rollout, attempt, epoch, reason) → steps.
        self._found: dict[tuple[int, int, int, str], list[int]] = {}
        self._since = 0.0
        self._lines = self._left_out = 0

    def begin(self) -> None:
        """Forget the findings of an earlier, failed try of this transaction."""
        self._found.clear()

    def add(self, event: StepRecorded | RolloutFinished | VerdictReached, reason: str) -> None:
        """`event` is refused, unless the transaction fails."""
        steps = self._found.setdefault((event.rollout, event.attempt, event.epoch, reason), [])
        if isinstance(event, StepRecorded):
            steps.append(event.idx)

    async def tell(self) -> None:
        """Log each refusal with its reason after the commit, with the steps of one lease in one line."""
        for (rollout, attempt, epoch, reason), steps in self._found.items():
            now = time.monotonic()
            if now - self._since >= timeouts().stale_log_interval_s:
                self._since, self._lines = now, 0
            if self._lines == MAX_LINES:
                self._left_out += 1
                continue
            self._lines += 1
            more: Mapping[str, object] = {"steps": steps} if steps else {}
            if self._left_out:
                more = {**more, "left_out": self._left_out}
                self._left_out = 0
            log.warning(
                f"{self._what}.stale", rollout=rollout, attempt=attempt, epoch=epoch, reason=reason, **more
            )
        self._found.clear()
