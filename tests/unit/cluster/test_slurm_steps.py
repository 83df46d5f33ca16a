"""The share of a node that each process of a job has: GPUs of its own, and cores of its own if there are enough."""

import os
import re
import shutil
import stat
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from orchestrator.deploy.cluster.placement import placed
from orchestrator.deploy.cluster.render import render
from orchestrator.deploy.cluster.render.bare import resources_of, unit_of
from orchestrator.deploy.cluster.render.slurm import script
from orchestrator.deploy.cluster.topology import Resources, Topology
from tests.unit.cluster.rendered import EXAMPLES, topology

PLACE = re.compile(r"^(?:process|step) (\S+) (\d+) (\d+) (\d+) (\d+) (\d+) (alone|overlap) ", re.MULTILINE)


def steps(of: Topology) -> dict[str, tuple[int, int, int, str]]:
    """Cores, MB and GPUs of each process, and whether they are its own."""
    return {
        name: (int(cpus), int(memory), int(gpus), has)
        for name, _, _, cpus, memory, gpus, has in PLACE.findall(script(of))
    }


@pytest.mark.parametrize("name", EXAMPLES)
def test_no_two_processes_of_a_node_are_given_the_same_gpus_or_wait_for_each_others_cores(name: str) -> None:
    of = topology(name)
    found = steps(of)
    processes = [each for each in placed(of) if each.role != "postgres"]
    assert set(found) == {unit_of(each) for each in processes}
    for host, machine in of.machines.items():
        own = [
            found[unit_of(each)]
            for each in processes
            if each.host == host and found[unit_of(each)][3] == "alone"
        ]
        assert sum(gpus for _, _, gpus, _ in own) == sum(
            len(each.gpus) for each in processes if each.host == host
        )
        assert sum(cpus for cpus, _, _, _ in own) <= machine.cpus
        assert sum(memory for _, memory, _, _ in own) <= machine.memory_gb * 1000


def test_on_a_node_with_too_few_cores_those_without_gpus_share_them() -> None:
    assert {has for *_, has in steps(topology("laptop")).values()} == {"overlap"}
    of = topology("node8")
    (host,) = of.hosts
    narrow = of.model_copy(update={"hosts": (host.model_copy(update={"cpus": 64.0}),)})
    shares = {
        has: {name for name, step in steps(narrow).items() if step[3] == has} for has in ("alone", "overlap")
    }
    assert shares["alone"] == {"trainer", *(f"rollout-server-default-{number}" for number in range(4))}
    assert "runner-0" in shares["overlap"]


@pytest.mark.parametrize(
    ("update", "says"),
    [
        ({"cpus": 40.0}, "host gpu-1 has cpus = 40, but 48 are requested by its processes with GPUs"),
        (
            {"memory_gb": 500.0},
            "host gpu-1 has memory_gb = 500, but 640 are requested by its processes with GPUs",
        ),
    ],
)
def test_processes_with_gpus_that_a_node_cannot_hold_are_refused(update: dict[str, Any], says: str) -> None:
    of = topology("node8")
    (host,) = of.hosts
    with pytest.raises(ValueError, match=says):
        render(of.model_copy(update={"hosts": (host.model_copy(update=update),)}), "slurm")


def srun(tmp_path: Path, gres: str, place: Sequence[str]) -> list[str]:
    """Options of `srun` for one step."""
    (body,) = re.findall(r"^step\(\) \{\n.*?^\}$", script(topology("node8")), re.MULTILINE | re.DOTALL)
    program = tmp_path / "srun"
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    program.chmod(0o755)
    text = f"set -euo pipefail\nHET=() logs=. GRES={gres}\ndeclare -A running=()\n{body}\nstep {' '.join(place)} true\nwait"
    done = subprocess.run(
        ["bash", "-c", text],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


@pytest.mark.parametrize(
    ("gres", "gpus", "has", "expected"),
    [
        ("gpu", "2", "alone", ["--exact", "--gres=gpu:2"]),
        ("gpu", "0", "alone", ["--exact", "--gres=none"]),
        ("gpu", "0", "overlap", ["--exact", "--overlap", "--gres=none"]),
        ("", "0", "overlap", ["--exact", "--overlap"]),
    ],
)
def test_a_step_says_which_gpus_it_has_and_whether_it_shares(
    gres: str, gpus: str, has: str, expected: list[str], tmp_path: Path
) -> None:
    words = srun(tmp_path, gres, ["runner-0", "0", "0", "4", "8000", gpus, has])
    assert [each for each in words if each.startswith(("--exact", "--overlap", "--gres"))] == expected
    assert {"--cpus-per-task=4", "--mem=8000M"} <= set(words)


def prepared(tmp_path: Path) -> "subprocess.CompletedProcess[str]":
    """A process of a job on this machine, with TMPDIR below `tmp_path`: its step runs here."""
    (tmp_path / "logs/logs/7/attempt-0").mkdir(parents=True)
    (tmp_path / "logs/logs/7/attempt-0/penstock.toml").write_text("[run]\n")
    (functions,) = re.findall(
        r"^# --- what every attempt begins with ---$.*?(?=^# Ends every step)",
        script(topology("node8")),
        re.MULTILINE | re.DOTALL,
    )
    text = f"""set -euo pipefail
SHARED="$PWD/logs" SECRETS=() BIN=/bin GRES= HET=()
{functions}
step() {{ shift 7; "$@"; }}
process runner-0 0 0 4 8000 0 alone nothing echo "it runs"
"""
    return subprocess.run(
        ["bash", "-c", text],
        env={"PATH": "/usr/bin:/bin", "TMPDIR": str(tmp_path / "node"), "SLURM_JOB_ID": "7"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_directory_of_an_attempt_is_made_for_the_jobs_user_alone(tmp_path: Path) -> None:
    place = tmp_path / "node/penstock-7-0"
    for _ in range(2):  # the second step of a node finds it
        done = prepared(tmp_path)
        assert (done.returncode, done.stdout, done.stderr) == (0, "it runs\n", "")
        assert [stat.S_IMODE(each.stat().st_mode) for each in (place, place / "runner-0")] == [0o700, 0o700]
        place.chmod(0o777)
        shutil.rmtree(tmp_path / "logs")
    assert (place / "runner-0/penstock.toml").is_file()


@pytest.mark.parametrize("kind", ["link", "file", "directory"])
def test_a_place_that_another_user_made_first_is_named_and_gets_no_file(kind: str, tmp_path: Path) -> None:
    place, target = tmp_path / "node/penstock-7-0", tmp_path / "target"
    target.mkdir()
    place.parent.mkdir()
    if kind == "link":
        place.symlink_to(target)
    elif kind == "file":
        place.touch()
    else:
        if os.geteuid() != 0:
            pytest.skip("only root makes a directory of another user")
        place.mkdir(mode=0o777)
        os.chown(place, 65534, 65534)
    done = prepared(tmp_path)
    assert done.returncode != 0 and "it runs" not in done.stdout
    assert f"{place} cannot be made or is another user's: remove it on " in done.stderr
    assert not list(target.iterdir()) and (kind != "directory" or not list(place.iterdir()))


def test_resources_of_a_step_are_those_of_its_process() -> None:
    of = topology("node8")
    requested = resources_of(of, next(each for each in placed(of) if each.role == "runner"))
    assert requested == Resources(cpus=16, memory_gb=64, disk_gb=20)
    assert steps(of)["runner-0"] == (16, 64000, 0, "alone")
