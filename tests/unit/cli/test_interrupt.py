"""Ctrl-C of a command that runs until it comes."""

import signal
import subprocess
import sys
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from orchestrator.cli import interrupt
from orchestrator.deploy.home import write_template


def patient(tries: list[str]) -> None:
    """Interrupted while its connection breaks, like a driver whose server goes away: it raises that error, and is called again."""

    async def query() -> None:
        tries.append("query")
        if len(tries) == 1:
            signal.raise_signal(signal.SIGINT)
        try:
            with anyio.fail_after(60):
                await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            if len(tries) == 1:
                raise ConnectionResetError("broken") from None
            tries.append("cancelled")
            raise

    async def work() -> None:
        for _ in range(2):
            try:
                await query()
            except OSError:
                tries.append("away")

    interrupt.run(work)


def test_an_interruption_that_a_broken_connection_hides_is_still_noticed() -> None:
    tries: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        patient(tries)
    assert tries == ["query", "away", "query", "cancelled"]


def test_who_is_interrupted_cleans_up_first_and_the_handler_is_as_before() -> None:
    events: list[str] = []

    async def work() -> None:
        try:
            signal.raise_signal(signal.SIGINT)
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.lowlevel.checkpoint()
                events.append("closed")

    with pytest.raises(KeyboardInterrupt):
        interrupt.run(work)
    assert events == ["closed"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_interruption_waits_for_no_cleaning_up() -> None:
    async def work() -> None:
        try:
            signal.raise_signal(signal.SIGINT)
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                signal.raise_signal(signal.SIGINT)
                await anyio.sleep_forever()

    with pytest.raises(KeyboardInterrupt):
        interrupt.run(work)


def test_what_is_done_is_given_back() -> None:
    async def work() -> int:
        await anyio.lowlevel.checkpoint()
        return 7

    assert interrupt.run(work) == 7


def test_logs_that_are_followed_end_also_where_a_script_ignores_interruptions(tmp_path: Path) -> None:
    write_template(tmp_path, "first", "")
    logs = tmp_path / ".penstock" / "logs"
    logs.mkdir(parents=True)
    (logs / "runner.log").write_text(
        '{"event": "began", "level": "info", "timestamp": "2026-01-02T03:04:05.000000Z"}\n'
    )
    following = [sys.executable, "-m", "orchestrator.cli", "logs", "-c", str(tmp_path), "--follow", "--json"]
    command = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *following]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert b"began" in process.stdout.readline()
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 130
        finally:
            process.kill()
