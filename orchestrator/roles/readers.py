"""Ends the sessions of logins that only read when a transaction of theirs lasts too long: it would hold up changes of tables, and the vacuum of all.

| produces | waits for | unblocked by |
|---|---|---|
| ended sessions, each a line in the log | a transaction older than `timeouts.pool_reader_s` | time |

Only a superuser's run, or one whose login is a member of pg_signal_backend, may end sessions of others.
"""

from functools import partial

from orchestrator.pool.reader_rights import end_long
from orchestrator.pool.transact import transact
from orchestrator.roles.context import OrchestratorContext
from orchestrator.runtime.liveness import pause
from orchestrator.settings.timeouts import timeouts

CHECKS_PER_LONGEST_READ = 60  # of pool_reader_s


async def end_long_readers(context: OrchestratorContext) -> None:
    """Look until cancelled."""
    longest_s = timeouts().pool_reader_s
    while True:
        await transact(context.engine, partial(end_long, longest_s=longest_s), at="orchestrator.read")
        await pause(longest_s / CHECKS_PER_LONGEST_READ)
