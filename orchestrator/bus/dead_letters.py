"""Dead letters: the unchanged original body, with its history in headers, under a deterministic id.

Also the sentences that both adapters use.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import replace

from orchestrator.bus import subjects
from orchestrator.bus.base import Delivery, Outgoing
from orchestrator.bus.subjects import Consumer
from orchestrator.bus.wire import size_of, wire_headers

_REASON_LIMIT = 1000  # characters
_SUBJECT_LIMIT = 4096  # characters: a line of the protocol
_SCHEMA_LIMIT = 256  # characters
MAX_HEADERS_BYTES = 48 * 1024  # NATS refuses more than 64 KiB
_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")  # of a header that can be sent


def dead_letter(
    message: Delivery | Outgoing, reason: str, max_payload: int, *, kept: bool = False
) -> Outgoing:
    """The letter for ``message``. A body that would not fit is cut; a header carries its true length.

    The original headers are kept, unless ours would no longer fit next to them. Those that no client can send are
    left out. The reason is made printable, because a header is one line.
    """
    if isinstance(message, Outgoing):
        stream, deliveries = subjects.stream_of(message.subject).name, 0
    else:
        stream, deliveries = message.stream, message.deliveries
    msg_id = message.msg_id or ""
    if not 0 < len(msg_id) <= 256:
        names = f"{message.subject}\0{message.schema or ''}\0"  # an equal body under another schema is another message
        msg_id = hashlib.sha256(names.encode() + message.body).hexdigest()
    headers = {
        subjects.HEADER_DEAD_REASON: one_line(reason) or "no reason given",
        subjects.HEADER_DEAD_SUBJECT: message.subject[:_SUBJECT_LIMIT],
        subjects.HEADER_DEAD_DELIVERIES: str(deliveries),
        subjects.HEADER_DEAD_BODY_BYTES: str(len(message.body)),
        subjects.HEADER_DEAD_MSG_ID: msg_id,
        subjects.HEADER_DEAD_KEPT: "yes" if kept else "no",
    }
    letter = Outgoing(
        subject=subjects.dead(stream),
        msg_id=f"dead:{stream}:{msg_id}",
        schema=(message.schema or "")[:_SCHEMA_LIMIT],
        body=b"",
        headers=_kept(message.headers) | headers,
    )
    if size_of(letter, wire_headers(letter)) > min(MAX_HEADERS_BYTES, max_payload // 2):
        letter = replace(letter, headers=headers)  # large foreign headers: keep only ours
    free_bytes = max_payload - size_of(letter, wire_headers(letter))
    return replace(letter, body=message.body[: max(0, free_bytes)])


def _kept(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers of a message that its letter may have as well."""
    own = (subjects.HEADER_SCHEMA, subjects.HEADER_MSG_ID)
    return {
        key: value
        for key, value in headers.items()
        if _NAME.fullmatch(key) and not key.startswith("Nats-") and key not in own
    }


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
