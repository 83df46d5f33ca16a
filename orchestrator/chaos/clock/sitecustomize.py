"""A clock that can be shifted while a process runs: `time.time` of this Python alone, by what a file says.

Python loads a module of this name at its start. $PENSTOCK_CHAOS_CLOCK is a directory of files <name>, each the seconds to add; the name is
that of the supervised process. Not shifted: `datetime.now`, the kernel's own times, and programs that are not Python. The monotonic
clock, by which this looks into its file, is nobody's to shift.
"""

import os
import time

_LOOK_S = 0.2


def _install(directory: str, name: str) -> None:
    real, real_ns, monotonic = time.time, time.time_ns, time.monotonic
    path = os.path.join(directory, name)
    state = [0.0, 0.0]  # when the file was looked at, what it said

    def shift() -> float:
        now = monotonic()
        if now - state[0] > _LOOK_S:
            state[0] = now
            try:
                with open(path, encoding="ascii") as file:
                    state[1] = float(file.read())
            except (OSError, ValueError):
                state[1] = 0.0
        return state[1]

    time.time = lambda: real() + shift()
    time.time_ns = lambda: real_ns() + int(shift() * 1e9)


if "PENSTOCK_CHAOS_CLOCK" in os.environ and "#" in os.environ.get("PENSTOCK_SUPERVISED", ""):
    _install(os.environ["PENSTOCK_CHAOS_CLOCK"], os.environ["PENSTOCK_SUPERVISED"].rpartition("#")[2])
