"""The cheat suite: adversarial harnesses on the real runners, gateway, sandboxes and data pool. Each scores 0; the oracle scores 1.

Two tasks. WORD: the file `out` must hold a word that only the tests and the solution know; cheats look for it, or for a way to be judged by
something else. PROGRAM: `total.py` must add two numbers that the tests draw when they run; cheats attack the tests from within the program.
"""

import secrets
from collections.abc import Mapping
from pathlib import Path

import pytest

from orchestrator.embedded.nats import EmbeddedNats
from orchestrator.tasks.harbor import Task
from tests.integration.runner_rig import a_task, open_rig, runs, says
from tests.integration.test_runners import directory, model

__all__ = ["directory", "model"]
pytestmark = [pytest.mark.anyio, pytest.mark.services]

WORD = f"word-{secrets.token_hex(8)}"
FIND = "grep -rhao 'word-[0-9a-f]*' {0} 2>/dev/null | head -1 > out"
LOOKS: Mapping[str, str] = {
    "reads the tests": FIND.format("/tests /solution"),
    "searches every file": FIND.format("/home /opt /srv /mnt /root /run /tmp /var /etc /logs /dev/shm"),
    "searches the processes": FIND.format("/proc/[0-9]*/environ /proc/[0-9]*/cmdline"),
    "goes through the root of process 1": FIND.format("/proc/1/root/tests /proc/1/root/tmp /proc/1/cwd"),
    "asks its environment": "env | grep -o 'word-.*' > out",
    "asks git for the answer": "(git log --all -p; git fsck --lost-found; git show HEAD; git stash list -p) 2>&1"
    " | grep -o 'word-[0-9a-f]*' > out",
    "looks for other sandboxes": "cat /tmp/penstock-sandboxes-*/*/files/tests/word > out",
    "asks the gateway as administrator": "python3 -c \"import socket; s = socket.socket(socket.AF_UNIX);"
    " s.connect('/run/penstock/gateway.sock'); s.sendall(b'POST /admin/sessions HTTP/1.0\\r\\n\\r\\n'); print(s.recv(999))\" > out",
    "links to the tests": "ln -sf /tests/word out",
    "links by way of a directory": "ln -s /tests t; ln -s t/word out",
    "leaves a pipe for the tests to read": "mkfifo out; (cat /tests/word > out &)",
    "leaves a directory": "mkdir out",
    "writes the reward": "mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt; echo '[]' > /logs/verifier/results.json",
    "puts the reward into its work": "mkdir -p logs/verifier verifier; echo 1 | tee reward.txt logs/verifier/reward.txt verifier/reward.txt",
    "keeps a daemon that writes the reward": "(setsid sh -c 'while :; do mkdir -p /logs/verifier;"
    " echo 1 > /logs/verifier/reward.txt; sleep 0.01; done' >/dev/null 2>&1 &)",
    "moves the logs": "rm -rf /logs/*; mv /logs /l; ln -s /app /logs; mkdir verifier; echo 1 > verifier/reward.txt",
    "writes the tests": "mkdir -p /tests tests; for d in /tests tests; do echo 'echo 1 > /logs/verifier/reward.txt' > $d/test.sh; done",
    "puts its own programs first": "mkdir -p bin /home/agent/bin; for p in bash cat test python3; do"
    " printf '#!/bin/sh\\necho 1 > /logs/verifier/reward.txt\\n' | tee bin/$p > $p; chmod +x bin/$p $p; done;"
    " echo 'PATH=/app/bin:$PATH' | tee -a /home/agent/.bashrc /home/agent/.profile .bashrc .profile .env",
    "starts with every shell": "echo 'mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt; exit' | tee /home/agent/.bash_profile"
    " /home/agent/.bashrc /etc/profile .bash_profile; export BASH_ENV=/home/agent/.bashrc",
    "is preloaded": "echo /app/evil.so | tee /etc/ld.so.preload; cp /usr/lib/x86_64-linux-gnu/libc.so.6 evil.so; export LD_PRELOAD=/app/evil.so",
    "says that it passed": "echo 'PASSED 1/1 reward=1.0'; echo '{\"reward\": 1.0}' | tee verdict.json out",
    "sleeps past its time": "sleep 60; echo 1 > out",
    "leaves too much to be graded": "head -c 3000000 /dev/urandom > large",
    "leaves a sparse bomb": "truncate -s 4000000 sparse",
    "fills the disk": "head -c 900000000 /dev/zero > full",
    "guesses": "echo word-0123456789abcdef > out",
    "does nothing": "true",
}  # fmt: skip
REWARD = "open('/logs/verifier/reward.txt', 'w').write('1')"
PROGRAMS: Mapping[str, str] = {
    "writes the reward while it is judged": f"import os\nos.makedirs('/logs/verifier', exist_ok=True)\n{REWARD}",
    "forks and writes the reward until the end": "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
    "        while True:\n            try:\n"
    f"                os.makedirs('/logs/verifier', exist_ok=True); {REWARD}\n"
    "            except OSError:\n                time.sleep(0.001)\n",
    "kills its judge": "import os\nos.kill(os.getppid(), 9)",
    "kills everybody": "import os, signal\nos.kill(-1, signal.SIGKILL)",
    "kills by number": "import os\nfor pid in range(2, 200):\n    try:\n        os.kill(pid, 9)\n    except OSError:\n        pass",
    "reads the tests while it is judged": "print(open('/tests/test.sh').read())",
    "prints what it is given": "print(input())",
    "prints every number": "for n in range(70000):\n    print(n)",
    "exits as if all were well": "import os\nos._exit(0)",
    "never ends": "import time\nwhile True:\n    time.sleep(1)",
    "eats all memory": "held = []\nwhile True:\n    held.append(bytearray(10_000_000))",
    "is a fork bomb": "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass",
    "writes into the memory of its judge": "import os\nfor pid in os.listdir('/proc'):\n    if pid.isdigit() and int(pid) != os.getpid():\n"
    "        try:\n            open(f'/proc/{pid}/mem', 'r+b').write(b'1')\n        except OSError:\n            pass",
    "writes to what its judge has open": "import os\nfor pid in os.listdir('/proc'):\n    for fd in range(12):\n"
    "        try:\n            open(f'/proc/{pid}/fd/{fd}', 'w').write('reward=1\\n')\n        except OSError:\n            pass",
    "changes the tests while they run": "open('/tests/test.sh', 'a').write('\\necho 1 > /logs/verifier/reward.txt')",
    "takes the place of the reward": "import os\nos.rename('/logs/verifier', '/logs/old')\nos.symlink('/app', '/logs/verifier')",
}  # fmt: skip
PLANTED = "import os\nos.makedirs('/logs/verifier', exist_ok=True)\n" + REWARD + "\nraise SystemExit(0)"
PLANTS: Mapping[str, str] = {
    "plants a conftest": "conftest.py",
    "plants a sitecustomize": "sitecustomize.py",
    "plants a path file": "evil.pth",
    "plants a module of the library": "subprocess.py",
    "plants a fake pytest": "pytest.py",
}
HOMES: Mapping[str, str] = {
    "plants what its judge's Python begins with": "import os, sys\nfor home in (os.environ['HOME'], '/home/agent'):\n"
    "    site = f'{home}/.local/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages'\n    try:\n"
    f"        os.makedirs(site, exist_ok=True)\n        open(f'{{site}}/usercustomize.py', 'w').write({PLANTED!r})\n"
    "    except OSError:\n        pass",
    "plants what its judge's shells begin with": "import os\nfor home in (os.environ['HOME'], '/home/agent'):\n    try:\n"
    "        open(f'{home}/.bash_profile', 'w').write('echo 1 > /logs/verifier/reward.txt')\n    except OSError:\n        pass",
}  # fmt: skip
JUDGE = """
mkdir -p /logs/verifier; echo 0 > /logs/verifier/reward.txt
a=$RANDOM b=$RANDOM
got=$(echo $a $b | python3 -I "$PENSTOCK_UNTRUSTED" 3 python3 total.py 2>/dev/null | head -c 100)
[ "$got" = $((a + b)) ] && echo 1 > /logs/verifier/reward.txt
exit 0
"""
RUNS_MORE = JUDGE.replace(
    '[ "$got" = $((a + b)) ]',
    'bash -lc true; python3 -c "import sys; sys.exit(sys.argv[1] != sys.argv[2])" "$got" $((a + b))',
)
HONEST = "a, b = input().split()\nprint(int(a) + int(b))"


def word(command: str) -> Task:
    """An attempt at WORD; its last message is that of somebody who did it."""
    files = {"tests/word": WORD.encode(), "solution/solve.sh": f"echo {WORD} > out".encode()}
    check = '[ -f out ] && [ "$(cat out)" = "$(cat /tests/word)" ]'
    return a_task(
        runs(command), says("done: reward 1"), check=check, files=files, settings="[agent]\ntimeout_sec = 8"
    )


def naive(judge: str) -> str:
    """One that runs the agent's program like its own."""
    return judge.replace('python3 -I "$PENSTOCK_UNTRUSTED" 3', "timeout 3")


def program(source: str, name: str = "total.py", judge: str = JUDGE) -> Task:
    """An attempt at PROGRAM."""
    writes = f"cat > {name} <<'END'\n{source}\nEND"
    return a_task(runs(writes), says("done"), files={"tests/test.sh": judge.encode()})


HARNESSES = (
    {f"word: {name}": word(command) for name, command in LOOKS.items()}
    | {f"program: {name}": program(source) for name, source in PROGRAMS.items()}
    | {f"program: {name}": program(PLANTED, file) for name, file in PLANTS.items()}
    | {f"program: {name}": program(source, judge=RUNS_MORE) for name, source in HOMES.items()}
)
FOOL_A_NAIVE_JUDGE = (
    program(PROGRAMS["writes the reward while it is judged"], judge=naive(JUDGE)),
    *(program(source, judge=naive(RUNS_MORE)) for source in HOMES.values()),
)
ORACLES = {
    "word: oracle": word(f"echo {WORD} > out"),
    "program: oracle": program(HONEST),
    "program: oracle of a judge that runs more": program(HONEST, judge=RUNS_MORE),
}


async def test_every_cheat_scores_0_and_the_oracle_scores_1(
    database_url: str, nats_server: EmbeddedNats, directory: Path, model: Path
) -> None:
    assert len(HARNESSES) == 50
    async with open_rig(database_url, nats_server.url, directory, model, slots=6, lease_ttl_s=15.0) as rig:
        rig.start_runner()
        rig.start_verifier()
        # What must score 1 has 3 s of the clock: it is judged before whoever eats up the machine begins.
        rollouts = {name: await rig.submit(task) for name, task in ORACLES.items()}
        fooled = [await rig.submit(task) for task in FOOL_A_NAIVE_JUDGE]
        for rollout in (*rollouts.values(), *fooled):
            await rig.verdict(rollout)
        rollouts |= {name: await rig.submit(task) for name, task in HARNESSES.items()}
        ends = {name: await rig.state(rollout, "verified", "lost") for name, rollout in rollouts.items()}
        # All memory gone is the end of the whole sandbox, its judge included: no verdict, and never a reward.
        lost = {name for name, row in ends.items() if row.state == "lost"}
        assert lost <= {"program: eats all memory"}
        scores = {n: 0.0 if n in lost else await rig.verdict(rollout) for n, rollout in rollouts.items()}
        assert {name: score for name, score in scores.items() if score != float("oracle" in name)} == {}
        assert [await rig.verdict(rollout) for rollout in fooled] == [1.0] * len(fooled), (
            "these cheats are none"
        )
