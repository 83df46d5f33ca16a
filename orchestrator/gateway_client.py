"""What runners and white-box scaffolds know of the gateway: its admin API and its native route, over TCP loopback.

    async with GatewayAdmin(url, secret) as admin:
        session = await admin.open_session(run="demo", rollout=7, attempt=1, epoch=1, budget=Budget(max_turns=4, max_context=2048))
        async with NativeLlm(url, session.token) as llm:
            reply = await llm.complete([{"role": "user", "content": "…"}], tools)
        seal = await admin.seal(rollout=7, attempt=1, epoch=1)      # what RolloutFinished announces

A gateway that is away (killed, starting) is waited for: the same body again is coalesced or answered from the record, so nothing is
generated twice. What this module is *not*: a client for harnesses (they speak one of the three wires with the session's token).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import aiohttp
import anyio
import msgspec

from orchestrator.clock import clock
from orchestrator.contracts.errors import InfraFailure, PenstockError, PolicyFailure
from orchestrator.contracts.events import StepMark, StepTimings

Message = dict[str, Any]  # OpenAI's chat form: role, content, reasoning_content, tool_calls, tool_call_id
RETRY_HEADER = "x-stainless-retry-count"
SAMPLING_KEYS = frozenset(
    {"temperature", "top_p", "top_k", "max_new_tokens", "seed"}
)  # what a session may override
FIRST_WAIT_S = 0.1
DRAINING = b'"code":"draining"'


class GatewayRefused(PenstockError):
    """The gateway says no, with its reason: a wrong secret, an unknown token, a malformed request."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


class SessionOver(InfraFailure):
    """The session is sealed, aborted or expired: nothing more will be recorded under this token."""


class GatewayAway(InfraFailure):
    """No gateway answered within the client's patience."""


class GatewayDrains(PenstockError):
    """The gateway opens no new sessions: it is to be stopped. Its open sessions go on."""


class BudgetExhausted(PolicyFailure):
    """The session's budget is used up. `which`: turns | context | tokens."""

    def __init__(self, which: str, message: str) -> None:
        super().__init__(message)
        self.which = which


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of one session. Turns count recorded steps, context is the longest state + action in tokens, tokens is the sum
    of all sampled tokens (None: no limit)."""

    max_turns: int
    max_context: int
    max_total_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class OpenSession:
    """A capability. `path` (`/s/<token>/v1`) is appended to whatever reaches the gateway from a sandbox; `base_url` is the same over
    TCP, ready for OPENAI_BASE_URL; `socket_path` is the Unix socket that sandboxes may be given. Never log the token."""

    token: str = field(repr=False)
    path: str = field(repr=False)
    base_url: str = field(repr=False)
    socket_path: str
    expires: float  # seconds since the epoch


@dataclass(frozen=True, slots=True)
class Seal:
    """What a sealed session announces. `digest` (hex) is sha256 of every chain_sha in idx order; last_idx is -1 without steps.

    `queued_s`: time that calls spent waiting for admission or a rollout server, not for generation. `calls` counts requests that
    reached the policy, answered or not. `exhausted`: turns | context | tokens when a call was refused for that, else None. `failing`: why
    the platform failed the newest call that ended (no rollout server, a full disk), None when it was served or refused for its own sake.

    Of a resume: how many steps earlier leases had `recorded`, how many were `replayed`, the seconds that their generation had taken, how many
    should have been asked for again and are `missing`, and why the requests `parted` from the record, None if they did not.
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
    versions: tuple[int, ...] = ()  # every policy version that made a token, ascending
    recorded: int = 0
    replayed: int = 0
    replayed_s: float = 0.0
    missing: int = 0
    parted: str | None = None


@dataclass(frozen=True, slots=True)
class Activity:
    """What a session is doing: calls in flight, calls so far, and the seconds that finished calls have spent queueing. All zero for
    one that is not in the gateway's memory: closed, or not spoken to since the gateway started. `instance` names this gateway process: another
    one means that the gateway was started anew meanwhile. `held_s`: for how long, of the calls in flight, the one that waited longest has
    been held because no rollout server, or no room for what it would record, was there. `replayed_s`: what the generation of the steps had
    taken that a resumed session has served again. `sandbox_port`: of this gateway, for sandboxes of other hosts; 0: it has none.
    `draining`: it opens no new sessions."""

    in_flight: int
    calls: int
    queued_s: float
    instance: str = ""
    held_s: float = 0.0
    replayed_s: float = 0.0
    sandbox_port: int = 0
    draining: bool = False


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A parsed tool call. `arguments` is a mapping; `id` encodes the step and must be replayed as tool_call_id."""

    id: str
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one completion: the whole context that was sent, and what was sampled."""

    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class Completion:
    """One recorded step as a scaffold sees it. finish: stop | length | tool_calls; parse: ok | ill_formed. `replayed`: it was recorded under
    an earlier lease, and so were its timings."""

    content: str
    reasoning: str | None
    tool_calls: tuple[ToolCall, ...]
    finish: str
    parse: str
    step: int
    usage: Usage
    timings: StepTimings
    replayed: bool = False

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
    """JSON over HTTP with patience: connection failures and 503 are retried until `clock.gateway_patience_s` have passed without an answer."""

    def __init__(self, url: str, bearer: str) -> None:
        self._url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {bearer}", "Content-Type": "application/json"}
        self._http: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=clock().gateway_connect_s)
        self._http = aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0))
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
        wait, retries, started = FIRST_WAIT_S, 0, anyio.current_time()
        while True:
            headers = {**self._headers, RETRY_HEADER: str(retries)}
            try:
                async with self._http.post(self._url + path, data=data, headers=headers) as response:
                    status, raw = response.status, await response.read()
                if status != 503 or DRAINING in raw:
                    return _answer(status, raw)
                problem = raw.decode(errors="replace")[:200]
            except (aiohttp.ClientError, OSError) as error:
                problem = f"{type(error).__name__}: {error}"
            if anyio.current_time() - started + wait > clock().gateway_patience_s:
                raise GatewayAway(
                    f"the gateway at {self._url} does not answer ({problem}); is it running?"
                ) from None
            await anyio.sleep(wait)
            wait, retries = min(clock().gateway_retry_s, wait * 2), retries + 1


def _answer(status: int, raw: bytes) -> dict[str, Any]:
    """The decoded body of a 2xx answer; everything else is one of our errors."""
    try:
        body = msgspec.json.decode(raw)
    except msgspec.DecodeError:
        body = {"error": {"message": raw.decode(errors="replace")[:200], "code": "not_json"}}
    if status < 300:
        assert isinstance(body, dict)
        return body
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
        raise InfraFailure(f"gateway: {message}")
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
        budget: Budget,
        ttl_s: float | None = None,
        sampling: Mapping[str, Any] | None = None,
        scripted: Sequence[Message] | None = None,
        auxiliary: Sequence[str] = (),
        replayable: bool = False,
        version: int | None = None,
        group: int | None = None,
    ) -> OpenSession:
        """Open the session of one attempt at one lease epoch. Opening it again gives a fresh token to the same session and
        closes the older token; a later epoch of the same attempt serves the recorded steps again, then goes on where they end.
        Raises GatewayDrains where it would be a new one, and the gateway takes none.

        `sampling` overrides temperature, top_p, top_k, max_new_tokens or seed of the run's configuration (evaluation, recording).
        `scripted` replaces the policy: the i-th call (auxiliary ones apart) is answered by scripted[i] = {reasoning, content, tool_calls:
        [{name, arguments}]}; with `copy_observation: true` the text of the last tool result is the content, or where the reply calls tools, what
        `{observation}` in their arguments stands for. `auxiliary` are patterns of model names (`*-mini`): a call that asks for such a
        model is answered and recorded, and does not train. `replayable` says whether a later lease may resume this attempt.
        `version`: calls wait for a server that is reserved for evaluations and serves it, where there are such servers. `group` is
        for the log alone.
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
            },
            "ttl_s": ttl_s,
            "sampling": dict(sampling or {}),
            "scripted": None if scripted is None else list(scripted),
            "auxiliary": list(auxiliary),
            "replayable": replayable,
            "version": version,
            "group": group,
        }
        return msgspec.convert(await self._post("/admin/sessions", body), OpenSession)

    async def seal(self, *, rollout: int, attempt: int, epoch: int) -> Seal:
        """End the session: calls in flight are cancelled and commit nothing. Sealing again returns the same seal."""
        return await self._end("seal", rollout, attempt, epoch)

    async def abort(self, *, rollout: int, attempt: int, epoch: int) -> Seal:
        """As `seal`, for an attempt that will not report: the session is closed instead of sealed."""
        return await self._end("abort", rollout, attempt, epoch)

    async def activity(self, *, rollout: int, attempt: int, epoch: int) -> Activity:
        """Whether a harness waits for the policy at this moment: only then is its silence not a stall."""
        key = {"rollout": rollout, "attempt": attempt, "epoch": epoch}
        return msgspec.convert(await self._post("/admin/sessions/activity", key), Activity)

    async def _end(self, how: str, rollout: int, attempt: int, epoch: int) -> Seal:
        key = {"rollout": rollout, "attempt": attempt, "epoch": epoch}
        return msgspec.convert(await self._post(f"/admin/sessions/{how}", key), Seal)


class NativeLlm(_Client):
    """The white-box route of one session: one recorder, so what a scaffold sees is what is trained."""

    def __init__(self, url: str, token: str) -> None:
        super().__init__(url, token)
        self._path = f"/s/{token}/native/complete"
        self._calls: dict[str, int] = {}  # by agent

    async def complete(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        agent: str = "main",
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
        replace_reason: str | None = None,
    ) -> Completion:
        """One completion of `messages` (the whole history, as on the Chat wire). `tools` are OpenAI tool definitions. Asked again, also
        at the same time, it is another sample: an agent's calls are numbered, so that the gateway tells them from a retry of one.

        `replace_reason` says why the history was rewritten; it is recorded as the step's branch reason.
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
        return msgspec.convert(await self._post(self._path, body), Completion)
