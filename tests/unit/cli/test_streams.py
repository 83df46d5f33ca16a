"""Standard streams of a command whose reader goes away, that were closed before it started, or that accept no more."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from orchestrator.deploy.home import write_template

pytestmark = pytest.mark.tier("look")

LINE = '{"event": "began", "level": "info", "timestamp": "2026-01-02T03:04:05.000000Z"}\n'
SPEAKS = """
import pathlib, sys
from orchestrator.runtime.streams import ends_with_reader, guard
guard()
if "ends" in sys.argv: ends_with_reader()
for n in range(9000):
    print("out", n, flush=n % 100 == 0)
    print("err", n, file=sys.stderr)
pathlib.Path(sys.argv[1]).write_text("done")
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    file = write_template(tmp_path / "first", "", "")
    file.write_text(file.read_text() + '\n[servers]\nurls = ["http://127.0.0.1:9"]\n')
    logs = tmp_path / "first" / ".penstock" / "logs"
    logs.mkdir(parents=True)
    (logs / "runner.log").write_text(LINE * 5000)
    return tmp_path / "first"


def shell(line: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A line of bash with `penstock` as a function, as a person types it."""
    penstock = f'penstock() {{ "{sys.executable}" -m orchestrator.cli "$@"; }}; '
    return subprocess.run(
        ["bash", "-c", penstock + line, "bash", *arguments],
        env={**os.environ, "PYTHONWARNINGS": "error"},
        capture_output=True,
        text=True,
        timeout=100,
    )


def python(code: str, line: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return shell(line, sys.executable, "-c", code, *arguments)


@pytest.mark.parametrize(
    "command",
    [["logs", "-n", "0", "--json"], ["logs", "--follow"]],
    ids=lambda command: " ".join(command),
)
def test_a_command_that_only_prints_ends_quietly_when_its_reader_has_enough(
    directory: Path, command: Sequence[str]
) -> None:
    done = shell('penstock "${@:2}" -c "$1" | head -1; echo ${PIPESTATUS[0]}', str(directory), *command)
    assert (done.stderr, done.stdout.splitlines()[-1]) == ("", "141")


def test_a_command_that_waits_for_more_notices_that_its_reader_has_gone_without_a_write() -> None:
    code = (
        "import sys, time\nfrom orchestrator.runtime import streams\nstreams.guard()\nstreams.ends_with_reader()\nprint('first', flush=True)\n"
        "try:\n    while True:\n        streams.check_reader()\n        time.sleep(0.02)\nexcept streams.ReaderGone:\n    sys.exit(7)\n"
    )
    done = python(code, '"$@" | head -1; echo ${PIPESTATUS[0]}')
    assert (done.stderr, done.stdout) == ("", "first\n7\n")


@pytest.mark.parametrize("command", [["config"], ["--help"]])
def test_a_short_command_into_a_closed_pipe_says_nothing_more(directory: Path, command: list[str]) -> None:
    where = ["-c", str(directory)] if command == ["config"] else []
    done = shell('penstock "$@" | true; echo ${PIPESTATUS[0]}', *command, *where)
    assert (done.stderr, done.stdout) == ("", "0\n")


def test_work_goes_on_to_its_end_without_a_reader(tmp_path: Path) -> None:
    file = tmp_path / "file"
    for line in ('"$@" | true', '"$@" 2>&1 | true', '{ "$@" 2>&1 >&3 | true; } 3>&1', '"$@" >&- 2>&-'):
        done = python(SPEAKS, f"{line}; echo ${{PIPESTATUS[0]}} > {file}.status", str(file))
        assert "Traceback" not in done.stderr and "BrokenPipe" not in done.stderr, done.stderr
        assert (file.read_text(), (tmp_path / "file.status").read_text()) == ("done", "0\n")
        file.unlink()


def test_a_command_that_ends_with_its_reader_does_no_more(tmp_path: Path) -> None:
    done = python(SPEAKS, '"$@" 2> /dev/null | true', str(tmp_path / "file"), "ends")
    assert not (tmp_path / "file").exists() and done.stdout == ""


@pytest.mark.parametrize("closed", [">&-", ">&- 2>&- <&-"])
def test_a_stream_that_was_closed_before_the_start_ends_nothing(directory: Path, closed: str) -> None:
    ended = shell(f'penstock config -c "$1" {closed}', str(directory))
    assert (ended.returncode, ended.stderr) == (0, "")
    refused = shell(f'penstock config -c "$1/nosuch" {closed}', str(directory))
    assert refused.returncode == 1 and "Traceback" not in refused.stderr
    assert shell(f'penstock status -c "$1" {closed}', str(directory)).returncode == 3


def test_a_closed_stream_gets_no_file_that_is_opened_later() -> None:
    code = "from orchestrator.runtime.streams import guard\nguard()\nimport os\nassert os.open('/dev/null', 0) > 2"
    assert python(code, '"$@" <&- >&- 2>&-').returncode == 0


def test_a_full_disk_behind_standard_output_is_one_sentence_and_behind_standard_error_nothing(
    directory: Path,
) -> None:
    done = shell('penstock config -c "$1" > /dev/full', str(directory))
    assert (done.returncode, done.stderr) == (
        1,
        "penstock: standard output takes no more: No space left on device\n",
    )
    # A few rows of CSV stay in the buffer until the end: no flush follows them, unlike what `typer.echo` prints.
    code = (
        "import sys\nfrom orchestrator.cli import main\nroot = sys.modules[main.__module__]\n"
        "root.app = lambda: sys.stdout.write('a,b')\nmain()\n"
    )
    done = python(code, '"$@" > /dev/full')
    assert (done.returncode, done.stderr) == (
        1,
        "penstock: standard output takes no more: No space left on device\n",
    )
    done = shell('penstock config -c "$1" 2> /dev/full > /dev/null', str(directory))
    assert done.returncode == 0
