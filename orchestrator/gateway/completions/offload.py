"""Process large requests off the event loop: one at a time for a session, a few for the gateway.

A request is large if its body is `bodies.costly`, or if it has more than SMALL characters, or MANY messages and tools, that are not on record yet
and must be rendered. The work continues to its end when its client leaves, so a client that leaves and retries never runs two copies at once.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import TypeVar

import anyio
from anyio import to_thread
from anyio.abc import TaskGroup

from orchestrator.gateway.messages.requests import CompletionRequest
from orchestrator.gateway.messages.turns import Turn
from orchestrator.gateway.problems import BodyTooLarge, Problem, bad_request, unavailable
from orchestrator.gateway.sessions.session import Session
from orchestrator.runtime.cores import usable_cores
from orchestrator.runtime.log import get

log = get(__name__)

SMALL, MANY = 1 << 14, 256
AT_ONCE = 8  # large requests of one session that are being read or wait to be read

T = TypeVar("T")


class LargeRequests:
    """Threads and processes that process large requests."""

    def __init__(self, tasks: TaskGroup) -> None:
        self._tasks = tasks
        half = max(1, usable_cores() // 2)
        self.threads, self.unpacking = anyio.CapacityLimiter(half), anyio.CapacityLimiter(half)
        self.processes = anyio.CapacityLimiter(1)

    async def thread(self, session: Session, work: Callable[[], T], *, waits: bool = True) -> T:
        """Run `work` in one of the `threads` and return its result, as `run`. For work that releases the interpreter lock."""
        return await self.run(session, partial(_in_thread, work, self.threads), waits=waits)

    async def unpack(self, session: Session, work: Callable[[], T]) -> T:
        """Decompress a body in a thread. It does not wait for texts that others render."""
        # It takes little time, and no budget bounds it: a program that sends such bodies must not stop its clock.
        return await self.run(session, partial(_in_thread, work, self.unpacking), waits=False)

    async def run(self, session: Session, work: Callable[[], Awaitable[T]], *, waits: bool = True) -> T:
        """Return the result of `work`, after the session's other large requests. `waits`: it waits for the platform until then. Raises Problem
        503 when too many of them wait."""
        check_room(session)
        finished = anyio.Event()
        results: list[T] = []
        errors: list[Exception] = []

        async def run() -> None:
            try:
                async with session.large:
                    results.append(await work())
            except (Problem, BodyTooLarge) as refused:
                errors.append(refused)
            except RecursionError:
                errors.append(bad_request("the body is nested too deeply"))
            except Exception:
                log.exception("large_request.failed", **session.ids)
                errors.append(Problem(500, "internal_error", "the gateway failed on this request"))
            finally:
                session.waiting_large -= 1
                finished.set()

        session.waiting_large += 1
        self._tasks.start_soon(run)
        with session.preparing() if waits else nullcontext():
            await finished.wait()
        if errors:
            raise errors[0]
        if not results:
            raise unavailable("the gateway is stopping; try again")
        return results[0]


async def _in_thread(work: Callable[[], T], limiter: anyio.CapacityLimiter) -> T:
    return await to_thread.run_sync(work, abandon_on_cancel=True, limiter=limiter)


def check_room(session: Session) -> None:
    """Raise Problem 503 when the session already has the maximum number of waiting large requests."""
    if session.waiting_large >= AT_ONCE:
        raise unavailable(f"{AT_ONCE} large requests of this session are being read: try again")


def blocks_event_loop(turns: Sequence[Turn]) -> bool:
    """Whether rendering `turns` would block the event loop."""
    return len(turns) > MANY or sum(map(_characters, turns)) > SMALL


def extent(turns: Sequence[Turn]) -> int:
    """Upper bound on the tokens of the texts of `turns`: one token per byte."""
    return sum(len(text) if text.isascii() else 4 * len(text) for turn in turns for text in texts(turn))


def texts(turn: Turn) -> tuple[str, ...]:
    """All texts of a turn: answer, reasoning, arguments of calls."""
    return (turn.text, turn.reasoning or "", *(call.arguments for call in turn.calls))


def tools_of(request: CompletionRequest) -> int:
    """The approximate number of characters of the tools."""
    return sum(len(repr(tool)) for tool in request.tools)


def _characters(turn: Turn) -> int:
    return sum(map(len, texts(turn)))
