"""Access control and response headers. The outermost layer: every response carries the headers, and no error shows a traceback.

| request | must |
|---|---|
| any | name a loopback address as its host (a name that a foreign DNS points here is refused) |
| page, API | have the token: cookie or `Authorization: Bearer`; `/any/path?token=…` sets the cookie and goes to the clean path |
| POST | also come from this origin, and carry the steering key (`X-Penstock-Steer`, from /api/me) or the bearer token |
| static file, /healthz | only pass the first check: they hold nothing of the run's contents |
"""

import html
from typing import Final
from urllib.parse import quote, urlencode

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from orchestrator.contracts.errors import ConfigurationError, NotFoundError, PenstockError, ServiceError
from orchestrator.contracts.quote import quoted
from orchestrator.runtime.log import get
from orchestrator.runtime.loopback import host_name, is_loopback
from orchestrator.web.auth import Keys
from orchestrator.web.database import TooSlow
from orchestrator.web.metrics import WebMetrics
from orchestrator.web.requests import Refused

log = get(__name__)

STEER: Final = "X-Penstock-Steer"
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; frame-ancestors 'none'; form-action 'self'"
)
HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
OPEN: Final = ("/static/", "/healthz")
NO_TOKEN: Final = (
    "open the URL that `penstock up` (or `penstock web`) printed: it carries the token that lets you in"
)


class Guard:
    """The middleware. `hosts`: names accepted in addition to loopback addresses, if a person allowed others to connect."""

    def __init__(self, keys: Keys, metrics: WebMetrics, hosts: frozenset[str]) -> None:
        self._keys = keys
        self._metrics = metrics
        self._hosts = hosts

    def middleware(self) -> Middleware:
        """For `web.Application`. A stream that its handler has started keeps the headers it has."""

        @web.middleware
        async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
            response = await self._answer(request, handler)
            if not response.prepared:
                decorate(response, api=request.path.startswith("/api/"))
            self._metrics.requests.labels(request.method, str(response.status // 100) + "xx").inc()
            return response

        return guarded

    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            response = self._check(request)
            return response if response is not None else await handler(request)
        except web.HTTPException as error:  # of aiohttp itself: no such route, wrong method, too large a body
            sentences = {
                404: "there is nothing here",
                405: f"{request.method} is not for this path",
                413: "the body is too large",
            }
            return refusal(request, error.status, sentences.get(error.status, error.reason))
        except Refused as refused:
            return refusal(request, refused.status, str(refused))
        except NotFoundError as error:
            return refusal(request, 404, str(error))
        except TooSlow as error:
            return refusal(request, 504, str(error))
        except ServiceError as error:
            return refusal(request, 503, str(error))
        except (ConfigurationError, PenstockError, ValueError) as error:
            return refusal(request, 400, str(error).partition("\n")[0])
        except Exception as error:  # counted, logged, and reported without its details
            self._metrics.errors.labels(request.method).inc()
            log.error("web.error", path=request.path, error=type(error).__name__, exc_info=True)
            return refusal(request, 500, "the dashboard failed to answer this; its log says why")

    def _check(self, request: web.Request) -> web.StreamResponse | None:
        if not self._here(request.host):
            raise Refused(
                403,
                f"this dashboard answers on loopback only, not as {quoted(request.host)}: use http://127.0.0.1",
            )
        if request.path.startswith(OPEN):
            return None
        if request.method in ("GET", "HEAD") and "token" in request.query:
            return self._enter(request)
        bearer = self._bearer(request)
        if not (bearer or self._keys.is_cookie(self._cookie(request))):
            raise Refused(401, NO_TOKEN)
        if request.method not in ("GET", "HEAD"):
            origin = request.headers.get("Origin")
            if origin is not None and origin not in (f"http://{request.host}", f"https://{request.host}"):
                raise Refused(403, "the request comes from another site")
            if not (bearer or self._keys.is_steering(request.headers.get(STEER, ""))):
                raise Refused(
                    403, f"steering needs the key of /api/me in the header {STEER}, or the token as a bearer"
                )
        return None

    def _here(self, host: str) -> bool:
        name = host_name(host)
        return name in self._hosts or is_loopback(name)

    def _bearer(self, request: web.Request) -> bool:
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            return False
        if not self._keys.is_token(given.strip()):
            raise Refused(401, "the token is wrong")
        return True

    def _cookie(self, request: web.Request) -> str:
        return request.cookies.get(self._keys.cookie_name, "")

    def _enter(self, request: web.Request) -> web.StreamResponse:
        if not self._keys.is_token(request.query["token"]):
            raise Refused(401, f"the token is wrong: {NO_TOKEN}")
        remaining = [(name, value) for name, value in request.query.items() if name != "token"]
        # Browsers read a backslash as a slash, and two slashes as the start of another host; our own paths contain no such character.
        clean = "/" + quote(request.path.replace("\\", "/").lstrip("/"))
        response = web.Response(
            status=303, headers={"Location": clean + (f"?{urlencode(remaining)}" if remaining else "")}
        )
        response.set_cookie(
            self._keys.cookie_name,
            self._keys.cookie,
            httponly=True,
            samesite="Strict",
            path="/",
            max_age=30 * 86400,
        )
        return response


def decorate(response: web.StreamResponse, *, api: bool) -> None:
    """Add the headers to a response, before it is sent."""
    response.headers.update(HEADERS)
    if api:
        response.headers["Cache-Control"] = "no-store"


def refusal(request: web.Request, status: int, sentence: str) -> web.Response:
    """One sentence: JSON for the API, a page for people."""
    if request.path.startswith("/api/") or "text/html" not in request.headers.get("Accept", ""):
        body = msgspec.json.encode({"error": sentence})
        return web.Response(body=body, status=status, content_type="application/json")
    return web.Response(text=_page(sentence), status=status, content_type="text/html")


def _page(sentence: str) -> str:
    escaped = html.escape(sentence, quote=False)
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        '<title>Penstock</title><link rel="stylesheet" href="/static/style.css">'
        f'<main class="alone"><h1>Penstock</h1><p>{escaped[0].upper()}{escaped[1:]}.</p></main></html>'
    )
