"""A step of the oddest and longest names and reasons is read by the orchestrator: no words of a request end an attempt."""

from typing import Any, cast

import pytest

from orchestrator.bus.base import Outgoing
from orchestrator.bus.courier import Courier
from orchestrator.contracts.events import StepRecorded, StepTimings, decode
from orchestrator.contracts.limits import MAX_AGENT, MAX_BRANCH_REASON
from orchestrator.contracts.marks import Finish
from orchestrator.contracts.quote import cut_to
from orchestrator.contracts.spans import VersionSpan
from orchestrator.gateway.completions.parse import parse_action
from orchestrator.gateway.completions.record import Recorder
from orchestrator.gateway.http.bodies import read
from orchestrator.gateway.http.dialects.base import AGENT_HEADER, Dialect
from orchestrator.gateway.http.dialects.chat import ChatDialect
from orchestrator.gateway.http.dialects.native import NativeDialect
from orchestrator.gateway.messages.requests import CompletionRequest
from orchestrator.gateway.messages.turns import Turn
from orchestrator.gateway.metrics import GatewayMetrics
from orchestrator.gateway.render import Renderer
from orchestrator.gateway.servers.segmented import Generated
from orchestrator.gateway.sessions.forest import Forest
from orchestrator.gateway.sessions.session import Session
from orchestrator.pool.ingest import Decoded, decode_step
from tests.unit.gateway.test_sessions import SPEC

pytestmark = pytest.mark.anyio

ODD = ["x" * 129, "x" * 200, "ж" * 100_000, "\\u0000" * 300, "\\ud800" * 300, "\\n\\t" * 300]


class Sent:
    """A courier that keeps what it is given."""

    def __init__(self) -> None:
        self.messages: list[Outgoing] = []

    async def send(self, message: Outgoing) -> None:
        self.messages.append(message)


async def recorded(renderer: Renderer, *requests: CompletionRequest) -> list[Decoded]:
    """The steps of these requests, as ingest reads them."""
    sent, session = Sent(), Session(SPEC, Forest(renderer))
    recorder = Recorder(
        "r" * 32, cast(Courier, sent), stop_ids=renderer.stop_ids, metrics=GatewayMetrics(), experts=None
    )
    ids = tuple(renderer.action(Turn(role="assistant", text="elm")))
    generated = Generated(
        ids=ids,
        logprobs=(-0.5,) * len(ids),
        spans=(VersionSpan(2**31 - 1, 0, len(ids)),),
        finish=Finish.STOP,
        stop=None,
        suspect=False,
        timings=StepTimings(),
        weights=(f"{2**31 - 1}:{'f' * 64}", f"{2**31 - 1}:another digest", f"{2**31 - 1}:{'f' * 5000}"),
    )
    for request in requests:
        placement = session.forest.place(request.turns, request.tools, None)
        parsed = parse_action(renderer, ids, request.tools)
        await recorder.commit(session, request, placement, generated, parsed, {"temperature": 1.0})
    return [decode_step(decode(each.body, each.schema, StepRecorded)) for each in sent.messages]


def request(dialect: Dialect, body: str, headers: dict[str, str] | None = None) -> CompletionRequest:
    return read(dialect, body.encode(), headers or {}).request


@pytest.mark.parametrize("odd", ODD, ids=range(len(ODD)))
async def test_a_reason_or_agent_of_any_length_is_cut_where_it_comes_in(renderer: Renderer, odd: str) -> None:
    body = (
        f'{{"messages": [{{"role": "user", "content": "oak"}}], "replace_reason": "{odd}", "agent": "{odd}"}}'
    )
    found = request(NativeDialect(), body)
    steps = await recorded(renderer, found, found)
    assert [step.event.branch_reason for step in steps] == [found.reason] * 2
    assert found.reason is not None and len(found.reason) == MAX_BRANCH_REASON and found.reason[-1] == "…"
    assert {len(step.event.agent) for step in steps} == {MAX_AGENT}


async def test_a_short_reason_stays_as_it_is(renderer: Renderer) -> None:
    why = "w" * MAX_BRANCH_REASON
    body = f'{{"messages": [{{"role": "user", "content": "oak"}}], "replace_reason": "{why}", "agent": "main/sub"}}'
    (step,) = await recorded(renderer, request(NativeDialect(), body))
    assert (step.event.branch_reason, step.event.agent) == (why, "main/sub")
    assert step.event.weights == [f"{2**31 - 1}:{'f' * 64}"]


async def test_an_agents_name_in_a_header_is_cut(renderer: Renderer) -> None:
    name = "ж\udcff" * 100
    body = '{"messages": [{"role": "user", "content": "oak"}]}'
    (step,) = await recorded(renderer, request(ChatDialect(), body, {AGENT_HEADER: name}))
    assert step.event.agent == cut_to("ж?" * 100, MAX_AGENT)


def a_call(arguments: Any) -> str:
    calls = f'[{{"id": "c", "type": "function", "function": {{"name": "{"n" * 50_000}", "arguments": {arguments}}}}}]'
    calling = f'{{"role": "assistant", "content": null, "tool_calls": {calls}}}'
    messages = f'[{{"role": "user", "content": "oak"}}, {calling}, {{"role": "tool", "tool_call_id": "c", "content": ""}}]'
    return f'{{"messages": {messages}}}'


@pytest.mark.parametrize(
    "arguments",
    [
        '{"a": ' * 60 + "1" + "}" * 60,
        '"{}"',
        '{"a": 18446744073709551615, "b": -9223372036854775808, "c": 1e308}',
    ],
    ids=["deep", "text", "large numbers"],
)
async def test_a_call_of_a_history_that_is_taken_is_read(renderer: Renderer, arguments: str) -> None:
    (step,) = await recorded(renderer, request(NativeDialect(), a_call(arguments)))
    assert step.event.appended[1]["tool_calls"][0]["name"] == "n" * 50_000
