"""The wire form of an `Outgoing`: its headers and its size limit."""

from orchestrator.bus import subjects
from orchestrator.bus.base import Outgoing, TooLarge, Unsendable


def wire_headers(message: Outgoing) -> dict[str, str]:
    """All headers; ours override the sender's."""
    headers = dict(message.headers)
    headers[subjects.HEADER_MSG_ID] = message.msg_id
    if message.schema:
        headers[subjects.HEADER_SCHEMA] = message.schema
    return headers


def stream_name(message: Outgoing) -> str:
    """The stream that stores a message. Raises Unsendable for a subject that no stream stores."""
    try:
        return subjects.stream_of(message.subject).name
    except ValueError as error:
        raise Unsendable(str(error)) from None


def size_of(message: Outgoing, headers: dict[str, str]) -> int:
    """Bytes as the server counts them."""
    return len(message.body) + 16 + sum(len(k) + len(v.encode()) + 4 for k, v in headers.items())


def check_size(message: Outgoing, headers: dict[str, str], max_payload: int) -> None:
    """Raise TooLarge for a message that the server would refuse by closing the connection. The server counts headers and body."""
    size = size_of(message, headers)
    if size > max_payload:
        raise TooLarge(
            f"the message for {message.subject} has {size:,} bytes and the NATS server takes at most {max_payload:,} "
            f"(max_payload): keep what is above {subjects.INLINE_LIMIT_BYTES:,} bytes as a blob and send its sha256, "
            "or raise max_payload in the server's configuration"
        )
