"""The size of a step's parts in one message of the bus. The server's `max_payload` bounds body and headers together."""

from typing import Final

_HEADERS_BYTES: Final = 64 * 2**10
_REST_BYTES: Final = 64 * 2**10
"""Of a body: all but ids, logprobs and routes."""
_NUMBER_BYTES: Final = 16 / 3
"""An id, or a logprob: four bytes in base64."""
_PER_ACTION_TOKEN: Final = 2 + 8 / _NUMBER_BYTES
"""Numbers that a token of an action takes the place of: its id, its logprob, and eight bytes of the reply's text."""


def longest_body(max_payload: int) -> int:
    """Bytes of the largest body of a step."""
    return max_payload - _HEADERS_BYTES


def routes_limit(routes_mb: float, max_payload: int) -> int:
    """Bytes of the largest body with routes: the configured limit, or that of the bus."""
    return min(int(routes_mb * 2**20), longest_body(max_payload))


def carried_tokens(max_payload: int, max_new_tokens: int) -> int:
    """The longest context, in tokens of state and action together, whose step fits without routes, with an action of up to `max_new_tokens`. A
    step without a parent holds the ids of its whole state, and of its action the logprobs too."""
    numbers = (longest_body(max_payload) - _REST_BYTES) / _NUMBER_BYTES
    return int(max(numbers - (_PER_ACTION_TOKEN - 1) * max_new_tokens, numbers / _PER_ACTION_TOKEN))
