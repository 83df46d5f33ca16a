"""A git repository of more than 5 MB: a small program with a long history and large pictures, the same objects each time it is made."""

import os
import random
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Final

COMMITS: Final = 60
PICTURES: Final = 6
PICTURE_BYTES: Final = 1 << 20
LOST: Final = "retry_budget = 741938520617"
"""A line of the settings that a commit in the middle of the history removed."""
BUGGY: Final = '''\
"""Totals of a ledger."""


def total(lines):
    """The sum of the amounts: `name amount`, one per line."""
    return sum(int(line.split()[1]) for line in lines)


def largest(lines):
    """The name with the largest amount."""
    return max(lines, key=lambda line: line.split()[1]).split()[0]
'''


def _git(directory: Path, *words: str, at: int = 0) -> None:
    when = f"{1_700_000_000 + at * 3600} +0000"
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(directory),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_AUTHOR_NAME": "Ada",
        "GIT_AUTHOR_EMAIL": "ada@example.org",
        "GIT_AUTHOR_DATE": when,
        "GIT_COMMITTER_NAME": "Ada",
        "GIT_COMMITTER_EMAIL": "ada@example.org",
        "GIT_COMMITTER_DATE": when,
    }
    subprocess.run(["git", *words], cwd=directory, env=environment, check=True, stdout=subprocess.DEVNULL)


def _written(directory: Path) -> None:
    rng = random.Random(20)
    _git(directory, "init", "-q", "-b", "main")
    (directory / "pictures").mkdir()
    (directory / "ledger.py").write_text(BUGGY)
    notes = [f"note {number}: {rng.getrandbits(64):x}" for number in range(300)]
    for number in range(COMMITS):
        if number < PICTURES:
            (directory / f"pictures/{number}.bin").write_bytes(rng.randbytes(PICTURE_BYTES))
        notes[rng.randrange(len(notes))] = f"note of change {number}: {rng.getrandbits(64):x}"
        (directory / "notes.txt").write_text("\n".join(notes) + "\n")
        settings = [
            "[service]",
            "port = 8080",
            *([LOST] if 10 <= number < 35 else []),
            f"generation = {number}",
        ]
        (directory / "service.ini").write_text("\n".join(settings) + "\n")
        _git(directory, "add", "-A", at=number)
        _git(directory, "commit", "-q", "-m", f"change {number}", at=number)
    _git(directory, "-c", "pack.threads=1", "gc", "-q", "--prune=now")
    (directory / ".git/index").unlink()  # it holds the times of files
    _git(directory, "read-tree", "HEAD")


@cache
def repository() -> dict[str, bytes]:
    """Its files by path, `.git` included."""
    with tempfile.TemporaryDirectory() as made:
        directory = Path(made)
        _written(directory)
        files = {
            path.relative_to(directory).as_posix(): path.read_bytes()
            for path in sorted(directory.rglob("*"))
            if path.is_file() and "/.git/hooks/" not in path.as_posix()
        }
    # git takes a directory without refs/ for no repository, and files alone make no empty directory
    return {**files, ".git/refs/heads/main": files[".git/packed-refs"].split()[-2] + b"\n"}


@cache
def bundle() -> bytes:
    """The same history as one file."""
    with tempfile.TemporaryDirectory() as made:
        directory = Path(made)
        _written(directory)
        _git(directory, "-c", "pack.threads=1", "bundle", "create", "-q", "ledger.bundle", "main")
        return (directory / "ledger.bundle").read_bytes()
