"""A run that is started again with another file: process keys are the file's, all others the run's, in every process."""

import shutil
import signal
from pathlib import Path

import pytest

from tests.e2e.stack_rig import START_S, Stack, until

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.timeout(600), pytest.mark.tier("stacks")]


def command_line(stack: Stack, name: str) -> str:
    pid = stack.of(name).pid
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()


async def test_a_second_start_uses_the_first_policy_of_the_run_and_the_clock_of_the_file(
    stack: Stack, model: Path
) -> None:
    stack.configure(model, batches=2)
    await stack.up()
    assert stack.signalled(signal.SIGTERM) == 0
    other = stack.directory / "other"
    shutil.copytree(model, other)
    stack.configure(other, batches=2, more="\n[timeouts]\nrank_silence_s = 900.0\n")
    await stack.up()
    output = stack.last_output()
    assert "this run keeps its original values of: policy.model; a new run.name begins a new run" in output
    assert f"--model-path {model} " in command_line(stack, "rollout-server")
    clock = "--timeouts=rank_silence_s=900.0"  # once `penstock trainer` has become the trainer
    await until(lambda: clock in command_line(stack, "trainer"), "the trainer has the clock", START_S)
    gateway = (stack.home.layout.logs / "gateway.log").read_text()
    assert '"changed": ["policy.model"]' in gateway
    (stack.home.run_model_file).unlink()  # as if another machine had started the run
    assert stack.signalled(signal.SIGTERM) == 0
    stack.started()
    assert stack.process is not None and stack.process.wait(120) == 1
    assert (
        f"began with policy.model = '{model}', and its rollout servers were started with '{other}'"
        in stack.last_output()
    )
    assert stack.tracebacks() == []
