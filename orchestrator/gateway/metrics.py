"""The gateway's metrics, in their own registry (Prometheus text on /metrics)."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from orchestrator.runtime.metrics import LONG, SHORT, each


class GatewayMetrics:
    """Names are `penstock_gateway_*`."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._count_calls(self.registry)
        self._count_steps(self.registry)
        self._count_weights(self.registry)
        self._count_servers(self.registry)

    def _count_calls(self, r: CollectorRegistry) -> None:
        self.requests = Counter(
            "penstock_gateway_requests",
            "completion requests, by wire and outcome",
            ["wire", "outcome"],
            registry=r,
        )
        self.left_out = Counter(
            "penstock_gateway_left_out", "parts and provider-side tools stripped", registry=r
        )
        self.unknown_fields = Counter(
            "penstock_gateway_unknown_fields",
            "fields of requests that their wire does not know, taken without effect",
            registry=r,
        )
        self.large = Counter(
            "penstock_gateway_large_requests",
            "requests that were read or rendered off the event loop, or refused by their size",
            registry=r,
        )
        self.replays = Counter(
            "penstock_gateway_replays", "requests answered without generating", ["how"], registry=r
        )
        self.faults = Counter(
            "penstock_gateway_faults", "unexpected errors inside the gateway", ["where"], registry=r
        )
        each(self.faults, "call", "dialect", "row")
        self.resubmitted = Counter(
            "penstock_gateway_resubmitted", "segments sent again, by reason", ["reason"], registry=r
        )
        self.repetitions = Counter(
            "penstock_gateway_repetitions", "completions that the repetition stop ended", registry=r
        )
        self.request_s = Histogram(
            "penstock_gateway_request_seconds",
            "a completion request that was answered, from its first byte to the last of the reply",
            ["wire"],
            buckets=LONG,
            registry=r,
        )
        self.open_calls = Gauge("penstock_gateway_open_calls", "completions under way", registry=r)
        self.sessions = Gauge("penstock_gateway_open_sessions", "open sessions in memory", registry=r)

    def _count_steps(self, r: CollectorRegistry) -> None:
        self.steps = Counter("penstock_gateway_steps", "recorded steps, by kind", ["kind"], registry=r)
        self.branches = Counter(
            "penstock_gateway_branches",
            "recorded steps that are not a plain continuation, by reason",
            ["reason"],
            registry=r,
        )
        self.routes_left_out = Counter(
            "penstock_gateway_routes_left_out",
            "Steps recorded without their routes, or without those of what they kept: the message would have been too large",
            registry=r,
        )
        self.routes_missing = Counter(
            "penstock_gateway_routes_missing",
            "completions without the requested routes",
            ["server"],
            registry=r,
        )
        self.drift = Counter(
            "penstock_gateway_drift",
            "steps whose record does not fold to the ids that the rollout server saw",
            registry=r,
        )
        self.tokens = Counter("penstock_gateway_sampled_tokens", "sampled tokens recorded", registry=r)
        self.side = Counter(
            "penstock_gateway_side_steps",
            "steps outside the only conversation that the scaffold declares; they do not train",
            registry=r,
        )
        self.state_tokens = Counter(
            "penstock_gateway_state_tokens", "tokens of the states that steps were sampled from", registry=r
        )
        self.first_byte_s = Histogram(
            "penstock_gateway_first_token_seconds",
            "generating until the first token, per step, waiting for admission and rollout server left out",
            buckets=LONG,
            registry=r,
        )
        self.generation_s = Histogram(
            "penstock_gateway_generation_seconds",
            "generating, per step, waiting for admission and rollout server left out",
            buckets=LONG,
            registry=r,
        )
        self.waiting_s = Histogram(
            "penstock_gateway_queue_seconds",
            "waiting for admission and rollout server, per step",
            buckets=(0.001, 0.01, 0.1, 0.5, 1, 5, 20, 60),
            registry=r,
        )
        self.spool = Gauge(
            "penstock_gateway_spool_bytes", "recorded steps that the data pool does not have yet", registry=r
        )

    def _count_weights(self, r: CollectorRegistry) -> None:
        self.sync_s = Histogram(
            "penstock_gateway_sync_seconds",
            "admission closed for a weight sync",
            buckets=(0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 60),
            registry=r,
        )
        self.load_s = Histogram(
            "penstock_gateway_sync_load_seconds",
            "a rollout server exchanging its weights, within a weight sync",
            buckets=(0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 60),
            registry=r,
        )
        self.loaded = Counter(
            "penstock_gateway_sync_bytes",
            "size of the model directories that a rollout server loaded",
            ["server"],
            registry=r,
        )
        self.weights_refused = Counter(
            "penstock_gateway_weights_refused",
            "published versions that were not loaded: not what was published, damaged, gone, or refused by the rollout server",
            ["server"],
            registry=r,
        )
        self.transfers_failed = Counter(
            "penstock_gateway_transfers_failed",
            "weights that could not be sent to a rollout server, which then read the directory",
            ["server"],
            registry=r,
        )
        self.announcements_refused = Counter(
            "penstock_gateway_announcements_refused",
            "messages on policy.<run> that announce no version of this run",
            registry=r,
        )
        self.canary = Gauge(
            "penstock_gateway_canary_difference",
            "largest |logprob difference| between trainer and server at its last canary",
            ["server"],
            registry=r,
        )
        self.version = Gauge(
            "penstock_gateway_server_version",
            "policy version that serves; purpose: train, or eval where the server is reserved for evaluations",
            ["server", "purpose"],
            registry=r,
        )

    def _count_servers(self, r: CollectorRegistry) -> None:
        self.server_up = Gauge(
            "penstock_gateway_server_up", "whether a rollout server answers", ["server"], registry=r
        )
        self.servers_lost = Counter(
            "penstock_gateway_servers_lost", "rollout servers that stopped answering", ["server"], registry=r
        )
        self.server_delay = Gauge(
            "penstock_gateway_server_delay_seconds",
            "estimated wait of a call sent to a rollout server now",
            ["server"],
            registry=r,
        )
        self.spilled = Counter(
            "penstock_gateway_spilled",
            "calls that left the server of their session for a shorter queue",
            ["server"],
            registry=r,
        )


class UpstreamMetrics:
    """Calls to rollout servers, as the gateway sees them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.errors = Counter(
            "penstock_gateway_upstream_errors",
            "calls that a rollout server did not answer well: unreachable, silent, broken, refused",
            ["server", "kind"],
            registry=registry,
        )
        self.wrong_weights = Counter(
            "penstock_gateway_wrong_weights",
            "times that a rollout server was found with other weights than it was given",
            ["server"],
            registry=registry,
        )
        self.call_s = Histogram(
            "penstock_gateway_upstream_seconds",
            "one segment at a rollout server, its own queue included",
            ["server"],
            buckets=(*SHORT, 60, 300),
            registry=registry,
        )
