"""Each program that reads the time with this Python sees the shifted clock, and a record shows that it did."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ops.lab.chaos.prepare import CLOCK

pytestmark = pytest.mark.timeout(60)
PATIENCE_S = 20.0
HOUR_S = 3600.0
# For each input line: how far its clocks are from the kernel's, and whether its datetimes are those of C code.
PROGRAM = """
import _datetime, datetime, os, sys, time
for _ in sys.stdin:
    real = time.clock_gettime(time.CLOCK_REALTIME)
    now, utc = datetime.datetime.now, datetime.timezone.utc
    shown = (time.time(), time.time_ns() / 1e9, now(utc).timestamp(), now().timestamp(), now(tz=utc).timestamp())
    made = (datetime.datetime.now(), datetime.datetime(2026, 1, 2), datetime.datetime.fromisoformat("2026-01-02"))
    plain = all(type(one) is _datetime.datetime and isinstance(one, datetime.datetime) for one in made)
    plain = plain and datetime.datetime is _datetime.datetime
    print(*(round(one - real) for one in shown), plain, flush=True)
"""


class Victim:
    """A Python of the stack, by its name."""

    def __init__(self, clocks: Path, supervised: str) -> None:
        paths = os.pathsep.join([str(CLOCK), *filter(None, [os.environ.get("PYTHONPATH")])])
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "PYTHONPATH": paths,
                "PENSTOCK_CHAOS_CLOCK": str(clocks),
                "PENSTOCK_SUPERVISED": supervised,
            },
        )
        self.pid = self._process.pid

    def shifts(self) -> list[float]:
        """The offsets of its clocks, in seconds."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        *shifts, plain = self._process.stdout.readline().split()
        assert plain == "True"
        return [float(shift) for shift in shifts]

    def end(self) -> None:
        self._process.communicate(timeout=PATIENCE_S)


@pytest.fixture
def opens() -> Iterator[Callable[[Path, str], Victim]]:
    victims: list[Victim] = []

    def start(clocks: Path, supervised: str) -> Victim:
        victims.append(Victim(clocks, supervised))
        return victims[-1]

    yield start
    for victim in victims:
        victim.end()


def until(victim: Victim, shift_s: float) -> None:
    limit = time.monotonic() + PATIENCE_S
    while (found := victim.shifts()) != [shift_s] * 5:
        assert time.monotonic() < limit, found


def test_every_clock_of_a_python_is_shifted_while_its_file_says_so_and_each_process_that_saw_it_is_recorded(
    tmp_path: Path, opens: Callable[[Path, str], Victim]
) -> None:
    victim, other = opens(tmp_path, "/a/run#trainer"), opens(tmp_path, "/a/run#runner")
    seen = tmp_path / "trainer.seen"
    assert victim.shifts() == other.shifts() == [0] * 5 and not seen.exists()
    (tmp_path / "trainer").write_text(str(-HOUR_S))
    until(victim, -HOUR_S)
    assert set(seen.read_text().splitlines()) == {str(victim.pid)}
    assert other.shifts() == [0] * 5 and not (tmp_path / "runner.seen").exists()
    (tmp_path / "trainer").unlink()
    until(victim, 0)


def test_a_clock_that_says_nothing_is_not_shifted_and_a_process_of_no_stack_never(
    tmp_path: Path, opens: Callable[[Path, str], Victim]
) -> None:
    (tmp_path / "trainer").write_text("soon")
    (tmp_path / "gateway").write_text(str(HOUR_S))
    assert opens(tmp_path, "/a/run#trainer").shifts() == [0] * 5
    assert opens(tmp_path, "gateway").shifts() == [0] * 5
    assert not list(tmp_path.glob("*.seen"))
