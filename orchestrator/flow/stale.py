"""What comes too late, or of a lease that is not its sender's: counted in its transaction, and said here once that is committed."""

import time
from collections.abc import Mapping

from orchestrator.clock import clock
from orchestrator.contracts.events import RolloutFinished, StepRecorded, VerdictReached
from orchestrator.log import get

log = get(__name__)

MOST = 20  # lines in `clock.refusals_s`; of a flood the counters tell the rest


class Stale:
    """The refusals of one consumer. `what` names its messages as the counter `<what>_stale` does."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._found: dict[
            tuple[int, int, int, str], list[int]
        ] = {}  # rollout, attempt, epoch, reason → steps
        self._since = 0.0
        self._lines = self._left_out = 0

    def begin(self) -> None:
        """Of this transaction, which may have failed before, nothing is found yet."""
        self._found.clear()

    def add(self, event: StepRecorded | RolloutFinished | VerdictReached, reason: str) -> None:
        """`event` is refused, unless the transaction fails."""
        steps = self._found.setdefault((event.rollout, event.attempt, event.epoch, reason), [])
        if isinstance(event, StepRecorded):
            steps.append(event.idx)

    async def tell(self) -> None:
        """The transaction is committed: say each refusal with its reason, the steps of one lease in one line."""
        for (rollout, attempt, epoch, reason), steps in self._found.items():
            now = time.monotonic()
            if now - self._since >= clock().refusals_s:
                self._since, self._lines = now, 0
            if self._lines == MOST:
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
