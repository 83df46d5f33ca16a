"""The policy version that a scripted run publishes, without a trainer."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from sqlalchemy.ext.asyncio import AsyncEngine

from orchestrator.pool.policy_versions import record_first_version
from orchestrator.scripted.server import LOGPROB

CANARY = (1, 2, 3, 4)


async def publish_version(
    engine: AsyncEngine, run_id: int, directory: Path, logprobs: Sequence[float] = (LOGPROB,) * 3
) -> None:
    """Publish version 0 from `directory`, which is created if it is new. `logprobs`: float[3], those of the rollout servers for CANARY[1:]."""
    manifest = {"files": {}, "canary": {"ids": CANARY, "logprobs": list(logprobs)}}
    raw = json.dumps(manifest).encode()
    directory.mkdir(exist_ok=True)
    (directory / "manifest.json").write_bytes(raw)
    async with engine.begin() as connection:
        await record_first_version(connection, run_id, directory, hashlib.sha256(raw).hexdigest())
