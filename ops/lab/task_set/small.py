"""Small, well-made tasks of different kinds, each a few files."""

import base64
import gzip
import importlib.util
import io
import re
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import CodeType
from typing import Final

WORD: Final = "word-7c41d09be2f8"
KEY: Final = "sk-93fe02ab71c4d8"
BEGIN: Final = "mkdir -p /logs/verifier; echo 0 > /logs/verifier/reward.txt\n"
PAY: Final = "echo 1 > /logs/verifier/reward.txt"
UNTRUSTED: Final = 'python3 -I "$PENSTOCK_UNTRUSTED" 5'

Files = dict[str, bytes]


def task(
    instruction: str, solution: str | None, tests: str, *, toml: str | bytes = "", **more: str | bytes
) -> Files:
    """The files of a task. `more`: further files by path."""
    files: dict[str, str | bytes] = {"task.toml": toml, "instruction.md": instruction, "tests/test.sh": tests}
    files |= more
    if solution is not None:
        files["solution/solve.sh"] = solution
    return {path: body if isinstance(body, bytes) else body.encode() for path, body in files.items()}


def checks(condition: str) -> str:
    return f"{BEGIN}if {condition}; then {PAY}; fi\nexit 0\n"


def env(path: str) -> str:
    return f"environment/files/{path}"


SAME: Final = '[ -f {0} ] && [ ! -L {0} ] && [ "$(head -c 1000 {0})" = "{1}" ]'


def pyc(code: CodeType) -> bytes:
    """A compiled module, unchecked against its source."""
    made = bytes(importlib._bootstrap_external._code_to_hash_pyc(code, bytes(8), False))  # type: ignore[attr-defined]
    return made


def vendored() -> Files:
    """pytest and what it imports, as one archive of the tests: the sandbox's own Python has none. Compiled as well, which saves a second a run."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments", "py"):
            spec = importlib.util.find_spec(name)
            assert spec is not None and spec.origin is not None
            root = Path(spec.origin).parent if spec.submodule_search_locations else Path(spec.origin)
            for path in sorted(root.rglob("*.py")) if root.is_dir() else [root]:
                inside = path.relative_to(root.parent).as_posix()
                if not re.match(r"pygments/(lexers|styles)/(?!_|python|diff|special|default)", inside):
                    archive.writestr(zipfile.ZipInfo(inside), path.read_bytes(), zipfile.ZIP_DEFLATED)
                    compiled = pyc(compile(path.read_bytes(), inside, "exec"))
                    archive.writestr(zipfile.ZipInfo(f"{inside}c"), compiled, zipfile.ZIP_DEFLATED)
    return {"tests/vendor.zip": out.getvalue()}


PYTEST: Final = (
    "PYTHONPATH=/tests/vendor.zip PYTHONDONTWRITEBYTECODE=1 python3 -m pytest -q -p no:cacheprovider"
)

BUGGY: Final = """\
def mean(values):
    total = sum(values)
    return total / (len(values) + 1)


def spread(values):
    return max(values) - min(values)
"""
FIXED_LINE: Final = "    return total / max(len(values), 1)  # an empty list has mean 0"
FIXED: Final = BUGGY.replace("    return total / (len(values) + 1)", FIXED_LINE)
FIX: Final = f"cat > stats.py <<'END'\n{FIXED}END\n"
CASES: Final = """\
import subprocess, sys
calls = "stats.mean([2, 4]), stats.mean([]), stats.spread([1, 5])"
source = f"import sys; sys.path.insert(0, '/app'); import stats; print({calls})"
run = ["python3", "-I", sys.argv[1], "5", "python3", "-c", source]
out = subprocess.run(run, capture_output=True, text=True).stdout
sys.exit(out.split() != ["3.0", "0.0", "4"])
"""
FIX_TESTS: Final = f'{BEGIN}if python3 -I /tests/cases.py "$PENSTOCK_UNTRUSTED"; then {PAY}; fi\nexit 0\n'
FIX_TEXT: Final = "stats.py: mean divides by one too many; the mean of an empty list is 0. Fix it."
ADD_TESTS: Final = (
    f"{BEGIN}a=$((PENSTOCK_SEED % 97 + 3)) b=41\n"
    f'got=$(echo $a $b | {UNTRUSTED} python3 total.py 2>/dev/null | head -c 100)\n[ "$got" = "$((a + b))" ] && {PAY}\nexit 0\n'
)
ADD_TEXT: Final = "Write total.py: it reads two numbers from its input and prints their sum."
ADD: Final = "echo 'a, b = input().split(); print(int(a) + int(b))' > total.py"
SALES: Final = "".join(
    f"{city},{n * 7 % 23}\n" for n, city in enumerate(["oslo", "rome", "oslo", "lima", "rome", "oslo"])
)
REPORT: Final = """\
import csv, json, sys
want = {}
for city, n in csv.reader(open('/tests/sales.csv')):
    want[city] = want.get(city, 0) + int(n)
try:
    got = json.load(open('report.json'))
except (OSError, ValueError):
    sys.exit(1)
sys.exit(got != want)
"""

WELL_MADE: Final[dict[str, Files]] = {
    "write": task(
        "Write the word hi into the file out.txt.", "echo hi > out.txt", checks(SAME.format("out.txt", "hi"))
    ),
    "find": task(
        "One of the files in conf/ holds an API key. Write it into key.txt.",
        "grep -rhoE 'sk-[0-9a-f]+' conf > key.txt",
        checks(SAME.format("key.txt", KEY)),
        **{
            env("conf/a.ini"): "[a]\nport = 80\n",
            env("conf/b.ini"): f"[b]\ntoken = {KEY}\n",
            env("conf/c.ini"): "[c]\n",
        },
    ),
    "decode": task(
        "Decode message.b64 into message.txt.",
        "base64 -d message.b64 > message.txt",
        checks(SAME.format("message.txt", f"the pass phrase is {WORD}")),
        **{env("message.b64"): base64.b64encode(f"the pass phrase is {WORD}\n".encode())},
    ),
    "unpack": task(
        "How many lines of log.gz hold the word error? Answer with the number.",
        "gzip -dc log.gz | grep -c error",
        checks('[ "$(head -c 100 "$PENSTOCK_ANSWER")" = 3 ]'),
        **{env("log.gz"): gzip.compress(b"error a\nok\nerror b\nfine\nerror c\n", mtime=0)},
    ),
    "fix": task(FIX_TEXT, FIX, FIX_TESTS, **{env("stats.py"): BUGGY, "tests/cases.py": CASES}),
    "program": task(ADD_TEXT, ADD, ADD_TESTS),
    "report": task(
        "sales.csv has a city and a number in each line. Write report.json: a JSON object with the sum of each city.",
        'awk -F, \'{s[$1]+=$2} END{printf "{"; for (c in s) {printf "%s\\"%s\\": %d", x, c, s[c]; x=", "} print "}"}\' sales.csv > report.json',
        f"{BEGIN}if python3 -I /tests/report.py; then {PAY}; fi\nexit 0\n",
        **{env("sales.csv"): SALES, "tests/sales.csv": SALES, "tests/report.py": REPORT},
    ),
    "rename": task(
        "Rename every .log file in var/ to end in .old.",
        'for f in var/*.log; do mv "$f" "${f%.log}.old"; done',
        checks(
            "[ ! -e var/a.log ] && [ ! -e var/b.log ] && [ -f var/a.old ] && [ -f var/b.old ]"
            ' && [ "$(head -c 100 var/b.old)" = two ] && [ -f var/c.txt ]'
        ),
        **{env("var/a.log"): "one\n", env("var/b.log"): "two\n", env("var/c.txt"): "three\n"},
    ),
    "variable": task(
        "Write the value of the variable SERVICE_TOKEN into the file token.",
        'echo "$SERVICE_TOKEN" > token',
        checks(SAME.format("token", KEY)),
        toml=f'[environment]\nenv = {{ SERVICE_TOKEN = "{KEY}" }}\n',
    ),
    "shares": task(
        "Write a into the file a, and b into the file b. Each is half of the reward; c is not possible.",
        "echo a > a; echo b > b",
        f'{BEGIN}n=0\nfor x in a b c; do [ -f $x ] && [ ! -L $x ] && [ "$(head -c 9 $x)" = $x ] && n=$((n + 1)); done\n'
        '[ $n -gt 0 ] && echo "{\\"reward\\": 0.$((n * 4)), \\"parts\\": $n}" > /logs/verifier/reward.json && rm /logs/verifier/reward.txt\nexit 0\n',
        toml="[metadata]\nmax_reward = 0.8\n",
    ),
    "pytest": task(
        "Write the numbers 1 to 5 into numbers.txt, one per line.",
        "seq 5 > numbers.txt",
        f"{BEGIN}cd /tests && {PYTEST} -c /tests/pytest.ini --rootdir /tests test_numbers.py > /dev/null && {PAY}\nexit 0\n",
        **{
            "tests/pytest.ini": "[pytest]\n",
            "tests/test_numbers.py": "def lines():\n    return open('/app/numbers.txt').read().split()\n\n\n"
            "def test_five():\n    assert len(lines()) == 5\n\n\ndef test_order():\n    assert lines() == ['1', '2', '3', '4', '5']\n",
        },
    )
    | vendored(),
}

SMALL_TASKS: Final[dict[str, Callable[[], Files]]] = {
    name: partial(dict, files) for name, files in WELL_MADE.items()
}
