"""Tasks whose hidden tests or solution repeat much text that the agent may read, as those of real projects do."""

from collections.abc import Callable
from typing import Final

from ops.lab.task_set.small import BEGIN, PAY, Files, checks, env, task

CALC: Final = """\
def total(values):
    return sum(values)


def mean(values):
    return sum(values) / len(values)
"""
CALC_FIX: Final = (
    "sed -i 's|return sum(values) / len(values)|return sum(values) / len(values) if values else 0.0|' calc.py"
)
CALC_TEXT: Final = "calc.py: the mean of an empty list must be 0.0, and that of others stays. tests/ has the project's tests."
EVALUATE: Final = '''\
"""The text of an expression over calc, computed by a process of its own."""
import subprocess
import sys


def evaluate(expression):
    source = f"import sys; sys.path.insert(0, '/app'); import calc; print({expression})"
    run = [*sys.argv[1:], "python3", "-c", source]
    return subprocess.run(run, capture_output=True, text=True).stdout.strip()
'''
TOTALS: Final = (
    "from evaluate import evaluate\n\nCASES = [\n"
    + "".join(f"    ([{n}, {n * n}, {7 * n}], {n * n + 8 * n}),\n" for n in range(11, 99))
    + "]\n\n\ndef test_totals():\n    wanted = str([total for _, total in CASES])\n"
    "    assert evaluate(f'[calc.total(values) for values, _ in {CASES}]') == wanted\n"
)
MEANS: Final = """

def test_mean_of_an_empty_list():
    assert evaluate('calc.mean([])') == '0.0'


def test_mean_of_two_numbers():
    assert evaluate('calc.mean([2, 5])') == '3.5'
"""
RUN: Final = """\
import sys
from importlib import import_module
from pathlib import Path

sys.path.insert(0, '/tests')
for file in sorted(Path('/tests').glob('test_*.py')):
    module = import_module(file.stem)
    for name in dir(module):
        if name.startswith('test_'):
            getattr(module, name)()
"""
RUNS: Final = f'{BEGIN}if python3 -I /tests/run.py python3 -I "$PENSTOCK_UNTRUSTED" 5 2>/dev/null; then {PAY}; fi\nexit 0\n'
_SHOWN: Final = {env("calc.py"): CALC, env("tests/evaluate.py"): EVALUATE}
_HIDDEN: Final = {"tests/evaluate.py": EVALUATE, "tests/run.py": RUN}


def _extended() -> Files:
    """The hidden tests are a file of the project with two more tests."""
    shown = {**_SHOWN, env("tests/test_calc.py"): TOTALS}
    return task(CALC_TEXT, CALC_FIX, RUNS, **shown, **_HIDDEN, **{"tests/test_calc.py": TOTALS + MEANS})


def _repeated() -> Files:
    """The hidden tests are a file of the project as it is, and another one."""
    shown = {**_SHOWN, env("tests/test_total.py"): TOTALS}
    hidden = {
        "tests/test_total.py": TOTALS,
        "tests/test_mean.py": f"from evaluate import evaluate\n{MEANS}",
    }
    return task(CALC_TEXT, CALC_FIX, RUNS, **shown, **_HIDDEN, **hidden)


PATTERN: Final = """\
import argparse
import json


def parse_arguments():
    parser = argparse.ArgumentParser(description='a report on the inventory')
    parser.add_argument('--input', default='inventory.json')
    parser.add_argument('--output', default='report.json')
    return parser.parse_args()


def summarize(records):
    raise NotImplementedError


arguments = parse_arguments()
records = json.load(open(arguments.input))
json.dump(summarize(records), open(arguments.output, 'w'))
"""
REPORTER: Final = PATTERN.replace(
    "    raise NotImplementedError",
    "    totals = {}\n    for record in records:\n"
    "        totals[record['name']] = totals.get(record['name'], 0) + record['count']\n    return totals",
)


def _pattern() -> Files:
    """The solution writes a new file after the pattern of one that is there."""
    compares = "import json, sys\ntry:\n    got = json.load(open('report.json'))\nexcept (OSError, ValueError):\n    sys.exit(1)\n"
    return task(
        "Write report.py after the pattern of template.py: report.json has the sum of the counts of each name in inventory.json. Run it.",
        f"cat > report.py <<'END'\n{REPORTER}END\npython3 report.py\n",
        checks("[ ! -L report.json ] && python3 -I /tests/compare.py"),
        **{"tests/compare.py": f"{compares}sys.exit(got != {{'a': 5, 'b': 2}})\n"},
        **{env("template.py"): PATTERN},
        **{env("inventory.json"): '[{"name":"a","count":1},{"name":"b","count":2},{"name":"a","count":4}]\n'},
    )


ALIKE: Final[dict[str, Callable[[], Files]]] = {
    "extended-tests": _extended,
    "repeated-tests": _repeated,
    "pattern": _pattern,
}
