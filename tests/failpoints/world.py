"""One stack with work in flight all the time, whose failpoints are armed one boundary after the other while it runs."""

import os
import signal
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from orchestrator.contracts.events import TaskSubmitted
from orchestrator.contracts.states import Purpose, SubmissionStatus
from orchestrator.deploy.embedded.process_spec import ProcessState
from orchestrator.publish import publish_tasks
from orchestrator.runtime.failpoints import HITS
from tests.e2e.feeder import Feeder
from tests.e2e.observer import PATIENCE_S, Observer, a_task, observing
from tests.e2e.stack_rig import Stack, until

AGENT = Path(__file__).parent / "agent.py"
CONFIG = """\
[run]
name = "failpoints"

[policy]
model = "{model}"

[queue]
batch_groups = 1
group_size = 2
max_staleness = 20
capacity = 20
window_fraction = 1.0
max_attempts = 10
breaker_rate = 0.3
breaker_attempts = 3
breaker_window_s = 1.5

[stage]
max_turns = 2
max_context = 1024

[sampling]
max_new_tokens = 32

[sandbox]
memory_mb = 512
processes = 64
cpu_s = 60
disk_mb = 64

[rollout]
slots = 6
verify_slots = 2
scaffolds = {{ "{agent}:Asking" = 1.0, "{agent}:Broken" = 0.0, "{agent}:Hasty" = 0.0 }}
lease_ttl_s = 3.0
retry_delay_s = 0.1
timeout_s = 30.0
completion_s = 60.0
tool_timeout_s = 60.0
reassign_after_s = 1.0

[servers]
probe_s = 0.2
silence_s = 2.0
lease_ttl_s = 2.0
drain_s = 0.05
retry_s = 0.5
version_poll_interval_s = 0.5

[processes]
restart_first_s = 0.02
restart_longest_s = 0.05
restart_limit = 100000
"""
OPEN_GROUPS = 6
ANSWER_S = 600.0  # the orchestrator is killed again and again in the meantime
AT_WORK = {
    "orchestrator": b'"orchestrator.ready"',
    "gateway": b'"server.leased"',
    "runner": b'"runner.ready"',
    "verifier": b'"verifier.ready"',
}
VERIFIED = "select count(*) from transitions where run_id = :run and kind = 'rollout' and to_state in ('verified', 'lost')"
HELD = "select count(*) from rollouts where run_id = :run and state = 'running'"
RAN_OUT = "select count(*) from transitions where run_id = :run and reason like '%lease ran out%'"
WAITING = "select count(*) from groups where run_id = :run and state in ('accepted', 'dispatched') and purpose = :purpose"


@dataclass(slots=True, kw_only=True)
class World:
    """A stack, its client, and the directory that arms its failpoints."""

    stack: Stack
    seen: Observer
    directory: Path
    numbers: Counter[str] = field(default_factory=Counter)
    load: Feeder = field(init=False)

    def __post_init__(self) -> None:
        self.load = Feeder(feed=self._fill_up, every_s=0.1)

    # --- work ---

    async def _fill_up(self) -> None:
        """Groups that train and groups that are only scored are never all done."""
        for purpose in (Purpose.TRAIN, Purpose.RECORD):
            if await self.seen.value(WAITING, purpose=purpose) < OPEN_GROUPS:
                await self.submit(2, purpose=purpose)

    async def submit(
        self, count: int, *, purpose: Purpose, scaffold: str = "Asking", test_s: float = 0.0
    ) -> None:
        """Into the ledger, onto the bus, and wait until accepted. A case whose time is up cannot cancel it in between: nothing is in the ledger that
        the bus did not get. The name of a task whose tests take `test_s` seconds begins with `slow:`."""
        events, names = [], []
        for _ in range(count):
            self.numbers["task"] += 1
            name = f"{'slow' if test_s else 'task'}:{self.numbers['task']:05d}"
            task = a_task(self.numbers["task"], test_s).to_message()
            event = TaskSubmitted(task=task, submission=name, purpose=purpose, scaffold=f"{AGENT}:{scaffold}")
            events.append(("general", event))
            names.append(name)
        with anyio.CancelScope(shield=True):
            self.seen.ledger += names
            answers = await publish_tasks(self.seen.bus, self.seen.run, events, timeout_s=ANSWER_S)
        assert answers == dict.fromkeys(names, (SubmissionStatus.ACCEPTED, None)), answers

    async def progress(self, patience_s: float) -> None:
        """Wait until another rollout has ended, through every process but the trainer."""
        before = await self.seen.value(VERIFIED)

        async def more() -> bool:
            return bool(await self.seen.value(VERIFIED) > before)

        await until(more, "another rollout ends", patience_s)

    # --- failpoints ---

    def arm(self, points: Mapping[str, Sequence[str]]) -> None:
        """Each point with the actions of its next arrivals."""
        for point, actions in points.items():
            fresh = self.directory / f".new.{point}"
            fresh.write_text("\n".join(actions))
            fresh.rename(self.directory / point)

    def disarm(self, points: Mapping[str, Sequence[str]]) -> None:
        for point in points:
            (self.directory / point).unlink(missing_ok=True)

    def hits(self) -> Counter[str]:
        """`POINT ACTION` → how often."""
        return Counter(line.rsplit(" ", 2)[0] for line in self._hits())

    def who(self, name: str) -> set[str]:
        """The processes that were hit at one boundary; - for unsupervised processes."""
        points = {name, f"{name}.before", f"{name}.after"}
        return {
            line.rsplit(" ", 1)[1]
            for line in self._hits()
            if line.partition(" ")[0].partition("@")[0] in points
        }

    def _hits(self) -> list[str]:
        file = self.directory / HITS
        return file.read_text().splitlines() if file.exists() else []

    # --- events that provoke rare boundaries ---

    async def end(self, process: str, how: signal.Signals) -> None:
        """Signal one process, and wait until another one is at work in its place, or was hit before."""
        found, hits = self.stack.of(process), self.hits()
        log = self.stack.home.layout.log(process)
        log_size = log.stat().st_size
        if found.state is not ProcessState.READY or found.pid is None:
            return  # it is about to start already

        def at_work() -> bool:
            return AT_WORK[process] in log.read_bytes()[log_size:] or self.hits() != hits

        try:
            os.kill(found.pid, how)
        except ProcessLookupError:  # of a failpoint
            return
        await until(at_work, f"{process} is at work again", PATIENCE_S)

    async def freeze_the_runner(self, patience_s: float) -> None:
        """Stop it while it holds a lease, until that has run out."""

        async def holds() -> bool:
            return bool(await self.seen.value(HELD))

        async def holds_and_lives() -> bool:
            return await holds() and self.stack.of("runner").pid is not None

        async def ran_out() -> bool:
            return bool(await self.seen.value(RAN_OUT) > before)

        async def over() -> bool:
            """Or it had already finished its work: its result was on the way."""
            return await ran_out() or not await holds()

        while True:
            await until(holds_and_lives, "the runner holds a lease", patience_s)
            pid, before = self.stack.of("runner").pid, await self.seen.value(RAN_OUT)
            if pid is None:  # it has ended since, and is about to start
                continue
            with suppress(ProcessLookupError):  # it may end by itself first
                os.kill(pid, signal.SIGSTOP)
                try:
                    await until(over, "a lease of the runner runs out", patience_s)
                    if await ran_out():
                        return
                finally:
                    os.kill(pid, signal.SIGCONT)

    async def command(self, *arguments: str) -> None:
        """Run one command as a person would; its result is ignored."""
        with suppress(subprocess.TimeoutExpired):
            await anyio.to_thread.run_sync(lambda: self.stack.penstock(*arguments, timeout_s=PATIENCE_S))


@asynccontextmanager
async def at_work(stack: Stack, model: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    """A stack that is up and busy."""
    directory = stack.directory / "failpoints"
    directory.mkdir()
    monkeypatch.setenv("PENSTOCK_FAILPOINTS", str(directory))  # for every process started from now on
    (stack.directory / "penstock.toml").write_text(CONFIG.format(model=model, agent=AGENT))
    await stack.up()
    async with observing(stack.home) as seen, anyio.create_task_group() as tasks:
        world = World(stack=stack, seen=seen, directory=directory)
        tasks.start_soon(world.load.run)
        await world.seen.until_batches(1)
        yield world
        await world.load.stop()
