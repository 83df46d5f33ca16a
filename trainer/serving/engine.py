"""The engine's thread: runs the scheduler step by step and takes commands between two steps.

Torch never runs in the event loop's thread. Commands are closures over the scheduler and run in the order of their
calls. A submission is a command too, so a request that comes after a pause waits. If a step fails, the engine
stops permanently and reports it once (`on_crash`): a half-done step leaves nothing worth keeping, and a supervisor
restarts the process. So does it if one step never returns (`hanging`): the server would accept requests and never answer them.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

import torch

from orchestrator.contracts.processes import PauseMode
from trainer.serving.scheduler import Scheduler
from trainer.serving.sequence import Sequence

T = TypeVar("T")

POLL_INTERVAL_S = 5.0
CHECKS_OF_A_HANG = 100
"""Checks that find one and the same step, after which it hangs: a count, because a process that stood still has not checked either."""


class EngineStopped(Exception):
    """The engine takes no more commands: the server is going down."""


class Engine:
    """`notify` gets, from the engine's thread, the sequences that gained a token or ended in a step or a command."""

    def __init__(
        self,
        scheduler: Scheduler,
        notify: Callable[[list[Sequence]], None],
        on_crash: Callable[[BaseException], None],
    ) -> None:
        self.scheduler = scheduler
        self._notify = notify
        self._on_crash = on_crash
        self._wake = threading.Condition()
        self._commands: list[Callable[[], None]] = []
        self._stopping = False
        self._turns = 0
        self._working = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout: float) -> None:
        """Stop after the current step; waits for it at most `timeout` seconds."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join(timeout)

    async def hanging(self, checks: int = CHECKS_OF_A_HANG, every_s: float = POLL_INTERVAL_S) -> None:
        """Return once the thread has been seen `checks` times in a row in one and the same step or command."""
        seen, turn = 0, -1
        while seen < checks:
            await asyncio.sleep(every_s)
            same = self._working and self._turns == turn
            seen, turn = (seen + 1 if same else 0), self._turns

    def call(self, command: Callable[[Scheduler], T]) -> "Future[T]":
        """Run `command` between two steps, even if its caller no longer waits. Raises EngineStopped if it can no longer run."""
        future: Future[T] = Future()

        def run() -> None:
            awaited = future.set_running_or_notify_cancel()  # from here on it cannot be cancelled
            try:
                result = command(self.scheduler)
            except BaseException as error:
                if awaited:
                    future.set_exception(error)
                raise
            if awaited:
                future.set_result(result)

        with self._wake:
            if self._stopping:
                raise EngineStopped
            self._commands.append(run)
            self._wake.notify()
        return future

    def submit(self, sequence: Sequence) -> None:
        self.call(lambda scheduler: scheduler.submit(sequence))

    def abort(self, wanted: Callable[[Sequence], bool]) -> "Future[None]":
        return self.call(lambda scheduler: self._tell(scheduler.abort(wanted)))

    def pause(self, mode: PauseMode) -> "Future[None]":
        return self.call(lambda scheduler: self._tell(scheduler.pause(mode)))

    def _tell(self, touched: list[Sequence]) -> None:
        if touched:
            self._notify(touched)

    def _run(self) -> None:
        try:
            with torch.inference_mode():
                while self._turn():
                    pass
        except BaseException as error:  # noqa: BLE001  reported, then the process ends
            with self._wake:
                self._stopping = True
            self._on_crash(error)

    def _turn(self) -> bool:
        """Wait for work and do it; False if the engine should stop."""
        self._working = False
        with self._wake:
            while not (self._stopping or self._commands or self.scheduler.has_work):
                self._wake.wait()
            commands, self._commands = self._commands, []
            if self._stopping:
                return False
        self._turns += 1
        self._working = True
        for command in commands:
            command()
        if self.scheduler.has_work:
            self._tell(self.scheduler.step())
        return True
