"""Health of one rollout server: does it answer, does it hold the weights that it was given (weights.py), how long is its queue. Checks run during
all other operations.

| produces | waits for | unblocked by |
|---|---|---|
| `lost`, `back`, `invalidate`, the load | an answer of /model_info | the server, or `silence_s` |

A server whose process is gone refuses the connection, and the next check notices that. A server that is stopped or hangs does not answer: it
counts as lost after two checks in a row without an answer, `silence_s` in total. Nor is one odd answer, as of a proxy that loads its settings
again, a lost server: two failed checks in a row are. A pause changes neither: /model_info answers during it
(/health does not). Whether it generates is for its syncer to say (`RolloutServer.still_s`).
"""

from orchestrator.gateway.metrics import GatewayMetrics, UpstreamMetrics
from orchestrator.gateway.servers.client import (
    RequestRefused,
    RolloutServerError,
    RolloutServerSilent,
    RolloutServerUnreachable,
)
from orchestrator.gateway.servers.server import RolloutServer
from orchestrator.runtime.liveness import pause
from orchestrator.runtime.log import get
from orchestrator.runtime.metrics import each, measured

log = get(__name__)


class HealthProbe:
    """Checks every `probe_s` until cancelled."""

    def __init__(self, server: RolloutServer, metrics: GatewayMetrics, *, probe_s: float) -> None:
        self._server = server
        self._metrics = metrics
        self._probe_s = probe_s
        wrong_weights = measured(UpstreamMetrics).wrong_weights
        for counter in (metrics.servers_lost, metrics.weights_refused, wrong_weights):
            each(counter, server.url)
        self._failed = 0  # checks in a row

    async def run(self) -> None:
        """Check the server periodically."""
        while True:
            await self.check()
            await pause(self._probe_s)

    async def check(self) -> None:
        """One check."""
        server = self._server
        openings = server.openings
        try:
            info = await server.client.model_info(timeout=server.silence_s / 2)
        except RolloutServerError as error:
            self._failed += 1
            gone = isinstance(error, RolloutServerUnreachable) and not isinstance(error, RolloutServerSilent)
            if gone or self._failed > 1:
                self._lose(error)
            return
        self._failed = 0
        server.back()
        self._metrics.server_up.labels(server.url).set(1)
        if server.ready and openings == server.openings:
            server.compare(info)
        try:
            server.take_in(await server.client.loads(timeout=server.silence_s / 2))
        except RequestRefused:  # a server without this route: its queue is unknown, so no calls spill
            pass
        except RolloutServerError as error:
            log.info("server.load_unknown", server=server.url, error=str(error))
        self._metrics.server_delay.labels(server.url).set(server.delay)

    def _lose(self, error: RolloutServerError) -> None:
        if self._server.answers:
            self._metrics.servers_lost.labels(self._server.url).inc()
        self._metrics.server_up.labels(self._server.url).set(0)
        self._server.lost(error)
