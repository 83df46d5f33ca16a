"""A clock that can be shifted while a process runs. A file sets the shift of `time.time`, `datetime.now` and `utcnow` in this Python alone.

Python loads a module of this name at its start. $PENSTOCK_CHAOS_CLOCK is a directory of files <name>, each the seconds to add; the name is
that of the supervised process. Each time a caller reads the clock, the module rereads the shift, and the shift is set, the module appends the
process's id to <name>.seen. This proves that the process saw the shift. Not shifted: times that C code reads from the kernel, the
times of files, and programs that are not Python. The monotonic clock is not shifted either; it decides when to reread the file.
"""

import ctypes
import datetime
import gc
import os
import time
from collections.abc import Callable
from typing import Any

_POLL_INTERVAL_S = 0.2


def _install(directory: str, name: str) -> None:
    real, real_ns, monotonic = time.time, time.time_ns, time.monotonic
    path = os.path.join(directory, name)
    state = [0.0, 0.0]  # when the file was last read, its value

    def shift() -> float:
        now = monotonic()
        if now - state[0] > _POLL_INTERVAL_S:
            state[0] = now
            try:
                with open(path, encoding="ascii") as file:
                    state[1] = float(file.read())
                if state[1]:
                    with open(f"{path}.seen", "a", encoding="ascii") as record:
                        record.write(f"{os.getpid()}\n")
            except (OSError, ValueError):
                state[1] = 0.0
        return state[1]

    time.time = lambda: real() + shift()
    time.time_ns = lambda: real_ns() + int(shift() * 1e9)
    # Patch the type itself: C code and tables of types would not see a replacement.
    [methods] = gc.get_referents(vars(datetime.datetime))
    for method in ("now", "utcnow"):
        methods[method] = _plus(methods[method], shift)
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(datetime.datetime))


def _plus(method: Any, shift: Callable[[], float]) -> Any:
    def shifted(cls: type, *args: Any, **more: Any) -> Any:
        return method.__get__(None, cls)(*args, **more) + datetime.timedelta(seconds=shift())

    return classmethod(shifted)


if "PENSTOCK_CHAOS_CLOCK" in os.environ and "#" in os.environ.get("PENSTOCK_SUPERVISED", ""):
    _install(os.environ["PENSTOCK_CHAOS_CLOCK"], os.environ["PENSTOCK_SUPERVISED"].rpartition("#")[2])
