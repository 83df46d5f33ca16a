"""The seed of each call in a session that has one: evaluations and recordings are repeatable."""

import numpy as np

from orchestrator.contracts.ids import Ids, ids_to_bytes, sha256
from orchestrator.contracts.marks import Finish
from orchestrator.gateway.messages.requests import CompletionRequest
from orchestrator.gateway.sessions.session import Session


def seed_of(session: Session, request: CompletionRequest, state: Ids, seed: int) -> int:
    """The seed, below 2^31, of a call that samples after `state` (int32[n]), from the session's `seed`.

    Calls at once have different seeds, and none depends on when another ends. A scaffold's calls have numbers, so their order does not matter
    either. Programs may put random metadata into their bodies, so a body counts only where an earlier request samples after the same state. A
    repeated request has another seed; a retry of an aborted one has the same, if no other one samples after its state in between.
    """
    parts = [str(seed), request.agent, sha256(ids_to_bytes(state)).hex()]
    if request.number is not None:
        parts.append(str(request.number))
    else:
        served = [node for node in session.forest.nodes if node.finish != Finish.ABORT]
        repeats = sum(node.digest == request.digest for node in served)
        others = (
            *((node.agent, node.full[: node.state_len]) for node in served if node.digest != request.digest),
            *((call.agent, call.state) for call in session.calls.values() if call.state is not None),
        )
        if repeats or any(agent == request.agent and np.array_equal(ids, state) for agent, ids in others):
            parts += [request.digest, str(repeats)]
    return int.from_bytes(sha256("\n".join(parts).encode())[:4]) >> 1
