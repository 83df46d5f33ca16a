"""Every key that Harbor's own models know has a treatment here (package `harbor`, in an environment of its own: ops/setup_harbor)."""

import subprocess
from pathlib import Path

import pytest

from orchestrator.tasks.keys import FREE, KEYS, TABLES, Treatment

pytestmark = [pytest.mark.timeout(280), pytest.mark.tier("tasks")]

REPOSITORY = Path(__file__).resolve().parents[3]


def output(*command: str | Path) -> str:
    return subprocess.run(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, check=True).stdout


def treated(key: str) -> bool:
    """Whether a key is in our table, or below a key that is refused or without effect as a whole."""
    parts = key.split(".")
    above = [KEYS[name] for n in range(1, len(parts)) if (name := ".".join(parts[:n])) in KEYS]
    return key in (*KEYS, *TABLES) or any(each.treatment is not Treatment.HONOURED for each in above)


def test_no_key_of_harbors_is_missing_from_the_table() -> None:
    python = output("ops/setup_harbor").strip()
    found = output(python, Path(__file__).with_name("harbor_keys.py")).split()
    assert len(found) > 100 and {"environment.healthcheck.command", "steps.min_reward"} <= set(found)
    assert [key for key in found if key != FREE and not treated(key)] == []
    assert not treated("environment.invented") and not treated("environment.healthcheck.invented")
