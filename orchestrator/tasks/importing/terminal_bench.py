"""Terminal tasks of the older form: task.yaml, run-tests.sh with tests/, solution.sh or solution.yaml, Dockerfile, docker-compose.yaml.

| older form | Harbor |
|---|---|
| `instruction`, or the description `base` | instruction.md |
| `max_agent_timeout_sec` (360), `max_test_timeout_sec` (60) | `[agent].timeout_sec`, `[verifier].timeout_sec` |
| category, difficulty, tags, author … | `[metadata]` |
| Dockerfile, and what lies next to it | environment/ |
| image, working_dir, environment of the compose file | `[environment]` docker_image, workdir, env |
| run-tests.sh, tests/ | tests/, with a test.sh that runs them; a copy if they edit themselves. Reward 1: exit status 0, a passed and no failed test |
| `parser_name: swebench` | reward 1: PASSED is the last result between that parser's lines |
| deploy.resources.limits of the compose file | `[environment]` cpus, memory_mb |
| solution.sh, or the commands of solution.yaml | solution/solve.sh |

Tests, solution and the `.git` of a repository that is the task do not become a part of the build's folder, where the older form has them.
"""

import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from datetime import date
from difflib import get_close_matches
from pathlib import Path, PurePosixPath
from typing import Any, Final

import tomlkit

from orchestrator.contracts.quote import quoted
from orchestrator.tasks.bundle import BundleLimits
from orchestrator.tasks.compose import document
from orchestrator.tasks.copies import copied, triggered
from orchestrator.tasks.dockerfile import logical_lines
from orchestrator.tasks.importing import compose
from orchestrator.tasks.importing.harbor import with_marks
from orchestrator.tasks.importing.report import Found
from orchestrator.tasks.keys import resembles
from orchestrator.tasks.last_stage import user_of
from orchestrator.tasks.read_directory import REPOSITORY
from orchestrator.tasks.traps.programs_of_tests import Language, Programs
from orchestrator.tasks.traps.rules import Rule
from orchestrator.tasks.traps.shell import shell_traps
from sandboxes.text_files import text_of

FILE: Final = "task.yaml"
RUN: Final = "run-tests.sh"
AGENT_S: Final = 360.0
TEST_S: Final = 60.0
MAX_TEXT_BYTES: Final = 1 << 20
_IGNORE: Final = ".dockerignore"
"""After the name of a Dockerfile: counts for its build alone."""
_SOLUTIONS: Final = ("solution.sh", "solution.yaml")
_HIDDEN: Final = (FILE, compose.FILE, RUN, *_SOLUTIONS, "tests", REPOSITORY)
"""Files that the build's folder does not get."""
_DESCRIPTIVE: Final = (
    "author_name",
    "author_email",
    "category",
    "difficulty",
    "tags",
    "estimated_duration_sec",
    "expert_time_estimate_min",
    "junior_time_estimate_min",
)
_READ: Final = (
    "instruction",
    "descriptions",
    "parser_name",
    "run_tests_in_same_shell",
    "test_scripts",
    "max_agent_timeout_sec",
    "max_test_timeout_sec",
)
_NO_EFFECT: Final = ("disable_asciinema",)
_SLIP: Final = 0.75
"""Minimum similarity (difflib's ratio) of an unknown key to one that is read: it may be meant."""
TEST_SCRIPT: Final = """\
#!/bin/bash
# The older form's verdict: the script must succeed, and pytest's summary must name a passed test and no failed one. Where a later command
# hides pytest's exit status, the summary alone tells that pytest has run. Logs of passed tests, above the summary, count only without a summary.
ran=$(mktemp) plain=$(mktemp)
export TEST_DIR=/tests
bash "$TEST_DIR/run-tests.sh" > "$ran" 2>&1
code=$?
tail -c 100000 "$ran"
mkdir -p /logs/verifier
sed $'s/\\e[[][0-9;]*[A-Za-z]//g' "$ran" > "$plain"
heading='^=+ short test summary info ='
last=$(grep -anE "$heading" "$plain" | tail -n 1 | cut -d : -f 1)
{ # each summary from its heading to the line that counts, and all that follows the last heading
  sed -nE "/$heading/,/^[= ]*([0-9]+ [a-z ]+, )*[0-9]+ [a-z ]+ in [0-9]/p" "$plain"
  tail -n "+${last:-1}" "$plain"
} > "$ran"
says() { # whether a line begins with the first argument, or counts tests with a word of the second
  # penstock-allow PT106: lines of pytest's own summary
  grep -aE "^($1) |^[= ]*([0-9]+ [a-z ]+, )*[1-9][0-9]* ($2)(, [0-9]+ [a-z ]+)* in [0-9]" "$ran" > /dev/null
}
if [ "$code" -ne 0 ] || says 'FAILED|ERROR' 'failed|errors?'; then
  echo 0 > /logs/verifier/reward.txt
elif says PASSED passed; then
  echo 1 > /logs/verifier/reward.txt
else
  echo "No summary of pytest names a passed test."
  echo 0 > /logs/verifier/reward.txt
fi
exit 0
"""
SWEBENCH_SCRIPT: Final = """\
#!/bin/bash
# The older form's verdict with parser_name: swebench: the last result between the parser's lines must be PASSED.
ran=$(mktemp)
export TEST_DIR=/tests
bash "$TEST_DIR/run-tests.sh" > "$ran" 2>&1
tail -c 100000 "$ran"
mkdir -p /logs/verifier
verdict= inside= found=
# The last line may end without a newline.
while IFS= read -r line || [ -n "$line" ]; do
  case $line in
    *"SWEBench results starts here"*) inside=1 found= ;;
    *"SWEBench results ends here"*) [ -n "$inside" ] && verdict=$found; inside= ;;
    *) [ -n "$inside" ] && found=$found${line//[[:space:]]/} ;;
  esac
done < "$ran"
if [ "$verdict" = PASSED ]; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
exit 0
"""
_IN_PLACE: Final = "export TEST_DIR=/tests\n"
_IN_A_COPY: Final = """\
# The older form lets tests edit their own files, and /tests is read-only: TEST_DIR is a copy. A program of the agent's that runs through
# $PENSTOCK_UNTRUSTED cannot reach it either. Owners are not kept: not each root may change them. The cp of BusyBox has no --preserve.
TEST_DIR=$(mktemp -d) || exit 1
cp -R --preserve=mode,timestamps,links /tests/. "$TEST_DIR" 2> /dev/null || cp -R /tests/. "$TEST_DIR" || exit 1
chmod -R u+w "$TEST_DIR" && chmod 700 "$TEST_DIR" || exit 1
export TEST_DIR
"""
_PARSERS: Final = {"pytest": TEST_SCRIPT, "swebench": SWEBENCH_SCRIPT}


def from_directory(directory: Path, limits: BundleLimits) -> Iterator[Found]:
    """The tasks of a directory, at any depth, and those to which its own links lead. ValueError if there are none."""
    if not directory.exists():
        raise ValueError(f"{directory} does not exist: give a directory of tasks")
    if not directory.is_dir():
        raise ValueError(f"{directory} is not a directory: unpack an archive first, and give its folder")
    found = with_marks(directory, (FILE,), linked=True)
    if not found:
        raise ValueError(f"{directory} holds no task: each is a folder with {FILE} and {RUN}")
    for each in found:
        yield _found(each, limits)


def _found(directory: Path, limits: BundleLimits) -> Found:
    return Found(
        name=directory.resolve().name,
        source=str(directory),
        write=lambda staging: _write(directory, staging, limits),
    )


def _write(directory: Path, staging: Path, limits: BundleLimits) -> None:
    task = document.mapping(_text(directory, FILE), FILE)
    instruction = _instruction(task)
    _check(task, directory.resolve().name)
    service = compose.Service()
    if (directory / compose.FILE).exists():
        service = compose.read_compose(_text(directory, compose.FILE))
    _copy_tests(directory, staging, _PARSERS[task.get("parser_name", "pytest")], limits)
    _write_solution(directory, staging)
    if service.image is None:
        _copy_context(directory, staging, service, limits)
    (staging / "instruction.md").write_text(instruction.rstrip("\n") + "\n", encoding="utf-8")
    (staging / "task.toml").write_text(_settings(task, directory.resolve().name, service), encoding="utf-8")


def _instruction(task: Mapping[str, Any]) -> str:
    found = task.get("instruction")
    descriptions = task.get("descriptions")
    if found is None and isinstance(descriptions, list):
        found = next(
            (
                each.get("description")
                for each in descriptions
                if isinstance(each, dict) and each.get("key") == "base"
            ),
            None,
        )
    if not isinstance(found, str):
        raise ValueError(f"{FILE}: instruction is missing, or not text")
    return found


def _check(task: Mapping[str, Any], name: str) -> None:
    """Refuse keys that would change agent or verdict and are not honoured. `name`: the folder's, which names the task."""
    parser = task.get("parser_name", "pytest")
    if not isinstance(parser, str) or parser not in _PARSERS:
        raise ValueError(
            f"{FILE}: parser_name = {quoted(parser)} is not honoured: only {' and '.join(_PARSERS)} are"
        )
    if task.get("run_tests_in_same_shell", False) is not False:
        raise ValueError(
            f"{FILE}: run_tests_in_same_shell is not honoured: the tests run in a fresh sandbox; write false if {RUN} needs "
            "neither variables nor the directory of the agent's shell"
        )
    if task.get("test_scripts"):
        raise ValueError(f"{FILE}: test_scripts is not honoured: write what they do into {RUN}")
    for key in _unread(task):
        if meant := get_close_matches(key, _READ, n=1, cutoff=_SLIP):
            raise ValueError(f"{FILE}: {quoted(key)} is not known: write {meant[0]}")
        if key == "name" and task[key] not in (None, name):
            raise ValueError(
                f"{FILE}: name = {quoted(task[key])} is not honoured: the folder {quoted(name)} names the task; rename it, or remove the key"
            )
        if (of_format := resembles(key)) is not None:
            raise ValueError(
                f"{FILE}: {quoted(key)} has no effect in the older form: remove it; "
                f"if {of_format} of task.toml is meant, write it there after the import"
            )
        if not _is_plain(task[key]):
            raise ValueError(f"{FILE}: {quoted(key)} is not known: remove it")


def _unread(task: Mapping[str, Any]) -> tuple[str, ...]:
    """Keys that the older form does not read."""
    return tuple(key for key in task if key not in (*_READ, *_DESCRIPTIVE, *_NO_EFFECT))


def _is_plain(value: Any) -> bool:
    """Whether it may be kept below [metadata], or is null: what the older form does not read describes a task."""
    inner = value if isinstance(value, list) else [value]
    return value is None or all(isinstance(each, bool | int | float | str | date) for each in inner)


def _settings(task: Mapping[str, Any], name: str, service: compose.Service) -> str:
    metadata: dict[str, Any] = {"name": name}
    for key in (*_DESCRIPTIVE, *_unread(task)):
        value = task.get(key)
        if not _is_plain(value):
            raise ValueError(f"{FILE}: {key} must be text, a number or a list of texts, got {quoted(value)}")
        if isinstance(value, list) and key in _DESCRIPTIVE:
            metadata[key] = [str(each) for each in value]
        elif value is not None:
            metadata[key] = value
    environment: dict[str, Any] = {}
    if service.image is not None:
        environment["docker_image"] = service.image
    if service.workdir is not None:
        environment["workdir"] = service.workdir
    if service.cpus is not None:
        environment["cpus"] = service.cpus
    if service.memory_mb is not None:
        environment["memory_mb"] = service.memory_mb
    if service.env:
        environment["env"] = dict(service.env)
    tables: dict[str, Any] = {
        "version": "1.0",
        "metadata": metadata,
        "agent": {"timeout_sec": _seconds(task, "max_agent_timeout_sec", AGENT_S)},
        "verifier": {"timeout_sec": _seconds(task, "max_test_timeout_sec", TEST_S)},
    }
    return tomlkit.dumps({**tables, "environment": environment} if environment else tables)


def _seconds(task: Mapping[str, Any], key: str, default: float) -> float:
    value = task.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{FILE}: {key} must be a number, got {quoted(value)}")
    return float(value)


def _copy_tests(directory: Path, staging: Path, script: str, limits: BundleLimits) -> None:
    (staging / "tests").mkdir()
    if (directory / "tests").is_dir():
        _copy_tree(directory / "tests", staging / "tests", directory, limits)
    for name in ("test.sh", RUN):
        if (staging / "tests" / name).exists():
            raise ValueError(f"tests/{name} has a name that the Harbor form needs: give it another one")
    _text(directory, RUN)
    shutil.copyfile(directory / RUN, staging / "tests" / RUN)
    if _edit_themselves(staging):
        script = in_a_copy(script)
    (staging / "tests" / "test.sh").write_text(script, encoding="utf-8")


def in_a_copy(script: str) -> str:
    """A test.sh that runs a copy of the tests, which they may edit."""
    return script.replace(_IN_PLACE, _IN_A_COPY)


def _edit_themselves(staging: Path) -> bool:
    """Whether a script of the tests writes below /tests or $TEST_DIR, as far as PT128 sees it."""
    files = [each for each in (staging / "tests").rglob("*") if each.is_file() and not each.is_symlink()]
    tests = {
        str(each.relative_to(staging)): each.read_bytes()
        for each in files
        if each.stat().st_size <= MAX_TEXT_BYTES
    }
    programs = Programs(tests)
    return any(
        trap.rule is Rule.READ_ONLY
        for path, body in tests.items()
        if programs.language(path) is Language.SHELL
        for trap in shell_traps(
            path, body.decode(errors="replace"), frozenset(), variables={"TEST_DIR": "/tests"}
        )
    )


def _write_solution(directory: Path, staging: Path) -> None:
    there = [name for name in _SOLUTIONS if (directory / name).exists()]
    if not there:
        return
    text = _text(directory, there[0])
    (staging / "solution").mkdir()
    script = text if there[0] == "solution.sh" else _script(text)
    (staging / "solution" / "solve.sh").write_text(script, encoding="utf-8")


def _script(text: str) -> str:
    """The commands of a solution.yaml, as typed into one shell."""
    found = document.document(text, "solution.yaml")
    if not isinstance(found, list):
        raise ValueError("solution.yaml must be a list of commands")
    lines = ["#!/bin/bash"]
    for number, each in enumerate(found, 1):
        if not isinstance(each, dict) or not isinstance(each.get("command"), str):
            raise ValueError(f"solution.yaml item {number} has no command")
        if each.get("append_enter", True) is not True:
            raise ValueError(
                f"solution.yaml item {number} types keys into a program (append_enter: false): write a solution.sh instead"
            )
        lines.append(each["command"])
    return "\n".join(lines) + "\n"


def _copy_context(directory: Path, staging: Path, service: compose.Service, limits: BundleLimits) -> None:
    """The build's folder without tests and solution. ValueError where the Dockerfile copies those."""
    context = directory / service.context
    if service.context and context.resolve() != directory.resolve() / service.context:
        raise ValueError(
            f"{compose.FILE}: build.context {quoted(service.context)} is a link: name the folder itself"
        )
    dockerfile = PurePosixPath(service.dockerfile or "Dockerfile")
    if not (context / dockerfile).is_file():
        raise ValueError(f"{PurePosixPath(service.context, dockerfile)} is missing: it makes the environment")
    hidden = () if service.context else _HIDDEN
    text = _text(context, str(dockerfile))
    _check_copies(text, hidden)
    if service.is_root and (user := user_of(text)):
        raise ValueError(
            f"{compose.FILE}: 'user' of the service is root, and its Dockerfile has USER {user}: remove one of them"
        )
    target = staging / "environment"
    target.mkdir()
    _copy_tree(context, target, directory, limits, without=hidden)
    if dockerfile.name != "Dockerfile" or len(dockerfile.parts) > 1:
        if (target / "Dockerfile").exists():
            raise ValueError(
                f"{compose.FILE}: build.dockerfile names {dockerfile}, next to another Dockerfile: remove that"
            )
        (target / dockerfile).rename(target / "Dockerfile")
        ignore, own = target / f"Dockerfile{_IGNORE}", target / f"{dockerfile}{_IGNORE}"
        ignore.unlink(missing_ok=True)  # of a Dockerfile that is not there
        if own.is_file():
            own.rename(ignore)


def _check_copies(dockerfile: str, hidden: tuple[str, ...]) -> None:
    for line, logical in logical_lines(dockerfile):
        found = copied(line, triggered(logical))
        for source in found.sources if found is not None else ():
            if (first := source.partition("/")[0]) in hidden:
                raise ValueError(
                    f"Dockerfile: {quoted(logical)} gives the agent {first}, which must stay hidden: remove it"
                )


def _copy_tree(
    source: Path, target: Path, root: Path, limits: BundleLimits, *, without: tuple[str, ...] = ()
) -> None:
    """Copy files, links and directories. ValueError for links out of `root`'s task, devices, and more than a task may have."""
    size = count = 0
    for place, folders, names in os.walk(source):
        here = Path(place).relative_to(source)
        if here == Path():
            folders[:] = [name for name in folders if name not in without]
            names = [name for name in names if name not in without]
        for name in [*folders, *names]:
            path, to = Path(place, name), target / here / name
            shown = path.relative_to(root)
            status = path.lstat()
            count += 1
            size += status.st_size
            if count > limits.entries:
                raise ValueError(f"it has more than {limits.entries:,} files, links and directories")
            if status.st_size > limits.file_bytes or size > limits.bytes:
                raise ValueError(
                    f"{shown} is too large: a file of a task has at most {limits.file_bytes >> 20} MB, all together {limits.bytes >> 20} MB"
                )
            if stat.S_ISLNK(status.st_mode):
                reached = path.resolve()
                if not reached.is_relative_to(source.resolve()):
                    raise ValueError(
                        f"{shown} is a link that leads out of its folder: put the file there instead"
                    )
                to.symlink_to(os.readlink(path))
            elif stat.S_ISDIR(status.st_mode):
                to.mkdir()
            elif stat.S_ISREG(status.st_mode):
                shutil.copy(path, to)
            else:
                raise ValueError(f"{shown} is neither a file nor a folder")


def _text(directory: Path, name: str) -> str:
    """A text file of the task itself."""
    path = directory / name
    if not path.resolve().is_relative_to(directory.resolve()):
        raise ValueError(f"{name} is a link that leads out of the task: put the file there instead")
    if not path.is_file():
        raise ValueError(f"{name} is missing")
    if path.stat().st_size > MAX_TEXT_BYTES:
        raise ValueError(f"{name} has more than {MAX_TEXT_BYTES:,} bytes")
    return text_of(path.read_bytes(), name)
