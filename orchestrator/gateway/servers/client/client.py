"""A client of one rollout server, for SGLang 0.5.23's protocol (the embedded server speaks a subset of it).

It implements routes, bodies and failures. It has no knowledge of policies, and does not retry, route or pause on its own. Generation
is not streamed: the reply is the whole completion. A cancelled call drops its connection, which ends the request on the server.
"""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Self

import aiohttp
import msgspec
import numpy as np

from orchestrator.contracts.http_urls import normal_url
from orchestrator.contracts.ids import Ids
from orchestrator.contracts.processes import PauseMode
from orchestrator.contracts.quote import quoted
from orchestrator.gateway.servers.client.errors import (
    RequestRefused,
    RolloutServerBroken,
    RolloutServerSilent,
    RolloutServerUnreachable,
    WeightUpdateRefused,
)
from orchestrator.gateway.servers.client.generation import (
    Generation,
    Requested,
    SamplingParams,
    parse_generation,
)
from orchestrator.gateway.servers.client.id_text import json_ids
from orchestrator.gateway.servers.client.own_server import OwnServerConnector
from orchestrator.gateway.servers.client.replies import (
    MAX_BYTES,
    TOKEN_BYTES,
    Load,
    Loads,
    ModelInfo,
    Prompt,
    ServerInfo,
    T,
    Updated,
    body_of,
    decoded,
    error_message,
)
from orchestrator.runtime.failpoints import boundary
from orchestrator.runtime.probed_socket import probed_socket
from orchestrator.settings.timeouts import timeouts
from orchestrator.trajectory.routes import Experts

QUICK_S = 30.0
"""Timeout of routes that do not generate. It is above the 20 s after which a paused server's /health returns 503."""

CONTEXT_KEPT = 6
"""Positions of the model's context that SGLang reserves for itself. It refuses a longer prompt, also when a call is sent again with
its tokens so far."""

OF_CONTENT = (400, 413, 422)
"""Statuses by which a server refuses a completion for its content. The others of 400 to 499 say that it, or a proxy before it, is not working."""

KEEP_ALIVE_S = 4.0
"""The client closes idle connections: SGLang's HTTP server closes them after 5 s, and a request sent at that moment would be lost."""


class RolloutServerClient:
    """An async context manager; safe for any number of concurrent calls. `base_url` like http://127.0.0.1:30000; the
    attribute is its `normal_url`, by which the gateways of all runs know the server.

    `vocabulary`: size of the served model's vocabulary. Other ids raise RequestRefused here, because they crash a real SGLang server.
    `experts`: of a mixture whose routes are recorded; every completion then requests its routes. `key`: what the server requires as a bearer token
    (SGLang: `--api-key`); None: nothing. `user`: its process runs as this user on this machine, or gets no request; None: it may be any."""

    def __init__(
        self,
        base_url: str,
        *,
        vocabulary: int | None = None,
        experts: Experts | None = None,
        key: str | None = None,
        user: int | None = None,
    ) -> None:
        self.base_url = normal_url(base_url)
        self._vocabulary = vocabulary
        self._experts = experts
        self._headers = {"Accept-Encoding": "identity"}
        if key is not None:
            self._headers["Authorization"] = f"Bearer {key}"
        self._user = user
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        kept: dict[str, Any] = {
            "limit": 0,
            "keepalive_timeout": KEEP_ALIVE_S,
            "socket_factory": probed_socket,
        }
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(**kept)
            if self._user is None
            else OwnServerConnector(self._user, **kept),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=timeouts().server_connect_s),
            headers=self._headers,
            auto_decompress=False,  # `body_of` bounds what is read
            cookie_jar=aiohttp.DummyCookieJar(),  # rollout servers set no cookies, and every request would query the jar
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    # ---- completions ----

    async def generate(
        self,
        input_ids: Sequence[int] | Ids,
        sampling: SamplingParams,
        *,
        rid: str | None = None,
        routing_key: str | None = None,
        routes_from: int = 0,
        timeout: float | None = None,
    ) -> Generation:
        """One completion of `input_ids`. It waits through pauses; `timeout` None: it waits indefinitely. `routes_from`: the first position whose
        routes are wanted, if routes are recorded. Raises RolloutServerError, RequestRefused only for what the request contains."""
        self._check(input_ids)
        ids = np.array(input_ids, dtype="<i4")
        body: dict[str, Any] = {
            "rid": rid or uuid.uuid4().hex,
            "input_ids": json_ids(ids),
            "sampling_params": sampling.body(),
            "return_logprob": True,
            "stream": False,
        }
        if routing_key is not None:
            body["routing_key"] = routing_key
        if self._experts is not None:
            body |= {"return_routed_experts": True, "routed_experts_start_len": routes_from}
        requested = Requested(
            prompt=len(ids),
            limit=sampling.max_new_tokens,
            stop=sampling.stop,
            vocabulary=self._vocabulary,
            experts=self._experts,
            routes_from=routes_from,
        )
        try:
            url, raw = await self._call("POST", "/generate", body, timeout, most=requested.longest_reply)
        except RequestRefused as refused:
            if refused.status in OF_CONTENT:
                raise
            raise RolloutServerBroken(refused.url, f"status {refused.status}: {refused.message}") from refused
        try:
            return replace(parse_generation(raw, requested), sent=ids)
        except ValueError as error:
            raise RolloutServerBroken(url, str(error)) from error

    async def prompt_logprobs(
        self, input_ids: Sequence[int], *, timeout: float | None = QUICK_S
    ) -> list[float]:
        """Logprobs, at temperature 1, of input_ids[1:] each given the ids before it: len(input_ids) − 1 values."""
        self._check(input_ids)
        body = {
            "rid": uuid.uuid4().hex,
            "input_ids": list(input_ids),
            "sampling_params": {"max_new_tokens": 1, "temperature": 1.0, "ignore_eos": True},
            "return_logprob": True,
            "logprob_start_len": 0,
        }
        most = MAX_BYTES + TOKEN_BYTES * len(input_ids)
        url, raw = await self._call("POST", "/generate", body, timeout, at="server.canary", most=most)
        entries = self._decoded(url, raw, Prompt).meta_info.input_token_logprobs
        if [entry.id for entry in entries] != list(input_ids):
            raise RolloutServerBroken(url, "the prompt's ids came back changed")
        logprobs = [entry.logprob for entry in entries[1:] if entry.logprob is not None]
        if len(logprobs) != len(entries) - 1:
            raise RolloutServerBroken(url, "a token of the prompt has no logprob")
        return logprobs

    async def abort(self, rid: str | None = None) -> None:
        """End one request, or all of them (None). Each answers its caller with its tokens so far. Unknown ids are not an error."""
        body = {"abort_all": True} if rid is None else {"rid": rid}
        await self._call("POST", "/abort_request", body, QUICK_S, at="server.abort")

    # ---- weights ----

    async def pause(self, mode: PauseMode = PauseMode.ABORT) -> None:
        """Stop generating; later requests are held until `continue_`."""
        await self._call("POST", "/pause_generation", {"mode": mode}, QUICK_S, at="server.pause")

    async def continue_(self) -> None:
        await self._call("POST", "/continue_generation", {}, QUICK_S, at="server.continue")

    async def update_weights(
        self, path: str, version: str, *, flush_cache: bool = True, timeout: float | None = None
    ) -> None:
        """Serve the weights in directory `path` (on the server's disk) as `version`. Pause first: an unpaused server
        waits for its running requests. Raises WeightUpdateRefused when the server keeps the old version; whether it keeps the old weights
        is for a digest or a canary to show."""
        body = {
            "model_path": path,
            "weight_version": version,
            "flush_cache": flush_cache,
            "abort_all_requests": False,
        }
        await self._exchange("/update_weights_from_disk", body, timeout)

    async def join_transfer(
        self, group: str, address: str, port: int, *, ranks: int, backend: str, timeout: float | None = None
    ) -> None:
        """Let the server's `ranks` ranks join a sender's process group at address:port. Raises RequestRefused."""
        body = {
            "master_address": address,
            "master_port": port,
            "rank_offset": 1,
            "world_size": 1 + ranks,
            "group_name": group,
            "backend": backend,
        }
        await self._call("POST", "/init_weights_update_group", body, timeout)

    async def begin_transfer(self) -> None:
        """Open the server's session for parts of weights. Raises WeightUpdateRefused, also when a session is open already."""
        await self._exchange("/begin_weight_update", {}, QUICK_S)

    async def end_transfer(self) -> None:
        """Close the session: the server prepares the received weights for serving. Raises WeightUpdateRefused when no session is open."""
        await self._exchange("/end_weight_update", {}, QUICK_S)

    async def receive_weights(
        self,
        group: str,
        part: Mapping[str, Any],
        version: str | None,
        *,
        flush_cache: bool,
        timeout: float | None = None,
    ) -> None:
        """Receive the tensors that the sender broadcasts next: `part` has their names, dtypes and shapes. Pass `version` with the last part of
        a transfer. Pause first. Raises WeightUpdateRefused; the weights may then be the old ones, the new ones or neither."""
        body = {**part, "group_name": group, "flush_cache": flush_cache, "abort_all_requests": False}
        if version is not None:
            body["weight_version"] = version
        await self._exchange("/update_weights_from_distributed", body, timeout)

    async def leave_transfer(self, group: str) -> None:
        """Let the server leave the group. Raises RequestRefused when it is not in a group of that name."""
        await self._call("POST", "/destroy_weights_update_group", {"group_name": group}, QUICK_S)

    async def _exchange(self, path: str, body: Mapping[str, Any], timeout: float | None) -> None:
        try:
            url, raw = await self._call("POST", path, body, timeout, at="server.update")
        except RequestRefused as refused:
            raise WeightUpdateRefused(refused.url, refused.message, refused.status) from refused
        if not self._decoded(url, raw, Updated).success:
            raise RolloutServerBroken(url, f"the reply does not say that the update succeeded: {quoted(raw)}")

    async def flush(self) -> None:
        """Empty the prefix cache. Raises RequestRefused while requests hold keys and values."""
        await self._call("POST", "/flush_cache", None, QUICK_S)

    # ---- state ----

    async def model_info(self, *, timeout: float = QUICK_S) -> ModelInfo:
        """The served weights; instant, also while paused."""
        return await self._get("/model_info", ModelInfo, timeout)

    async def server_info(self) -> ServerInfo:
        """Limits and settings."""
        return await self._get("/server_info", ServerInfo)

    async def loads(self, *, timeout: float = QUICK_S) -> Load:
        """The first rank's load."""
        return (await self._get("/v1/loads", Loads, timeout)).loads[0]

    async def ping(self, *, timeout: float = 5.0) -> bool:
        """Whether the process answers. It does not show whether the server generates, and is true while paused."""
        try:
            await self._call("GET", "/ping", None, timeout)
        except (RolloutServerUnreachable, RolloutServerBroken):
            return False
        return True

    # ---- transport ----

    def _check(self, input_ids: Sequence[int] | Ids) -> None:
        if self._vocabulary is None:
            return
        ids = np.asarray(input_ids)
        if not len(ids) or (ids.min() >= 0 and ids.max() < self._vocabulary):
            return
        invalid = np.flatnonzero((ids < 0) | (ids >= self._vocabulary))
        if len(invalid):
            at = int(invalid[0])
            message = f"input_ids[{at}] = {ids[at]} is outside the vocabulary (0 … {self._vocabulary - 1})"
            raise RequestRefused(f"{self.base_url}/generate", message, 400)

    async def _get(self, path: str, kind: type[T], timeout: float = QUICK_S) -> T:
        return self._decoded(*await self._call("GET", path, None, timeout), kind)

    async def _call(
        self,
        method: str,
        path: str,
        body: Any,
        timeout: float | None,
        *,
        at: str | None = None,
        most: int = MAX_BYTES,
    ) -> tuple[str, bytes]:
        """The URL and the body of a 2xx answer of at most `most` bytes. Every failure is raised as one of our errors. `at` names the call in
        `failpoints.BOUNDARIES`."""
        assert self._session is not None, "enter the client before using it"
        url = self.base_url + path
        data = None if body is None else msgspec.json.encode(body)
        headers = {} if data is None else {"Content-Type": "application/json"}
        limits = aiohttp.ClientTimeout(total=timeout, sock_connect=timeouts().server_connect_s)
        request = partial(
            self._session.request,
            method,
            url,
            data=data,
            headers=headers,
            timeout=limits,
            allow_redirects=False,  # another server would get the key, and a 302 makes a GET of a POST
        )

        async def exchange() -> tuple[int, bytes]:
            async with request() as response:
                return response.status, await body_of(response, most)

        try:
            status, raw = await (exchange() if at is None else boundary(at, exchange))
        except TimeoutError as error:
            raise RolloutServerSilent(url, f"no answer within {timeout} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise RolloutServerUnreachable(url, f"{type(error).__name__}: {error}") from error
        except ValueError as error:
            raise RolloutServerBroken(url, str(error)) from error
        if status < 300:
            return url, raw
        message = error_message(raw)
        if status in (401, 403):  # this gateway's fault, not the request's
            raise RolloutServerBroken(url, f"it refuses this gateway's key (servers.key_file): {message}")
        if 400 <= status < 500:
            raise RequestRefused(url, message, status)
        if status < 400:
            message = (
                "it sends this gateway to another address; servers.urls must name the rollout server itself"
            )
        raise RolloutServerBroken(url, f"status {status}: {message}")

    def _decoded(self, url: str, raw: bytes, kind: type[T]) -> T:
        try:
            return decoded(raw, kind)
        except ValueError as error:
            raise RolloutServerBroken(url, str(error)) from error
