"""The scripts of a task that was a row of SWE-bench or a relative."""

import json
import posixpath
import re
import shlex
from collections.abc import Sequence
from typing import Final

from orchestrator.tasks.importing import swe_base
from orchestrator.tasks.importing.swe_commands import filled, without_places

PATCH: Final = "test.patch"
_CONDA: Final = "if [ -f /opt/miniconda3/bin/activate ]; then . /opt/miniconda3/bin/activate testbed; fi\n"
_WORD: Final = re.compile(r"[\w.+@/-]+")
_DIRECTORY: Final = re.compile(r"\bcd\s+([\w.+@/-]+)")
_MODULE: Final = re.compile(r"(?:^|\s)(?:-[mp]|--settings)[=\s]\s*([\w.]+)")
_CASE: Final = re.compile(r"\S+ \(([\w.]+)\)")
"""A test's name in the form of unittest: `test_add (package.module.Class)`."""
_RESERVE_S: Final = 30
"""Seconds of the verifier's time that the tests' program is not given."""

_HEAD: Final = """\
#!/bin/bash
# The hidden tests replace those of the repository, then run as the agent's own programs would; grade.py reads what they print.
held() {
  if [ -n "${PENSTOCK_UNTRUSTED:-}" ]; then python3 -I "$PENSTOCK_UNTRUSTED" "$@"; else shift; "$@"; fi
}
lost() {
  mkdir -p /logs/verifier
  echo 0 > /logs/verifier/reward.txt
  exit 0
}
mkdir -p /logs/verifier
held 60 true || exit 1 # no verdict where nothing can run; from here on, what fails is the agent's doing
"""
_RESTORE: Final = f"""\
made=$(mktemp -d)
place() {{ # the files of a directory, whatever the agent left there; with an empty $2 links as links
  tar -C "$1" "-c${{2-h}}f" - . | held 120 tar -xf - --no-overwrite-dir --no-same-owner
  [ "${{PIPESTATUS[1]}}" -eq 0 ] || lost
}}
python3 -I -X utf8 /tests/{swe_base.SCRIPT} "$made" || lost
mapfile -d '' -t removed < "$made/removed"
[ ${{#removed[@]}} -eq 0 ] || held 60 rm -rf -- "${{removed[@]}}" || lost
place "$made/links" ''
"""
_FILES: Final = """\
place "$made/files"
place /tests/files
"""
_GIT: Final = "command -v git > /dev/null || exit 1\n"
_PATCH: Final = f"""\
( # apart from the agent's repository, whose settings and filters would count
  cd "$made/files" || exit
  export HOME="$made" XDG_CONFIG_HOME="$made" GIT_CEILING_DIRECTORIES="$made" GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null
  git apply --whitespace=nowarn /tests/{PATCH}
) || exit 1
place "$made/files"
"""
_RUN: Final = """\
ran=$(mktemp)
held {seconds} bash -c {command} > "$ran" 2>&1
tail -c 20000 "$ran"
python3 -I /tests/grade.py "$ran"
exit 0
"""

GRADE: Final = '''\
"""The verdict: every named test has passed. Reads pytest's short summary, the lines of a verbose unittest, and those of sympy's runner."""

import json
import re
import sys

PASSED, FAILED = ("PASSED", "XFAIL"), ("FAILED", "ERROR", "XPASS")
GOOD, BAD = ("ok", "expected failure"), ("FAIL", "ERROR", "unexpected success")
LINE = re.compile(r"(.+?) \\.\\.\\. (ok|FAIL|ERROR|expected failure|unexpected success)$")
OPEN = re.compile(r"(.+?) \\.\\.\\.( .*)?$")  # its result comes after what the test prints
NEXT = re.compile(r".* \\.\\.\\. (\\S+ \\([\\w.]+\\))(?: \\.\\.\\.|$)")  # on the line of a test whose subtest failed, which ends without a result
SKIPPED = re.compile(r"skipped [\\x22\\x27]")
HEADING = re.compile(r"(?:FAIL|ERROR|UNEXPECTED SUCCESS): (\\S+ \\([\\w.]+\\))")
SYMPY = re.compile(r"(test_\\S*) (ok|f|F|E|X)(?: +\\[(?:OK|FAIL)\\])?$")
SYMPY_FILE = re.compile(r"\\S+\\.py\\[\\d+\\]")  # the first line of a file's tests
SYMPY_TEST = re.compile(r"(test_\\w+)(?: (.*))?$")  # it may print before its result, on this line and further ones
SYMPY_RESULT = re.compile(r"(?:.* )?(ok|f|F|E|X)(?: +\\[(?:OK|FAIL)\\])?$")
SYMPY_HEADING = re.compile(r"_+ \\S+\\.py:(test_\\w+) _+$")
COLOUR = re.compile(r"\\x1b\\[[0-9;]*m")


def results(text):
    """Name of a test -> whether it passed. A name with spaces is also known by its first word."""
    found = {}
    test = None
    failed = False  # the line before is the heading of a failure: this one may be the test's docstring
    lines = [line.strip() for line in COLOUR.sub("", text).splitlines()]
    for line in lines:
        word, _, rest = line.partition(" ")
        match = LINE.match(line)
        started, heading, sympy = OPEN.match(line), HEADING.match(line), SYMPY.match(line)
        after = NEXT.match(line)
        if failed:
            add(found, line, False)
        failed = bool(heading)
        if word in PASSED and rest:
            add(found, rest, True)
            add(found, rest.split(" - ")[0], True)
        elif word in FAILED and rest:
            add(found, rest, False)
            add(found, rest.split(" - ")[0], False)
        elif match:
            add(found, match.group(1), match.group(2) in GOOD)
            if after:
                add(found, after.group(1), match.group(2) in GOOD)
            test = None
        elif heading:
            add(found, heading.group(1), False)
        elif sympy:
            add(found, sympy.group(1), sympy.group(2) in ("ok", "f"))
        elif started:
            test = None if (started.group(2) or "").startswith(" skipped") else (after or started).group(1)
        elif test and line in GOOD + BAD:
            add(found, test, line in GOOD)
        elif SKIPPED.match(line):
            test = None
    add_sympy(found, lines)
    return found


def add_sympy(found, lines):
    """The results of sympy's runner, if it has printed the name of a file. A test stays open until the next: it may print words like a result."""
    test, files = None, False
    for line in lines:
        begins, heading = SYMPY_TEST.match(line), SYMPY_HEADING.match(line)
        files = files or bool(SYMPY_FILE.match(line))
        if not files or SYMPY_FILE.match(line):
            test = None
        elif heading:
            add(found, heading.group(1), False)
        elif begins:
            test = begins.group(1)
            result = SYMPY_RESULT.match(begins.group(2) or "")
            if result:
                add(found, test, result.group(1) in ("ok", "f"))
        elif test:
            result = SYMPY_RESULT.match(line)
            if result and line.startswith(result.group(1)):
                add(found, test, result.group(1) in ("ok", "f"))


def add(found, name, passed):
    for key in {name, name.split(" ")[0] if "::" in name else name}:
        found[key] = found.get(key, True) and passed


def main():
    with open("/tests/expected.json", encoding="utf-8") as file:
        expected = json.load(file)
    with open(sys.argv[1], encoding="utf-8", errors="replace") as file:
        found = results(file.read())
    rows = [
        {"name": name[:200], "passed": found.get(name, False), "message": "" if name in found else "it did not run"}
        for name in expected
    ]
    with open("/logs/verifier/results.json", "w", encoding="utf-8") as file:
        json.dump(sorted(rows, key=lambda row: row["passed"])[:1000], file)
    with open("/logs/verifier/reward.txt", "w", encoding="utf-8") as file:
        file.write("1" if all(row["passed"] for row in rows) else "0")


main()
'''

SOLVE: Final = """\
#!/bin/bash
here=$(dirname "${BASH_SOURCE[0]}")
if command -v git > /dev/null; then
  git -c safe.directory='*' apply --whitespace=nowarn "$here/fix.patch"
else
  patch -p1 < "$here/fix.patch"
fi
"""


def with_files(command: str, files: Sequence[str], seconds: float) -> str:
    """test.sh for an environment of files: /tests/files has the tests' files, `swe_base` those that configure them."""
    return _HEAD + _RESTORE + _FILES + _run(command, files, seconds)


def with_patch(command: str, files: Sequence[str], seconds: float) -> str:
    """test.sh for an image with a git repository: the files that `swe_base.given` names are those of the commit again, then the patch is applied."""
    return _HEAD + _GIT + _RESTORE + _PATCH + _run(command, files, seconds)


def expected(names: Sequence[str]) -> str:
    """expected.json."""
    return json.dumps(list(names), indent=1) + "\n"


def programs(command: str, names: Sequence[str], workdir: str) -> list[str]:
    """Paths below `workdir` where the programs and modules that a test command names may lie, and the modules of tests named in unittest's form.
    Most of them do not exist."""
    words = _WORD.findall(without_places(command))
    places = dict.fromkeys(["", *_DIRECTORY.findall(command), *map(posixpath.dirname, words)])
    for module in _MODULE.findall(command):
        path = module.replace(".", "/")
        words += [f"{path}.py", f"{path}/__main__.py"]
    for case in dict.fromkeys(found[1] for found in map(_CASE.fullmatch, names) if found):
        parts = case.split(".")
        words += ["/".join(parts[:length]) + ".py" for length in range(1, len(parts) + 1)]
    found = (
        posixpath.relpath(posixpath.join(workdir, place, word), workdir)
        for word in dict.fromkeys(words)
        for place in places
    )
    return [path for path in dict.fromkeys(found) if path.split("/")[0] not in (".", "..", ".git")]


def _run(command: str, files: Sequence[str], seconds: float) -> str:
    return _RUN.format(
        seconds=max(10, int(seconds) - _RESERVE_S), command=shlex.quote(_CONDA + filled(command, files))
    )
