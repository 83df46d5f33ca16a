"""Content that a log line must never show, and that logging never raises."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from orchestrator.cli.main import main
from orchestrator.contracts.choices import LogLevel
from orchestrator.contracts.quote import quoted
from orchestrator.gateway.sessions.session import new_token
from orchestrator.runtime import log
from tests.unit.bus.test_journal import files_end_at


@pytest.mark.parametrize("as_json", [True, False])
def test_the_middle_of_a_long_value_and_of_a_long_traceback_is_left_out(
    as_json: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    before = structlog.get_config()
    try:
        log.configure("test", json=as_json)
        logger = log.get("test")
        logger.error("a", error=f"first{'x' * 1_000_000}last", n=7)
        try:
            raise ValueError(f"first{'y' * 1_000_000}last")
        except ValueError:
            logger.exception("b")
    finally:
        structlog.configure(**before)
        structlog.contextvars.clear_contextvars()
    output = capfd.readouterr().err
    assert len(output) < 3 * log.LONGEST and output.count("characters left out]") == 2
    assert output.count("first") >= 2 and output.count("last") >= 2 and "Traceback" in output


@pytest.mark.parametrize("as_json", [True, False])
def test_tokens_keys_and_passwords_are_cut_out_of_every_line_and_of_tracebacks(
    as_json: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    token = new_token()
    before = structlog.get_config()
    try:
        log.configure("test", json=as_json)
        logger = log.get("test")
        logger.error("a", url=f"http://127.0.0.1/s/{token}/v1", headers={"Authorization": f"Bearer {token}"})
        try:
            raise ValueError(f"cannot connect to postgresql://penstock:{token}@127.0.0.1:5432/penstock")
        except ValueError:
            logger.exception("b")
    finally:
        structlog.configure(**before)
        structlog.contextvars.clear_contextvars()
    output = capfd.readouterr().err
    assert token not in output and output.count("***") >= 3 and "127.0.0.1:5432/penstock" in output


def test_a_process_without_a_log_of_its_own_shows_plain_tracebacks_without_locals_and_secrets(
    capsys: pytest.CaptureFixture[str],
) -> None:
    token = new_token()
    before = structlog.get_config()
    structlog.reset_defaults()
    try:
        with log.quiet():
            try:
                raise ValueError(f"no answer at http://127.0.0.1/s/{token}/v1")
            except ValueError:
                log.get("test").exception("b")
    finally:
        structlog.configure(**before)
    output = capsys.readouterr().out
    assert "ValueError: no answer at http://127.0.0.1/s/***/v1" in output
    assert token not in output and len(output.splitlines()) < 10


def test_a_text_without_secrets_stays_as_it_is() -> None:
    line = "http://127.0.0.1:30000/generate s/ab Bearer x /s/ (16:20:01) a@b c://d"
    assert log.redact(line) == line


@pytest.fixture
def configured() -> Iterator[None]:
    """Restores the log afterwards."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)
    structlog.contextvars.clear_contextvars()


@pytest.mark.usefixtures("configured")
def test_a_full_disk_costs_lines_raises_nothing_and_their_number_is_logged_once_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "runner.log"
    with place.open("a") as file:
        monkeypatch.setattr(sys, "stderr", file)
        log.configure("runner", json=True)
        logger = log.get("test")
        logger.info("first")
        with files_end_at(place.stat().st_size + 20):  # the next line is torn, those behind it are lost
            for _ in range(3):
                logger.error("journal.full")
        assert log.lines_lost() == 3
        logger.info("second")
        logger.info("third")
    first, torn, *after = place.read_text().splitlines()
    assert json.loads(first)["event"] == "first" and len(torn) == 20
    lines = [json.loads(line) for line in after]
    assert [line["event"] for line in lines] == ["log.lines_lost", "second", "third"]
    assert (lines[0]["lines"], lines[0]["process"], lines[0]["level"]) == (3, "runner", "warning")


@pytest.mark.usefixtures("configured")
def test_a_broken_or_closed_stderr_does_not_end_a_process_that_logs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w") as pipe:
        monkeypatch.setattr(sys, "stderr", pipe)
        log.configure("test", json=True)
        log.get("test").error("not read by anyone")
    log.get("test").error("nor this")
    assert log.lines_lost() == 2
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stderr", full)
        log.configure("test", json=True)
        for _ in range(3):
            log.get("test").error("nor these")
    assert log.lines_lost() == 3


@pytest.mark.usefixtures("configured")
def test_a_process_that_was_given_no_stderr_logs_into_nothing_and_counts_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "stderr", None)  # as Python starts with descriptor 2 closed
    log.configure("test")
    log.get("test").error("not received by anyone")
    assert log.lines_lost() == 1


@pytest.fixture
def unset() -> Iterator[None]:
    before = structlog.get_config()
    structlog.reset_defaults()
    yield
    structlog.configure(**before)
    structlog.contextvars.clear_contextvars()


SHOWN = ["debug", "info", "warning", "error", "critical"]


@pytest.mark.parametrize(
    ("variable", "level", "most"),
    [
        ("", LogLevel.INFO, 4),
        ("", LogLevel.ERROR, 2),
        ("debug", LogLevel.INFO, 5),
        ("DEBUG", LogLevel.ERROR, 5),
        ("critical", LogLevel.INFO, 1),
        ("error", LogLevel.DEBUG, 2),
    ],
)
@pytest.mark.usefixtures("unset")
def test_the_variable_overrides_the_level_of_a_process(
    variable: str,
    level: LogLevel,
    most: int,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PENSTOCK_LOG_LEVEL", variable)
    log.configure("test", level=level, json=True)
    for each in SHOWN:
        getattr(log.get("test"), each)("line")
    lines = [json.loads(line)["level"] for line in capfd.readouterr().err.splitlines()]
    assert lines == SHOWN[-most:]


@pytest.mark.parametrize("variable", ["verbose", "basic_format", "notset", "10", "info ", "x" * 5000])
@pytest.mark.usefixtures("unset")
def test_a_level_that_does_not_exist_is_refused_in_one_sentence_with_those_that_do(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_LOG_LEVEL", variable)
    expected = (
        f"PENSTOCK_LOG_LEVEL is {quoted(variable)}: write debug, info, warning, error, critical, or unset it"
    )
    with pytest.raises(ValueError) as error:
        log.configure("test")
    assert str(error.value) == expected
    with pytest.raises(ValueError) as error, log.quiet():
        pass
    assert str(error.value) == expected
    monkeypatch.setattr(sys, "argv", ["penstock", "version"])
    with pytest.raises(SystemExit, match="1"):
        main()
