"""A trainer that is started again whenever it is killed:
`python -m tests.integration.trainer.reborn_trainer KILLS LINES SEED <trainer's own arguments>`.

Each life is a process of its own, forked from one that has loaded torch and nothing else, because to load it takes longer than to train. The first
KILLS lives are killed at a random moment, if they have not been by a failpoint: some milliseconds after a line of their log, of the first LINES
(so that a busy machine is killed in the same places as an idle one). One line of JSON on stdout per life: its end. Their logs go to stderr. Ends
with the first life that does its work.
"""

import json
import os
import random
import signal
import sys
import time

import trainer.__main__
import trainer.loop

LATER_S = 0.03


def live(log: int) -> None:
    """One life of the trainer."""
    os.dup2(log, sys.stderr.fileno())
    try:
        status = trainer.__main__.main()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)


def main() -> int:
    """Live until one life has ended by itself; its exit status."""
    assert trainer.loop  # loaded before the first fork
    kills, lines, dice = int(sys.argv[1]), int(sys.argv[2]), random.Random(int(sys.argv[3]))
    sys.argv = [sys.argv[0], *sys.argv[4:]]
    while True:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            live(writing)
        os.close(writing)
        last = dice.randrange(1, lines) if kills > 0 else 0
        kills -= 1
        with open(reading, encoding="utf-8") as log:
            for number, line in enumerate(log, start=1):
                sys.stderr.write(line)
                if number == last:
                    time.sleep(dice.uniform(0, LATER_S))  # noqa: TID251
                    os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        ended = os.waitstatus_to_exitcode(status)
        print(json.dumps({"ended": ended}), flush=True)
        if ended != -signal.SIGKILL:
            return ended


if __name__ == "__main__":
    sys.exit(main())
