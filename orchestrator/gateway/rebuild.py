"""A session's forest from what is recorded: the steps in Postgres, then the journal's entries that are not there yet."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from orchestrator.bus.journal import Entry
from orchestrator.contracts.events import StepRecorded, decode
from orchestrator.contracts.ids import ids_from_bytes, unb64
from orchestrator.contracts.states import StepKind
from orchestrator.gateway.forest import Forest, Node
from orchestrator.gateway.line import Line
from orchestrator.gateway.messages import Turn
from orchestrator.gateway.render import Renderer
from orchestrator.pool.confirm import MessageKey
from orchestrator.pool.tables import messages, prompts, steps
from orchestrator.pool.transact import transact

TOOLS = "tools"  # the role under which a branch records the tools that its prompt shows


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """The common part of a steps row and a StepRecorded."""

    idx: int
    kind: StepKind
    parent: int | None
    root: int
    keep_len: int
    prompt: bytes
    delta: bytes
    action: bytes
    chain: bytes
    versions: tuple[int, ...]
    agent: str
    parse: str
    finish: str
    digest: str
    appended: Sequence[Mapping[str, Any]]
    reply: Mapping[str, Any]
    generation_s: float
    epoch: int
    marks: Sequence[str] = ()  # of a step that Postgres does not have yet; else they are in the session's row


def build_forest(renderer: Renderer, recorded: Iterable[RecordedStep]) -> Forest:
    """Fold steps, in idx order and without a gap, into a forest. What follows a gap was never acknowledged and is left out."""
    forest = Forest(renderer)
    for step in recorded:
        if step.idx != len(forest.nodes):
            break
        base = ids_from_bytes(step.prompt) if step.parent is None else forest.nodes[step.parent].full
        delta, action = ids_from_bytes(step.delta), ids_from_bytes(step.action)
        full = np.concatenate([base[: step.keep_len], delta, action])
        appended = list(step.appended)
        shown = appended.pop(0) if appended and appended[0].get("role") == TOOLS else {}
        continues = forest.nodes[step.parent] if step.kind is StepKind.CONTINUES and step.parent is not None else None  # fmt: skip
        forest.add(
            Node(
                idx=step.idx,
                parent=continues,
                history=tuple(Turn.from_plain(dict(message)) for message in appended),
                reply=Turn.from_plain(dict(step.reply)),
                line=Line(full),
                full_len=len(full),
                state_len=step.keep_len + len(delta),
                root=step.root,
                chain=step.chain,
                tools=continues.tools if continues else str(shown.get("sha", "")),
                ended=bool(len(action)) and int(action[-1]) in renderer.stop_ids,
                agent=step.agent,
                parse=step.parse,
                finish=step.finish,
                digest=step.digest,
                versions=step.versions,
                generation_s=step.generation_s,
                marks=tuple(step.marks),
                delivered=None,
            )
        )
    # Whatever has a child was delivered (add says so); of the others nobody knows.
    return forest


async def load_forest(
    engine: AsyncEngine,
    run_id: int,
    renderer: Renderer,
    lease: tuple[int, int, int],
    pending: Sequence[Entry],
) -> tuple[Forest, int]:
    """The forest of (rollout, attempt, epoch), and how many of its steps, the first ones, are of earlier epochs. Journal entries of other
    epochs will be refused by the ingest: they do not count."""
    rollout, attempt, epoch = lease

    async def work(connection: AsyncConnection) -> list[RecordedStep]:
        rows = await connection.execute(
            select(
                steps, prompts.c.ids.label("prompt_ids"), messages.c.appended, messages.c.reply.label("said")
            )
            .join(
                prompts,
                (prompts.c.run_id == steps.c.run_id) & (prompts.c.sha == steps.c.prompt_sha),
                isouter=True,
            )
            .join(
                messages,
                (messages.c.run_id == steps.c.run_id)
                & (messages.c.rollout_id == steps.c.rollout_id)
                & (messages.c.attempt == steps.c.attempt)
                & (messages.c.idx == steps.c.idx),
            )
            .where(steps.c.run_id == run_id, steps.c.rollout_id == rollout, steps.c.attempt == attempt)
        )
        return [_from_row(row) for row in rows]

    found = {step.idx: step for step in await transact(engine, work, at="gateway.read")}
    for entry in pending:
        key = MessageKey.parse(entry.message.msg_id)
        if (key.rollout_id, key.epoch, key.kind) == (rollout, epoch, "step") and key.idx not in found:
            event = decode(entry.message.body, entry.message.schema, StepRecorded)
            if event.attempt == attempt:
                found[key.idx] = _from_event(event)
    forest = build_forest(renderer, [found[idx] for idx in sorted(found)])
    return forest, sum(found[node.idx].epoch < epoch for node in forest.nodes)


def _from_row(row: Any) -> RecordedStep:
    return RecordedStep(
        row.idx, StepKind(row.kind), row.parent_idx, row.root_idx, row.keep_len, row.prompt_ids or b"", row.delta, row.action,
        row.chain_sha, tuple(sorted(set(row.spans[::3]))), row.agent, row.parse, row.finish,
        row.request_digest.hex() if row.request_digest else "", row.appended, row.said, row.t_gen or 0.0, row.epoch,
    )  # fmt: skip


def _from_event(event: StepRecorded) -> RecordedStep:
    return RecordedStep(
        event.idx, StepKind(event.kind), event.parent, event.root, event.keep_len, unb64(event.prompt or ""), unb64(event.delta),
        unb64(event.action), bytes.fromhex(event.chain_sha), tuple(sorted({span.version for span in event.spans})), event.agent,
        event.parse, event.finish, event.request_digest, event.appended, event.reply, event.timings.generation, event.epoch, event.marks,
    )  # fmt: skip
