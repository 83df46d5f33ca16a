"""A completion that repeats itself is ended at the token that proves it, for any segmentation."""

import math
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.contracts.ids import Ids
from orchestrator.contracts.marks import Finish
from orchestrator.gateway.metrics import GatewayMetrics
from orchestrator.gateway.servers import repetition
from orchestrator.gateway.servers.client import (
    FinishReason,
    Generation,
    RolloutServerClient,
    SamplingParams,
    Timings,
    WeightSpan,
)
from orchestrator.gateway.servers.in_flight import InFlight
from orchestrator.gateway.servers.pool import ServerPool
from orchestrator.gateway.servers.repetition import Repetition, RepetitionDetector
from orchestrator.gateway.servers.segmented import Generated
from orchestrator.gateway.servers.server import RolloutServer

pytestmark = pytest.mark.anyio

SURE, UNSURE = -0.001, -1.0
PROMPT = np.asarray([1, 2, 3], dtype="<i4")


@given(
    st.lists(st.booleans(), max_size=60), st.integers(1, 8), st.integers(1, 60), st.lists(st.integers(1, 9))
)
def test_the_length_is_that_of_the_first_long_enough_run_however_the_tokens_come(
    sure: list[bool], tokens: int, left: int, early_ends: list[int]
) -> None:
    logprobs = [SURE if each else UNSURE for each in sure][:left]
    expected = next(
        (n for n in range(tokens, len(logprobs) + 1) if all(sure[n - tokens : n])),
        None,
    )
    detector, at, found = RepetitionDetector(Repetition(tokens, 0.99)), 0, None
    ends = iter(early_ends)
    while at < len(logprobs) and found is None:
        requested = detector.segment(left - at)
        assert 1 <= requested <= left - at
        given_now = logprobs[at : at + min(requested, next(ends, requested))]
        found = detector.feed(given_now)
        at += len(given_now)
    assert found == expected
    # The wasted tokens are fewer than the least segment.
    assert found is None or at - found < max(1, -(-tokens // repetition.MIN_SEGMENT))


def test_without_a_rule_everything_is_requested_at_once() -> None:
    detector = RepetitionDetector(Repetition())
    assert detector.segment(100_000) == 100_000 and detector.feed([SURE] * 5_000) is None


def test_a_completion_shorter_than_the_run_is_one_segment() -> None:
    assert RepetitionDetector(Repetition(3000)).segment(256) == 256


@dataclass(kw_only=True)
class Script:
    """A server with a scripted completion: one logprob per token, and its end."""

    logprobs: list[float]
    finish: Finish = Finish.STOP
    requested: list[int] = field(default_factory=list)
    contexts: list[int] = field(default_factory=list)

    async def send(
        self, ids: Ids, params: SamplingParams, rid: str, key: str, routes_from: int = 0
    ) -> Generation:
        at = len(ids) - len(PROMPT)
        self.requested.append(params.max_new_tokens)
        self.contexts.append(len(ids))
        now = self.logprobs[at : at + params.max_new_tokens]
        ended = at + len(now) == len(self.logprobs)
        made = tuple(range(10 + at, 10 + at + len(now)))
        return Generation(
            rid=rid,
            output_ids=made,
            logprobs=tuple(now),
            spans=(WeightSpan(version="1", start=0, end=len(now)),),
            finish=FinishReason(self.finish if ended else Finish.LENGTH),
            weight_version="1",
            prompt_tokens=len(ids),
            completion_tokens=len(now),
            cached_tokens=0,
            retractions=0,
            timings=Timings(0.0, 0.0),
            text="",
            sent=ids,
        )


async def complete(script: Script, rule: Repetition, most: int = 100) -> Generated:
    server = RolloutServer(RolloutServerClient("http://127.0.0.1:30000"))
    server.admit(1)
    server.send = script.send  # type: ignore[method-assign]
    pool = ServerPool([server], GatewayMetrics())
    return await pool.generate(PROMPT, SamplingParams(max_new_tokens=most), "1:1", InFlight(), rule)


async def test_the_action_ends_with_the_token_that_completes_the_run() -> None:
    script = Script(logprobs=[UNSURE] * 5 + [SURE] * 50)
    made = await complete(script, Repetition(8, 0.99))
    assert made.repeats and made.finish == Finish.LENGTH and made.stop is None
    assert made.ids == tuple(range(10, 23)) and len(made.logprobs) == 13
    assert [(span.version, span.start, span.end) for span in made.spans] == [(1, 0, 13)]
    assert made.seen.tolist() == [1, 2, 3, *made.ids]
    assert script.contexts == [3, 11] and script.requested == [8, 5]


async def test_an_action_whose_own_last_token_completes_the_run_ended_by_itself() -> None:
    made = await complete(Script(logprobs=[SURE] * 8), Repetition(8, 0.99))
    assert (len(made.ids), made.finish, made.repeats) == (8, Finish.STOP, False)


async def test_an_action_that_does_not_repeat_is_the_same_in_segments() -> None:
    logprobs = [SURE, SURE, UNSURE] * 10
    whole = await complete(Script(logprobs=logprobs), Repetition())
    pieces = await complete(Script(logprobs=logprobs), Repetition(8, 0.99))
    assert (whole.segments, whole.finish) == (1, Finish.STOP) and pieces.segments > 3
    assert (pieces.ids, pieces.logprobs, pieces.spans, pieces.finish, pieces.repeats) == (
        whole.ids,
        whole.logprobs,
        whole.spans,
        whole.finish,
        False,
    )
    assert pieces.seen.tolist() == whole.seen.tolist()


@pytest.mark.parametrize("most", [7, 8, 9, 16, 30])
async def test_the_limit_of_tokens_holds_across_segments(most: int) -> None:
    made = await complete(Script(logprobs=[UNSURE] * 40), Repetition(8, 0.99), most)
    assert len(made.ids) == most and made.finish == Finish.LENGTH and not made.repeats


async def test_no_segment_is_requested_after_a_server_stops_for_lack_of_room() -> None:
    script = Script(logprobs=[UNSURE] * 5, finish=Finish.LENGTH)
    made = await complete(script, Repetition(8, 0.99))
    assert script.requested == [8] and made.finish == Finish.LENGTH and len(made.ids) == 5


async def test_a_call_that_is_given_up_between_two_segments_ends_there() -> None:
    in_flight = InFlight()

    class Leaving(Script):
        async def send(
            self, ids: Ids, params: SamplingParams, rid: str, key: str, routes_from: int = 0
        ) -> Generation:
            in_flight.abandoned.set()
            return await super().send(ids, params, rid, key, routes_from)

    server = RolloutServer(RolloutServerClient("http://127.0.0.1:30000"))
    server.admit(1)
    server.send = Leaving(logprobs=[UNSURE] * 40).send  # type: ignore[method-assign]
    pool = ServerPool([server], GatewayMetrics())
    made = await pool.generate(
        PROMPT, SamplingParams(max_new_tokens=40), "1:1", in_flight, Repetition(8, math.exp(-0.01))
    )
    assert made.finish == Finish.ABORT and len(made.ids) == 8
