"""What most tests of a gateway begin with; a module that wants another policy or server has a fixture of the same name.

Torch is imported by those who ask for a policy, not by every test here.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.integration.gateway_rig import Policies


@pytest.fixture(scope="module")
def policies(tmp_path_factory: pytest.TempPathFactory) -> "Policies":
    """One version of a tiny policy."""
    from tests.integration.gateway_rig import make_policies

    return make_policies(tmp_path_factory.mktemp("policies"), 1)


@pytest.fixture(scope="module")
def server_url(policies: "Policies") -> Iterator[str]:
    """A rollout server of its own, with the first version."""
    from tests.contract.rollout_server import running_server

    with running_server(policies.model) as server:
        yield server.url
