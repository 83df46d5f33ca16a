"""The policy and the configuration of a chaos run: a small random policy, short rollouts, and every duration divided by the time scale."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from ops.lab.chaos.plan import Fault, FaultKind
from orchestrator.contracts.errors import PenstockError
from orchestrator.settings.config import FILE, Config

HARNESS = Path(__file__).parent / "harness"
CLOCK = Path(__file__).parent / "clock"
SETTINGS: Final[dict[str, Any]] = {
    "queue": {"batch_groups": 2, "group_size": 2, "max_staleness": 2, "capacity": 8, "max_attempts": 10},
    "stage": {"max_turns": 5, "max_context": 1024},
    "sampling": {"max_new_tokens": 16},
    "rollout": {
        "slots": 6,
        "verify_slots": 2,
        "timeout_s": 300.0,
        "completion_s": 300.0,
        "tool_timeout_s": 60.0,
        "observation_lines": 3,
    },
    "sandbox": {"memory_mb": 512, "processes": 64, "cpu_s": 60, "disk_mb": 64},
}
"""Small groups and short rollouts, so that everything happens often; enough attempts that a rollout survives several kills."""

FLOORS: Final = {
    "rollout": {"lease_ttl_s": 3.0, "timeout_s": 60.0, "completion_s": 60.0, "tool_timeout_s": 60.0, "stall_s": 10.0},
    "servers": {
        "probe_s": 0.1, "silence_s": 1.0, "lease_ttl_s": 3.0, "version_poll_interval_s": 0.2, "drain_s": 1.0, "weight_update_timeout_s": 60.0,
    },
    "watchdog": {"no_progress_s": 30.0, "lag_s": 5.0},
    "timeouts": {
        "bus_request_s": 2.0, "bus_ping_s": 2.0, "bus_ack_wait_s": 3.0, "bus_fetch_s": 5.0, "bus_heartbeat_s": 1.0, "bus_poll_interval_s": 1.0,
        "outbox_taken_s": 2.0, "pool_start_s": 10.0, "pool_silence_s": 5.0, "pool_idle_s": 5.0, "arrival_s": 6.0,
        "gateway_start_s": 60.0, "gateway_held_s": 2.0, "gateway_close_s": 2.0, "gateway_silent_s": 3.0,
        "abort_s": 1.0, "give_back_s": 1.0, "server_row_s": 1.0, "server_release_s": 0.5,
    },
}  # fmt: skip
"""Durations that no time scale shortens: a busy machine may answer slowly, and slowness must not count as death."""


OUTAGE_FLOORS: Final = {FaultKind.STOP: 8.0, FaultKind.STALL: 7.0, FaultKind.CUT: 7.0, FaultKind.DELAY: 7.0}
"""Seconds. At any scale a fault outlasts the timeouts that have floors: a lease, the silence of a connection to Postgres, three pings of NATS."""


def length_s(fault: Fault, scale: float) -> float:
    """How long a fault lasts."""
    return max(fault.length_s / scale, min(fault.length_s, OUTAGE_FLOORS.get(fault.kind, 0.0)))


def write_run(directory: Path, *, seed: int, scale: float, model: Path) -> None:
    """Write the configuration of a new run: the defaults except `SETTINGS`, every duration divided by `scale` down to `FLOORS`."""
    directory.mkdir(parents=True, exist_ok=True)
    directory.chmod(0o755)
    scaffolds = {str(HARNESS.resolve()): 0.8, "shell": 0.2}
    config = Config.model_validate(
        {
            **SETTINGS,
            "run": {"name": "chaos", "seed": seed},
            "policy": {"model": str(model)},
            "rollout": {**SETTINGS["rollout"], "scaffolds": scaffolds},
        }
    )
    text = f"# Written by ops/chaos, for time scale {scale:g}.\n" + toml(scaled(config, scale))
    (directory / FILE).write_text(text, encoding="utf-8")


def scaled(config: Config, scale: float) -> Config:
    """`config.faster(scale)`, with every duration at least its floor."""
    faster = config.faster(scale)
    update: dict[str, Any] = {}
    for section, floors in FLOORS.items():
        was, now = getattr(config, section), getattr(faster, section)
        bounded = {
            key: max(getattr(now, key), min(floor, getattr(was, key))) for key, floor in floors.items()
        }
        update[section] = now.model_copy(update=bounded)
    return faster.model_copy(update=update)


def toml(config: Config) -> str:
    """Every key of a configuration, as `load` reads it."""
    lines = []
    for section, keys in config.to_json().items():
        lines.append(f"\n[{section}]")
        lines += [
            f"{key} = {_value(value)}" for key, value in keys.items() if (section, key) != ("queue", "window")
        ]
    return "\n".join([*lines, ""])


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {_value(item)}" for key, item in value.items()) + " }"
    return json.dumps(value)


def make_policy(directory: Path, seed: int) -> Path:
    """Make a random policy in `directory`, unless it exists; returns the absolute path. Raises PenstockError with the last line of a failure."""
    policy = (directory / f"random-{seed}").resolve()
    if not (policy / "model.safetensors").exists():
        policy.parent.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(
            [sys.executable, "-m", "trainer.policy", "--out", str(policy), "--seed", str(seed)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            text=True,
        )
        if done.returncode:
            raise PenstockError((done.stdout.strip().splitlines() or ["trainer.policy failed"])[-1])
    return policy


def set_clocks(directory: Path) -> Path:
    """Make every Python process of the stack read the returned directory (`clock/`). Changes this process's environment."""
    clocks = directory / "clocks"
    clocks.mkdir(exist_ok=True)
    for stale in clocks.iterdir():
        stale.unlink()
    paths = [str(CLOCK), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    os.environ["PENSTOCK_CHAOS_CLOCK"] = str(clocks)
    return clocks
