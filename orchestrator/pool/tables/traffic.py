"""Between the data pool and the bus: outgoing messages, and messages that could not be used or may not be usable."""

from sqlalchemy import Column, DateTime, Index, Integer, LargeBinary, Table, Text, text
from sqlalchemy.dialects.postgresql import JSONB

from orchestrator.pool.columns import CHURNS, metadata
from orchestrator.pool.columns import identity as _id
from orchestrator.pool.columns import now as _now
from orchestrator.pool.columns import run as _run

_LETTER = "coalesce(run_id, 0)|left(subject, 256)|left(coalesce(msg_id, ''), 256)|sha256(body)"

outbox = Table(
    "outbox",
    metadata,
    _id("outbox_id", "the row; also the message id that the bus de-duplicates by"),
    _run(),
    Column("subject", Text, nullable=False, comment="where it is published"),
    Column("schema", Text, nullable=False, comment="name and version of the body"),
    Column("body", JSONB, nullable=False, comment="the message"),
    Column(
        "revision",
        Integer,
        nullable=False,
        server_default="0",
        comment="grows per subject's entity; consumers drop an older one",
    ),
    Column(
        "not_before",
        DateTime(timezone=True),
        comment="not to be published earlier: a delay, or the turn of another message",
    ),
    _now("at", "when the state change that owes it was committed"),
    comment="Messages that a committed state change owes to the bus; a row is deleted once its publish is acknowledged.",
    postgresql_with={"fillfactor": "70", **CHURNS},
)

dead_letters = Table(
    "dead_letters",
    metadata,
    _id("dead_letter_id", "the message; m<dead_letter_id> in `penstock dead`"),
    Column("run_id", Integer, comment="the run that it names; null: none that is known"),
    Column("stream", Text, nullable=False, comment="the stream that delivered it"),
    Column("subject", Text, nullable=False, comment="as it was published"),
    Column("schema", Text, comment="schema that its header named"),
    Column("msg_id", Text, comment="id that its header named"),
    Column("reason", Text, nullable=False, comment="what is wrong with it"),
    Column("deliveries", Integer, nullable=False, comment="how often it was delivered"),
    Column("body", LargeBinary, nullable=False, comment="the message, byte for byte"),
    _now("at", "when it was put here"),
    Index("dead_letters_once", *map(text, _LETTER.split("|")), unique=True),
    comment="Messages that could not be used, whole, with the reason.",
)

suspect_messages = Table(
    "suspect_messages",
    metadata,
    Column("digest", LargeBinary, primary_key=True, comment="sha256 of the message with its names"),
    Column("stream", Text, nullable=False, comment="the stream that delivered it"),
    Column(
        "tries",
        Integer,
        nullable=False,
        comment="processes that began to handle it alone and did not end that",
    ),
    Column("process", Text, nullable=False, comment="a random name of the newest of these"),
    _now("at", "when the newest of these began"),
    comment="Messages that are handled alone, since the process that handled them before may have ended of them; deleted when their handling ends.",
)
