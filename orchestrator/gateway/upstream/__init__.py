"""Rollout servers as the gateway sees them: SGLang's HTTP protocol, token ids in and out."""

from orchestrator.gateway.upstream.client import CONTEXT_KEPT, RolloutServerClient
from orchestrator.gateway.upstream.errors import (
    RequestRefused,
    RolloutServerBroken,
    RolloutServerError,
    RolloutServerSilent,
    RolloutServerUnreachable,
    WeightUpdateRefused,
)
from orchestrator.gateway.upstream.generation import (
    FinishReason,
    Generation,
    SamplingParams,
    Timings,
    VersionSpan,
)

__all__ = [
    "CONTEXT_KEPT",
    "FinishReason",
    "Generation",
    "RequestRefused",
    "RolloutServerBroken",
    "RolloutServerClient",
    "RolloutServerError",
    "RolloutServerSilent",
    "RolloutServerUnreachable",
    "SamplingParams",
    "Timings",
    "VersionSpan",
    "WeightUpdateRefused",
]
