"""Steps that the trainer cannot use, although they are whole: each would put its batch, with the groups of others, into quarantine."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import anyio
from sqlalchemy.ext.asyncio import AsyncConnection

from orchestrator.pool.chat_format import vocabulary
from orchestrator.pool.ingest import Decoded, highest_id
from orchestrator.pool.leases import for_training
from orchestrator.roles.context import OrchestratorContext
from orchestrator.settings.config import Config
from orchestrator.settings.sampling import GREEDY_BELOW

READ_S: Final = 10.0  # a shared disk that hangs keeps no step out


async def vocabulary_of(config: Config) -> int | None:
    """Size of the vocabulary of `policy.model`; None where this machine does not see that directory."""
    found = None
    if config.policy.model:
        with anyio.move_on_after(READ_S):
            found = await anyio.to_thread.run_sync(
                vocabulary, Path(config.policy.model), abandon_on_cancel=True
            )
    return found


async def untrainable(
    connection: AsyncConnection,
    context: OrchestratorContext,
    steps: Mapping[int, Decoded],
    vocabulary: int | None,
) -> dict[int, str]:
    """Why steps cannot be trained, a sentence each. `vocabulary`: None if it is not known, then every id passes.

    A run whose own temperature is that of greedy samples has no trainer: its steps pass.
    """
    reasons: dict[int, str] = {}
    if context.config.sampling.temperature >= GREEDY_BELOW:
        greedy = {i: t for i, step in steps.items() if (t := _temperature(step)) < GREEDY_BELOW}
        rollouts = {steps[i].event.rollout for i in greedy}
        training = await for_training(connection, context.run_id, rollouts) if greedy else set()
        reasons = {
            i: f"step {steps[i].key} of a training group has temperature {t:g}: greedy samples have no log-probabilities to train on"
            for i, t in greedy.items()
            if steps[i].event.rollout in training
        }
    if vocabulary is not None:
        for i, step in steps.items():
            if (highest := highest_id(step)) >= vocabulary:
                reasons[i] = (
                    f"step {step.key} has the token id {highest}, and the policy knows 0 … {vocabulary - 1}"
                )
    return reasons


def _temperature(step: Decoded) -> float:
    return float(step.event.sampling.get("temperature", 1.0))
