"""Creating a new PostgreSQL data directory."""

import hashlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

from orchestrator.deploy.embedded.postgres_binaries import PostgresBinaries
from orchestrator.deploy.embedded.postgres_remains import kill_orphans, running_server
from orchestrator.deploy.embedded.service_user import neutral_root, own, reachable
from orchestrator.runtime.failpoints import boundary_sync

ROLE = DATABASE = "penstock"
ENV = {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}


def initialise(
    pgdata: Path, binaries: PostgresBinaries, user: str | None, password: str, *, durable: bool
) -> None:
    """initdb and the database `penstock`, under another name, renamed when complete: a kill leaves nothing that looks finished."""
    home = _neutral_home(pgdata) if not reachable(pgdata.parent, user) else pgdata.parent
    complete = home / "pgdata"
    partial = home / "pgdata.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(mode=0o700)
    own(partial, user)
    with tempfile.NamedTemporaryFile(prefix="penstock-", mode="w") as secret:
        secret.write(password + "\n")
        secret.flush()
        own(Path(secret.name), user)
        # Bytewise order is fast, and the same everywhere.
        locale = ["--encoding=UTF8", "--locale=C", "--lc-ctype=C.UTF-8"]
        options = [
            "--data-checksums",
            "--auth=scram-sha-256",
            f"--username={ROLE}",
            f"--pwfile={secret.name}",
            *locale,
        ]
        sync = [] if durable else ["--no-sync"]
        _run_as(user, [str(binaries.initdb), "-D", str(partial), *options, *sync])
    single = [
        str(binaries.postgres),
        "--single",
        "-D",
        str(partial),
        *([] if durable else ["-c", "fsync=off"]),
        "postgres",
    ]
    _run_as(user, single, stdin=f"CREATE DATABASE {DATABASE};\n")
    boundary_sync("cluster.rename", lambda: partial.rename(complete))
    if complete != pgdata:
        pgdata.unlink(missing_ok=True)
        pgdata.symlink_to(complete)


def _neutral_home(pgdata: Path) -> Path:
    """A directory for data that the service user could not reach in its original place. The file `origin` in it names that place.

    Called only if the link in `pgdata`'s place is missing. Data found here belonged to a deleted run directory, and is removed,
    too, with its server.
    """
    home = neutral_root() / f"data-{hashlib.sha256(os.fsencode(pgdata)).hexdigest()[:16]}"
    if (home / "pgdata").exists():
        if (server := running_server(home / "pgdata")) is not None:
            server.send(signal.SIGKILL)
        kill_orphans(home / "pgdata")
        shutil.rmtree(home)
    home.mkdir(mode=0o711, exist_ok=True)
    home.chmod(0o711)
    (home / "origin").touch(mode=0o600)
    (home / "origin").write_text(f"{pgdata}\n")
    return home


def _run_as(user: str | None, argv: list[str], *, stdin: str = "") -> None:
    ids = pwd.getpwnam(user) if user is not None else None
    completed = subprocess.run(
        argv,
        input=stdin,
        capture_output=True,
        text=True,
        cwd="/",
        env=ENV,
        user=ids.pw_uid if ids else None,
        group=ids.pw_gid if ids else None,
        extra_groups=[] if ids else None,
        timeout=120,
    )
    if completed.returncode != 0 or "ERROR:" in completed.stderr or "FATAL:" in completed.stderr:
        output = (completed.stderr or completed.stdout).strip().splitlines()
        raise ValueError(f"{Path(argv[0]).name} failed: {'; '.join(output[-3:])}")
