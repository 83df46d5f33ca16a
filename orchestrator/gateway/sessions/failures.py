"""The calls of a session that the platform failed, until a later call shows that the program went on."""

from orchestrator.contracts.marks import MAIN_AGENT
from orchestrator.gateway.sessions.call import CompletionCall


class Failures:
    """The newest failure of each agent and of auxiliary calls. A served call ends those of its agent and of auxiliary calls, the main agent's those
    of all, that came before it began: an older call shows nothing about the program after the failure."""

    def __init__(self) -> None:
        # By agent, None: auxiliary calls. When, as `time.monotonic()`, and why.
        self._newest: dict[str | None, tuple[float, str]] = {}
        self._last: tuple[float, str | None] = 0.0, None

    def failed(self, call: CompletionCall, why: str, at: float) -> None:
        """The platform failed a call."""
        self._newest[None if call.auxiliary else call.agent] = at, why
        self._ended(call, why)

    def served(self, call: CompletionCall) -> None:
        """A call has its reply."""
        self._ended(call, None)
        main = call.agent == MAIN_AGENT and not call.auxiliary
        of = list(self._newest) if main else [None] if call.auxiliary else [call.agent, None]
        for agent in of:
            if agent in self._newest and self._newest[agent][0] <= call.began:
                del self._newest[agent]

    def _ended(self, call: CompletionCall, why: str | None) -> None:
        if not call.auxiliary and call.began >= self._last[0]:
            self._last = call.began, why

    @property
    def newest(self) -> str | None:
        """Why the platform failed the newest of these calls; None: there are none."""
        return max(self._newest.values(), default=(0.0, None))[1]

    @property
    def last(self) -> str | None:
        """Why the platform failed the call that began last, auxiliary calls aside; None: that one was served, or there are none."""
        return self._last[1]
