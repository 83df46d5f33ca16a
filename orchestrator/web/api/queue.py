"""/api/queue: the queue around its window, and why it waits."""

from orchestrator.queries import queue
from orchestrator.scheduling.admission import QueueSettings
from orchestrator.web.requests import Query, get


async def _queue(query: Query) -> queue.Queue:
    config = query.config
    return await queue.queue(query.connection, query.run, config, QueueSettings.of(config))


ROUTES = [get("/api/queue", _queue)]
