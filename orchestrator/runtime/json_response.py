"""JSON as an answer of an aiohttp server."""

import msgspec
from aiohttp import web


def json_response(value: object, status: int = 200) -> web.Response:
    """`value` as JSON; numbers that are not finite become null."""
    return web.Response(body=msgspec.json.encode(value), status=status, content_type="application/json")
