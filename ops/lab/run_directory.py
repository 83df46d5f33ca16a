"""Removing the directory of a run that has ended."""

import shutil
from pathlib import Path

from orchestrator.deploy.embedded.layout import RunLayout
from orchestrator.deploy.embedded.postgres_cluster import discard_cluster


def remove(directory: Path) -> None:
    """Remove a run's files, and its database, which lies elsewhere if the directory is closed to PostgreSQL's user."""
    postgres = RunLayout(directory / ".penstock").postgres
    if postgres.exists():
        discard_cluster(postgres)
    shutil.rmtree(directory, ignore_errors=True)
