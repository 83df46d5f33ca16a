"""Process 1 of bubblewrap's sandboxes, as a program."""

import signal
import struct
import subprocess
from pathlib import Path

import pytest

from sandboxes import holder, seccomp

here = pytest.mark.skipif(not seccomp.numbers(), reason="no filter of system calls on this architecture")


@here
def test_it_says_that_it_runs_collects_orphans_and_ends_with_its_input(tmp_path: Path) -> None:
    path = tmp_path / "holder"
    path.write_bytes(holder.program())
    path.chmod(0o755)
    with subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
        assert running.stdin is not None and running.stdout is not None
        assert running.stdout.read(1) == b"\1"
        status = Path(f"/proc/{running.pid}/status").read_text()
        ignored = int(status.partition("SigIgn:")[2].split()[0], 16)
        assert ignored >> (signal.SIGCHLD - 1) & 1
        running.stdin.write(b"input does not end it")
        running.stdin.flush()
        assert running.poll() is None
        running.stdin.close()
        assert running.wait(60) == 0


@pytest.mark.parametrize(("machine", "number"), [("x86_64", 62), ("aarch64", 183)])
def test_every_architecture_with_a_filter_has_a_program_that_begins_behind_its_headers(
    machine: str, number: int
) -> None:
    found = holder.program(machine)
    kind, of, _, entry = struct.unpack_from("<HHIQ", found, 16)
    assert (kind, of, entry) == (2, number, 0x40_0000 + 64 + 56)
    at, size = struct.unpack_from("<QQ", found, 64 + 16)[0], struct.unpack_from("<Q", found, 64 + 32)[0]
    assert at == 0x40_0000 and size == len(found) < 300
    assert seccomp.program(machine) is not None
