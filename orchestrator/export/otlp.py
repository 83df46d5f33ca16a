"""OpenTelemetry spans of the GenAI conventions: a trace per attempt, as OTLP/HTTP requests to a collector or as OTLP/JSON lines in files.

    invoke_agent <scaffold>                   the attempt
      chat penstock/<run>                     one per step; its policy versions, marks and weights are penstock.* attributes
      execute_tool <name>                     one per tool call of its reply
    penstock.verify                           the verdict, linked to the attempt, with an event gen_ai.evaluation.result

Ids are digests of the run and the keys, so a repeated export gives the same spans. Unmeasured values are not invented: a call without recorded
times is reconstructed (queries/call_times.py), as penstock.times states; a tool without times of its own gets the gap until the next call. Text is
cut at `ATTRIBUTE_BYTES` per attribute, in conversations the oldest messages first; penstock.truncated names the attributes that were cut.
"""

import json
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.export.drive import ExportSummary
from orchestrator.export.otlp_form import attributes, otlp_json
from orchestrator.export.otlp_trace import Trace
from orchestrator.export.packages import need
from orchestrator.export.post import post
from orchestrator.pool.runs import StoredRun
from orchestrator.queries.attempts import RecordedAttempt

CONVENTIONS = "1.41.0"
SCHEMA_URL = f"https://opentelemetry.io/schemas/{CONVENTIONS}"
PART = 50  # attempts
REQUEST_BYTES = 2**21  # of one request; collectors take 4 MiB and more


class Otlp:
    """Traces to `endpoint` (http://host:4318, or with its path /v1/traces); without one, into `traces-00000.jsonl` …"""

    name = "otlp"
    part = PART

    def __init__(
        self, endpoint: str | None = None, *, headers: Mapping[str, str] | None = None, content: bool = True
    ) -> None:
        self._proto = need(
            "opentelemetry.proto.collector.trace.v1.trace_service_pb2", "opentelemetry-proto", self.name
        )
        self._trace = need("opentelemetry.proto.trace.v1.trace_pb2", "opentelemetry-proto", self.name)
        self._common = need("opentelemetry.proto.common.v1.common_pb2", "opentelemetry-proto", self.name)
        self._json = need("google.protobuf.json_format", "protobuf", self.name)
        self._endpoint = endpoint
        self._headers = dict(headers or {})
        self._content = content
        self._file = Path()
        self._run = ""
        self._spans: list[Any] = []
        self._bytes = 0

    def options(self) -> Mapping[str, Any]:
        return {"endpoint": self._endpoint, "content": self._content, "conventions": CONVENTIONS}

    def split(self) -> Sequence[str]:
        return ()

    def begin(self, directory: Path, number: int, section: Mapping[str, Any], run: StoredRun) -> None:
        self._file = directory / f"traces-{number:05d}.jsonl"
        self._run = run.name
        self._spans, self._bytes = [], 0

    def add(self, attempt: RecordedAttempt) -> bool:
        for span in Trace(self._trace, self._common, attempt, content=self._content).spans():
            self._spans.append(span)
            self._bytes += span.ByteSize()
            if self._bytes >= REQUEST_BYTES:
                self._send()
        return False

    def end(self) -> Sequence[str]:
        self._send()
        return () if self._endpoint is not None else [self._file.name]

    def _send(self) -> None:
        """Send the pending spans as one request: repeated after a crash, it contains the same spans."""
        if not self._spans:
            return
        request = self._proto.ExportTraceServiceRequest()
        resource = request.resource_spans.add(schema_url=SCHEMA_URL)
        about = {
            "service.name": "penstock",
            "service.version": version("penstock"),
            "penstock.run": self._run,
        }
        resource.resource.attributes.extend(attributes(self._common, about))
        scope = resource.scope_spans.add(schema_url=SCHEMA_URL)
        scope.scope.name, scope.scope.version = "penstock.export", version("penstock")
        scope.spans.extend(self._spans)
        self._spans, self._bytes = [], 0
        if self._endpoint is None:
            line = json.dumps(otlp_json(self._json.MessageToDict(request)), ensure_ascii=False)
            with self._file.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
            return
        answer = post(self._endpoint, request.SerializeToString(), self._headers)
        partial_success = self._proto.ExportTraceServiceResponse.FromString(answer).partial_success
        if partial_success.rejected_spans:
            raise ConfigurationError(
                f"{self._endpoint} refused {partial_success.rejected_spans} spans: {partial_success.error_message or 'it did not say why'}"
            )

    def close(self, directory: Path, done: ExportSummary) -> Sequence[str]:
        return ()
