"""The development provider's warning, and the suite's own ability to fail."""

import threading
import warnings
from pathlib import Path

import anyio
import pytest

from sandboxes import local
from sandboxes.base import GATEWAY_SOCKET, Provider, SandboxSpec, SideService
from sandboxes.bubblewrap import BubblewrapProvider
from sandboxes.conformance import CHECKS, run_check
from sandboxes.conformance.load import load
from sandboxes.kubernetes.provider import KubernetesProvider
from sandboxes.local import LocalProvider, NoIsolationWarning
from sandboxes.owner import prepare_root

pytestmark = pytest.mark.anyio


async def test_local_warns_once_at_the_callers_line(root: Path) -> None:
    provider = LocalProvider()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            async with provider.open(SandboxSpec()):
                pass
    assert [each.category for each in caught] == [NoIsolationWarning]
    assert caught[0].filename == __file__


@pytest.mark.parametrize("provider", [LocalProvider, BubblewrapProvider, KubernetesProvider])
async def test_a_provider_without_side_services_refuses_them(provider: type[Provider]) -> None:
    db = SideService(name="db", build={}, shown="a")
    with pytest.raises(ValueError, match="this sandbox has no side services: choose the provider container"):
        async with provider().open(SandboxSpec(services=(db,))):
            pass


@pytest.mark.filterwarnings("ignore::sandboxes.local.NoIsolationWarning")
async def test_who_opens_while_the_first_one_still_prepares_finds_a_prepared_place(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = threading.Barrier(
        2, timeout=20
    )  # broken, an error, if the second did not wait for a prepared place
    prepare = prepare_root

    def prepare_together(place: Path) -> None:
        both.wait()
        prepare(place)

    monkeypatch.setattr(local, "prepare_root", prepare_together)
    provider = LocalProvider()

    async def use() -> None:
        async with provider.open(SandboxSpec()) as sandbox:
            assert (await sandbox.exec(["true"])).ok

    async with anyio.create_task_group() as group:
        group.start_soon(use)
        group.start_soon(use)


@pytest.mark.filterwarnings("ignore::sandboxes.local.NoIsolationWarning")
async def test_local_maps_a_path_once_however_often_it_is_called(root: Path) -> None:
    spec = SandboxSpec(gateway_socket=Path("/tmp/g/s"), binds={Path("/tmp/tools"): "/opt/tools"})
    async with LocalProvider().open(spec) as sandbox:
        for inside in ("/app", "/app/x", "/tmp", "/home/agent/.x", "/opt/tools/run", GATEWAY_SOCKET):
            once = sandbox.path(inside)
            assert once != inside and sandbox.path(once) == once
        assert sandbox.path("/opt/tools/run") == "/tmp/tools/run"
        assert sandbox.path("/application") == "/application"


@pytest.mark.filterwarnings("ignore::sandboxes.local.NoIsolationWarning")
async def test_the_suite_finds_a_provider_that_only_claims_to_isolate(root: Path) -> None:
    [network] = [each for each in CHECKS if each.name == "the network cannot be reached"]
    result = await run_check(LocalProvider(), network)
    assert not result.passed and result.isolation and "loopback" in result.detail


def test_providers_are_found_by_name_and_an_unknown_name_lists_them() -> None:
    assert isinstance(load("sandboxes.bubblewrap:BubblewrapProvider"), Provider)
    assert isinstance(load("bubblewrap"), BubblewrapProvider)
    with pytest.raises(ValueError, match="known: bubblewrap, container, kubernetes, local"):
        load("nosuch")
