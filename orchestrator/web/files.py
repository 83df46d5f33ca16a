"""The static files next to this code. No other file is served."""

import hashlib
from pathlib import Path

from aiohttp import web

from orchestrator.web.requests import Refused

STATIC = Path(__file__).parent / "static"
TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".html": "text/html"}
NAMES = {
    path.relative_to(STATIC).as_posix(): path for path in sorted(STATIC.rglob("*")) if path.suffix in TYPES
}
"""The served files: name → path."""


def static_file(request: web.Request, name: str) -> web.Response:
    """One file, or 304 if the browser has it. Refused (404) for any other name."""
    path = NAMES.get(name)
    if path is None:
        raise Refused(404, "no such file")
    body = path.read_bytes()
    tag = hashlib.sha256(body).hexdigest()[:20]
    headers = {"ETag": f'"{tag}"', "Cache-Control": "no-cache"}
    if any(known.value == tag for known in request.if_none_match or ()):
        return web.Response(status=304, headers=headers)
    return web.Response(body=body, content_type=TYPES[path.suffix], charset="utf-8", headers=headers)
