"""The calls of a session that the platform failed, until a later call shows that the program went on."""

from orchestrator.contracts.marks import MAIN_AGENT
from orchestrator.gateway.sessions.call import CompletionCall


class Failures:
    """The newest failure of each agent. A served call ends those of its agent, the main agent's those of all, that came before it began: an older
    call shows nothing about the program after the failure. Auxiliary calls are not the policy's work and do not count."""

    def __init__(self) -> None:
        self._newest: dict[str, tuple[float, str]] = {}  # by agent: when, as `time.monotonic()`, and why

    def failed(self, call: CompletionCall, why: str, at: float) -> None:
        """The platform failed a call."""
        if not call.auxiliary:
            self._newest[call.agent] = at, why

    def served(self, call: CompletionCall) -> None:
        """A call has its reply."""
        if call.auxiliary:
            return
        of = [call.agent] if call.agent != MAIN_AGENT else list(self._newest)
        for agent in of:
            if agent in self._newest and self._newest[agent][0] <= call.began:
                del self._newest[agent]

    @property
    def newest(self) -> str | None:
        """Why the platform failed the newest of these calls; None: there are none."""
        return max(self._newest.values(), default=(0.0, None))[1]
