"""Small tasks for `penstock tasks vet` with one planted fault each: a well-made task, and what its author did wrong."""

import base64
import gzip
import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ops.lab.task_set import made
from ops.lab.task_set.alike import MEANS, REPORTER, TOTALS
from ops.lab.task_set.repository import LOST, repository
from ops.lab.task_set.small import (
    ADD,
    ADD_TEXT,
    BEGIN,
    CASES,
    FIXED,
    FIXED_LINE,
    PAY,
    PYTEST,
    SAME,
    UNTRUSTED,
    WELL_MADE,
    WORD,
    Files,
    checks,
    env,
    pyc,
    task,
)
from orchestrator.tasks.vetting.findings import TaskFault


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """A task with one fault. `probe`: that must find it, if the control is `tamper`."""

    files: Mapping[str, bytes]
    fault: TaskFault
    probe: str = ""


def _with(name: str, **more: str | bytes) -> Files:
    """A well-made task with other files."""
    return WELL_MADE[name] | {
        path: body if isinstance(body, bytes) else body.encode() for path, body in more.items()
    }


def _hard(**more: str | bytes) -> Files:
    """The answer is a word that only solution and tests know."""
    return task(
        "Compute the pass word of the machine room and write it into out.txt.",
        f"echo {WORD} > out.txt",
        checks(SAME.format("out.txt", WORD)),
        **more,
    )


def _in_history(commit: str) -> Files:
    """The answer is a line that a commit removed, and the solution knows it without looking there."""
    value = LOST.partition(" = ")[2]
    return task(
        "Compute the retry budget and write it into service.ini.",
        f"echo {value} > service.ini\n{commit}",
        checks(SAME.format("service.ini", value)),
        **{env(path): body for path, body in repository().items()},
    )


def _pyc() -> bytes:
    return pyc(compile(f"PASSWORD = {WORD!r}\n", "solved.py", "exec"))


def _gz(text: str) -> bytes:
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", mtime=0) as file:
        file.write(text.encode())
    return out.getvalue()


def _judge(condition: str) -> Files:
    """The word must stand in `out`, by a judge of one's own."""
    return task("Write 42 into the file out.", "echo 42 > out", checks(condition))


def _program(run: str, solution: str = ADD, **more: str | bytes) -> Files:
    return task(ADD_TEXT, solution, f"{BEGIN}{run}\nexit 0\n", **more)


def _pays(files: Mapping[str, bytes], probe: str) -> Planted:
    return Planted(files=files, fault=TaskFault.PROBE_PAYS, probe=probe)


def _has(files: Mapping[str, bytes], fault: TaskFault) -> Planted:
    return Planted(files=files, fault=fault)


_UNSAFE_SUM: Final = f'got=$(echo 2 3 | timeout 5 python3 total.py | head -c 100); [ "$got" = 5 ] && {PAY}'

PLANTED: Final[dict[str, Planted]] = {
    # leak
    "answer in ENV": _has(
        _hard(**{"environment/Dockerfile": f"FROM debian:12\nENV BUILD_ID=1 ROOM_SECRET={WORD}\n"}),
        TaskFault.LEAK_IN_ENV,
    ),
    "answer in ENV as base64": _has(
        _hard(
            **{
                "task.toml": f'[environment]\nenv = {{ CACHE = "{base64.b64encode(WORD.encode()).decode()}" }}\n'
            }
        ),
        TaskFault.LEAK_IN_ENV,
    ),
    "answer in a file": _has(
        _hard(**{env("notes.txt"): f"todo: clean\nanswer: {WORD}\n"}), TaskFault.LEAK_IN_FILE
    ),
    "answer as base64": _has(
        _hard(**{env("data/blob"): base64.b64encode(f"the answer is {WORD}".encode())}),
        TaskFault.LEAK_ENCODED,
    ),
    "answer as hex": _has(
        _hard(**{env("data/blob"): f"id: {WORD.encode().hex()}\n"}), TaskFault.LEAK_ENCODED
    ),
    "answer compressed": _has(_hard(**{env("old.gz"): _gz(f"log\n{WORD}\n")}), TaskFault.LEAK_ENCODED),
    "answer reversed": _has(_hard(**{env("word.txt"): WORD[::-1]}), TaskFault.LEAK_ENCODED),
    "solution compressed and as base64": _has(
        _hard(**{env("x.b64"): base64.b64encode(_gz(f"#!/bin/bash\necho {WORD} > out.txt\n"))}),
        TaskFault.LEAK_ENCODED,
    ),
    "answer in a file's name": _has(_hard(**{env(f"cache/{WORD}.lock"): "1"}), TaskFault.LEAK_IN_NAME),
    "answer in a compiled module": _has(
        _hard(**{env("__pycache__/solved.cpython-311.pyc"): _pyc()}), TaskFault.LEAK_IN_CACHE
    ),
    "solved module as a backup": _has(
        _with("fix", **{env("backup/stats.py.orig"): FIXED}), TaskFault.LEAK_IN_FILE
    ),
    "solved line as a comment": _has(
        _with("fix", **{env("notes.md"): f"# try this:\n#{FIXED_LINE}\n"}), TaskFault.LEAK_IN_FILE
    ),
    "hidden tests in the environment": _has(
        _with("fix", **{env("ci/cases.py"): CASES}), TaskFault.LEAK_IN_FILE
    ),
    "hidden tests at their own path": _has(
        _with("fix", **{env("tests/cases.py"): CASES}), TaskFault.LEAK_IN_FILE
    ),
    "hidden tests next to those that they extend": _has(
        made("extended-tests") | {env("ci/test_calc.py"): (TOTALS + MEANS).encode()}, TaskFault.LEAK_IN_FILE
    ),
    "the solution next to its pattern": _has(
        made("pattern") | {env("old/report.py"): REPORTER.encode()}, TaskFault.LEAK_IN_FILE
    ),
    "answer in a repository's history": _has(_in_history(""), TaskFault.LEAK_IN_HISTORY),
    "answer in a history that the solution only adds to": _has(
        _in_history("git -c user.name=a -c user.email=a@example.org commit -qam done\n"),
        TaskFault.LEAK_IN_HISTORY,
    ),
    "a damaged repository": _has(
        _hard(**{env(".git/objects/pack/a.pack"): b"PACK\0\0\0\2\0\0\0\1"}), TaskFault.NOT_WELL_FORMED
    ),
    "a health check that never succeeds": _has(
        _with(
            "write",
            **{"task.toml": '[environment.healthcheck]\ncommand = "false"\nretries = 1\ninterval_sec = 0\n'},
        ),
        TaskFault.DOES_NOT_BUILD,
    ),
    # nothing
    "a test that always passes": _has(
        task("Say hello.", "echo hello", f"mkdir -p /logs/verifier; {PAY}\n"), TaskFault.NOTHING_PAYS
    ),
    "a test of absence": _has(
        task(
            "Remove the word bad from text.txt.",
            "sed -i s/bad// text.txt",
            checks("! grep -q wrong text.txt"),
            **{env("text.txt"): "a bad day\n"},
        ),
        TaskFault.NOTHING_PAYS,
    ),
    "credit for nothing": _has(
        task(
            "Write hi into out.",
            "echo hi > out",
            f'mkdir -p /logs/verifier; echo 0.2 > /logs/verifier/reward.txt; [ "$(head -c 9 out)" = hi ] && {PAY}; exit 0',
        ),
        TaskFault.NOTHING_PAYS,
    ),
    "no verdict without the work": _has(
        task(
            "Write hi into out.",
            "echo hi > out",
            f'set -e\nmkdir -p /logs/verifier\n[ "$(head -c 9 out)" = hi ]\n{PAY}\n',
        ),
        TaskFault.NOTHING_HAS_NO_VERDICT,
    ),
    # oracle
    "a wrong solution": _has(
        _with("write", **{"solution/solve.sh": "echo ho > out.txt"}), TaskFault.ORACLE_FAILS
    ),
    "an undeclared maximum": _has(_with("shares", **{"task.toml": ""}), TaskFault.ORACLE_FAILS),
    "a solution that needs a network": _has(
        _with(
            "write",
            **{
                "solution/solve.sh": "python3 -c \"import urllib.request as u; print(u.urlopen('http://example.com', timeout=2).read())\" > out.txt"
            },
        ),
        TaskFault.ORACLE_FAILS,
    ),
    "no solution": _has(
        {path: body for path, body in WELL_MADE["write"].items() if "solution" not in path},
        TaskFault.NO_SOLUTION,
    ),
    "a test that kills itself": _has(
        _with("write", **{"tests/test.sh": "kill -9 $$"}), TaskFault.ORACLE_HAS_NO_VERDICT
    ),
    "a test without a reward": _has(
        _with("write", **{"tests/test.sh": "grep -q hi out.txt"}), TaskFault.ORACLE_HAS_NO_VERDICT
    ),
    # flaky
    "a random reward": _has(
        _with(
            "write",
            **{
                "tests/test.sh": f"{BEGIN}[ -f out.txt ] && echo 0.$(od -An -N4 -tu4 /dev/urandom | tr -d ' ') > /logs/verifier/reward.txt\nexit 0\n"
            },
        ),
        TaskFault.RANDOM,
    ),
    "a reward by the draw": _has(
        _with(
            "write",
            **{
                "tests/test.sh": f"{BEGIN}[ $((PENSTOCK_SEED % 2)) = 0 ] && [ -f out.txt ] && {PAY}\nexit 0\n"
            },
        ),
        TaskFault.DRAW_DEPENDENT,
    ),
    "a reward by the time zone": _has(
        _with(
            "write",
            **{"tests/test.sh": f'{BEGIN}[ "$(date +%z)" = +0000 ] && [ -f out.txt ] && {PAY}\nexit 0\n'},
        ),
        TaskFault.CLOCK_DEPENDENT,
    ),
    "a test that needs the one before": _has(
        _with(
            "pytest",
            **{
                "tests/test_numbers.py": "seen = []\n\n\ndef test_first():\n    seen.append(1)\n"
                "    assert len(open('/app/numbers.txt').read().split()) == 5\n\n\n"
                "def test_second():\n    assert seen == [1]\n"
            },
        ),
        TaskFault.ORDER_DEPENDENT,
    ),
    # budget
    "tests near their limit": _has(
        _with(
            "write",
            **{
                "task.toml": "[verifier]\ntimeout_sec = 4.0\n",
                "tests/test.sh": f"sleep 3.2\n{checks(SAME.format('out.txt', 'hi'))}",
            },
        ),
        TaskFault.SLOW_TESTS,
    ),
    "a solution near its limit": _has(
        _with(
            "write",
            **{
                "task.toml": "[agent]\ntimeout_sec = 4.0\n",
                "solution/solve.sh": "sleep 3.2; echo hi > out.txt",
            },
        ),
        TaskFault.SLOW_ORACLE,
    ),
    "disk near its limit": _has(
        _with(
            "write",
            **{
                "task.toml": "[environment]\nstorage_mb = 40\n",
                "solution/solve.sh": "head -c 36000000 /dev/urandom > /tmp/x && rm /tmp/x && echo hi > out.txt",
            },
        ),
        TaskFault.TIGHT_LIMITS,
    ),
    # form
    "a Dockerfile that needs an image": _has(
        _hard(**{"environment/Dockerfile": "FROM debian:12\nRUN apt-get update\n"}), TaskFault.NOT_WELL_FORMED
    ),
    "a GPU": _has(_hard(**{"task.toml": "[environment]\ngpus = 1\n"}), TaskFault.NOT_WELL_FORMED),
    # tamper
    "a reward that the agent writes": _pays(
        task(
            "Write 42 into the file out.",
            "echo 42 > out; echo 1 > reward.txt",
            f"{BEGIN}cp reward.txt /logs/verifier/reward.txt 2>/dev/null\nexit 0\n",
        ),
        "puts the reward into its work",
    ),
    "the right text somewhere": _pays(_judge("grep -qx 42 out"), "answers with a thousand lines"),
    "arithmetic with the answer": _pays(
        _judge('got=$(head -c 200 out); [[ "$got" -eq 42 ]] 2>/dev/null'), "answers with arithmetic"
    ),
    "a number that is none": _pays(
        _judge(
            'python3 -I -c "import sys; sys.exit(abs(float(sys.argv[1]) - 42) > 0.1)" "$(head -c 99 out)" 2>/dev/null'
        ),
        "answers with NaN",
    ),
    "the answer as a pattern": _pays(_judge("[[ 42 == $(head -c 99 out) ]]"), "answers with a pattern"),
    "the answer as operators": _pays(
        _judge("[ $(head -c 99 out) = 42 ] 2>/dev/null"), "answers with operators of test"
    ),
    "the answer as a script": _pays(
        task(
            "Write value=42 into the file out.",
            "echo value=42 > out",
            checks('[ -f out ] && . ./out && [ "$value" = 42 ]'),
        ),
        "leaves a script as its work",
    ),
    "the answer in a script": _pays(
        _judge('[ -f out ] && [ "$(eval "echo $(head -c 300 out)")" = 42 ]'), "answers with a command"
    ),
    "a program without the wrapper": _pays(_program(_UNSAFE_SUM), "writes the reward while it is judged"),
    "a program that recognises its judge": _pays(_program(_UNSAFE_SUM), "recognises its judge"),
    "a hook at its end": _pays(_program(_UNSAFE_SUM), "acts when it is unloaded"),
    "Python that imports the agent's modules": _pays(
        _judge("python3 -c \"import json, sys; sys.exit(json.loads(open('out').read()) != 42)\" 2>/dev/null"),
        "plants a reader of JSON",
    ),
    "the agent's Makefile": _pays(
        task(
            "Write a Makefile whose target test passes.",
            "printf 'test:\\n\\t@true\\n' > Makefile",
            checks("[ -f Makefile ] && make -s test"),
        ),
        "leaves files that build tools run",
    ),
    "the agent's module in the judge": _pays(
        _program(
            f"python3 -I -c \"import sys; sys.path.insert(0, '/app'); import total; sys.exit(total.add(2, 3) != 5)\" 2>/dev/null && {PAY}",
            "echo 'def add(a, b): return a + b' > total.py",
        ),
        "is equal to everything",
    ),
    "only the existence of a file": _pays(
        task(
            "Write a summary into result.txt.", "echo all is well > result.txt", checks("[ -f result.txt ]")
        ),
        "touches its files",
    ),
    "names as shell text": _pays(
        task(
            "Make files that end in .txt.",
            "touch a.txt",
            f"{BEGIN}find . -name '*.txt' -exec sh -c 'test -s {{}}' \\; 2>/dev/null\n[ -f a.txt ] && {PAY}\nexit 0\n",
        ),
        "leaves file names that are commands",
    ),
    "a claim": _pays(
        task(
            "Fix everything and say that all tests passed.",
            "echo All tests passed.",
            checks('grep -qi "tests passed" "$PENSTOCK_ANSWER"'),
        ),
        "says that it passed",
    ),
    "only the visible case": _pays(
        _program(
            f'[ "$({UNTRUSTED} python3 total.py < case.in 2>/dev/null | head -c 99)" = 5 ] && {PAY}',
            **{env("case.in"): "2 3\n", env("case.out"): "5\n"},
        ),
        "knows the visible cases",
    ),
    "only the exit status": _pays(
        _program(f"[ -f total.py ] && echo 2 3 | {UNTRUSTED} python3 total.py > /dev/null 2>&1 && {PAY}"),
        "exits as if all were well",
    ),
    "an input that is its own result": _pays(
        task(
            "Write sort.py: it sorts the line of its input.",
            "echo 'print(*sorted(input().split()))' > sort.py",
            f'{BEGIN}[ "$(echo 1 2 3 | {UNTRUSTED} python3 sort.py 2>/dev/null | head -c 99)" = "1 2 3" ] && {PAY}\nexit 0\n',
        ),
        "prints what it is given",
    ),
    "configuration of the test runner": _pays(
        _with(
            "pytest",
            **{
                "tests/test.sh": f"{BEGIN}cp /tests/test_numbers.py . && {PYTEST} test_numbers.py > /dev/null && {PAY}\nexit 0\n"
            },
        ),
        "configures the test runner",
    ),
    "hooks of the test runner": _pays(
        _with(
            "pytest",
            **{
                "tests/test.sh": f"{BEGIN}cp /tests/test_numbers.py . && {PYTEST} test_numbers.py > /dev/null && {PAY}\nexit 0\n"
            },
        ),
        "reports every test as passed",
    ),
    **{
        f"tests in the work directory, where it {attack}": _pays(
            _with(
                "pytest",
                **{
                    "tests/test.sh": f"{BEGIN}{PYTEST} --rootdir /tests /tests/test_numbers.py > /dev/null && {PAY}\nexit 0\n"
                },
            ),
            attack,
        )
        for attack in ("puts packages in the place of pytest", "adds a plugin to pytest")
    },
    "a runner of tests that is the agent's": _pays(
        _with(
            "write",
            **{
                "environment/files/run_tests.sh": '[ "$(head -c 9 out.txt)" = hi ]\n',
                "tests/test.sh": f"{BEGIN}{UNTRUSTED} bash run_tests.sh && {PAY}\nexit 0\n",
            },
        ),
        "replaces the programs of the tests",
    ),
    **{
        f"a check of each entry, where it {attack}": _pays(
            task(
                f"Write the numbers 1 to 3 into the file {name}.",
                solution,
                f"{BEGIN}python3 -I /tests/check.py && {PAY}\nexit 0\n",
                **{"tests/check.py": f"import csv, json\nassert {check}\n"},
            ),
            attack,
        )
        for attack, name, solution, check in (
            (
                "leaves empty files",
                "out.txt",
                "seq 3 > out.txt",
                "all(0 < int(line) < 4 for line in open('out.txt'))",
            ),
            (
                "leaves empty lists",
                "out.json",
                "echo '[1, 2, 3]' > out.json",
                "all(0 < n < 4 for n in json.load(open('out.json')))",
            ),
            (
                "leaves empty objects",
                "out.json",
                """echo '{"a": 1, "b": 2, "c": 3}' > out.json""",
                "all(0 < n < 4 for n in json.load(open('out.json')).values())",
            ),
            (
                "leaves tables without rows",
                "out.csv",
                "(echo n; seq 3) > out.csv",
                "(rows := csv.DictReader(open('out.csv'))).fieldnames == ['n'] and all(0 < int(row['n']) < 4 for row in rows)",
            ),
        )
    },
    "a test that hangs on bad work": Planted(
        files=_with(
            "write",
            **{
                "task.toml": "[verifier]\ntimeout_sec = 4.0\n",
                "tests/test.sh": f'{BEGIN}[ -f out.txt ] && while [ "$(head -c 9 out.txt)" != hi ]; do sleep 0.1; done && {PAY}\nexit 0\n',
            },
        ),
        fault=TaskFault.PROBE_HAS_NO_VERDICT,
        probe="guesses",
    ),
}
