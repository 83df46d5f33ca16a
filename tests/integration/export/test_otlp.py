"""Spans, sent to a collector over HTTP and read with OpenTelemetry's own messages."""

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from google.protobuf.json_format import Parse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from sqlalchemy import text, update

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.export import otlp, otlp_messages, post
from orchestrator.export.otlp import SCHEMA_URL, Otlp
from orchestrator.pool import tables
from tests.integration.export.rig import ExportedRun, exported_run

__all__ = ["exported_run"]
pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("look")]


class Collector:
    """Takes OTLP/HTTP on loopback. `answers`: statuses of the next requests; 200 afterwards. `rejects`: spans of each that are refused."""

    def __init__(self) -> None:
        self.requests: list[ExportTraceServiceRequest] = []
        self.headers: list[dict[str, str]] = []
        self.answers: list[int] = []
        self.rejects = 0
        self.url = ""

    def spans(self) -> list[Any]:
        return [
            span
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    @contextmanager
    def running(self) -> Iterator["Collector"]:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status = outer.answers.pop(0) if outer.answers else 200
                assert (self.path, self.headers["Content-Type"]) == ("/v1/traces", "application/x-protobuf")
                answer = ExportTraceServiceResponse()
                if status == 200:
                    outer.requests.append(ExportTraceServiceRequest.FromString(body))
                    outer.headers.append(dict(self.headers))
                    if outer.rejects:
                        answer.partial_success.rejected_spans = outer.rejects
                        answer.partial_success.error_message = "too old"
                self.send_response(status)
                self.end_headers()
                self.wfile.write(answer.SerializeToString() if status == 200 else b"not now")

            def log_message(self, *_: Any) -> None: ...

        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            thread = Thread(target=server.serve_forever, args=(0.01,))
            thread.start()
            self.url = f"http://127.0.0.1:{server.server_address[1]}"
            try:
                yield self
            finally:
                server.shutdown()
                thread.join()


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector().running() as running:
        yield running


def attributes_of(span: Any) -> dict[str, Any]:
    """A span's attributes as plain values."""
    found = {}
    for each in span.attributes:
        kind = each.value.WhichOneof("value")
        value = getattr(each.value, kind)
        found[each.key] = (
            [getattr(one, one.WhichOneof("value")) for one in value.values]
            if kind == "array_value"
            else value
        )
    return found


async def test_an_attempt_is_a_trace_of_agent_calls_tools_and_verdict(
    exported_run: ExportedRun, tmp_path: Path, collector: Collector
) -> None:
    await exported_run.export(
        Otlp(collector.url, headers={"Authorization": "Bearer x"}), tmp_path / "out", rollouts=(1,)
    )
    assert collector.headers[0]["Authorization"] == "Bearer x"
    assert (
        collector.requests[0].resource_spans[0].schema_url
        == SCHEMA_URL
        == "https://opentelemetry.io/schemas/1.41.0"
    )
    spans = collector.spans()
    agent, *others = spans
    assert len({span.trace_id for span in spans}) == 1 and len({span.span_id for span in spans}) == len(spans)
    names = [span.name for span in spans]
    assert names == [
        "invoke_agent shell",
        "chat penstock/exported",
        "execute_tool bash",
        "chat penstock/exported",
        "execute_tool ask",
        *["chat penstock/exported"] * 4,
        "penstock.verify",
    ]
    by_id = {span.span_id: span for span in spans}
    assert agent.parent_span_id == b""
    for span in others:
        assert 0 < span.start_time_unix_nano <= span.end_time_unix_nano
    *below, verify = others
    assert {by_id[span.parent_span_id].name for span in below} == {agent.name}
    assert [attributes_of(span)["penstock.step"] for span in below] == [0, 0, 1, 1, 2, 3, 4, 5]
    assert verify.parent_span_id == b"" and [link.span_id for link in verify.links] == [agent.span_id]
    assert verify.start_time_unix_nano >= agent.end_time_unix_nano
    about = attributes_of(agent)
    assert (about["gen_ai.operation.name"], about["gen_ai.agent.name"], about["penstock.rollout"]) == (
        "invoke_agent",
        "shell",
        1,
    )
    assert about["penstock.reward.performance"] == 1.0 and about["penstock.batch"] == 0
    chat = attributes_of(others[2])
    assert chat["gen_ai.operation.name"] == "chat" and chat["penstock.policy_version.spans"][0] == 0
    assert [message["role"] for message in json.loads(chat["gen_ai.input.messages"])] == [
        "user",
        "assistant",
        "tool",
    ]
    assert json.loads(chat["gen_ai.input.messages"])[2]["parts"] == [
        {"type": "tool_call_response", "id": "call_s0_0", "response": "a b"}
    ]
    assert json.loads(chat["gen_ai.system_instructions"]) == [{"type": "text", "content": "be brief"}]
    measured, guessed = attributes_of(others[1]), attributes_of(others[3])
    assert (measured["penstock.times"], guessed["penstock.times"]) == ("measured", "gap")
    assert measured["gen_ai.tool.call.result"] == "a b" and guessed["gen_ai.tool.call.result"] == "two"
    assert others[1].end_time_unix_nano - others[1].start_time_unix_nano == 1_000_000_000
    (event,) = others[-1].events
    assert event.name == "gen_ai.evaluation.result"


async def test_the_same_export_is_the_same_spans_with_and_without_a_collector(
    exported_run: ExportedRun, tmp_path: Path, collector: Collector
) -> None:
    await exported_run.export(Otlp(collector.url), tmp_path / "one")
    first = [span.SerializeToString() for span in collector.spans()]
    collector.requests.clear()
    await exported_run.export(Otlp(collector.url), tmp_path / "two")
    assert [span.SerializeToString() for span in collector.spans()] == first
    await exported_run.export(Otlp(), tmp_path / "files")
    collector.requests.clear()
    for file in sorted((tmp_path / "files").glob("*.jsonl")):
        for line in file.read_text().splitlines():
            collector.requests.append(Parse(as_protobuf(line), ExportTraceServiceRequest()))
    assert [span.SerializeToString() for span in collector.spans()] == first


def as_protobuf(line: str) -> str:
    """OTLP/JSON has ids in hexadecimal, protobuf's own JSON in base64."""

    def read(value: Any) -> Any:
        if isinstance(value, list):
            return [read(each) for each in value]
        if not isinstance(value, dict):
            return value
        ids = ("traceId", "spanId", "parentSpanId")
        return {
            name: base64.b64encode(bytes.fromhex(each)).decode() if name in ids else read(each)
            for name, each in value.items()
        }

    return json.dumps(read(json.loads(line)))


async def test_large_traces_are_several_requests(
    exported_run: ExportedRun, tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(otlp, "REQUEST_BYTES", 4000)
    await exported_run.export(Otlp(collector.url), tmp_path / "out")
    assert len(collector.requests) > 12
    assert len({span.span_id for span in collector.spans()}) == len(collector.spans()) == 12 * 10


async def test_messages_are_left_out_on_demand(
    exported_run: ExportedRun, tmp_path: Path, collector: Collector
) -> None:
    await exported_run.export(Otlp(collector.url, content=False), tmp_path / "out")
    for span in collector.spans():
        assert "count the files" not in str(span) and "a b" not in str(span)


async def test_a_busy_collector_gets_a_retry_and_a_refusal_is_one_sentence(
    exported_run: ExportedRun, tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(post, "FIRST_PAUSE_S", 0.001)
    collector.answers = [503, 429]
    assert (await exported_run.export(Otlp(collector.url), tmp_path / "busy")).attempts == 12
    collector.answers = [401]
    with pytest.raises(ConfigurationError, match="answered 401 Unauthorized: not now"):
        await exported_run.export(Otlp(collector.url), tmp_path / "refused")
    collector.rejects = 3
    with pytest.raises(ConfigurationError, match="refused 3 spans: too old"):
        await exported_run.export(Otlp(collector.url), tmp_path / "rejected")
    with pytest.raises(
        ConfigurationError, match=r"no collector accepts traces at http://127.0.0.1:1/v1/traces"
    ):
        await exported_run.export(Otlp("http://127.0.0.1:1"), tmp_path / "away")
    with pytest.raises(ConfigurationError, match="is not a URL of a collector"):
        await exported_run.export(Otlp("127.0.0.1:4318"), tmp_path / "wrong")


async def test_a_huge_conversation_is_cut_to_its_newest_messages_and_says_so(
    exported_run: ExportedRun, tmp_path: Path, collector: Collector
) -> None:
    huge = {"role": "tool", "content": "é\n" * 3_000_000}
    calls = [{"name": "x" * 100_000, "arguments": {"command": "y" * 2_000_000}}]
    wide = {"role": "assistant", "content": "z" * 2_000_000, "tool_calls": calls}
    async with exported_run.owner.begin() as connection:
        await connection.execute(text("set local session_replication_role = replica"))  # rows are immutable
        await connection.execute(
            update(tables.messages).where(tables.messages.c.idx == 1).values(appended=[huge], reply=wide)
        )
    await exported_run.export(Otlp(collector.url), tmp_path / "out", rollouts=(1,))
    spans = collector.spans()
    assert max(span.ByteSize() for span in spans) < 2**20 and max(len(span.name) for span in spans) < 400
    cut = [attributes_of(span) for span in spans if "penstock.truncated" in attributes_of(span)]
    assert cut and {name for about in cut for name in about["penstock.truncated"]} >= {
        "gen_ai.input.messages",
        "gen_ai.output.messages",
        "gen_ai.tool.call.arguments",
        "gen_ai.tool.call.result",
    }
    for about in map(attributes_of, spans):
        for name in ("gen_ai.input.messages", "gen_ai.output.messages"):
            if name in about:
                assert json.loads(about[name]) and len(about[name].encode()) <= otlp_messages.ATTRIBUTE_BYTES
