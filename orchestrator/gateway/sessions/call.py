"""A completion of a session, under way or done: its waiting harnesses and its outcome."""

import time

import anyio

from orchestrator.contracts.ids import Ids
from orchestrator.contracts.marks import MAIN_AGENT
from orchestrator.gateway.messages.requests import Reply
from orchestrator.gateway.problems import Problem
from orchestrator.gateway.servers.in_flight import InFlight


class CompletionCall:
    """A completion under way or done. `result` waits for it. `agent` samples after `state` (int32[n]); None: nothing is sampled. `auxiliary`: it
    is outside the conversation."""

    def __init__(
        self,
        *,
        agent: str = MAIN_AGENT,
        state: Ids | None = None,
        auxiliary: bool = False,
        script_index: int | None = None,
    ) -> None:
        self.agent = agent
        self.state = state
        self.auxiliary = auxiliary
        self.began = time.monotonic()
        self.script_index = script_index  # the number of its reply in a script
        self.in_flight = InFlight()
        self.scope = anyio.CancelScope()
        self.waiting = 0  # number of harnesses that wait for it
        self.cut_off = False  # a clock has ended the attempt
        self._done = anyio.Event()
        self._reply: Reply | None = None
        self._problem: Problem | None = None

    @property
    def done(self) -> bool:
        return self._done.is_set()

    @property
    def succeeded(self) -> bool:
        """Whether it is done and has a reply."""
        return self._reply is not None

    @property
    def step(self) -> int:
        """The idx of the step of a call that succeeded."""
        assert self._reply is not None
        return self._reply.step

    def finish(self, outcome: Reply | Problem) -> None:
        """Set the outcome, once."""
        if isinstance(outcome, Problem):
            self._problem = outcome
        else:
            self._reply = outcome
        self._done.set()

    async def result(self) -> Reply:
        """The reply; raises the call's Problem."""
        await self._done.wait()
        if self._problem is not None:
            raise self._problem.untraced()  # of its own for each: raising adds a traceback
        assert self._reply is not None
        return self._reply

    async def over(self) -> None:
        """Return when it is done."""
        await self._done.wait()

    async def wait(self, seconds: float) -> bool:
        """Whether it is done within `seconds`."""
        with anyio.move_on_after(seconds):
            await self._done.wait()
        return self.done
