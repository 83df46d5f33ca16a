"""The soak finds what grows, takes noise and warm-up for what they are, and reads the processes and places of a run."""

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from ops.lab.benchmarks.soak import processes
from ops.lab.benchmarks.soak.__main__ import main as soak
from ops.lab.benchmarks.soak.fit import BLOCKS, of_level, of_rate
from ops.lab.benchmarks.soak.places import size
from ops.lab.benchmarks.soak.samples import Figure, Key, Sample
from ops.lab.benchmarks.soak.targets import Found, bars_of, name
from orchestrator.deploy.embedded.identity import ProcessId
from orchestrator.deploy.embedded.process_spec import ProcessState, ProcessStatus, SupervisorStatus

MIB = 1 << 20
READINGS = 150
PER_READING = 40  # rollouts
X = [float(number * PER_READING) for number in range(READINGS)]
MEMORY: Key = (Figure.MEMORY, "gateway")
SEEDS = 100


def waves(seed: int, alike: float) -> list[float]:
    """Noise whose neighbours resemble each other."""
    draw, value, found = random.Random(seed), 0.0, []
    for _ in X:
        value = alike * value + draw.gauss(0, 1)
        found.append(value)
    return found


def run_of(level: Callable[[int], float], key: Key = MEMORY) -> Found:
    """The trends of a run in which `key` has that level at each reading, and everything else none."""
    return Found(
        [
            Sample(
                at=float(number),
                rollouts=number * PER_READING,
                restarts=0,
                values={key: level(number), (Figure.CPU, "gateway"): 0.5 * number},
            )
            for number in range(READINGS)
        ]
    )


def missed(found: Found) -> list[str]:
    return [bar.name for bar in bars_of(found, restarts=0, syncs=9, violations=0) if not bar.holds]


@pytest.mark.parametrize("alike", [0.0, 0.5, 0.8])
def test_noise_is_not_a_trend(alike: float) -> None:
    trends = [of_level(X, waves(seed, alike)) for seed in range(SEEDS)]
    assert sum(trend is not None and trend.surely > 0 for trend in trends) <= 0.1 * SEEDS


@pytest.mark.parametrize("alike", [0.0, 0.5, 0.8])
def test_a_trend_below_the_noise_of_one_reading_is_found(alike: float) -> None:
    grows = 3 / X[-1]  # three standard deviations of one reading, over the whole run
    levels = (
        [y + grows * 5 * x for x, y in zip(X, waves(seed, alike), strict=True)] for seed in range(SEEDS)
    )
    trends = [of_level(X, level) for level in levels]
    assert sum(trend is not None and trend.surely > grows for trend in trends) >= 0.9 * SEEDS


def test_a_leak_is_named_and_its_slope_is_right() -> None:
    draw = random.Random(1)
    leak = 12 * MIB / 1000  # bytes per rollout
    found = run_of(lambda n: 100 * MIB + leak * n * PER_READING + draw.gauss(0, MIB))
    assert missed(found) == ["gateway: memory"]
    assert found.trends[MEMORY].slope == pytest.approx(12, rel=0.05)


def test_a_leak_below_a_sawtooth_of_collections_is_named() -> None:
    found = run_of(lambda n: (100 + 12 * n * PER_READING / 1000 + n % 10) * MIB)
    assert missed(found) == ["gateway: memory"]


def test_what_fills_once_at_the_start_is_not_called_a_leak() -> None:
    assert missed(run_of(lambda n: 400 * MIB if n > READINGS // 4 else 100 * MIB)) == []
    assert missed(run_of(lambda n: min(n, READINGS // 3 - 1) * 8 * MIB)) == []


def test_one_step_is_not_called_a_leak() -> None:
    assert missed(run_of(lambda n: 110 * MIB if n > READINGS // 2 else 100 * MIB)) == []
    assert missed(run_of(lambda n: 21 if n > 100 else 20, (Figure.DESCRIPTORS, "gateway"))) == []


def test_a_descriptor_of_each_hundredth_rollout_is_named() -> None:
    found = run_of(lambda n: 20 + n * PER_READING // 100, (Figure.DESCRIPTORS, "runner"))
    assert missed(found) == ["runner: descriptors"]


def test_outliers_count_for_nothing() -> None:
    trend = of_level(X, [10.0 + (500 if number % 7 == 0 else 0) for number in range(READINGS)])
    assert trend is not None and trend.slope == 0


def test_work_per_rollout_that_grows_is_named_and_noise_of_it_is_not() -> None:
    def spent(grows: float, draw: random.Random) -> list[Sample]:
        cpu_s, found = 0.0, []
        for number in range(READINGS):
            cpu_s += 0.5 * (1 + grows * number * PER_READING / 1000) * draw.uniform(0.8, 1.2)
            found.append(
                Sample(
                    at=float(number),
                    rollouts=number * PER_READING,
                    restarts=0,
                    values={(Figure.CPU, "postgres"): cpu_s},
                )
            )
        return found

    slower = Found(spent(0.2, random.Random(2)))
    assert missed(slower) == ["postgres: rollouts/CPU-s, decline"]
    assert all(missed(Found(spent(0.0, random.Random(seed)))) == [] for seed in range(20))
    found = of_rate(X, [0.5 * x for x in X])
    assert found is not None and found[0] == pytest.approx(2.0) and found[1].slope == pytest.approx(0.0)


def test_too_few_readings_give_no_trend_and_a_run_that_did_little_misses_its_bars() -> None:
    assert of_level([], []) is None and of_level(X[:3], X[:3]) is None
    assert of_level([1.0] * BLOCKS, X[:BLOCKS]) is None and of_rate(X, [1.0] * READINGS) is None
    bars = bars_of(Found([]), restarts=2, syncs=0, violations=1)
    assert [bar.name for bar in bars if not bar.holds] == [
        "rollouts in the last two thirds",
        "weight syncs",
        "restarts of processes",
        "violations of I1-I7",
    ]


def test_every_figure_has_a_name_of_its_own() -> None:
    keys: Sequence[Key] = [(figure, "postgres") for figure in Figure]
    assert len({name(key) for key in keys}) == len(keys)


def test_the_disk_of_a_directory_is_what_its_files_take(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").write_bytes(os.urandom(MIB))
    (tmp_path / "link").symlink_to("/usr")
    with (tmp_path / "hole").open("wb") as file:
        file.truncate(100 * MIB)
    assert MIB <= size(tmp_path) < 2 * MIB and size(tmp_path / "none") == 0


def test_the_processes_of_a_role_are_read_with_what_they_hold() -> None:
    """This process is the supervisor, a child of it a process that holds 64 MiB and one that ended."""
    held = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys; held = bytearray(b'x' * (64 << 20)); print(flush=True); sys.stdin.read()",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert held.stdout is not None
        held.stdout.readline()
        rest = {"restarts": 0, "since": time.time(), "last_exit": None, "detail": None, "log": ""}
        status = SupervisorStatus(
            supervisor=ProcessId.mine(),
            written=time.time(),
            processes=[
                ProcessStatus(name="gateway", state=ProcessState.READY, pid=held.pid, **rest),  # type: ignore[arg-type]
                ProcessStatus(name="trainer", state=ProcessState.BACKOFF, pid=None, **rest),  # type: ignore[arg-type]
            ],
        )
        found = processes.roles(status)
    finally:
        held.communicate()
    assert set(found) == {"supervisor", "gateway", "sandboxes"}
    gateway = found["gateway"]
    assert gateway.pid == held.pid and gateway.processes == 1 and gateway.threads >= 1
    assert 64 * MIB <= gateway.memory < 256 * MIB and 3 <= gateway.descriptors < 50
    assert found["supervisor"].cpu_s > 0 and found["supervisor"].pid == os.getpid()


@pytest.mark.parametrize("minutes", ["nan", "inf", "0", "-1", "1e9"])
def test_a_time_under_load_that_no_soak_can_have_is_refused(
    minutes: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["soak", f"--minutes={minutes}"])
    with pytest.raises(SystemExit):
        soak()
    assert "argument --minutes: must be a number from 0.01 to " in capsys.readouterr().err
