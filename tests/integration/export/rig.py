"""A run that is worth exporting: conversations with tools, a sub-agent, a compaction and a second answer, a trained batch, filtered groups."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sqlalchemy import insert, select
from sqlalchemy.ext.asyncio import AsyncEngine

from orchestrator.contracts.events import StepRecorded
from orchestrator.contracts.ids import Ids
from orchestrator.contracts.states import StepKind
from orchestrator.export.drive import ExportSummary, Format, export
from orchestrator.pool import batches, tables
from orchestrator.pool.batches import NewVersion
from orchestrator.pool.engine import Role, open_engine
from orchestrator.pool.leases import Lease
from orchestrator.pool.runs import StoredRun
from orchestrator.queries.attempt_filters import AttemptFilters
from orchestrator.scheduling.queue_policies import queue_policy
from tests import builders
from tests.integration.pool.rig import small

RUN = "exported"
SHOWN = [{"type": "function", "function": {"name": "bash", "description": "run", "parameters": {}}}]
# Turn by turn: (agent, kind, parent, the messages that the request added, the reply).
CALL = {
    "role": "assistant",
    "content": "",
    "reasoning": "look",
    "tool_calls": [{"name": "bash", "arguments": {"command": "ls"}}],
}
TALK: list[tuple[str, StepKind, int | None, list[dict[str, Any]], dict[str, Any]]] = [
    ("main", StepKind.ROOT, None, [{"role": "tools", "content": "", "tools": SHOWN}, {"role": "system", "content": "be brief"},
                                   {"role": "user", "content": "count the files"}], CALL),
    ("main", StepKind.CONTINUES, 0, [{"role": "tool", "content": "a b"}],
     {"role": "assistant", "content": "ask help", "tool_calls": [{"name": "ask", "arguments": {"who": "helper"}}]}),
    ("helper", StepKind.ROOT, None, [{"role": "user", "content": "you help"}], {"role": "assistant", "content": "two"}),
    ("main", StepKind.CONTINUES, 1, [{"role": "tool", "content": "two"}], {"role": "assistant", "content": "it is two <b>"}),
    ("main", StepKind.REWRITES, 3, [{"role": "system", "content": "be brief"}, {"role": "user", "content": "summary: two files"}],
     {"role": "assistant", "content": "2"}),
    ("main", StepKind.CONTINUES, 1, [{"role": "tool", "content": "2"}], {"role": "assistant", "content": "another answer"}),
]  # fmt: skip


class Talker(builders.Author):
    """Writes `TALK` with random ids: six steps in four conversations."""

    def trajectory(self, lease: Lease, run: str, prompt: Ids) -> list[StepRecorded]:
        written = builders._Attempt(lease=lease, run=run, prompt=prompt, author=self)
        for _, kind, parent, _, _ in TALK:
            keep = (
                4 if kind is StepKind.REWRITES else len(prompt if parent is None else written.fulls[parent])
            )
            written.add(kind, parent, keep, self.ids(1, 4), self.ids(2, 6))
        return [
            msgspec.structs.replace(
                event,
                agent=agent,
                appended=added,
                reply=reply,
                branch_reason=None,
                branch=None,
                root=event.idx if event.parent is None else event.root,
            )
            for event, (agent, _, _, added, reply) in zip(written.events, TALK, strict=True)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedRun:
    """The run, and engines of its owner and of an export."""

    run: StoredRun
    owner: AsyncEngine
    reader: AsyncEngine
    url: str

    async def export(self, form: Format, out: Path, **wanted: Any) -> ExportSummary:
        return await export(self.reader, RUN, form, AttemptFilters(**wanted), out)

    async def rows(self, table: Any) -> Sequence[Any]:
        async with self.owner.connect() as connection:
            return (await connection.execute(select(table))).all()


@pytest.fixture
async def exported_run(database_url: str) -> AsyncIterator[ExportedRun]:
    """Two trained groups of four (they give version 1) and a third that is ready; a tool with times; a marked step."""
    async with (
        open_engine(database_url, name="test") as owner,
        open_engine(database_url, Role.READER) as reader,
    ):
        run = await builders.make_run(owner, small(RUN))
        author = Talker(seed=3)
        made = await builders.accepted(owner, run, ["first", "second"])
        made += await builders.accepted(owner, run, ["third"], domain="general")
        await builders.dispatch(owner, run)
        for number, group in enumerate(made):
            await builders.finish(owner, run, group, author, marked=(2,) if number == 0 else ())
        async with owner.begin() as connection:
            await builders.publish_first(connection, run)
            batch = await batches.take(connection, run.run_id, queue_policy("greedy", 6, 0.3), 2, 1)
            assert batch is not None and batch.digest is not None
            metrics = [
                {"loss": 0.5, "applied": True, "skip_reason": None, "domains": {"coding": {"reward": 0.25}}}
            ]
            new = NewVersion(version=1, parent=0, path="/v1", manifest_sha="11")
            assert await batches.commit(
                connection, run.run_id, run.name, batch=batch, new=new, metrics=metrics, subject="policy.x"
            )
            first = await connection.scalar(
                select(tables.rollouts.c.rollout_id).order_by(tables.rollouts.c.rollout_id)
            )
            key = {"run_id": run.run_id, "rollout_id": first, "attempt": 1}
            await connection.execute(
                insert(tables.tool_calls).values(
                    **key, idx=0, call=0, name="bash", start_s=-30.0, end_s=-29.0, exit_code=0, bytes=3
                )
            )
        yield ExportedRun(run=run, owner=owner, reader=reader, url=database_url)
