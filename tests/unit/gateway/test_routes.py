"""The routes of an action made of segments are those under which each token was sampled, and a step records only routes that no step above it has."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from orchestrator.bus import subjects
from orchestrator.contracts.events import StepRecorded, StepTimings, decode
from orchestrator.contracts.ids import Ids, unb64
from orchestrator.contracts.marks import Finish, ParseStatus
from orchestrator.contracts.spans import VersionSpan
from orchestrator.contracts.states import StepKind
from orchestrator.gateway.completions.record import Recorder
from orchestrator.gateway.metrics import GatewayMetrics
from orchestrator.gateway.servers.client import (
    FinishReason,
    Generation,
    RolloutServerClient,
    SamplingParams,
    Timings,
)
from orchestrator.gateway.servers.client import WeightSpan as Span
from orchestrator.gateway.servers.in_flight import InFlight
from orchestrator.gateway.servers.pool import ServerPool
from orchestrator.gateway.servers.segmented import Generated
from orchestrator.gateway.servers.server import RolloutServer
from orchestrator.gateway.sessions.forest import StepOrigin
from orchestrator.gateway.sessions.node import Node
from orchestrator.trajectory.routes import (
    Experts,
    Routed,
    Routes,
    routes_from_bytes,
    routes_sha,
)

pytestmark = pytest.mark.anyio

PROMPT: Ids = np.arange(5, dtype="<i4")
CHAIN = bytes(32)


def rows(segment: int, start: int, end: int) -> Routes:
    """int16[n, 1, 2]: each row names its segment and its position."""
    return np.array([[[segment, position]] for position in range(start, end)], np.int16).reshape(-1, 1, 2)


@dataclass
class Server:
    """Answers one segment after the other: (tokens that it makes, whether it returns routes, how it ends). None: the reply is lost."""

    script: list[tuple[int, bool, Finish] | None]
    requested: list[int] = field(default_factory=list)

    async def send(
        self, ids: Ids, params: SamplingParams, rid: str, key: str, routes_from: int = 0
    ) -> Generation | None:
        self.requested.append(routes_from)
        step = self.script[len(self.requested) - 1]
        if step is None:
            return None
        made, tells, finish = step
        return Generation(
            rid=rid,
            output_ids=tuple(range(made)),
            logprobs=(-1.0,) * made,
            spans=(Span(version="1", start=0, end=made),) if made else (),
            finish=FinishReason(finish),
            weight_version="1",
            prompt_tokens=len(ids),
            completion_tokens=made,
            cached_tokens=0,
            retractions=0,
            timings=Timings(0.0, None),
            text="",
            sent=ids,
            routes=rows(len(self.requested), routes_from, len(ids) + made - 1) if tells else None,
        )


async def generated(
    script: list[tuple[int, bool, Finish] | None], routed: Routed, longest: int = len(PROMPT)
) -> tuple[Generated, list[int]]:
    server, scripted = RolloutServer(RolloutServerClient("http://127.0.0.1:30000")), Server(script)
    server.admit(1)
    server.send = scripted.send  # type: ignore[method-assign]
    pool = ServerPool([server], GatewayMetrics(), longest_routed=longest)
    made = await pool.generate(PROMPT, SamplingParams(max_new_tokens=64), "1:1", InFlight(), routed=routed)
    return made, scripted.requested


async def test_a_segment_brings_the_routes_from_the_last_sampled_token_on() -> None:
    made, requested = await generated([(3, True, Finish.ABORT), (2, True, Finish.STOP)], Routed(2, 1))
    assert requested == [2, 7]  # position 7 was sampled by the first segment and fed by the second
    assert made.routes is not None and made.routes_from == 2
    assert np.array_equal(made.routes, np.concatenate([rows(1, 2, 7), rows(2, 7, 9)]))


async def test_lost_empty_and_missing_routes_are_requested_again() -> None:
    script: list[tuple[int, bool, Finish] | None] = [
        (0, True, Finish.ABORT),
        None,
        (3, False, Finish.ABORT),
        (1, True, Finish.STOP),
    ]
    made, requested = await generated(script, Routed())
    assert requested == [0, 0, 0, 0]
    assert made.routes is not None and np.array_equal(made.routes, rows(4, 0, 8))
    untold, _ = await generated([(3, False, Finish.STOP)], Routed())
    assert untold.routes is None


WIDE = Experts(1, 2, 512)


def recorder(experts: Experts | None = WIDE) -> Recorder:
    return Recorder(
        "run",
        cast(Any, None),
        stop_ids=frozenset(),
        metrics=GatewayMetrics(),
        experts=experts,
        routes_bytes=2**20,
    )


def step(routes: Routes | None, routes_from: int) -> Generated:
    span = (VersionSpan(1, 0, 3),)
    return Generated(
        ids=(1, 2, 3),
        logprobs=(-1.0,) * 3,
        spans=span,
        finish=Finish.STOP,
        stop=None,
        suspect=False,
        timings=StepTimings(),
        routes=routes,
        routes_from=routes_from,
    )


async def test_the_routes_of_a_context_that_other_weights_computed_are_requested_from_its_beginning() -> None:
    """The server has computed it again, and its answers rest on that."""
    made, requested = await generated([(3, True, Finish.STOP)], Routed(2, 0))
    assert requested == [0] and made.routes_from == 0


async def test_the_routes_of_a_context_are_not_requested_again_if_they_would_not_fit() -> None:
    _, requested = await generated([(3, True, Finish.STOP)], Routed(2, 0), longest=len(PROMPT) - 1)
    assert requested == [2]
    assert Experts(48, 8, 128).tokens_in(6 * 2**20) == 3072  # 4 bytes per id, and 4/3 of them in base64


@pytest.mark.parametrize("recorded", [True, False])
async def test_a_server_that_tells_no_routes_is_counted_each_time_and_named_once(
    recorded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings: list[str] = []
    monkeypatch.setattr(
        "orchestrator.gateway.servers.pool.log.warning", lambda event, **_: warnings.append(event)
    )
    server, metrics = RolloutServer(RolloutServerClient("http://127.0.0.1:30000")), GatewayMetrics()
    server.admit(1)
    script: list[tuple[int, bool, Finish] | None] = [
        (0, False, Finish.ABORT),
        (3, False, Finish.ABORT),
        (1, False, Finish.STOP),
    ]
    server.send = Server(script).send  # type: ignore[method-assign]
    pool = ServerPool([server], metrics, longest_routed=9 if recorded else None)
    await pool.generate(PROMPT, SamplingParams(max_new_tokens=64), "1:1", InFlight())
    untold = metrics.routes_missing.labels(server.url)._value.get()
    assert (untold, warnings) == ((2, ["server.routes_missing"]) if recorded else (0, []))


@pytest.mark.parametrize(
    ("kind", "above", "routes_from", "start"),
    [
        (StepKind.ROOT, None, 0, 0),  # its prompt is routed here
        (StepKind.CONTINUES, 1, 4, 4),  # so is the last token of its parent
        (StepKind.CONTINUES, 0, 0, 0),  # all of it was requested
        (StepKind.REWRITES, 1, 0, 3),  # the parent knows the kept part, and more
        (StepKind.REWRITES, 0, 0, 0),  # but by other weights
        (StepKind.REWRITES, None, 0, 0),  # or by several
    ],
)
def test_a_step_records_the_routes_that_no_step_above_has_of_the_same_weights(
    kind: StepKind, above: int | None, routes_from: int, start: int
) -> None:
    keep_len = 3 if kind is StepKind.REWRITES else 5
    parent = None if kind is StepKind.ROOT else cast(Node, SimpleNamespace(routed=above))
    origin = StepOrigin(kind=kind, parent=parent, keep_len=keep_len, reason=None)
    found = recorder()._routes(step(rows(1, routes_from, 9), routes_from), origin, 8, CHAIN)
    assert found is not None and (
        found.start,
        found.layers,
        found.top_k,
        found.width,
    ) == (start, 1, 2, 2)
    raw = unb64(found.ids)
    assert np.array_equal(routes_from_bytes(raw, 1, 2, 2), rows(1, start, 7))  # the last token was not fed
    assert found.sha == routes_sha(CHAIN, start, 1, 2, 2, raw).hex()


@pytest.mark.parametrize(("limit_kb", "start", "left_out"), [(9, 0, 0), (5, 999, 1), (1, None, 1)])
def test_routes_that_make_a_message_too_large_are_left_out_first_those_of_what_is_kept(
    limit_kb: int, start: int | None, left_out: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subjects, "INLINE_LIMIT_BYTES", 2048)  # above it without routes, text is left out
    one = Recorder(
        "run",
        cast(Any, None),
        stop_ids=frozenset(),
        metrics=GatewayMetrics(),
        experts=WIDE,
        routes_bytes=limit_kb * 1024,
    )
    origin = StepOrigin(
        kind=StepKind.CONTINUES, parent=cast(Node, SimpleNamespace(routed=0)), keep_len=1000, reason=None
    )
    found = one._routes(step(rows(1, 0, 1400), 0), origin, 1401, CHAIN)
    event = StepRecorded(
        run="run", rollout=1, attempt=1, epoch=1, idx=1, kind=StepKind.CONTINUES, parent=0, root=0, keep_len=1000,
        state_len=1398, full_len=1401, delta="", action="", logprobs="", spans=[], chain_sha=CHAIN.hex(), row_sha="",
        sampling={}, finish=Finish.STOP, parse=ParseStatus.OK, routes=found, appended=[{"role": "user", "content": "what is two and two"}],
    )  # fmt: skip
    message = decode(one._message(event).body, None, StepRecorded)
    sent = message.routes
    assert message.appended == event.appended
    assert one._metrics.routes_left_out._value.get() == left_out
    assert (sent is None) == (start is None)
    if sent is None:
        return
    raw = unb64(sent.ids)
    assert sent.start == start and sent.sha == routes_sha(CHAIN, sent.start, 1, 2, 2, raw).hex()
    assert np.array_equal(routes_from_bytes(raw, 1, 2, 2), rows(1, sent.start, 1400))


def test_nothing_is_recorded_without_routes_or_while_replay_is_off() -> None:
    origin = StepOrigin(kind=StepKind.ROOT, parent=None, keep_len=5, reason=None)
    assert recorder()._routes(step(None, 0), origin, 8, CHAIN) is None
    assert recorder()._routes(step(rows(1, 0, 0), 0), origin, 8, CHAIN) is None
    assert recorder(None)._routes(step(rows(1, 0, 7), 0), origin, 8, CHAIN) is None


def test_ids_take_one_byte_up_to_256_experts() -> None:
    assert [Experts(1, 2, count).width for count in (2, 256, 257)] == [1, 1, 2]
    routes = np.array([[[0, 255]]], np.int16)
    assert np.array_equal(routes_from_bytes(b"\x00\xff", 1, 2, 1), routes)
    with pytest.raises(
        ValueError, match="3 bytes do not hold routes of 1 layers, 2 experts and 1 bytes per id"
    ):
        routes_from_bytes(b"\x00\xff\x00", 1, 2, 1)


def test_a_configuration_says_how_its_model_routes() -> None:
    qwen = {"num_hidden_layers": 48, "num_experts": 128, "num_experts_per_tok": 8}
    assert Experts.of(qwen) == Experts(48, 8, 128)
    assert Experts.of({"text_config": {**qwen, "num_experts": None, "num_local_experts": 256}}) == Experts(
        48, 8, 256
    )
    assert Experts.of({"num_hidden_layers": 4, "vocab_size": 9}) is None
