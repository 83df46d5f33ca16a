"""Canaries of one rollout server: a few tokens whose logprobs under the trainer are known. They show which weights it serves, and that it generates.

One follows each weight sync. Between syncs one is sent every `servers.canary_interval_s`, and when the server stands still: it has calls, and has
generated nothing for `servers.still_s`. A sync never waits for a canary.
"""

import math
from collections.abc import Sequence

import anyio
import anyio.to_thread

from orchestrator.gateway.metrics import GatewayMetrics
from orchestrator.gateway.servers.client import QUICK_S, RolloutServerError, RolloutServerSilent
from orchestrator.gateway.servers.published import Canary, SyncFailed, read_published
from orchestrator.gateway.servers.server import RolloutServer
from orchestrator.pool.policy_versions import PolicyVersion
from orchestrator.runtime.log import get
from orchestrator.settings.gateway import ServersSection

log = get(__name__)


class CanaryCheck:
    """`unanswered`: why the server did not answer the last canary; empty: it did. `tolerance`: the largest difference of a logprob, in nats."""

    def __init__(
        self, server: RolloutServer, metrics: GatewayMetrics, settings: ServersSection, *, tolerance: float
    ) -> None:
        self._server = server
        self._metrics = metrics
        self._settings = settings
        self._tolerance = tolerance
        self._expected: tuple[int, Canary] | None = None  # of a version
        self._sent_at = 0.0
        self.unanswered = ""

    def expect(self, version: int, canary: Canary) -> None:
        """From now on the server serves `version`."""
        self._expected = version, canary

    async def shows(self, version: int, refused: Canary) -> bool:
        """Whether a canary shows the weights of `version`: within the tolerance, and nearer to them than to the `refused` ones, since one train step
        may change less than the tolerance. False as well for a version that this gateway did not give to the server. Raises RolloutServerError."""
        if self._expected is None or self._expected[0] != version:
            return False
        expected = self._expected[1]
        logprobs = await self._logprobs(expected)
        difference = expected.difference(logprobs)
        if refused == expected or refused.ids != expected.ids:
            return difference <= self._tolerance
        return difference <= self._tolerance and difference < refused.difference(logprobs)

    @property
    def due(self) -> bool:
        """Whether it is time for one between syncs."""
        return anyio.current_time() >= self._due_at or self._server.still_s >= self._settings.still_s

    @property
    def wait_s(self) -> float:
        """Seconds after which `due` is worth another look."""
        # A canary may just have shown nothing of a server that stands still.
        still_in_s = max(self._settings.still_s - self._server.still_s, self._settings.still_s / 4)
        return min(self._due_at - anyio.current_time(), still_in_s)

    @property
    def _due_at(self) -> float:
        return self._sent_at + (self._settings.canary_interval_s or math.inf)

    async def difference(self, canary: Canary) -> float:
        """Send one: max |Δlogprob|, in nats, between the trainer and the served weights. Raises RolloutServerError."""
        return canary.difference(await self._logprobs(canary))

    async def _logprobs(self, canary: Canary) -> Sequence[float]:
        """Send one: the served weights' logprobs of its ids. Raises RolloutServerError."""
        self._sent_at = anyio.current_time()
        try:
            logprobs = await self._server.client.prompt_logprobs(list(canary.ids), timeout=QUICK_S)
        except RolloutServerSilent as silence:
            then = (
                "restart it where it was started"
                if self._settings.urls
                else "end it, and `penstock up` starts another one"
            )
            silent = RolloutServerSilent(
                silence.url, f"{silence.message} to the canary, although it answers its checks; {then}"
            )
            self.unanswered = str(silent)
            raise silent from silence
        except RolloutServerError as error:
            self.unanswered = str(error)
            raise
        self.unanswered = ""
        return logprobs

    async def check(self, version: int, published: PolicyVersion | None) -> None:
        """Whether the server, which serves `version`, still has its weights, and generates. If not, it is synced again. `published`: that version;
        None: a canary is sent only if this gateway gave the version to the server, or has sent its canary before."""
        server, openings = self._server, self._server.openings
        self._sent_at = anyio.current_time()
        try:
            if self._expected is None or self._expected[0] != version:  # another gateway synced it
                if published is None:
                    return
                self._expected = version, (await anyio.to_thread.run_sync(read_published, published)).canary
            difference = await self.difference(self._expected[1])
        # Whether it answers is for the health probe to say, whether the files are intact for the next sync.
        except (RolloutServerError, SyncFailed) as error:
            log.info("canary.unanswered", server=server.url, error=str(error))
            still = isinstance(error, RolloutServerError) and server.still_s >= self._settings.still_s
            # Only a sync gives it its calls back, and none succeeds while the newest version cannot be loaded.
            if still and published is not None and server.ready and openings == server.openings:
                server.stands_still()
            return
        server.stirred()
        self._metrics.canary.labels(server.url).set(difference)
        if difference > self._tolerance and server.ready and openings == server.openings:
            server.reject(
                f"serves other weights as version '{server.version}': expected the canary's logprobs to differ by at most "
                f"{self._tolerance} (gateway.canary_tolerance), found {difference:.4f}"
            )
