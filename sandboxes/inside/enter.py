"""Becomes a program in the state that every sandbox's programs start in: `python -S -m sandboxes.inside.enter FD`.

FD is a memory file with {argv, env, cwd, limits}; `limits` are those of the sandbox, null: none. `spawned.entering` writes it. For programs without
namespaces of their own; join.py leads the others in. The kernel ends the program with the thread that started it.
"""

from __future__ import annotations

import json
import os
import signal
import sys

from sandboxes.inside import confine

_PDEATHSIG = 1


def main() -> None:
    with open(int(sys.argv[1]), "rb") as file:
        task = json.load(file)
    code = 126
    try:
        confine.libc.prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        confine.rise()
        confine.settle()
        if task["limits"] is not None:
            wanted = confine.resource_limits(task["limits"], alone=True)
            # The kernel counts all processes of our user, and most are not the sandbox's.
            confine.set_limits({**wanted, confine.Resource.NPROC: (confine.NO_LIMIT, confine.NO_LIMIT)})
        code, reason = confine.replace(task["argv"], task["env"], task["cwd"])
        os.write(2, f"cannot run {task['argv'][0][:200]}: {reason}\n".encode(errors="replace"))
    finally:
        os._exit(code)


if __name__ == "__main__":
    main()
