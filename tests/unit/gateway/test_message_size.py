"""No step is recorded that the bus does not take."""

import numpy as np
import pytest

from orchestrator.contracts.events import StepRecorded, encode
from orchestrator.contracts.ids import b64, ids_to_bytes, logprobs_to_bytes
from orchestrator.contracts.marks import Finish, ParseStatus
from orchestrator.contracts.spans import VersionSpan
from orchestrator.contracts.states import StepKind
from orchestrator.gateway.completions.message_size import carried_tokens, longest_body, routes_limit

NATS_BY_DEFAULT = 2**20


def a_root(state: int, action: int) -> bytes:
    ids = np.full(state + action, 151_935, np.int32)
    return encode(
        StepRecorded(
            run="r" * 32, rollout=2**62, attempt=1, epoch=2**30, idx=2**30, kind=StepKind.ROOT, parent=None, root=0, keep_len=0,
            state_len=state, full_len=state + action, prompt=b64(ids_to_bytes(ids[:state])), delta="", action=b64(ids_to_bytes(ids[state:])),
            logprobs=b64(logprobs_to_bytes(np.full(action, -1.5, np.float32))), spans=[VersionSpan(n, n, n + 1) for n in range(200)],
            reply={"content": "x" * 8 * action},
            chain_sha="f" * 64, row_sha="f" * 64, sampling={"stop": ["s" * 256] * 16}, finish=Finish.STOP, parse=ParseStatus.OK,
        )
    )  # fmt: skip


@pytest.mark.parametrize("max_payload", [NATS_BY_DEFAULT, 8 * 2**20])
@pytest.mark.parametrize("longest_action", [1, 4096, 32_768, 10**9])
def test_a_step_of_the_longest_context_fits_into_a_message_whatever_part_of_it_is_the_action(
    max_payload: int, longest_action: int
) -> None:
    context = carried_tokens(max_payload, longest_action)
    action = min(longest_action, context)
    body = a_root(context - action, action)
    assert 0.5 * max_payload < len(body) <= longest_body(max_payload)


def test_the_context_of_a_usual_model_fits_into_the_embedded_server_and_a_long_one_into_the_default_of_nats() -> (
    None
):
    assert carried_tokens(8 * 2**20, 32_768) > 1_000_000
    assert carried_tokens(NATS_BY_DEFAULT, 32_768) == 90_112


def test_routes_never_make_a_message_that_the_bus_does_not_take() -> None:
    assert routes_limit(6.0, 8 * 2**20) == 6 * 2**20
    assert routes_limit(6.0, NATS_BY_DEFAULT) == 2**20 - 64 * 2**10
