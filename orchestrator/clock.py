"""How patient the platform is: durations that belong to no section of their own, each a setting of `[clock]`; and the mark of all others.

A process enters `ticking(config.clock)` once, at its start, and whoever waits asks `clock()`. Without it the defaults hold.
Whatever is annotated `Seconds` or `Wait` is divided by `Config.faster`, all together.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field

SCALED: Final = "a duration: divided by the time scale"
Seconds = Annotated[float, Field(gt=0), SCALED]
Wait = Annotated[float, Field(ge=0), SCALED]
"""Seconds, also none."""


class Clock(BaseModel):
    """Times to live, back-offs and patience between processes, in seconds. They say when something counts as lost, never what it is worth."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    # The bus.
    bus_connect_s: Seconds = 5.0  # a server that takes the connection and says nothing is given up
    bus_redial_s: Seconds = 2.0  # longest wait between two tries to connect, or of what the bus refused
    bus_request_s: Seconds = 5.0  # for an answer of JetStream
    bus_ping_s: Seconds = 10.0  # two unanswered pings end a half-open connection
    bus_ack_wait_s: Seconds = 30.0  # a message that nobody settles comes again
    bus_fetch_s: Seconds = 30.0  # a request for messages is asked for anew when it expires
    bus_heartbeat_s: Seconds = 5.0  # two missed, and the inbox is given up
    bus_look_s: Seconds = 5.0  # between looks whether a stream is new
    outbox_taken_s: Seconds = 10.0  # a row that a dead relay took is another's after this
    parting_s: Seconds = 0.5  # who stops publishes within this what it kept just before
    resend_s: Seconds = 5.0  # a submission that nobody answered is published again
    courier_resend_s: Seconds = 30.0  # so is a message that the stream took and the data pool does not have
    # Postgres.
    pool_connect_s: Seconds = 20.0  # a server that takes the connection and says nothing is given up
    pool_start_s: Seconds = 10.0  # a process that starts waits so long for a Postgres that is away
    pool_retry_s: Seconds = 5.0  # longest wait between two tries of a transaction
    pool_silence_s: Seconds = 25.0  # a connection without a sign of life from the other machine is broken
    pool_idle_s: Seconds = 10.0  # who stops in the middle of a transaction holds its locks for no longer
    arrival_s: Seconds = 60.0  # announced steps may take so long to arrive after the result
    refusals_s: Seconds = 10.0  # of a flood of stale messages, a few are said in each of these
    # Runners.
    gateway_start_s: Seconds = 60.0  # a runner waits so long for the first start of its gateway
    gateway_connect_s: Seconds = 5.0  # for a connection
    gateway_patience_s: Seconds = 60.0  # a call that no gateway answers is tried for so long
    gateway_held_s: Seconds = 5.0  # the gateway may take so long to say whether it holds a completion
    gateway_close_s: Seconds = 5.0  # an attempt that reports nothing tries so long to close its session
    gateway_silent_s: Seconds = 10.0  # without an answer for so long, the gateway hangs
    gateway_grudge_s: Seconds = (
        60.0  # a program may give up this long after the gateway failed it, and it is the platform's fault
    )
    gateway_retry_s: Seconds = 2.0  # longest wait between two tries of a call
    journal_retry_s: Seconds = 1.0  # a result that finds the journal full is tried again after this
    sandbox_retry_s: Seconds = 5.0  # between looks whether the disk of the sandboxes has room again
    abort_s: Seconds = 5.0  # a program that is ended early may clean up for so long
    give_back_s: Seconds = 2.0  # a worker that stops gives back its leases within this
    # The gateway and its rollout servers.
    session_sweep_s: Seconds = 60.0  # between looks for expired sessions; each stays for one such time longer
    server_connect_s: Seconds = 5.0  # for a connection
    sender_end_s: Seconds = 5.0  # for a sender of weights whose work is over
    server_row_s: Seconds = (
        2.0  # for rows that only inform: a server that comes back does not wait for the data pool
    )
    server_release_s: Seconds = 1.0  # a gateway that stops releases its servers within this
    # The trainer.
    disk_retry_s: Seconds = 5.0  # after a checkpoint that found no room
    rank_silence_s: Seconds = 300.0  # a rank that keeps the others waiting for longer is lost


_CLOCK: ContextVar[Clock | None] = ContextVar("clock", default=None)
_DEFAULT: Final = Clock()


def clock() -> Clock:
    """The settings of this process."""
    return _CLOCK.get() or _DEFAULT


@contextmanager
def ticking(settings: Clock) -> Iterator[None]:
    """`clock()` gives these within."""
    token = _CLOCK.set(settings)
    try:
        yield
    finally:
        _CLOCK.reset(token)
