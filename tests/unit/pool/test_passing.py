"""An error of a file of ours is not an absence of PostgreSQL: the same transaction is not repeated for it."""

import errno
import os
import socket
from collections.abc import Callable
from pathlib import Path

import asyncpg
import pytest

from orchestrator.pool.transact import of_content, passing

FILES: dict[str, Callable[[Path], object]] = {
    "absent": lambda at: (at / "absent").read_bytes(),
    "a directory": lambda at: at.read_bytes(),
    "below a file": lambda at: (at / "file" / "below").mkdir(parents=True),
    "a file in place of a directory": lambda at: (at / "file").mkdir(),
    "not a directory": lambda at: list((at / "file").iterdir()),
    "without its name in the error": lambda at: os.utime(at / "file" / "below"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_absent_or_not_accessible_does_not_pass(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError) as raised:  # each kind has its own class
        FILES[name](tmp_path)
    assert not passing(raised.value), repr(raised.value)


@pytest.mark.parametrize(
    ("code", "passes"),
    [
        (errno.EACCES, False),
        (errno.EPERM, False),
        (errno.EROFS, False),
        (errno.ENAMETOOLONG, False),
        (errno.ENOSPC, True),
        (errno.EDQUOT, True),
        (errno.EIO, True),
        (errno.EMFILE, True),
    ],
)
def test_a_full_disk_passes_and_a_missing_right_does_not(code: int, *, passes: bool) -> None:
    assert passing(OSError(code, "of a file", "/data/blobs")) is passes


@pytest.mark.anyio
async def test_a_postgresql_that_is_away_passes(tmp_path: Path) -> None:
    errors: list[BaseException] = [
        ConnectionResetError(),
        TimeoutError(),
        OSError(errno.EHOSTUNREACH, "no route"),
    ]
    (tmp_path / ".s.PGSQL.5432").touch()  # nothing listens there
    for place in (tmp_path / "absent", tmp_path):
        with pytest.raises(OSError) as raised:  # the platform chooses the class
            await asyncpg.connect(host=str(place), user="u", database="d", timeout=10)
        errors.append(raised.value)
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        with pytest.raises(OSError) as raised:
            await asyncpg.connect(
                host="127.0.0.1", port=held.getsockname()[1], user="u", database="d", timeout=10
            )
        errors.append(raised.value)
    assert [error for error in errors if not passing(error)] == []


def test_what_postgres_does_not_support_is_not_the_content_of_a_message() -> None:
    """It concerns the statement, thus every message."""
    for error in (
        asyncpg.FeatureNotSupportedError("LISTEN is not supported"),
        asyncpg.InvalidCachedStatementError("cached statement plan is invalid"),
    ):
        assert not of_content(error)
