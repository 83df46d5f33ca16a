"""The process of every rank but 0: no data pool, no event loop. It carries out the orders of rank 0 until the end."""

import os
import signal

from orchestrator.contracts.errors import PenstockError
from orchestrator.runtime.log import bind, get
from orchestrator.settings.timeouts import use
from trainer.ranks.learner import serve
from trainer.ranks.rank_env import Place, end_now
from trainer.ranks.rendezvous import following

log = get(__name__)


def follow(place: Place, arguments: dict[str, str]) -> int:
    """Run until rank 0 orders the end (exit status 0) or is gone (1, with one sentence on stderr)."""
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_IGN:  # a handler would wait for a collective
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with bind(run=arguments["run"], rank=place.rank):
        try:
            with following(place, arguments) as (ranks, orders, config), use(config.timeouts):
                log.info("rank.joined", ranks=ranks.size, device=str(ranks.device), pid=os.getpid())
                serve(ranks, orders, config.trainer)
        except (PenstockError, ValueError) as error:
            end_now(1, f"rank {place.rank}: {error}")
    return 0
