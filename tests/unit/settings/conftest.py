"""Configuration without the services of the environment."""

import pytest


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("DATABASE_URL", "NATS_URL"):
        monkeypatch.delenv(variable, raising=False)
