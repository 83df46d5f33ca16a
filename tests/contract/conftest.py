"""One rollout server for the whole contract suite, of the kind that `--rollout-server` names."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from orchestrator.gateway.servers.client import RolloutServerClient
from tests.contract.rollout_server import ServerProcess, running_server
from trainer.benchmarks.random_model import write_random_model

OPTIONS = {"embedded": ("--health-timeout", "0.5"), "sglang": ("--dtype", "float32")}
SGLANG_HEALTH_S = "5"  # whole seconds; a healthy one answers in about 1


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """model0 and model1. A vocabulary of 733 and a context of 8192, as in the recordings: their requests can be sent unchanged."""
    folder = tmp_path_factory.mktemp("models")
    for seed in (0, 1):
        write_random_model(folder / f"model{seed}", seed=seed, vocab_size=733, hidden=64, layers=3)
    return folder


@pytest.fixture(scope="session")
def server(models: Path, server_kind: str) -> Iterator[ServerProcess]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SGLANG_HEALTH_CHECK_TIMEOUT", SGLANG_HEALTH_S)
        with running_server(models / "model0", *OPTIONS[server_kind], kind=server_kind) as process:
            yield process


@pytest.fixture(scope="session")
def references(models: Path) -> list[Any]:
    from transformers import AutoModelForCausalLM

    return [
        AutoModelForCausalLM.from_pretrained(models / f"model{seed}", dtype=torch.float32) for seed in (0, 1)
    ]


@pytest.fixture
async def client(server: ServerProcess, models: Path) -> AsyncIterator[RolloutServerClient]:
    """A client of a server that runs, is empty, and serves model0 as "v0"."""
    async with RolloutServerClient(server.url) as client:
        await client.abort()
        await client.continue_()
        await client.update_weights(str(models / "model0"), "v0")
        yield client
