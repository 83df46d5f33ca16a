"""Creating a new PostgreSQL data directory."""

import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path

from orchestrator.deploy.embedded.postgres_binaries import PostgresBinaries
from orchestrator.deploy.embedded.service_user import own
from orchestrator.runtime.failpoints import boundary_sync

ROLE = DATABASE = "penstock"
ENV = {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}


def initialise(
    pgdata: Path, binaries: PostgresBinaries, user: str | None, password: str, *, durable: bool
) -> None:
    """initdb and the database `penstock`, under another name, renamed when complete: a kill leaves nothing that looks finished."""
    partial = pgdata.with_name("pgdata.partial")
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
    boundary_sync("cluster.rename", lambda: partial.rename(pgdata))


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
