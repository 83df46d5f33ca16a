"""The read-only routes' bodies: model, server and load, with SGLang's keys (those that mean something here)."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from trainer.serving.metrics import hit_rate
from trainer.serving.replies import DIGEST
from trainer.serving.service import Service
from trainer.serving.settings import ServerSettings

PROTOCOL = "0.5.23"
"""The SGLang version whose protocol this server speaks a subset of; reported where SGLang reports its own."""


@dataclass(frozen=True, slots=True)
class Described:
    """The constant facts about a running server."""

    settings: ServerSettings
    config: Mapping[str, Any]
    started: float


def model_info(service: Service, described: Described) -> dict[str, Any]:
    path, served = str(described.settings.model_path), service.scheduler.served
    return {
        "model_path": service.model_path,
        "served_model_name": path,
        "tokenizer_path": path,
        "is_generation": True,
        "preferred_sampling_params": None,
        "weight_version": served.version,
        DIGEST: served.model.digest,
        "load_format": "auto",
        "reasoning_parser": None,
        "tool_call_parser": None,
        "disaggregation_mode": "null",
        "has_image_understanding": False,
        "has_audio_understanding": False,
        "model_type": described.config.get("model_type"),
        "architectures": described.config.get("architectures"),
    }


def server_info(service: Service, described: Described) -> dict[str, Any]:
    scheduler, settings = service.scheduler, described.settings
    return {
        "model_path": service.model_path,
        "tokenizer_path": str(settings.model_path),
        "served_model_name": str(settings.model_path),
        "weight_version": scheduler.version,
        "host": settings.host,
        "port": settings.port,
        "device": "cpu",
        "tp_size": 1,
        "dp_size": 1,
        "dtype": "float32",
        "context_length": settings.context_length,
        "max_running_requests": settings.max_running_requests,
        "max_total_tokens": settings.max_total_tokens,
        "random_seed": settings.seed,
        "schedule_policy": "fcfs",
        "radix_eviction_policy": "lru",
        "disable_radix_cache": False,
        "enable_metrics": True,
        "stream_interval": 1,
        "status": "ready",
        "max_total_num_tokens": scheduler.max_total_tokens,
        "max_req_input_len": service.limits.longest_prompt,
        "internal_states": [
            {
                "effective_max_running_requests_per_dp": scheduler.max_running,
                "last_gen_throughput": scheduler.counters.throughput,
            }
        ],
        "version": PROTOCOL,
        "engine": "penstock-cpu",
        "uptime_s": time.time() - described.started,
    }


def loads(service: Service) -> dict[str, Any]:
    s, c = service.scheduler, service.scheduler.counters
    running, waiting = list(s.running), list(s.waiting)
    used = s.pool.held + s.cache.tokens
    kv_gb = s.max_total_tokens * s.pool.shape.bytes_per_token / 2**30
    now = datetime.now(UTC)
    return {
        "timestamp": now.isoformat(),
        "version": PROTOCOL,
        "accelerator": None,
        "num_accelerators": 1,
        "loads": [
            {
                "timestamp": now.timestamp(),
                "dp_rank": 0,
                "num_running_reqs": len(running),
                "num_waiting_reqs": len(waiting),
                "num_waiting_uncached_tokens": sum(len(sequence.ids) for sequence in waiting),
                "num_used_tokens": used,
                "num_total_tokens": sum(len(sequence.ids) for sequence in running),
                "num_active_tokens": sum(len(sequence.ids) for sequence in running),
                "max_total_num_tokens": s.max_total_tokens,
                "max_running_requests": s.max_running,
                "token_usage": used / s.max_total_tokens,
                "gen_throughput": c.throughput,
                "cache_hit_rate": hit_rate(s),
                "utilization": len(running) / s.max_running,
                "total_prefill_uncached_tokens": c.prompt_tokens - c.cached_tokens,
                "memory": {"kv_cache_gb": kv_gb, "token_capacity": s.max_total_tokens},
                "queues": {
                    "waiting": len(waiting),
                    "grammar": 0,
                    "paused": len(running) if s.paused else 0,
                    "retracted": sum(sequence.retractions > 0 for sequence in waiting),
                },
            }
        ],
    }


def models(service: Service, described: Described) -> dict[str, Any]:
    name = str(described.settings.model_path)
    model = {
        "id": name,
        "object": "model",
        "created": int(described.started),
        "owned_by": "sglang",
        "root": name,
        "parent": None,
        "max_model_len": service.limits.context_length,
    }
    return {"object": "list", "data": [model]}
