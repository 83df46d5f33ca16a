"""A build that fails by its context's fault is not made again for each attempt that wants its image."""

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from sandboxes.base import (
    BuildEntry,
    BuildOutOfSpace,
    BuildTimedOut,
    DownloadFailed,
    File,
    ImageRefused,
    SandboxError,
)
from sandboxes.images import build, caged
from sandboxes.images.build import Builder
from sandboxes.images.caged import Caged
from sandboxes.images.refused import KEPT_S
from sandboxes.images.settings import ImageSettings
from sandboxes.images.store import ImageStore

pytestmark = pytest.mark.anyio
FAILING: dict[str, BuildEntry] = {"Dockerfile": File(b"FROM small\nRUN exit 3\n")}
Builds = Callable[..., Builder]


class Cages:
    """Stands for the cage: each build in it fails with `error`."""

    def __init__(self) -> None:
        self.builds = 0
        self.error: Exception = ImageRefused("environment/Dockerfile: its build failed at RUN exit 3")

    async def run(self, task: Caged, log: object = None) -> str:
        if task.argv[-1] == build._BUILD:
            self.builds += 1
            await anyio.lowlevel.checkpoint()
            raise self.error
        return ""


@pytest.fixture
def cages(monkeypatch: pytest.MonkeyPatch) -> Cages:
    cages = Cages()
    monkeypatch.setattr(caged, "run", cages.run)
    monkeypatch.setattr(caged, "missing", lambda *_: [])
    return cages


@pytest.fixture
def builder(images: ImageStore, tmp_path: Path) -> Builds:
    store = ImageStore(tmp_path / "store")
    store.add(images.find("small").root, name="small")
    return lambda task_s=0.0, **changes: Builder(store, replace(ImageSettings(), **changes), task_s=task_s)


async def failure(builder: Builder, *, again: bool = False) -> str:
    with pytest.raises((ImageRefused, SandboxError)) as failed:
        await builder.built(FAILING, again=again)
    return str(failed.value)


async def test_all_attempts_of_a_group_get_the_sentence_of_one_build(cages: Cages, builder: Builds) -> None:
    found: list[str] = []

    async def attempt() -> None:
        found.append(await failure(builder()))

    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(attempt)
    await attempt()
    assert found == ["environment/Dockerfile: its build failed at RUN exit 3"] * 4 and cages.builds == 1


async def test_a_failed_build_is_made_again_by_order_with_other_limits_and_after_a_while(
    cages: Cages, builder: Builds, tmp_path: Path
) -> None:
    await failure(builder())
    await failure(builder(), again=True)
    await failure(builder(build_s=60.0))
    await failure(builder(task_s=5.0))
    assert cages.builds == 4
    await failure(builder(task_s=5.0))
    assert cages.builds == 4
    old = time.time() - KEPT_S - 1
    for file in (tmp_path / "store/builds/refused").iterdir():
        os.utime(file, (old, old))
    await failure(builder())
    assert cages.builds == 5
    assert len(list((tmp_path / "store/builds/refused").iterdir())) == 1, "the others are forgotten"


@pytest.mark.parametrize(
    "error", [SandboxError("no users"), DownloadFailed("503"), BuildOutOfSpace("full")], ids=str
)
async def test_a_fault_of_the_machine_or_of_a_server_or_a_full_disk_is_not_remembered(
    cages: Cages, builder: Builds, error: Exception
) -> None:
    cages.error = error
    for _ in range(2):
        await failure(builder())
    assert cages.builds == 2


async def test_a_build_that_its_time_limit_ends_is_made_a_second_time(cages: Cages, builder: Builds) -> None:
    cages.error = BuildTimedOut("environment/Dockerfile: its build takes longer than 5 s")
    for _ in range(4):
        await failure(builder())
    assert cages.builds == 2
    for _ in range(2):
        await failure(builder(), again=True)
    assert cages.builds == 4, "by order"
    await failure(builder())
    assert cages.builds == 5


async def test_another_buildah_builds_again(
    cages: Cages, builder: Builds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin/buildah"
    program.parent.mkdir()
    monkeypatch.setenv("PATH", str(program.parent))
    for version, builds in (("1.33", 1), ("1.33", 1), ("1.40.1", 2)):
        if builds > cages.builds:
            program.write_text(version)
            program.chmod(0o755)
        await failure(builder())
        assert cages.builds == builds, version


async def test_a_machine_without_the_programs_of_builds_refuses_them_in_one_sentence(
    builder: Builds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caged, "_path", lambda: str(tmp_path))
    monkeypatch.setattr(caged, "_TUN", tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert await failure(builder()) == (
        "no image can be built on this machine: buildah is not installed: apt-get install buildah. "
        "slirp4netns is not installed: apt-get install slirp4netns. ip is not installed: apt-get install iproute2."
    )
    for name in ("slirp4netns", "ip"):
        (tmp_path / name).touch(mode=0o755)
    assert builder().problems() == ["buildah is not installed: apt-get install buildah."]
