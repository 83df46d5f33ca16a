"""The patience of the platform: durations that belong to no other section, each a setting of `[timeouts]`; and the mark of all durations.

A process enters `use(config.timeouts)` once, at its start, and waiting code calls `timeouts()`. Without it the defaults apply.
`Config.faster` divides every value that is annotated `Seconds` or `Wait`, all together.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Annotated, Final

from pydantic import Field

from orchestrator.settings.section import Section

SCALED: Final = "a duration: divided by the time scale"
MAX_S: Final = 10 * 365 * 86_400
"""Ten years in seconds, the longest duration: times of the data pool are added to it."""
Seconds = Annotated[float, Field(gt=0, le=MAX_S), SCALED]
Wait = Annotated[float, Field(ge=0, le=MAX_S), SCALED]
"""Seconds, also none."""
# PostgreSQL counts them in milliseconds of 31 bits.
_Idle = Annotated[float, Field(gt=0, le=2_000_000), SCALED]
_Silence = Annotated[float, Field(gt=0, le=80_000), SCALED]  # the kernel takes 32,767 s before a first probe


class Timeouts(Section):
    """Times to live, back-offs and patience between processes, in seconds. They say when something counts as lost, never what it is worth."""

    # The bus.
    bus_connect_s: Seconds = 5.0
    """Handshake timeout of NATS in seconds."""
    bus_redial_s: Seconds = 2.0
    """The longest wait in seconds between two tries to connect, or to send again what the bus refused."""
    bus_request_s: Seconds = 5.0
    """Seconds to wait for an answer of JetStream."""
    bus_ping_s: Seconds = 10.0
    """Seconds between two pings of the bus; two without an answer end a half-open connection."""
    bus_ack_wait_s: Seconds = 30.0
    """Seconds after which a message that was not settled is delivered again."""
    bus_fetch_s: Seconds = 30.0
    """Seconds after which a request for messages expires and is made again."""
    bus_heartbeat_s: Seconds = 5.0
    """Seconds between two heartbeats of a request for messages; after two missed ones its inbox is given up."""
    bus_poll_interval_s: Seconds = 5.0
    """Seconds between two checks whether a stream was recreated, as after a wipe of the bus."""
    outbox_taken_s: Seconds = 10.0
    """Seconds after which a row of the outbox that a dead relay took may be taken by another."""
    republish_window_s: Seconds = 0.5
    """Seconds that a stopping process may still publish what its journal kept just before."""
    resend_s: Seconds = 5.0
    """Seconds after which a submission without an answer is published again."""
    courier_resend_s: Seconds = 30.0
    """Seconds after which a message that the stream took and the data pool lacks is published again."""
    # Postgres.
    pool_connect_s: Seconds = 20.0
    """Handshake timeout of Postgres in seconds."""
    pool_start_s: Seconds = 10.0
    """Seconds that a starting process waits for a Postgres that is away."""
    pool_retry_s: Seconds = 5.0
    """The longest wait in seconds between two tries of a transaction."""
    pool_silence_s: _Silence = 25.0
    """Seconds without a sign of life from the other machine after which a connection is broken."""
    pool_idle_s: _Idle = 10.0
    """Seconds that a process that stops in the middle of a transaction may hold its locks."""
    pool_reader_s: Seconds = 3600.0
    """Seconds after which a transaction of a login that only reads is ended, whatever its session has set."""
    arrival_s: Seconds = 60.0
    """Seconds that announced steps may take to arrive after their result."""
    rewards_s: Seconds = 300.0
    """Seconds that the rewards of a group may take, times the groups that are computed at once (up to 4); else the group is dead."""
    stale_log_interval_s: Seconds = 10.0
    """Interval in seconds at which a flood of stale messages gets a few lines in the log."""
    # Runners.
    gateway_start_s: Seconds = 60.0
    """Seconds that a runner waits for the first start of its gateway."""
    gateway_connect_s: Seconds = 5.0
    """Seconds that a runner waits for a connection to the gateway."""
    gateway_patience_s: Seconds = 60.0
    """Seconds for which a call that no gateway answers is tried again."""
    gateway_held_s: Seconds = 5.0
    """Seconds that the gateway may take to say whether it holds a completion."""
    cut_off_s: Seconds = 5.0
    """Seconds that the gateway may take to record the replies under way when a clock ends their attempt."""
    gateway_close_s: Seconds = 5.0
    """Seconds that an attempt that reports nothing tries to close its session."""
    gateway_silent_s: Seconds = 10.0
    """Seconds without an answer after which the gateway counts as hanging."""
    gateway_fault_window_s: Seconds = 60.0
    """Seconds after a failure of the gateway within which a program that gives up counts as the platform's fault."""
    gateway_retry_s: Seconds = 2.0
    """The longest wait in seconds between two tries of a call to the gateway."""
    journal_retry_s: Seconds = 1.0
    """Seconds after which a result that found the journal full is tried again."""
    sandbox_retry_s: Seconds = 5.0
    """Seconds between two checks whether the disk of the sandboxes has room again."""
    abort_s: Seconds = 5.0
    """Seconds that a program that is ended early may clean up."""
    give_back_s: Seconds = 2.0
    """Seconds within which a worker that stops gives back its leases."""
    egress_head_s: Seconds = 10.0
    """Seconds that a sandbox's program may take to send its whole request, or its TLS ClientHello, to the egress proxy."""
    egress_connect_s: Seconds = 10.0
    """Seconds that the egress proxy waits for a name and for a connection to one of its addresses."""
    egress_idle_s: Seconds = 120.0
    """Seconds without a byte in either direction after which the egress proxy closes a connection."""
    # The gateway and its rollout servers.
    session_sweep_s: Seconds = 60.0
    """Seconds between two sweeps for expired sessions; each expired session stays for one such time longer."""
    request_head_s: Seconds = 30.0
    """Seconds that a connection to the gateway or the dashboard may take to send the head of a request."""
    request_body_s: Seconds = 120.0
    """Seconds that the body of a request to the gateway may take to arrive."""
    server_connect_s: Seconds = 5.0
    """Seconds that the gateway waits for a connection to a rollout server."""
    sender_end_s: Seconds = 5.0
    """Seconds that a sender of weights whose work is over may take to end."""
    server_row_s: Seconds = 2.0
    """Seconds to write a row that only informs; a server that comes back does not wait for the data pool."""
    server_release_s: Seconds = 1.0
    """Seconds within which a gateway that stops releases its servers."""
    # The trainer.
    disk_retry_s: Seconds = 5.0
    """Seconds after which a checkpoint that found no room on the disk is tried again."""
    rank_silence_s: Seconds = 300.0
    """Seconds after which a rank that keeps the others waiting is lost."""


_TIMEOUTS: ContextVar[Timeouts | None] = ContextVar("timeouts", default=None)
_DEFAULT: Final = Timeouts()


def timeouts() -> Timeouts:
    """The settings of this process."""
    return _TIMEOUTS.get() or _DEFAULT


@contextmanager
def use(settings: Timeouts) -> Iterator[None]:
    """`timeouts()` gives these within."""
    token = _TIMEOUTS.set(settings)
    try:
        yield
    finally:
        _TIMEOUTS.reset(token)


def to_argument(settings: Timeouts) -> str:
    """The options that differ from the defaults, for a command line.

    >>> to_argument(Timeouts(disk_retry_s=1.5, rank_silence_s=600)), to_argument(Timeouts())
    ('disk_retry_s=1.5,rank_silence_s=600.0', '')
    """
    return ",".join(
        f"{key}={value}" for key, value in settings.model_dump().items() if value != getattr(_DEFAULT, key)
    )


def from_argument(text: str) -> Timeouts:
    """The inverse of `to_argument`. ValueError for anything else.

    >>> from_argument("rank_silence_s=600.0").rank_silence_s
    600.0
    """
    return Timeouts.model_validate_strings(dict(part.split("=", 1) for part in text.split(",") if part))
