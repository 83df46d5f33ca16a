"""Rebuild a session's forest from its record: the steps in Postgres, then the journal's entries that are not there yet."""

from collections.abc import Iterable, Sequence

import numpy as np
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from orchestrator.bus.journal import JournalEntry
from orchestrator.contracts.events import StepRecorded, decode
from orchestrator.contracts.ids import ids_from_bytes, unb64
from orchestrator.contracts.states import StepKind
from orchestrator.gateway.messages.turns import Turn
from orchestrator.gateway.render import Renderer
from orchestrator.gateway.sessions.forest import Forest
from orchestrator.gateway.sessions.id_buffer import IdBuffer
from orchestrator.gateway.sessions.node import Node
from orchestrator.pool.rebuilt_steps import RebuiltStep, rebuilt_steps
from orchestrator.pool.settled import MessageKey, MessageKind
from orchestrator.pool.steps import SHOWN_TOOLS
from orchestrator.pool.transact import transact


def build_forest(renderer: Renderer, recorded: Iterable[RebuiltStep]) -> Forest:
    """Fold steps, in idx order and without a gap, into a forest. Steps after a gap were never acknowledged and are left out."""
    forest = Forest(renderer)
    for step in recorded:
        if step.idx != len(forest.nodes):
            break
        base = ids_from_bytes(step.prompt) if step.parent is None else forest.nodes[step.parent].full
        delta, action = ids_from_bytes(step.delta), ids_from_bytes(step.action)
        full = np.concatenate([base[: step.keep_len], delta, action])
        appended = list(step.appended)
        shown = appended.pop(0) if appended and appended[0].get("role") == SHOWN_TOOLS else {}
        continues = (
            forest.nodes[step.parent] if step.kind is StepKind.CONTINUES and step.parent is not None else None
        )
        forest.add(
            Node(
                idx=step.idx,
                parent=continues,
                history=tuple(Turn.from_plain(dict(message)) for message in appended),
                reply=Turn.from_plain({**step.reply, "role": "assistant"}),
                buffer=IdBuffer(full),
                full_len=len(full),
                state_len=step.keep_len + len(delta),
                root=step.root,
                chain=step.chain,
                tools=continues.tools if continues else str(shown["sha"]) if "sha" in shown else None,
                ended=bool(len(action)) and int(action[-1]) in renderer.stop_ids,
                agent=step.agent,
                parse=step.parse,
                finish=step.finish,
                digest=step.digest,
                versions=step.versions,
                generation_s=step.generation_s,
                ended_at=step.ended_at,
                marks=tuple(step.marks),
                delivered=None,
            )
        )
    # A step with a child was delivered (`add` records it). For the others it is unknown.
    return forest


async def load_forest(
    engine: AsyncEngine,
    run_id: int,
    renderer: Renderer,
    lease: tuple[int, int, int],
    pending: Sequence[JournalEntry],
) -> tuple[Forest, int]:
    """The forest of (rollout, attempt, epoch), and how many of its first steps are of earlier epochs. The ingest will refuse journal entries
    of other epochs, so they do not count."""
    rollout, attempt, epoch = lease

    async def work(connection: AsyncConnection) -> list[RebuiltStep]:
        return await rebuilt_steps(connection, run_id, rollout, attempt)

    found = {step.idx: step for step in await transact(engine, work, at="gateway.read")}
    for entry in pending:
        key = MessageKey.parse(entry.message.msg_id)
        if (key.rollout_id, key.epoch, key.kind) == (
            rollout,
            epoch,
            MessageKind.STEP,
        ) and key.idx not in found:
            event = decode(entry.message.body, entry.message.schema, StepRecorded)
            if event.attempt == attempt:
                found[key.idx] = _from_event(event)
    forest = build_forest(renderer, [found[idx] for idx in sorted(found)])
    return forest, sum(found[node.idx].epoch < epoch for node in forest.nodes)


def _from_event(event: StepRecorded) -> RebuiltStep:
    return RebuiltStep(
        idx=event.idx,
        kind=event.kind,
        parent=event.parent,
        root=event.root,
        keep_len=event.keep_len,
        prompt=unb64(event.prompt or ""),
        delta=unb64(event.delta),
        action=unb64(event.action),
        chain=bytes.fromhex(event.chain_sha),
        versions=tuple(sorted({span.version for span in event.spans})),
        agent=event.agent,
        parse=event.parse,
        finish=event.finish,
        digest=event.request_digest,
        appended=event.appended,
        reply=event.reply,
        generation_s=event.timings.generation,
        ended_at=event.timings.ended,
        epoch=event.epoch,
        marks=event.marks,
    )
