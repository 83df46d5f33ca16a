"""Random numbers that make a verdict differ from try to try are named, and those that repeat are not."""

import pytest

from orchestrator.tasks.harbor import Task
from orchestrator.tasks.traps import Rule, traps_of
from orchestrator.tasks.traps.python import python_traps
from orchestrator.tasks.traps.shell import shell_traps

SHELL = [
    ("n=$SRANDOM", "n=$RANDOM"),
    ("n=$((SRANDOM % 9))", "n=$((RANDOM % 9))"),
    ("head -c 8 /dev/urandom > /tmp/in", "head -c 8 /dev/zero > /tmp/in"),
    ("dd if=/dev/random of=/tmp/in bs=8 count=1", "dd if=/dev/zero of=/tmp/in bs=8 count=1"),
    ("n=$(od -An -N2 -tu2 < /dev/urandom)", "[ -e /dev/urandom ] && n=4"),
    ("shuf -n 5 /tests/words", 'shuf -n 5 --random-source=<(yes "$PENSTOCK_SEED") /tests/words'),
    ("sort -R /tests/words", "sort -r /tests/words"),
    ("sort --random-sort /tests/words", "sort --random-sort --random-source=/tests/bytes /tests/words"),
    ("id=$(uuidgen)", "id=$(uuidgen --sha1 --namespace @dns --name x)"),
    ("dir=/tmp/$(uuidgen -r)", "dir=$(mktemp -d)"),
    ("key=$(openssl rand -hex 8)", "key=$(openssl dgst -sha256 /tests/want)"),
    (
        "awk 'BEGIN { srand(); print rand() }'",
        "awk -v s=\"$PENSTOCK_SEED\" 'BEGIN { srand(s); print rand() }'",
    ),
    ("bash -c 'echo $SRANDOM'", "bash -c 'echo $RANDOM'"),
    (
        "python3 -I -c 'import random; print(random.random())'",
        "python3 -I -c 'import random; print(random.Random(4).random())'",
    ),
]
PYTHON = [
    ("import random\nn = random.randint(1, 9)",
     "import os, random\nrandom.seed(os.environ['PENSTOCK_SEED'])\nn = random.randint(1, 9)"),
    ("from random import choice as pick\npick('ab')", "from random import choice as pick, seed\nseed(7)\npick('ab')"),
    ("import random, time\nrandom.seed(time.time())\nrandom.random()", "import random\nrandom.seed(1)\nrandom.random()"),
    ("import random\nrandom.seed()\nrandom.shuffle([1, 2])", "import random\nrandom.seed(a=1)\nrandom.shuffle([1, 2])"),
    ("import random\nrng = random.Random()\nrng.random()",
     "import random, os\nrng = random.Random(os.environ['PENSTOCK_SEED'])\nrng.random()"),
    ("import random\nrandom.SystemRandom().random()", "class random:\n    pass\nrandom.random()"),
    ("import secrets\nsecrets.token_hex(8)", "import secrets\nsecrets.compare_digest('a', 'b')"),
    ("import uuid\nuuid.uuid4()", "import uuid\nuuid.uuid5(uuid.NAMESPACE_DNS, 'x')"),
    ("import os\nos.urandom(8)", "import tempfile\ntempfile.mkdtemp()"),
    ("import numpy as np\nnp.random.rand(3)", "import numpy as np\nnp.random.seed(3)\nnp.random.rand(3)"),
    ("import numpy as np\nnp.random.default_rng().normal()", "import numpy as np\nrng = np.random.default_rng(3)\nrng.normal()"),
    ("from numpy.random import default_rng\ndefault_rng(None)", "from numpy.random import default_rng\ndefault_rng(seed=3)"),
    ("from numpy.random import Generator, PCG64\nGenerator(PCG64())",
     "from numpy.random import Generator, PCG64\nGenerator(PCG64(3))"),
    ("import subprocess\nsubprocess.run(['shuf', '/tests/words'])", "import subprocess\nsubprocess.run(['sort', '/tests/words'])"),
]  # fmt: skip


@pytest.mark.parametrize(("draws", "repeats"), SHELL)
def test_a_draw_of_a_script_that_does_not_repeat_is_named_and_one_that_repeats_is_not(
    draws: str, repeats: str
) -> None:
    def of(text: str) -> list[Rule]:
        return [trap.rule for trap in shell_traps("tests/test.sh", text, frozenset())]

    assert (of(draws), of(repeats)) == ([Rule.DRAWS], [])


@pytest.mark.parametrize(("draws", "repeats"), PYTHON)
def test_a_draw_of_python_that_does_not_repeat_is_named_and_one_that_repeats_is_not(
    draws: str, repeats: str
) -> None:
    def of(text: str) -> list[Rule]:
        return [trap.rule for trap in python_traps("tests/check.py", text, frozenset())]

    assert (of(draws), of(repeats)) == ([Rule.DRAWS], [])


@pytest.mark.parametrize(("seed", "rules"), [("random.seed(5)", []), ("pass", [Rule.DRAWS])])
def test_a_seed_of_conftest_counts_for_the_other_files(seed: str, rules: list[Rule]) -> None:
    files = {
        "task.toml": "",
        "instruction.md": "x",
        "tests/test.sh": "cd /tests && python3 -I -m pytest test_it.py\n",
        "tests/conftest.py": f"import random\n\n\ndef pytest_runtest_setup(item):\n    {seed}\n",
        "tests/test_it.py": "import random\n\n\ndef test_it():\n    assert random.random() < 1\n",
    }
    task = Task.from_files({path: text.encode() for path, text in files.items()})
    assert [trap.rule for trap in traps_of(task)] == rules
