"""Finding control groups, and reading their counters in both versions."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sandboxes import procfs
from sandboxes.base import Limits
from sandboxes.cgroups import Cgroup, Hierarchies, candidates, remove_probes

V1 = """\
30 23 0:26 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
31 23 0:27 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
32 23 0:28 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
"""


def v2(mount: Path, controllers: str) -> str:
    mount.mkdir()
    (mount / "cgroup.controllers").write_text(controllers)
    return f"40 23 0:29 / {mount} rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"


def test_version_1_needs_its_three_controllers() -> None:
    base = Path("/sys/fs/cgroup")
    assert candidates(V1) == [Hierarchies(1, (base / "memory", base / "pids", base / "cpu,cpuacct"))]
    assert candidates(V1.splitlines()[0]) == []


def test_version_1_limits_cores_where_its_controller_is_mounted_apart_or_with_the_counter() -> None:
    apart = V1.replace("/cpu,cpuacct", "/cpuacct").replace("rw,cpu,cpuacct", "rw,cpuacct")
    apart += "33 23 0:33 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
    base = Path("/sys/fs/cgroup")
    (found,) = candidates(apart)
    assert found.mounts == (base / "memory", base / "pids", base / "cpu", base / "cpuacct")


@pytest.mark.parametrize(("version", "count"), [(2, 1), (1, 3), (1, 4)])
def test_a_group_limits_the_cores_of_all_its_programs(tmp_path: Path, version: int, count: int) -> None:
    mounts = tuple(tmp_path / str(number) for number in range(count))
    for mount in mounts:
        mount.mkdir()
    directory = mounts[0 if version == 2 else 2] / "penstock" / "one"
    file = directory / ("cpu.max" if version == 2 else "cpu.cfs_quota_us")
    directory.parent.mkdir()

    def written(cpus: float) -> str:
        group = Hierarchies(version, mounts)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("sandboxes.cgroups._make", lambda made, _: made.mkdir(parents=True, exist_ok=True))
            directory.mkdir(parents=True, exist_ok=True)
            file.write_text("none")
            made = group.create("one", Limits(cpus=cpus))
        assert made.limits_cores()
        return file.read_text()

    assert written(0) == "none", "all cores"
    assert written(1.5) == ("150000 100000" if version == 2 else "150000")
    assert written(0.001) == ("1000 100000" if version == 2 else "1000"), "the kernel takes no less"
    file.unlink()
    assert not Hierarchies(version, mounts).create("two", Limits(cpus=1)).limits_cores()


def test_version_2_comes_first_when_it_carries_memory_and_pids(tmp_path: Path) -> None:
    mount = tmp_path / "unified"
    found = candidates(V1 + v2(mount, "cpu memory pids"))
    assert [each.version for each in found] == [2, 1]
    assert found[0].mounts == (mount,)


def test_version_2_that_carries_nothing_is_not_used(tmp_path: Path) -> None:
    assert [each.version for each in candidates(V1 + v2(tmp_path / "unified", "hugetlb"))] == [1]


def test_counters_are_read_in_both_formats(tmp_path: Path) -> None:
    (tmp_path / "cpu.stat").write_text("usage_usec 2500000\nuser_usec 1\n")
    (tmp_path / "memory.events").write_text("low 0\noom 3\noom_kill 2\noom_group_kill 1\n")
    (tmp_path / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 4\n")
    (tmp_path / "cpuacct.usage").write_text("1500000000\n")
    (tmp_path / "cgroup.procs").write_text("12\n7\n")
    second, first = Cgroup(2, (tmp_path,)), Cgroup(1, (tmp_path, tmp_path, tmp_path))
    assert (second.cpu_s(), second.oom_kills(), second.pids()) == (2.5, 2, [7, 12])
    assert (first.cpu_s(), first.oom_kills(), first.pids()) == (1.5, 4, [7, 12])


def test_a_group_whose_own_limits_were_reached_is_known_in_both_formats(tmp_path: Path) -> None:
    second, first = Cgroup(2, (tmp_path,)), Cgroup(1, (tmp_path, tmp_path, tmp_path))
    (tmp_path / "memory.events").write_text("low 0\noom 0\noom_kill 2\n")
    for name, value in (("max_usage_in_bytes", 5 << 20), ("limit_in_bytes", 100 << 20)):
        for kind in ("memory", "memory.memsw"):
            (tmp_path / f"{kind}.{name}").write_text(f"{value}\n")
    assert not second.reached_memory() and not first.reached_memory()
    (tmp_path / "memory.events").write_text("low 0\noom 1\noom_kill 2\n")
    (tmp_path / "memory.memsw.max_usage_in_bytes").write_text(f"{(100 << 20) - 4096}\n")
    assert second.reached_memory() and first.reached_memory()
    assert second.most_processes() is None, "before Linux 6.1"
    (tmp_path / "pids.peak").write_text("9\n")
    assert second.most_processes() == first.most_processes() == 9


def test_a_group_is_made_and_removed_with_its_parent(tmp_path: Path) -> None:
    group = Hierarchies(2, (tmp_path,)).create("one", Limits())
    assert (tmp_path / "penstock" / "one").is_dir()
    assert str(tmp_path / "penstock" / "one" / "cgroup.procs") in group.attach_script()
    # Process 1 is not a member of the group whose memory programs can use up.
    assert group.session.is_dir() and group.session.parent == tmp_path / "penstock"
    assert str(group.session) in group.session_script() and "one/" not in group.session_script()
    # Controllers were requested at both levels above; on a real mount the kernel keeps these files.
    (tmp_path / "cgroup.subtree_control").unlink()
    (tmp_path / "penstock" / "cgroup.subtree_control").unlink()
    group.remove()
    group.remove()
    assert not (tmp_path / "penstock").exists()


def probe(mount: Path, name: str, age_s: float = 0.0) -> Path:
    found = mount / "penstock" / name
    found.mkdir(parents=True)
    os.utime(found, (time.time() - age_s,) * 2)
    return found


def test_probes_of_dead_owners_are_removed_and_those_that_cannot_be_judged_by_their_age(
    tmp_path: Path,
) -> None:
    table = tmp_path / "mountinfo"
    mount = tmp_path / "unified"
    table.write_text(v2(mount, "memory pids"))
    mine = procfs.stat(os.getpid())
    namespace = os.stat("/proc/self/ns/pid").st_ino
    assert mine is not None
    dead = [
        probe(
            mount, f"probe-{namespace}-{os.getpid()}-{mine.start + 1}-00"
        ),  # the number was given to us later
        probe(mount, f"probe-{namespace}-{1 << 22}-1-00"),
        probe(mount, f"probe-{namespace + 1}-1-1-00", age_s=120.0),  # of another container
        probe(mount, "probe-00000000", age_s=120.0),  # of an older version
    ]
    kept = [
        probe(mount, f"probe-{namespace}-{os.getpid()}-{mine.start}-00", age_s=120.0),
        probe(mount, f"probe-{namespace + 1}-1-1-01"),
        probe(mount, "probe-00000001"),
        probe(mount, "a-sandbox", age_s=120.0),
    ]
    assert remove_probes(table) == len(dead)
    assert all(each.is_dir() for each in kept) and not any(each.exists() for each in dead)


MOVING = "import os, sys\nwhile True:\n    os.mkdir(sys.argv[1])\n    os.rmdir(sys.argv[1])\n"


def test_another_process_may_remove_the_directory_of_all_groups_at_any_moment(tmp_path: Path) -> None:
    table, mount = tmp_path / "mountinfo", tmp_path / "unified"
    table.write_text(v2(mount, "memory pids"))
    with subprocess.Popen([sys.executable, "-c", MOVING, str(mount / "penstock")]) as others:
        try:
            while not (mount / "penstock").exists():
                assert others.poll() is None
            assert {remove_probes(table) for _ in range(3000)} == {0}
        finally:
            others.kill()


PROBING = """
import time
from sandboxes import cgroups

def hang(*_, **__):
    print("probing", flush=True)
    time.sleep(600)

cgroups.subprocess.run = hang
cgroups.detect()
print("none", flush=True)
"""


def test_the_probe_of_a_killed_worker_is_gone_after_the_next_start() -> None:
    with subprocess.Popen([sys.executable, "-c", PROBING], stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None
        if worker.stdout.readline() == b"none\n":
            pytest.skip("no control groups can be made here")
        left = [
            found
            for each in candidates(Path("/proc/self/mountinfo").read_text())
            for mount in each.mounts
            for found in (mount / "penstock").glob(f"probe-*-{worker.pid}-*")
        ]
        remove_probes()
        assert left and all(each.is_dir() for each in left), "its owner lives"
        worker.kill()
    remove_probes()
    assert not any(each.exists() for each in left)
