"""A process that a signal ends has its time to end, however many more signals come."""

import signal
import subprocess
import sys

import pytest

PROCESS = """
import sys
import anyio
from orchestrator.runtime.ending import ended_by_signal

async def main():
    async with ended_by_signal(lambda: print("signalled", flush=True)):
        try:
            print("works", flush=True)
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                print("ends", flush=True)
                await anyio.to_thread.run_sync(sys.stdin.readline)
                print("ended", flush=True)

anyio.run(main, backend_options={"use_uvloop": sys.argv[1] == "uvloop"})
"""


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
@pytest.mark.parametrize("later", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_later_signals_do_not_cut_the_end_short(loop: str, later: signal.Signals) -> None:
    argv = [sys.executable, "-c", PROCESS, loop]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == "works\n"
        process.send_signal(signal.SIGTERM)
        assert [process.stdout.readline() for _ in range(2)] == ["signalled\n", "ends\n"]
        for _ in range(3):
            process.send_signal(later)
        process.stdin.write("\n")
        process.stdin.close()
        assert process.stdout.read() == "ended\n"
        assert process.wait(60) == 0
