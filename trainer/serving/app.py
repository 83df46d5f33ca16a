"""The HTTP routes of the embedded rollout server: a subset of SGLang 0.5.23's, same paths, statuses and bodies.

A client that disconnects ends its request (aiohttp cancels the handler). Bodies up to 64 MiB.
"""

import hmac
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Annotated, Any

import msgspec
from aiohttp import web

from orchestrator.contracts.processes import PauseMode
from orchestrator.runtime.loopback import host_name, is_loopback
from trainer.serving import state
from trainer.serving.engine import EngineStopped
from trainer.serving.protocol import Refusal, parse_generate
from trainer.serving.service import Crashed, Service
from trainer.serving.state import Described

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

BODY_LIMIT = 64 * 2**20
FLUSHED = (
    "Cache flushed.\nPlease check backend logs for more details. "
    "(When there are running or waiting requests, the operation will not be performed.)\n"
)
TRANSFER = "weight_update_group"
STREAM_HEADERS = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}


Size = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""A dimension: torch raises TypeError for one above 64 bits."""
MEMBERS = 2**16  # of a transfer group


class Received(msgspec.Struct):
    """The tensors that a sender is about to broadcast, in order. `dtypes` are torch's names."""

    names: list[str]
    dtypes: list[str]
    shapes: list[list[Size]]


def _json(body: Any, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), status=status, content_type="application/json")


async def _object(request: web.Request) -> dict[str, Any]:
    """The JSON object of a body; an absent body is an empty one. Raises Refusal."""
    raw = await request.read()
    if not raw:
        return {}
    try:
        body = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refusal(f"the body is not JSON: {error}") from error
    except RecursionError:
        raise Refusal("the body is nested too deeply.") from None
    if not isinstance(body, dict):
        raise Refusal("the body must be a JSON object.")
    return body


class Routes:
    def __init__(self, service: Service, described: Described) -> None:
        self._service = service
        self._described = described

    async def generate(self, request: web.Request) -> web.StreamResponse:
        received = time.time()
        call = parse_generate(await _object(request), self._service.limits, self._service.encode)
        if not call.stream:
            replies = await self._service.generate(call.requests, received)
            return _json(replies if call.many else replies[0])
        async with aclosing(self._service.stream(call.requests[0], received)) as chunks:
            first_chunk = await anext(chunks)  # refusals come before the headers
            response = web.StreamResponse(headers=STREAM_HEADERS)
            await response.prepare(request)
            await response.write(b"data: " + msgspec.json.encode(first_chunk) + b"\n\n")
            async for chunk in chunks:
                await response.write(b"data: " + msgspec.json.encode(chunk) + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    async def abort(self, request: web.Request) -> web.Response:
        body = await _object(request)
        rid = body.get("rid")
        if body.get("abort_all"):
            await self._service.abort(None)
        elif isinstance(rid, str) and rid:
            await self._service.abort(rid)
        return web.Response()

    async def pause(self, request: web.Request) -> web.Response:
        mode = (await _object(request)).get("mode", PauseMode.ABORT)
        if mode not in list(PauseMode):
            raise Refusal(f"mode must be one of {', '.join(PauseMode)}, got {mode!r}.")
        await self._service.pause(PauseMode(mode))
        return _json({"message": "Generation paused successfully.", "status": "ok"})

    async def resume(self, request: web.Request) -> web.Response:
        await _object(request)
        await self._service.resume()
        return _json({"message": "Generation continued successfully.", "status": "ok"})

    async def update_weights(self, request: web.Request) -> web.Response:
        body = await _object(request)
        path, version = body.get("model_path"), body.get("weight_version")
        if not isinstance(path, str) or not path:
            raise Refusal("model_path must name a model directory.")
        if version is not None and not isinstance(version, str):
            raise Refusal("weight_version must be a string.")
        try:
            await self._service.update(
                path,
                version,
                flush=body.get("flush_cache", True) is not False,
                abort_all=body.get("abort_all_requests") is True,
            )
        # If the disk fails to deliver the new weights, the server keeps serving the old ones.
        except (ValueError, OSError) as error:
            failed = {"success": False, "message": f"{error}.", "num_paused_requests": 0}
            return _json(failed, status=400)
        message = "Succeeded to update model weights."
        if version is not None:
            message += f" Weight version updated to {version}."
        return _json({"success": True, "message": message, "num_paused_requests": 0})

    async def join_transfer(self, request: web.Request) -> web.Response:
        body = await _object(request)
        address, port, rank, size = (
            body.get(key) for key in ("master_address", "master_port", "rank_offset", "world_size")
        )
        name, backend = body.get("group_name", TRANSFER), body.get("backend", "nccl")
        if not (isinstance(address, str) and isinstance(name, str) and name and isinstance(backend, str)):
            raise Refusal("master_address, group_name and backend must be strings.")
        if not (type(port) is int and type(rank) is int and type(size) is int):
            raise Refusal("master_port, rank_offset and world_size must be integers.")
        if not (0 < port < 2**16 and 0 < rank < size <= MEMBERS):
            raise Refusal(
                f"0 < master_port < {2**16} and 0 < rank_offset < world_size <= {MEMBERS} must hold."
            )
        try:
            await self._service.transfers.join(name, address, port, rank, size, backend)
        except Refusal as refusal:
            return _json({"success": False, "message": str(refusal)}, status=400)
        return _json({"success": True, "message": "Succeeded to initialize custom process group."})

    async def begin_update(self, request: web.Request) -> web.Response:
        await _object(request)
        try:
            self._service.transfers.open_session()
        except Refusal as refusal:
            return _json({"success": False, "message": str(refusal)}, status=400)
        return _json({"success": True, "message": "Weight-update session opened."})

    async def end_update(self, request: web.Request) -> web.Response:
        await _object(request)
        try:
            self._service.transfers.close_session()
        except Refusal as refusal:
            return _json({"success": False, "message": str(refusal)}, status=400)
        return _json({"success": True, "message": "Weight-update session closed."})

    async def receive_weights(self, request: web.Request) -> web.Response:
        body = await _object(request)
        version, name = body.get("weight_version"), body.get("group_name", TRANSFER)
        if version is not None and not isinstance(version, str):
            raise Refusal("weight_version must be a string.")
        try:
            received = msgspec.convert(body, Received)
            await self._service.transfers.receive(name, received.names, received.dtypes, received.shapes)
            if version is not None:
                await self._service.update_received(
                    name,
                    version,
                    flush=body.get("flush_cache", True) is not False,
                    abort_all=body.get("abort_all_requests") is True,
                )
        except (ValueError, OSError, msgspec.ValidationError) as error:
            return _json({"success": False, "message": f"{error}"}, status=400)
        message = "Succeeded to update parameter online."
        if version is not None:
            message += f" Weight version updated to {version}."
        return _json({"success": True, "message": message})

    async def leave_transfer(self, request: web.Request) -> web.Response:
        name = (await _object(request)).get("group_name", TRANSFER)
        if not self._service.transfers.leave(name):
            failed = {"success": False, "message": "The group to be destroyed does not exist."}
            return _json(failed, status=400)
        return _json({"success": True, "message": "Succeeded to destroy custom process group."})

    async def relabel(self, request: web.Request) -> web.Response:
        body = await _object(request)
        version = body.get("new_version")
        if not isinstance(version, str) or not version:
            raise Refusal("new_version must be a non-empty string.")
        if body.get("abort_all_requests") is True:
            await self._service.abort(None)
        await self._service.relabel(version)
        message = f"Weight version updated to {version}"
        return _json({"success": True, "message": message, "new_version": version})

    async def flush(self, request: web.Request) -> web.Response:
        if await self._service.flush():
            return web.Response(text=FLUSHED)
        return web.Response(text="Flush cache failed.\n", status=400)

    async def tokenize(self, request: web.Request) -> web.Response:
        prompt = (await _object(request)).get("prompt")
        if not isinstance(prompt, str):
            raise Refusal("prompt must be a string.")
        ids = self._service.encode(prompt)
        return _json({"tokens": ids, "count": len(ids), "max_model_len": self._service.limits.context_length})

    async def health(self, request: web.Request) -> web.Response:
        healthy = await self._service.healthy(self._described.settings.health_timeout)
        return web.Response(status=200 if healthy else 503)

    async def ping(self, request: web.Request) -> web.Response:
        return web.Response()

    async def ready(self, request: web.Request) -> web.Response:
        return web.Response(status=503 if self._service.scheduler.paused else 200)

    async def model_info(self, request: web.Request) -> web.Response:
        return _json(state.model_info(self._service, self._described))

    async def server_info(self, request: web.Request) -> web.Response:
        return _json(state.server_info(self._service, self._described))

    async def loads(self, request: web.Request) -> web.Response:
        return _json(state.loads(self._service))

    async def models(self, request: web.Request) -> web.Response:
        return _json(state.models(self._service, self._described))

    async def metrics(self, request: web.Request) -> web.Response:
        headers = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        return web.Response(body=self._service.metrics.text(), headers=headers)


def _refused(request: web.Request, key: str | None, *, loopback: bool) -> web.Response | None:
    """An answer to those who may not use the server. Reading what it says of itself (GET) needs no key. No client of a rollout server is a page in a
    browser, which names its origin with every POST; and by another site's name no program of this machine calls a server on `loopback`."""
    if loopback and not is_loopback(host_name(request.headers.get("Host", "localhost"))):
        return _json({"error": {"message": "this server answers on loopback only"}}, status=403)
    if request.method != "POST":
        return None
    if "Origin" in request.headers:
        return _json({"error": {"message": "requests of web pages are refused"}}, status=403)
    if key is not None and not hmac.compare_digest(
        # The bytes of a header need not be text.
        request.headers.get("Authorization", "").encode("utf-8", "surrogateescape"),
        f"Bearer {key}".encode(),
    ):
        return _json({"error": {"message": "the bearer token is not the key of this server"}}, status=401)
    return None


def build_app(service: Service, described: Described) -> web.Application:
    key, loopback = described.settings.key, is_loopback(described.settings.host)

    @web.middleware
    async def answer(request: web.Request, handler: Handler) -> web.StreamResponse:
        status = 500
        resource = request.match_info.route.resource
        endpoint = resource.canonical if resource is not None else "unknown"
        service.metrics.count_request(endpoint, request.method)
        try:
            response = _refused(request, key, loopback=loopback) or await handler(request)
            status = response.status
            return response
        except Refusal as refusal:
            status = 400
            return _json(refusal.body, status=400)
        except (Crashed, EngineStopped):
            return _json({"error": {"message": "the server is going down"}}, status=500)
        except web.HTTPException as error:
            status = error.status
            raise
        finally:
            service.metrics.answered(endpoint, request.method, status)

    app = web.Application(middlewares=[answer], client_max_size=BODY_LIMIT)
    routes = Routes(service, described)
    for path, post in {
        "/generate": routes.generate,
        "/abort_request": routes.abort,
        "/pause_generation": routes.pause,
        "/continue_generation": routes.resume,
        "/update_weights_from_disk": routes.update_weights,
        "/init_weights_update_group": routes.join_transfer,
        "/begin_weight_update": routes.begin_update,
        "/end_weight_update": routes.end_update,
        "/update_weights_from_distributed": routes.receive_weights,
        "/destroy_weights_update_group": routes.leave_transfer,
        "/update_weight_version": routes.relabel,
        "/flush_cache": routes.flush,
        "/v1/tokenize": routes.tokenize,
    }.items():
        app.router.add_post(path, post)
    for path, get in {
        "/health": routes.health,
        "/health_generate": routes.health,
        "/ping": routes.ping,
        "/ready": routes.ready,
        "/model_info": routes.model_info,
        "/get_model_info": routes.model_info,
        "/server_info": routes.server_info,
        "/get_server_info": routes.server_info,
        "/v1/loads": routes.loads,
        "/v1/models": routes.models,
        "/metrics": routes.metrics,
    }.items():
        app.router.add_get(path, get)
    return app
