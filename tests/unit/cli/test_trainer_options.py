"""Options of `penstock trainer`'s commands over stored batches."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from orchestrator.cli import trainer
from orchestrator.cli.main import app

SET = {
    "run.name": "other",
    "services.database_url": "postgresql://127.0.0.1:9/other",
    "services.nats_url": "nats://127.0.0.1:9",
    "trainer.pack_tokens": "4321",
    "gateway.canary_tolerance": "7.5",
}


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["verify"], ["--run other", "--pack-tokens 4321", "--canary-tolerance 7.5"]),
        (["tree", "--svg", "tree.svg"], ["--run other"]),
    ],
)
def test_keys_that_are_set_reach_the_process_of_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str], expected: list[str]
) -> None:
    (tmp_path / "penstock.toml").write_text('[run]\nname = "run"\n')
    given: list[str] = []
    urls: list[str] = []

    def started(module: str, arguments: list[str], *, environment: dict[str, str]) -> str:
        given.extend(arguments)
        urls.append(environment["DATABASE_URL"])
        raise ValueError("as far as this test goes")

    monkeypatch.setattr(trainer, "torch_process", started)
    sets = [part for key, value in SET.items() for part in ("--set", f"{key}={value}")]
    CliRunner().invoke(app, ["trainer", *command, "--batch", "1", "-c", str(tmp_path), *sets])
    assert [each for each in expected if each not in " ".join(given)] == []
    assert urls == [SET["services.database_url"]]
