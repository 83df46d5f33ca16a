"""Small task sets of every form that `penstock tasks import` reads, written into a directory."""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HARBOR: Mapping[str, str] = {
    "task.toml": 'version = "1.0"\n[metadata]\nname = "word"\ncategory = "files"\n',
    "instruction.md": "Write the word hi into the file out.txt.\n",
    "environment/files/hint.txt": "in lower case\n",
    "tests/test.sh": '[ "$(head -c 100 out.txt)" = hi ] && score=1 || score=0\necho $score > /logs/verifier/reward.txt\n',
    "solution/solve.sh": "echo hi > out.txt\n",
}

TERMINAL_BENCH: Mapping[str, str] = {
    "task.yaml": """\
instruction: |-
  Add the two numbers of numbers.txt, and write the sum into sum.txt.
author_name: A. Person
difficulty: easy
category: data
tags: [numbers]
parser_name: pytest
max_agent_timeout_sec: 300.0
max_test_timeout_sec: 45.0
""",
    "docker-compose.yaml": """\
services:
  client:
    build:
      dockerfile: Dockerfile
    image: ${T_BENCH_TASK_DOCKER_CLIENT_IMAGE_NAME}
    container_name: ${T_BENCH_TASK_DOCKER_CLIENT_CONTAINER_NAME}
    command: ["sh", "-c", "sleep infinity"]
    environment:
      - TEST_DIR=${T_BENCH_TEST_DIR}
      - UNIT=apples
    volumes:
      - ${T_BENCH_TASK_LOGS_PATH}:${T_BENCH_CONTAINER_LOGS_PATH}
""",
    "Dockerfile": "FROM python:3.11\nWORKDIR /app\nCOPY numbers.txt /app/numbers.txt\n",
    "numbers.txt": "20\n22\n",
    # A test without pytest: prints pytest's summary.
    "run-tests.sh": "#!/bin/bash\n[ -f $TEST_DIR/want ] && cmp -s $TEST_DIR/want /app/sum.txt && echo PASSED sum\n",
    "tests/want": "42\n",
    "solution.yaml": "- command: echo $((20 + 22)) > sum.txt\n  min_timeout_sec: 1.0\n",
}

CALCULATOR: Mapping[str, str] = {
    "calc.py": "def add(a, b):\n    return a - b\n# and\ndef twice(a):\n    return 2 * a\n",
    "README": "A calculator.\n",
    "test_calc.py": "import calc\n# tests\ndef test_twice():\n    assert calc.twice(4) == 8\n",
    # A test command without pytest: prints pytest's summary.
    "check.py": """\
import importlib, sys
sys.path.insert(0, ".")
for file in sys.argv[1:]:
    module = importlib.import_module(file[:-3])
    for name in sorted(dir(module)):
        if name.startswith("test_"):
            try:
                getattr(module, name)()
            except Exception as error:
                print(f"FAILED {file}::{name} - {error!r}")
            else:
                print(f"PASSED {file}::{name}")
""",
}
CHECK = "python3 check.py {files}"
FIX = """\
diff --git a/calc.py b/calc.py
--- a/calc.py
+++ b/calc.py
@@ -1,4 +1,4 @@
 def add(a, b):
-    return a - b
+    return a + b
 # and
 def twice(a):
"""
TESTS = """\
diff --git a/test_calc.py b/test_calc.py
--- a/test_calc.py
+++ b/test_calc.py
@@ -2,3 +2,5 @@
 # tests
 def test_twice():
     assert calc.twice(4) == 8
+def test_add():
+    assert calc.add(20, 22) == 42
"""
FAULT = """\
diff --git a/calc.py b/calc.py
--- a/calc.py
+++ b/calc.py
@@ -3,3 +3,3 @@
 # and
 def twice(a):
-    return 2 * a
+    return 3 * a
"""


def write(directory: Path, files: Mapping[str, str | bytes]) -> Path:
    """Write files below a directory; returns it."""
    for path, body in files.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_bytes(body if isinstance(body, bytes) else body.encode())
    return directory


def git(directory: Path, *words: str) -> str:
    """Run git in a directory, as a person."""
    identity = ("-c", "user.name=A. Person", "-c", "user.email=person@example.org")
    done = subprocess.run(
        ["git", *identity, *words], cwd=directory, check=True, capture_output=True, text=True, timeout=60
    )
    return done.stdout.strip()


def committed(directory: Path) -> str:
    """Make a directory a git repository with one commit; returns that."""
    git(directory, "init", "-q", "--initial-branch=main")
    git(directory, "add", "-A")
    git(directory, "commit", "-q", "-m", "first")
    return git(directory, "rev-parse", "HEAD")


def row(commit: str, **more: Any) -> dict[str, Any]:
    """A row of SWE-bench about the calculator; None removes a column."""
    found = {
        "instance_id": "people__calculator-7",
        "repo": "people/calculator",
        "base_commit": commit,
        "patch": FIX,
        "test_patch": TESTS,
        "problem_statement": "add() subtracts.",
        "FAIL_TO_PASS": '["test_calc.py::test_add"]',
        "PASS_TO_PASS": ["test_calc.py::test_twice"],
        **more,
    }
    return {key: value for key, value in found.items() if value is not None}


def smith(commit: str, **more: Any) -> dict[str, Any]:
    """A row of SWE-smith about the calculator."""
    return row(
        commit,
        instance_id="smith-1",
        repo=f"swesmith/people__calculator.{commit[:8]}",
        base_commit=None,
        test_patch=None,
        patch=FAULT,
        FAIL_TO_PASS=["test_calc.py::test_twice"],
        PASS_TO_PASS=[],
        image_name="swesmith.x86_64.calculator",
        **more,
    )


def rows(file: Path, *found: dict[str, Any] | str) -> Path:
    """A file of JSON lines."""
    file.write_text("".join(f"{each if isinstance(each, str) else json.dumps(each)}\n" for each in found))
    return file
