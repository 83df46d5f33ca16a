"""The API, one module per page: each has `ROUTES`."""

from orchestrator.web.api import batches, events, groups, me, queue, rollouts, run, steering, system
from orchestrator.web.requests import Route

ROUTES: tuple[Route, ...] = tuple(
    route
    for module in (me, events, run, queue, groups, rollouts, batches, system, steering)
    for route in module.ROUTES
)
"""Every route, in the order in which they are tried."""
