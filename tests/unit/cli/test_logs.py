"""`penstock logs`: lines of all processes in one order, filtered, followed, harmless to a terminal."""

import json
import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from orchestrator.cli import log_lines
from orchestrator.cli.log_lines import Following, Wanted
from orchestrator.cli.main import app
from orchestrator.deploy.embedded.spawn import shorten_log
from orchestrator.deploy.home import write_template
from tests.guides import blocks


def entry(second: int, event: str, level: str = "info", **fields: object) -> str:
    at = f"2026-01-02T03:04:{second:02}.000000Z"
    return json.dumps({"event": event, "level": level, "timestamp": at, "run": "first", **fields}) + "\n"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    write_template(tmp_path, "first", "")
    logs = tmp_path / ".penstock" / "logs"
    logs.mkdir(parents=True)
    (logs / "runner.log").write_text(
        entry(1, "began", rollout=7)
        + entry(4, "ended", "warning", rollout=7, group=2, reason="a b\x1b[2J")
        + entry(3, "late", rollout=8)
    )
    (logs / "gateway.log").write_text(
        entry(2, "listening")
        + "Traceback (most recent call last):\n  File x\n"
        + entry(5, "lost", "error", exception="Trace\nback")
    )
    (logs / "nats.log").write_text(
        "[1] 2026/01/02 03:04:00.500000 [INF] Starting nats-server\n[1] 2026/01/02 03:04:06.500000 [ERR] no space\n"
    )
    (logs / "postgres.log").write_text(
        "2026-01-02 03:04:07.500 UTC [9] penstock@penstock ERROR:  deadlock detected\n"
    )
    return tmp_path


def logs(home: Path, *options: str) -> Result:
    return CliRunner().invoke(app, ["logs", "-c", str(home), *options])


def events(home: Path, *options: str) -> list[str]:
    done = logs(home, "--json", *options)
    assert done.exit_code == 0, done.exception
    return [json.loads(line)["event"].split("] ")[-1] for line in done.stdout.splitlines()]


EVERYTHING = [
    "Starting nats-server", "began", "listening", "Traceback (most recent call last):", "  File x", "ended", "late", "lost", "no space",
    "penstock@penstock ERROR:  deadlock detected",
]  # fmt: skip


def test_lines_of_all_processes_stand_in_the_order_of_their_times(home: Path) -> None:
    assert events(home) == EVERYTHING
    assert events(home, "-n", "2") == EVERYTHING[-2:]
    assert events(home, "-n", "0") == EVERYTHING


def test_filters_keep_the_requested_lines(home: Path) -> None:
    assert events(home, "--rollout", "7") == ["began", "ended"]
    assert events(home, "--group", "2") == ["ended"]
    assert events(home, "-p", "nats", "-p", "runner", "--level", "warning") == ["ended", "no space"]
    assert events(home, "--level", "error") == [*EVERYTHING[3:5], "lost", *EVERYTHING[-2:]]
    assert events(home, "--since", "2026-01-02T03:04:05") == EVERYTHING[-3:]
    assert events(home, "--text", "deadlock") == EVERYTHING[-1:]


def test_a_line_about_several_rollouts_or_groups_is_about_each(home: Path) -> None:
    trainer = home / ".penstock" / "logs" / "trainer.log"
    trainer.write_text(
        entry(8, "concluded", group=2, rollouts=[7, 8])
        + entry(9, "train_step.members", groups=[2, 3], rollouts=[7, 9])
        + entry(10, "filtered", groups=3)
    )
    assert events(home, "--rollout", "7") == ["began", "ended", "concluded", "train_step.members"]
    assert events(home, "--rollout", "8") == ["late", "concluded"]
    assert events(home, "--group", "2") == ["ended", "concluded", "train_step.members"]
    assert events(home, "--group", "3") == ["train_step.members"]


def test_both_commands_of_the_guide_follow_a_rollout_past_the_plain_text_of_the_services(home: Path) -> None:
    directory = home / ".penstock" / "logs"
    (directory / "runner.log").write_text(entry(1, "began", rollout=42) + entry(2, "other", rollout=7))
    (directory / "trainer.log").write_text(entry(8, "train_step.members", rollouts=[7, 42]) + "7\n")
    guide = "ops/guides/metrics-and-logs.md"
    ours, foreign = (block.text for block in blocks(guide) if "42" in block.text)
    program, command, _, _, *options = shlex.split(ours)
    assert (program, command) == ("penstock", "logs")
    assert events(home, *options) == ["began", "train_step.members"]
    if shutil.which("jq") is None:
        pytest.skip("jq is not on PATH")
    *arguments, pattern = shlex.split(foreign)
    assert pattern == "logs/*.log"
    files = sorted(map(str, directory.glob("*.log")))
    done = subprocess.run([*arguments, *files], capture_output=True, text=True, check=True)
    assert [json.loads(line)["event"] for line in done.stdout.splitlines()] == ["began", "train_step.members"]


def test_only_the_ends_of_long_files_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "trainer.log"
    path.write_text("".join(entry(n % 60, f"e{n}") for n in range(3000)))
    monkeypatch.setattr(log_lines, "_all", lambda *_: pytest.fail("it was read whole"))
    found = log_lines.newest({"trainer": path}, Wanted(), 700)
    assert [line.fields["event"] for line in found] == [f"e{n}" for n in range(2300, 3000)]


def test_lines_before_the_cut_of_a_long_log_are_read_and_counted(home: Path) -> None:
    log = home / ".penstock" / "logs" / "runner.log"
    assert shorten_log(log, 1)
    log.write_text(entry(8, "after the cut", rollout=7))
    assert events(home, "--rollout", "7") == ["began", "ended", "after the cut"]
    assert events(home, "-n", "0") == [*EVERYTHING, "after the cut"]
    assert events(home, "--since", "2026-01-02T03:04:04", "-p", "runner") == [
        "ended",
        "late",
        "after the cut",
    ]
    assert events(home, "-p", "runner") == ["began", "ended", "late", "after the cut"]
    assert events(home, "-p", "runner", "-n", "2") == ["late", "after the cut"]
    assert events(home, "-p", "runner", "-n", "1") == ["after the cut"]


def test_lines_before_a_cut_older_than_since_are_not_read(tmp_path: Path) -> None:
    log, earlier = tmp_path / "runner.log", tmp_path / "runner.log.1"
    log.write_text(entry(5, "new"))
    earlier.write_text(entry(4, "old"))
    written = log_lines.since("2026-01-02T03:04:04", 0.0)
    os.utime(earlier, (written, written))
    assert list(log_lines._all(log, written)) == [
        entry(4, "old").encode(),
        entry(5, "new").encode(),
    ]
    assert list(log_lines._all(log, written + 1)) == [entry(5, "new").encode()]


@pytest.mark.parametrize("copied", [0, 100, None])
def test_a_copy_of_a_log_that_is_not_cut_yet_doubles_no_line(home: Path, copied: int | None) -> None:
    log = home / ".penstock" / "logs" / "runner.log"
    log.with_name("runner.log.1").write_bytes(log.read_bytes()[:copied])
    assert events(home) == events(home, "-n", "0") == EVERYTHING


def test_lines_written_just_before_a_cut_are_followed(home: Path) -> None:
    directory = home / ".penstock" / "logs"
    log, following = directory / "runner.log", Following(directory, Wanted(processes=frozenset({"runner"})))
    with log.open("a") as file:
        file.write(entry(20, "just before"))
    assert shorten_log(log, 1)
    log.write_text(entry(21, "after"))
    assert [line.fields["event"] for line in following.more()] == ["just before", "after"]
    assert following.more() == []


def test_what_is_written_to_a_terminal_moves_no_cursor(home: Path) -> None:
    output = logs(home).stdout
    assert "\x1b" not in output and 'reason="a b\\u001b[2J"' in output
    assert "lost\nTrace\nback\n" in output
    assert output.startswith("2026-01-02 03:04:00.500Z nats           info ")


def test_what_cannot_be_shown_is_one_sentence(home: Path) -> None:
    for options, sentence in (
        (("-p", "missing"), "has no log of 'missing'"),
        (("--level", "loud"), "unknown level 'loud'; known: debug"),
        (("--since", "yesterday"), "'yesterday' is not a time: give 90s"),
    ):
        assert sentence in str(logs(home, *options).exception)


@pytest.mark.parametrize("options", [(), ("--json",), ("--level", "error")])
def test_without_any_log_the_reason_is_on_standard_error(options: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "penstock.toml").touch()
    done = logs(tmp_path, *options)
    assert (done.exit_code, done.stdout) == (0, "")
    assert (
        done.stderr
        == f"no log exists yet: no process of this run was started here ({tmp_path}/.penstock/logs)\n"
    )


def test_what_is_written_later_is_followed_also_by_processes_that_start_later(home: Path) -> None:
    directory = home / ".penstock" / "logs"
    following = Following(directory, Wanted(rollout=7))
    assert following.more() == []

    def seen() -> list[str]:
        return [line.fields["event"] for line in following.more()]

    with (directory / "runner.log").open("a") as file:
        file.write(
            entry(20, "more", rollout=7) + entry(21, "other", rollout=8) + '{"event": "torn", "rollout": 7, '
        )
    (directory / "verifier.log").write_text(entry(19, "verdict", rollout=7))
    assert seen() == ["verdict", "more"]
    with (directory / "runner.log").open("a") as file:
        file.write('"level": "info", "timestamp": "2026-01-02T03:04:30Z"}\n')
    assert seen() == ["torn"]
    (directory / "runner.log").write_text(entry(40, "restarted", rollout=7))
    assert seen() == ["restarted"] and seen() == []


@pytest.mark.parametrize(
    ("line", "level"),
    [
        ("the database system is starting up", "info"),
        ("the database system is shutting down", "info"),
        ("terminating connection due to administrator command", "info"),
        ("password authentication failed for user penstock", "critical"),
    ],
)
def test_what_postgresql_says_of_connections_whenever_it_starts_or_stops_is_not_a_warning(
    line: str, level: str
) -> None:
    raw = f"2026-01-02 03:04:07.500 UTC [9] penstock@penstock FATAL:  {line}\n"
    assert log_lines.read("postgres", raw.encode()).level == level
