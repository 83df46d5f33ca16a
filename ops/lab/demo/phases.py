"""The demo as a client: it publishes tasks, waits on SQL, and keeps its own ledger.

The ledger is a file of submission ids written before anything is published; `lost` and `trained_twice` are computed against it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from orchestrator.bus.base import Bus
from orchestrator.contracts.errors import PenstockError
from orchestrator.contracts.events import TaskSubmitted
from orchestrator.contracts.ids import EVERY_DOMAIN
from orchestrator.contracts.states import Purpose, RunState, SubmissionStatus
from orchestrator.publish import publish_tasks
from orchestrator.queries.evaluations import EvaluationPoint, evaluations
from orchestrator.tasks.harbor import Task

CLOSED = "its intake is closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """The demo's connections to its run."""

    run: str
    run_id: int
    bus: Bus
    engine: AsyncEngine
    ledger: Path

    async def rows(self, statement: str, **parameters: Any) -> Sequence[Any]:
        """One query."""
        async with self.engine.connect() as connection:
            return (await connection.execute(text(statement), {"run": self.run_id, **parameters})).all()

    async def value(self, statement: str, **parameters: Any) -> Any:
        """One query's first column of its first row."""
        found = await self.rows(statement, **parameters)
        return found[0][0] if found else None


async def publish(
    client: Client,
    tasks: Sequence[Task],
    *,
    purpose: Purpose,
    label: str,
    group_size: int | None = None,
    version: int | None = None,
    sampling: dict[str, float] | None = None,
) -> None:
    """Publish the tasks and wait until all are accepted. Raises PenstockError naming the first that is not."""
    events = [
        (
            task.settings.metadata.domain,
            TaskSubmitted(
                task=task.to_message(),
                submission=f"{label}:{number:04d}:{task.content_hash[:16]}",
                purpose=purpose,
                group_size=group_size,
                label=label,
                version=version,
                sampling=sampling,
            ),
        )
        for number, task in enumerate(tasks)
    ]
    with client.ledger.open("a", encoding="utf-8") as ledger:
        ledger.writelines(f"{event.submission}\n" for _, event in events)
    answers = await publish_tasks(client.bus, client.run, events, timeout_s=120)
    for _, event in events:
        answer = answers.get(event.submission or "")
        if answer is None:
            raise PenstockError(
                f"the demo's submission {event.submission} was unanswered: nothing was answered for 120 s"
            )
        status, reason = answer
        if status is SubmissionStatus.ACCEPTED:
            continue
        if purpose is Purpose.TRAIN and CLOSED in (reason or ""):
            return  # a short loop ended while its tasks were still arriving
        raise PenstockError(f"the demo's submission {event.submission} was {status}: {reason}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Held-out success of one policy version."""

    label: str
    version: int
    seconds: float
    points: dict[str, EvaluationPoint]  # by domain and of "all"; of judged rollouts
    blackbox: int  # judged rollouts of black-box scaffolds
    wanted: int  # rollouts, judged or not

    @property
    def all(self) -> EvaluationPoint | None:
        """Over all domains; None without a verdict."""
        return self.points.get(EVERY_DOMAIN)

    @property
    def judged(self) -> int:
        """Rollouts with a verdict."""
        return self.all.n if self.all else 0

    @property
    def domains(self) -> list[str]:
        """Sorted, without "all"."""
        return sorted(set(self.points) - {EVERY_DOMAIN})


async def evaluate(
    client: Client,
    tasks: Sequence[Task],
    *,
    label: str,
    rollouts: int,
    greedy: bool,
    timeout_s: float,
    tick: Callable[[int, int], None],
) -> Evaluation:
    """Run the tasks on the newest version, pinned, and count its successes."""
    newest = await client.value(
        "select max(version) from policy_versions where run_id = :run and superseded_by is null"
    )
    version = int(newest or 0)
    if newest is not None:
        await served(client, version, timeout_s)
    started = anyio.current_time()
    await publish(
        client,
        tasks,
        purpose=Purpose.EVAL,
        label=label,
        group_size=rollouts,
        version=version,
        sampling={"temperature": 0.0} if greedy else None,
    )
    if newest is None:  # a starting stack holds its first rollouts until there is a version
        await served(client, version, timeout_s)
        started = anyio.current_time()
    await _all_done(client, label, len(tasks), timeout_s, tick)
    seconds = anyio.current_time() - started
    async with client.engine.connect() as connection:
        found = await evaluations(connection, client.run_id, suite=label, version=version)
    return Evaluation(
        label=label,
        version=version,
        seconds=seconds,
        points={point.domain: point for each in found for point in each.points},
        blackbox=await client.value(
            "select count(*) from groups g join rollouts r using (group_id) join latest_rewards w using (rollout_id)"
            " where g.run_id = :run and g.label = :label and g.state = 'scored' and g.scaffold != 'shell'",
            label=label,
        ),
        wanted=len(tasks) * rollouts,
    )


async def _all_done(
    client: Client, label: str, total: int, timeout_s: float, tick: Callable[[int, int], None]
) -> None:
    """Wait until all `total` groups of the evaluation are done."""
    with anyio.move_on_after(timeout_s) as limit:
        while True:
            done = await client.value(
                "select count(*) from groups where run_id = :run and label = :label and done", label=label
            )
            tick(int(done), total)
            if done == total:
                break
            await anyio.sleep(0.25)
    if limit.cancelled_caught:
        raise PenstockError(
            f"evaluation {label!r} did not end within {timeout_s:.0f} s: its figures would not be comparable"
        )


async def served(client: Client, version: int, timeout_s: float) -> None:
    """Wait until a rollout server serves `version`."""
    with anyio.move_on_after(timeout_s):
        while True:
            found = await client.value(
                "select max(version) from rollout_servers where run_id = :run and state = 'ready' and version = :version",
                version=version,
            )
            if found is not None:
                return
            await anyio.sleep(0.1)
    raise PenstockError(
        f"no rollout server served version {version} within {timeout_s:.0f} s; see the logs of gateway and trainer"
    )


async def until_ended(client: Client, timeout_s: float, tick: Callable[[], Any]) -> None:
    """Wait until the run has ended, calling `tick` once a second."""
    with anyio.move_on_after(timeout_s):
        while await client.value("select state from runs where run_id = :run") != RunState.ENDED:
            await tick()
            await anyio.sleep(1.0)
        return
    raise PenstockError(f"the run did not end within {timeout_s:.0f} s; `penstock sql` and the logs say why")
