"""Dead letters: the unchanged original body, with its history in headers, under a deterministic id.

Also the sentences that both adapters use.
"""

import hashlib

from orchestrator.bus import subjects
from orchestrator.bus.base import Delivery, Outgoing
from orchestrator.bus.subjects import Consumer

_REASON_LIMIT = 1000  # characters
MOST_HEADERS_BYTES = 48 * 1024  # NATS refuses more than 64 KiB
_HEADER_RESERVE_BYTES = 8 * 1024  # for our headers, so that the letter itself is not refused as too large


def dead_letter(
    message: Delivery | Outgoing, reason: str, max_payload: int, *, kept: bool = False
) -> Outgoing:
    """The letter for ``message``. A body that would not fit is cut; a header carries its true length.

    The original headers are kept, unless ours would no longer fit next to them. The reason is made
    printable, because a header is one line.
    """
    if isinstance(message, Outgoing):
        stream, deliveries = subjects.stream_of(message.subject).name, 0
    else:
        stream, deliveries = message.stream, message.deliveries
    msg_id = message.msg_id or ""
    if not 0 < len(msg_id) <= 256:
        msg_id = hashlib.sha256(message.subject.encode() + b"\0" + message.body).hexdigest()
    headers = {key: value for key, value in message.headers.items() if not key.startswith("Nats-")}
    headers |= {
        subjects.HEADER_DEAD_REASON: one_line(reason) or "no reason given",
        subjects.HEADER_DEAD_SUBJECT: message.subject,
        subjects.HEADER_DEAD_DELIVERIES: str(deliveries),
        subjects.HEADER_DEAD_BODY_BYTES: str(len(message.body)),
        subjects.HEADER_DEAD_MSG_ID: msg_id,
        subjects.HEADER_DEAD_KEPT: "yes" if kept else "no",
    }
    headers_bytes = sum(len(key) + len(value.encode()) + 4 for key, value in headers.items())
    if headers_bytes > min(MOST_HEADERS_BYTES, max_payload // 2):  # large foreign headers: keep only ours
        headers = {key: value for key, value in headers.items() if key.startswith("Penstock-Dead-")}
        headers_bytes = 0
    free_bytes = max_payload - _HEADER_RESERVE_BYTES - headers_bytes
    return Outgoing(
        subject=subjects.dead(stream),
        msg_id=f"dead:{stream}:{msg_id}",
        schema=message.schema or "",
        body=message.body[: max(0, free_bytes)],
        headers=headers,
    )


def one_line(text: str) -> str:
    """``text`` as one printable line that any header can carry."""
    printable = "".join(c if c.isprintable() else " " for c in text)
    return " ".join(printable.split())[:_REASON_LIMIT]


def undeliverable(delivery: Delivery) -> str:
    """The reason for a message that was delivered too often."""
    return f"delivered {delivery.deliveries - 1} times without an acknowledgement"


def conflict(consumer: Consumer) -> str:
    """The sentence of `ConsumerConflict`."""
    return (
        f"the consumer {consumer.durable} of {consumer.stream} wants {consumer.filter}, which another consumer of this "
        "work queue takes already: use one durable per run, kind and pool"
    )
