"""Fixtures of most tests of a gateway and of runners, and of those that send poison.

A module that needs another policy or server has a fixture of the same name.

Only tests that use a policy import torch.
"""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.integration.gateway.rig import Policies


@pytest.fixture(scope="module")
def policies(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> "Policies":
    """A tiny policy in as many versions as the module's `POLICY_VERSIONS` says, 1 without it."""
    from tests.integration.gateway.rig import make_policies

    return make_policies(tmp_path_factory.mktemp("policies"), getattr(request.module, "POLICY_VERSIONS", 1))


@pytest.fixture(scope="module")
def server_url(policies: "Policies") -> Iterator[str]:
    """A rollout server of its own, with the first version."""
    from tests.contract.rollout_server import running_server

    with running_server(policies.model) as server:
        yield server.url


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy's directory, for its tokenizer."""
    from trainer.policy.init import make_policy

    return make_policy(tmp_path_factory.mktemp("policy"), seed=0)


@pytest.fixture
def directory() -> Iterator[Path]:
    """Unlike `tmp_path`, the users of sandboxes can pass through it, and a Unix socket's path fits."""
    with tempfile.TemporaryDirectory(prefix="penstock-") as name:
        Path(name).chmod(0o711)
        yield Path(name)


@pytest.fixture
def cases(record_property: Callable[[str, object], None]) -> Callable[[int], None]:
    """Tells how many cases a test has tried: in its output, and as a property of its result."""

    def count(n: int) -> None:
        record_property("cases", n)
        print(f"{n} cases")

    return count
