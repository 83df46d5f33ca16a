"""Rollout servers as the gateway sees them: SGLang's HTTP protocol, token ids in and out."""

from orchestrator.gateway.servers.client.client import CONTEXT_KEPT, QUICK_S, RolloutServerClient
from orchestrator.gateway.servers.client.errors import (
    RequestRefused,
    RolloutServerBroken,
    RolloutServerError,
    RolloutServerSilent,
    RolloutServerUnreachable,
    WeightUpdateRefused,
)
from orchestrator.gateway.servers.client.generation import (
    FinishReason,
    Generation,
    SamplingParams,
    Timings,
    WeightSpan,
)
from orchestrator.gateway.servers.client.replies import Load, ModelInfo, ServerInfo

__all__ = [
    "CONTEXT_KEPT",
    "QUICK_S",
    "FinishReason",
    "Generation",
    "Load",
    "ModelInfo",
    "RequestRefused",
    "RolloutServerBroken",
    "RolloutServerClient",
    "RolloutServerError",
    "RolloutServerSilent",
    "RolloutServerUnreachable",
    "SamplingParams",
    "ServerInfo",
    "Timings",
    "WeightSpan",
    "WeightUpdateRefused",
]
