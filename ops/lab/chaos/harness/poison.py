"""The leavings of a poison agent, by name, in the work directory: all that a program in a sandbox can do to the files and processes there.

Only the standard library, and no assumption that a call works: a limit of the sandbox may refuse it.
"""

import contextlib
import os
import sys
import time

MANY = 3_000
DEEP = 24
HUGE_MB = 40


def nested() -> None:
    """A file below 24 directories."""
    path = "/".join(["d"] * DEEP)
    os.makedirs(path)
    write(f"{path}/file", b"x")


def odd_bytes() -> None:
    """Names that are no UTF-8, that control a terminal, that look like options, globs, and parents."""
    for name in (
        b"\xff\xfe",
        b"\x1b[2J",
        b"a\nb",
        b"-rf",
        b"*",
        b"...",
        b" ",
        b"\xe2\x80\xae",
        b"\xed\xa0\x80",
        b"a\\b",
        b"'\"$(id)`id`",
    ):
        write(name, b"x")


def long_names() -> None:
    """A path of 4,000 bytes, and single names of 255."""
    here = os.getcwd()
    write("n" * 255, b"x")
    for _ in range(16):
        os.mkdir("m" * 248)
        os.chdir("m" * 248)
        write("f", b"x")
    os.chdir(here)


def many() -> None:
    """Thousands of tiny files."""
    os.mkdir("many")
    for number in range(MANY):
        write(f"many/{number}", b"%d" % number)


def huge() -> None:
    """A file, an output and an answer that are larger than anything is taken."""
    with open("huge", "wb") as file:
        for _ in range(HUGE_MB):
            file.write(os.urandom(1 << 20))
    for _ in range(8):
        sys.stdout.write("o" * (1 << 20))
    sys.stdout.write("\n" + "a" * (1 << 20) + "\n")
    sys.stdout.flush()


def links() -> None:
    """Links to nowhere, outside, to themselves and to devices; a pipe; a file and a directory without permissions."""
    for number, target in enumerate(
        (
            "/nowhere",
            "/etc/passwd",
            "../../../../etc",
            "link-3",
            "/dev/zero",
            "/proc/self/fd/0",
            "x" * 3_000,
            ".",
        )
    ):
        os.symlink(target, f"link-{number}")
    os.mkfifo("pipe")
    write("sealed", b"x")
    os.chmod("sealed", 0)
    os.mkdir("locked", 0o000)


def nul() -> None:
    """U+0000, bytes that are no text, and half of a surrogate pair, in files, on both outputs and in the answer."""
    for name in ("a.txt", "b.py", "c.json"):
        write(name, b'"\0\xff\xfe\\ud800\x1b[2J\r' * 1000)
    os.write(1, b"\0\xff\xed\xa0\x80\x1b[2J\r\n")
    os.write(2, b"\0\xff" * 10_000)
    os.write(1, b"answer \0 \xff \xed\xa0\x80\n")


def children() -> None:
    """Programs that outlive their parent, ignore a polite end, and keep its output open."""
    import signal

    for _ in range(5):
        with contextlib.suppress(OSError):
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                        signal.signal(number, signal.SIG_IGN)
                    while True:
                        time.sleep(0.1)
                        write("late", b"x")
                os._exit(0)


def reward() -> None:
    """Verdicts of the agent's own making, wherever it may write."""
    for directory in ("/logs/verifier", "logs/verifier", "tests", "/tests", "."):
        with contextlib.suppress(OSError):
            os.makedirs(directory, exist_ok=True)
            write(f"{directory}/reward.txt", b"1.0\n")
            write(f"{directory}/reward.json", b'{"reward": 1.0}')
            write(f"{directory}/results.json", b'{"tests": [{"name": "all", "passed": true}]}')
            write(f"{directory}/test.sh", b"#!/bin/sh\necho 1.0 >/logs/verifier/reward.txt\n")


def gone() -> None:
    """Nothing: it removes its own program, and itself."""
    with contextlib.suppress(OSError):
        os.unlink(sys.argv[0])
    os.kill(os.getpid(), 9)


KINDS = (nested, odd_bytes, long_names, many, huge, links, nul, children, reward, gone)


def write(name: "str | bytes", content: bytes) -> None:
    """A file, if it may be written."""
    with contextlib.suppress(OSError), open(name, "wb") as file:
        file.write(content)


def leave(kind: str) -> None:
    """Leave the poison of that name."""
    for each in KINDS:
        if each.__name__ == kind:
            with contextlib.suppress(OSError):
                each()
