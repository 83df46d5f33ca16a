"""A policy for all tests here, and a stack per test that is gone afterwards in every case."""

import subprocess
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.e2e.stack_rig import Stack, place


@pytest.fixture(scope="session")
def model() -> Iterator[Path]:
    """A random policy with its tokenizer."""
    with place() as directory:
        stack = Stack(directory)
        policy = directory / "policy"
        subprocess.run(
            [sys.executable, "-m", "trainer.policy", "--out", str(policy)],
            env=stack.environment(),
            check=True,
            capture_output=True,
        )
        yield policy


@pytest.fixture
def stack() -> Iterator[Stack]:
    with place() as directory:
        stack = Stack(directory)
        try:
            yield stack
        finally:
            stack.destroy()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure shows the end of every log of its stack."""
    report = yield
    stack = getattr(item, "funcargs", {}).get("stack")
    if report.when == "call" and report.failed and isinstance(stack, Stack):
        for log in sorted([stack.log, *stack.directory.glob(".penstock/logs/*.log")]):
            if log.exists():
                report.sections.append((log.name, log.read_text(errors="replace")[-6000:]))
    return report
