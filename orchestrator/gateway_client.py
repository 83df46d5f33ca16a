"""Client of the gateway for runners and white-box scaffolds: its admin API and its native route, over TCP loopback.

    async with GatewayAdmin(url, secret) as admin:
        session = await admin.open_session(run="demo", rollout=7, attempt=1, epoch=1, budget=SessionBudget(max_turns=4, max_context=2048))
        async with NativeLlm(url, session.token) as llm:
            reply = await llm.complete([{"role": "user", "content": "…"}], tools)
        seal = await admin.seal(rollout=7, attempt=1, epoch=1)      # the runner announces it in RolloutFinished

The client waits for a gateway that is away (killed, starting). It sends the same body again, which the gateway coalesces or answers from the
record, so nothing is generated twice. Harnesses do not use this module: they speak one of the three wires with the session's token.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import aiohttp
import anyio
import msgspec
from scaffolds.base import Conversations

from orchestrator.contracts.errors import InfraFailure, PenstockError, PolicyFailure
from orchestrator.contracts.events import StepMark, StepTimings
from orchestrator.contracts.marks import MAIN_AGENT, ParseStatus, ReplyFinish
from orchestrator.runtime.backoff import backoff
from orchestrator.runtime.probed_socket import probed_socket
from orchestrator.runtime.unreachable import cause_of, origin_of
from orchestrator.settings.timeouts import timeouts

Message = dict[str, Any]  # OpenAI's chat form: role, content, reasoning_content, tool_calls, tool_call_id
RETRY_HEADER = "x-stainless-retry-count"
FIRST_WAIT_S = 0.1
DRAINING = b'"code":"draining"'


class GatewayRefused(PenstockError):
    """The gateway refuses the request, with its reason: a wrong secret, an unknown token, a malformed request."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


class SessionOver(InfraFailure):
    """The session is sealed, aborted or expired. Nothing more is recorded under this token."""


class GatewayFailed(InfraFailure):
    """The gateway answered a call with a server error. The cause is the platform, or the content of the call."""

    reachable = True


class GatewayAway(InfraFailure):
    """No gateway answered within the client's patience."""


class GatewayDrains(PenstockError):
    """The gateway opens no new sessions because it is about to stop. Its open sessions continue."""


class BudgetExhausted(PolicyFailure):
    """The session's budget is used up. `which`: turns | context | tokens."""

    def __init__(self, which: str, message: str) -> None:
        super().__init__(message)
        self.which = which


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionBudget:
    """Limits of one session. Turns count recorded steps. Context is the longest state + action in tokens. Tokens is the sum of all
    sampled tokens (None: no limit). Auxiliary calls take no turns; they have separate limits for calls and sampled tokens."""

    max_turns: int
    max_context: int  # 0: the model's limit
    max_total_tokens: int | None = None
    max_auxiliary_calls: int | None = None
    max_auxiliary_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenSession:
    """A capability. A sandbox appends `path` (`/s/<token>/v1`) to its address of the gateway; `base_url` is the same over
    TCP, ready for OPENAI_BASE_URL; `socket_path` is the Unix socket that sandboxes may be given. Never log the token."""

    token: str = field(repr=False)
    path: str = field(repr=False)
    base_url: str = field(repr=False)
    socket_path: str
    expires: float  # seconds since the epoch
    context: int  # tokens of state and action together: the least of the budget's, the model's and the servers' limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal:
    """The summary of a sealed session. `digest` (hex) is sha256 of every chain_sha in idx order; last_idx is -1 without steps.

    `queued_s`: seconds in which at least one call waited and none was generated. `generation_s`: seconds in which at least one was
    (trajectory.waiting). Both are as measured by the gateway process that ended the session. `calls` counts requests that reached the
    policy, answered or not. `exhausted`: turns | context | tokens when the gateway refused a call for that budget, else None. `failing`: why
    the platform failed the newest such call (no rollout server, a full disk). It is None once a call that began later was served, of the same
    agent or of the main one, for an auxiliary call any. `last_failed`: why it failed the call that began last, auxiliary calls aside; None: that
    one was served. Calls do not count that failed for their own reasons: refused or abandoned, or with content that the gateway or a rollout
    server could not process.

    For a resumed session: `recorded` steps of earlier leases, `replayed` steps and the seconds that their generation took (`replayed_s`),
    `missing` steps that the harness should have requested again, and `parted`: why the requests diverged from the record, None if they did not.
    """

    steps: int
    last_idx: int
    digest: str
    marks: tuple[StepMark, ...]
    queued_s: float
    calls: int
    exhausted: str | None
    sampled_tokens: int
    failing: str | None = None
    last_failed: str | None = None
    versions: tuple[int, ...] = ()  # every policy version that made a token, ascending
    recorded: int = 0
    replayed: int = 0
    replayed_s: float = 0.0
    missing: int = 0
    parted: str | None = None
    generation_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """The current work of a session: calls in flight (with the large requests that the gateway prepares), calls so far, and its times with the
    meaning that they have in a Seal. `undecided_s` may still turn out to be waiting. All values are zero for a session that is not in the gateway's
    memory: it is closed, or has not been used since the gateway started. `instance` identifies this gateway process; another value means that the
    gateway was restarted.
    `held_s`: the longest time that a call in flight has been held without a rollout server, room in the journal or a share of the token budget, or
    in the gateway's preparation.
    `replayed_s`: seconds that the generation of the replayed steps of a resumed session took. `sandbox_port`: the gateway's port for sandboxes
    on other hosts; 0: it has none. `draining`: it opens no new sessions. `worked_s`: seconds so far in which the gateway read and rendered
    the session's own requests."""

    in_flight: int
    calls: int
    queued_s: float
    instance: str | None = None
    held_s: float = 0.0
    replayed_s: float = 0.0
    sandbox_port: int = 0
    draining: bool = False
    generation_s: float = 0.0
    undecided_s: float = 0.0
    worked_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ParsedToolCall:
    """A parsed tool call. `arguments` is a mapping; `id` encodes the step and must be replayed as tool_call_id."""

    id: str
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Tokens of one completion: the whole context that was sent, and the sampled tokens."""

    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCompletion:
    """One recorded step as a scaffold sees it. `replayed`: an earlier lease recorded
    the step and its timings. `generating`: when it was generated, each (from, to) in seconds before the reply; None: the gateway does not
    report it."""

    content: str
    reasoning: str | None
    tool_calls: tuple[ParsedToolCall, ...]
    finish: ReplyFinish
    parse: ParseStatus
    step: int
    usage: TokenUsage
    timings: StepTimings
    replayed: bool = False
    generating: tuple[tuple[float, float], ...] | None = None

    def message(self) -> Message:
        """The assistant message to append to the history for the next call."""
        message: Message = {"role": "assistant", "content": self.content}
        if self.reasoning is not None:
            message["reasoning_content"] = self.reasoning
        if self.tool_calls:
            message["tool_calls"] = [
                {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
                for c in self.tool_calls
            ]
        return message


class _Client:
    """JSON over HTTP with patience: connection failures and 503 are retried until `timeouts.gateway_patience_s` have passed without an answer."""

    def __init__(self, url: str, bearer: str) -> None:
        self._url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {bearer}", "Content-Type": "application/json"}
        self._http: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=timeouts().gateway_connect_s)
        connector = aiohttp.TCPConnector(limit=0, socket_factory=probed_socket)
        self._http = aiohttp.ClientSession(timeout=timeout, connector=connector)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._http is not None:
            await self._http.close()
            self._http = None

    async def _post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        assert self._http is not None, "enter the client before using it"
        data = msgspec.json.encode(body)
        waits, retries, started = backoff(FIRST_WAIT_S, timeouts().gateway_retry_s), 0, anyio.current_time()
        while True:
            headers = {**self._headers, RETRY_HEADER: str(retries)}
            try:
                async with self._http.post(
                    self._url + path, data=data, headers=headers, allow_redirects=False
                ) as response:
                    status, raw = response.status, await response.read()
                if status != 503 or DRAINING in raw:
                    return _answer(status, raw)
                problem = raw.decode(errors="replace")[:200]
            except (aiohttp.ClientError, OSError) as error:
                problem = cause_of(
                    error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
                ) or str(error)
            wait = next(waits)
            if anyio.current_time() - started + wait > timeouts().gateway_patience_s:
                origin = origin_of(self._url)
                advice = "start it, or correct its URL" if origin is None else origin.advice()
                raise GatewayAway(
                    f"the gateway at {self._url} does not answer ({problem}): {advice}"
                ) from None
            await anyio.sleep(wait)
            retries += 1


def _answer(status: int, raw: bytes) -> dict[str, Any]:
    """The decoded body of a 2xx answer. Every other answer raises one of our errors."""
    try:
        body = msgspec.json.decode(raw)
    except msgspec.DecodeError:
        body = {"error": {"message": raw.decode(errors="replace")[:200], "code": "not_json"}}
    if status < 300:
        assert isinstance(body, dict)
        return body
    if status < 400:
        message = (
            f"status {status}: it sends the runner to another address; the URL must name the gateway itself"
        )
        raise GatewayFailed(f"gateway: {message}")
    error = body.get("error") if isinstance(body, dict) else None
    error = error if isinstance(error, dict) else {"message": str(body)}
    code, message = str(error.get("code") or ""), str(error.get("message") or f"status {status}")
    if code == "draining":
        raise GatewayDrains(message)
    if code == "budget_exhausted":
        raise BudgetExhausted(str(error.get("param") or ""), message)
    if status == 409:
        raise SessionOver(message)
    if status >= 500:
        raise GatewayFailed(f"gateway: {message}")
    raise GatewayRefused(status, code, message)


class GatewayAdmin(_Client):
    """The runner's side of sessions. `secret` is the content of the gateway's admin secret file."""

    async def open_session(
        self,
        *,
        run: str,
        rollout: int,
        attempt: int,
        epoch: int,
        budget: SessionBudget,
        ttl_s: float | None = None,
        sampling: Mapping[str, Any] | None = None,
        scripted: Sequence[Message] | None = None,
        auxiliary: Sequence[str] = (),
        replayable: bool = False,
        version: int | None = None,
        group: int | None = None,
        conversations: Conversations = "many",
        sub_agents: Sequence[str] | None = None,
        instructions: Sequence[str] = (),
    ) -> OpenSession:
        """Open the session of one attempt at one lease epoch. Opening it again gives the same session a fresh token and
        closes the older token. A later epoch of the same attempt first replays the recorded steps, then continues after them.
        Raises GatewayDrains if the session would be new and the gateway drains.

        `sampling` overrides temperature, top_p, top_k, max_new_tokens or seed of the run's configuration (evaluation, recording).
        `scripted` replaces the policy: scripted[i] = {reasoning, content, tool_calls: [{name, arguments}]} answers the i-th call (auxiliary
        calls do not count). With `copy_observation: true` the text of the last tool result becomes the content; if the reply calls tools, it
        replaces `{observation}` in their arguments instead. `auxiliary` are patterns of model names (`*-mini`): a call with such a
        model is answered and recorded, and does not train. `replayable`: whether a later lease may resume this attempt.
        `version`: where servers are reserved for evaluations, calls wait for one that serves this version. `group` is
        for the log alone. `conversations`: "one" marks every conversation that does not begin as the session's first one does, and keeps it out
        of training; "many" with `sub_agents` (patterns of tools whose calls begin a conversation) does so with every conversation without
        evidence that it is the scaffold's. `instructions`: of the later steps of a task with several; each begins one more conversation.
        """
        body = {
            "run": run,
            "rollout": rollout,
            "attempt": attempt,
            "epoch": epoch,
            "budget": {
                "max_turns": budget.max_turns,
                "max_context": budget.max_context,
                "max_total_tokens": budget.max_total_tokens,
                "max_auxiliary_calls": budget.max_auxiliary_calls,
                "max_auxiliary_tokens": budget.max_auxiliary_tokens,
            },
            "ttl_s": ttl_s,
            "sampling": dict(sampling or {}),
            "scripted": None if scripted is None else list(scripted),
            "auxiliary": list(auxiliary),
            "replayable": replayable,
            "version": version,
            "group": group,
            "conversations": conversations,
            "sub_agents": None if sub_agents is None else list(sub_agents),
            "instructions": list(instructions),
        }
        return msgspec.convert(await self._post("/admin/sessions", body), OpenSession)

    async def seal(self, *, rollout: int, attempt: int, epoch: int) -> Seal:
        """End the session: calls in flight are cancelled and commit nothing. Sealing again returns the same seal."""
        return await self._end("seal", rollout, attempt, epoch)

    async def abort(self, *, rollout: int, attempt: int, epoch: int) -> Seal:
        """As `seal`, for an attempt that will not report: the session is closed instead of sealed."""
        return await self._end("abort", rollout, attempt, epoch)

    async def cut_off(self, *, rollout: int, attempt: int, epoch: int) -> None:
        """End the calls that a harness waits for, because a clock ends the attempt: what they have sampled is recorded with the mark `cut_off`, and
        the harness gets SessionOver. The session stays open."""
        await self._post("/admin/sessions/cut_off", {"rollout": rollout, "attempt": attempt, "epoch": epoch})

    async def activity(self, *, rollout: int, attempt: int, epoch: int) -> Activity:
        """Whether a harness waits for the policy at this moment. Only then is its silence not a stall."""
        key = {"rollout": rollout, "attempt": attempt, "epoch": epoch}
        return msgspec.convert(await self._post("/admin/sessions/activity", key), Activity)

    async def _end(self, how: str, rollout: int, attempt: int, epoch: int) -> Seal:
        key = {"rollout": rollout, "attempt": attempt, "epoch": epoch}
        return msgspec.convert(await self._post(f"/admin/sessions/{how}", key), Seal)


class NativeLlm(_Client):
    """The white-box route of one session. There is one recorder, so training uses exactly the steps that the scaffold sees."""

    def __init__(self, url: str, token: str) -> None:
        super().__init__(url, token)
        self._path = f"/s/{token}/native"
        self._calls: dict[str, int] = {}  # by agent

    async def complete(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        agent: str = MAIN_AGENT,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
        replace_reason: str | None = None,
    ) -> RecordedCompletion:
        """One completion of `messages` (the whole history, as on the Chat wire). `tools` are OpenAI tool definitions. A second call with the
        same messages, even a concurrent one, is another sample: an agent's calls are numbered, so the gateway distinguishes them from retries.

        `replace_reason` is the reason why the history was rewritten; it is recorded as the step's branch reason.
        Raises BudgetExhausted, SessionOver, GatewayRefused, or InfraFailure when the gateway or every rollout server is away.
        """
        number = self._calls[agent] = self._calls.get(agent, -1) + 1
        body = {
            "agent": agent,
            "call": number,
            "messages": list(messages),
            "tools": list(tools),
            "max_tokens": max_tokens,
            "stop": list(stop),
            "replace_reason": replace_reason,
        }
        return msgspec.convert(await self._post(f"{self._path}/complete", body), RecordedCompletion)

    async def count(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = (), *, agent: str = MAIN_AGENT
    ) -> int:
        """Tokens of the state that `complete` would send, `tools` included; nothing is generated or recorded. Raises SessionOver,
        GatewayRefused, or InfraFailure when the gateway is away."""
        body = {"agent": agent, "messages": list(messages), "tools": list(tools)}
        return int((await self._post(f"{self._path}/count", body))["tokens"])
