"""Requests that bring no seed get other samples from every start of a server: a group may have members from several."""

from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from orchestrator.deploy.held_ports import HeldPorts
from orchestrator.deploy.home import Home
from orchestrator.deploy.stack_processes import rollout_servers
from trainer.serving.settings import parse_arguments

SERVER = ["--model-path", "model"]


def test_every_start_has_a_seed_of_its_own() -> None:
    assert len({parse_arguments(SERVER).seed for _ in range(8)}) == 8


@pytest.mark.parametrize("seed", [0, -7, 2**40])
def test_a_given_seed_is_kept(seed: int) -> None:
    assert [parse_arguments([*SERVER, "--seed", str(seed)]).seed for _ in range(2)] == [seed, seed]


@pytest.mark.anyio
async def test_the_servers_of_a_run_get_no_seed_that_a_restart_would_repeat(tmp_path: Path) -> None:
    (tmp_path / "penstock.toml").write_text("[servers]\nembedded = 2\n")
    home = Home.at(tmp_path)
    async with AsyncExitStack() as resources:
        config = home.config()
        started = rollout_servers(home, config, "model", HeldPorts(config, resources))
        seeds = {parse_arguments(spec.argv[3:]).seed for spec, _ in started for _ in range(2)}
    assert len(started) == 2 and len(seeds) == 4
