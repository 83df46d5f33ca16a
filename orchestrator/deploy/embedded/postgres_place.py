"""Where the data of a cluster lie if the server's user cannot reach the run's directory, as below root's /root.

`<data_dir>/pgdata` is then a link to `data-<random>/pgdata` below `neutral_root()`, and the file `origin` next to the data names the link. Data there
is never removed because a link is missing: the run's directory may have been moved, and not deleted.
"""

import os
import secrets
import shutil
from pathlib import Path

from orchestrator.deploy.embedded.postgres_remains import running_server
from orchestrator.deploy.embedded.service_user import neutral_root, own, reachable

ORIGIN = "origin"


def place_of(pgdata: Path, user: str | None) -> Path:
    """The directory of the data, with `pgdata` as a link to it if it has to be one; made, if it is not there yet.

    Data that came as files to a place that `user` cannot reach, as an unpacked backup does, moves. Raises ValueError if data was there and is
    gone, or belongs to another directory.
    """
    aside = pgdata.with_name("pgdata.moved")
    if aside.exists() and not os.path.lexists(pgdata):
        aside.rename(pgdata)  # a kill in the middle of the move
    shutil.rmtree(aside, ignore_errors=True)
    if not os.path.lexists(pgdata):
        _check_new(pgdata, made=True)
    if not pgdata.is_symlink():
        if reachable(pgdata.parent, user) or running_server(pgdata) is not None:
            return pgdata
        home = _neutral_home(pgdata)
        if pgdata.exists():
            _move(pgdata, home / "pgdata", user)
            pgdata.rename(aside)
        pgdata.symlink_to(home / "pgdata")
        shutil.rmtree(aside, ignore_errors=True)
    place = pgdata.parent / os.readlink(pgdata)
    if not place.exists():
        _check_new(pgdata, made=place.parent.is_dir())
    if user is not None and place.parent.parent == neutral_root():  # and not a link that a person made
        _check_owner(place.parent / ORIGIN, pgdata)
    return place


def _check_new(pgdata: Path, *, made: bool) -> None:
    """Raises ValueError if a server has served this directory before: an empty database would take the place of what it held. `made`: the directory
    of the data exists."""
    data_dir = pgdata.parent
    if (data_dir / "server.json").exists() or not made:
        leads = f" (it leads to {os.readlink(pgdata)})" if pgdata.is_symlink() else ""
        raise ValueError(
            f"the database of {data_dir} is gone: {pgdata} is missing{leads}. Restore it from a backup, or remove {data_dir} to begin "
            "with an empty one"
        )


def _check_owner(origin: Path, pgdata: Path) -> None:
    """Record that the data is that of `pgdata`. Raises ValueError if another directory still has it: one of the two is a copy."""
    named = _named(origin) if origin.exists() else pgdata
    if (
        named.is_symlink()
        and named.resolve() == pgdata.resolve()
        and not named.parent.samefile(pgdata.parent)
    ):
        raise ValueError(
            f"{pgdata.parent} and {named.parent} have a link to the same database, so one of them is a copy: copy with `cp -aL` or `tar -h`, "
            "which take its files along"
        )
    _record(origin, pgdata)


def _neutral_home(pgdata: Path) -> Path:
    """A new directory for the data of `pgdata`; an earlier one that it never led to, which a kill or a full disk left, goes first."""
    for left in neutral_root().glob("data-*"):
        if (left / ORIGIN).exists() and _named(left / ORIGIN) == pgdata and not (left / "pgdata").exists():
            shutil.rmtree(left, ignore_errors=True)
    home = neutral_root() / f"data-{secrets.token_hex(8)}"
    home.mkdir(mode=0o711)
    home.chmod(0o711)
    _record(home / ORIGIN, pgdata)
    return home


def _named(origin: Path) -> Path:
    return Path(os.fsdecode(origin.read_bytes()).removesuffix("\n"))


def _record(origin: Path, pgdata: Path) -> None:
    origin.touch(mode=0o600)
    origin.write_bytes(os.fsencode(pgdata) + b"\n")


def _move(data: Path, to: Path, user: str | None) -> None:
    """Copy a data directory to `to`, as the service user's. A kill leaves it incomplete under another name."""
    partial = to.with_name("pgdata.partial")
    try:
        shutil.copytree(data, partial, symlinks=True)
        for directory, _, files in os.walk(partial):
            own(Path(directory), user)
            for name in files:
                own(Path(directory, name), user)
    except OSError:
        shutil.rmtree(to.parent, ignore_errors=True)
        raise
    os.sync()
    partial.rename(to)
