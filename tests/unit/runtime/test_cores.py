"""Cores by affinity and by the quotas of control groups, versions 1 and 2."""

import os
from pathlib import Path

import anyio
import pytest

from orchestrator.gateway.completions import offload
from orchestrator.runtime.cores import usable_cores

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(os, "cpu_count", lambda: 64)


@pytest.mark.parametrize(
    ("line", "files", "cores"),
    [
        ("0::/", {}, 8),
        ("0::/", {"cpu.max": "max 100000\n"}, 8),
        ("0::/", {"cpu.max": "250000 100000\n"}, 3),
        ("0::/", {"cpu.max": "1000 100000\n"}, 1),
        ("0::/", {"cpu.max": "1600000 100000\n"}, 8),
        ("0::/a/b", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "200000 100000\n"}, 2),
        ("0::/../outside", {"cpu.max": "400000 100000\n"}, 4),
        (
            "3:cpu,cpuacct:/docker/1\n2:memory:/docker/1",
            {"cpu/cpu.cfs_quota_us": "200000\n", "cpu/cpu.cfs_period_us": "100000\n"},
            2,
        ),
        ("3:cpu:/", {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 8),
        ("2:memory:/", {"cpu/cpu.cfs_quota_us": "200000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 8),
    ],
)
def test_the_smallest_limit_counts(tmp_path: Path, line: str, files: dict[str, str], cores: int) -> None:
    groups, mount = tmp_path / "cgroup", tmp_path / "mount"
    groups.write_text(f"{line}\n")
    for name, text in files.items():
        file = mount / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    assert usable_cores(groups, mount) == cores


def test_without_control_groups_the_affinity_counts(tmp_path: Path) -> None:
    assert usable_cores(tmp_path / "absent", tmp_path) == 8


async def test_a_gateway_takes_half_of_its_own_cores_for_large_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(offload, "usable_cores", lambda: 6)
    async with anyio.create_task_group() as tasks:
        large = offload.LargeRequests(tasks)
        assert (large.threads.total_tokens, large.unpacking.total_tokens) == (3, 3)
