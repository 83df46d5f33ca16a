"""A command that a sentence recommends means the run of the command that printed it."""

import sys
from pathlib import Path

import pytest

from orchestrator.cli import main
from orchestrator.cli.hints import carried

IMAGES = '[run]\nname = "first"\n[sandbox.images]\ndirectory = "images"\n'


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys.modules[main.__module__], "configure", lambda *_, **__: None)
    for variable in ("DATABASE_URL", "NATS_URL"):
        monkeypatch.delenv(variable, raising=False)
    (tmp_path / "runs/first").mkdir(parents=True)
    (tmp_path / "runs/first/penstock.toml").write_text(IMAGES)
    return "runs/first"


def sentence(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str) -> str:
    monkeypatch.setattr(sys, "argv", ["penstock", *words])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 1
    return capsys.readouterr().err


def test_the_commands_that_an_error_recommends_mean_the_run_of_the_command(
    run: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    export = ("images", "export", "none:1", "out.tar")
    printed = sentence(capsys, monkeypatch, *export, "-c", f"{run}/penstock.toml")
    for command in ("list", "import", "build"):
        assert f"`penstock images {command} -c runs/first`" in printed
    printed = sentence(capsys, monkeypatch, "runner", "-c", run, "--set", "services.database_url=postgresql://127.0.0.1:9/a",
                    "--set", "services.nats_url=nats://127.0.0.1:9")  # fmt: skip
    assert "start `penstock gateway -c runs/first` first" in printed


def test_a_command_whose_run_is_here_or_that_takes_no_run_stays_as_it_is(
    run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run)
    assert "`penstock images list`" in sentence(capsys, monkeypatch, "images", "export", "none:1", "out.tar")
    monkeypatch.chdir(tmp_path)
    words = ("up", "-c", run, "--set", "rollout.scaffolds={oracle=1.0}")
    assert "`penstock eval --suite DIR --scaffold oracle -c runs/first`" in sentence(
        capsys, monkeypatch, *words
    )
    assert carried("`penstock scaffold list`") == "`penstock scaffold list`"
    assert carried("`penstock up -c RUN` or `penstock tail 3`") == (
        "`penstock up -c runs/first` or `penstock tail 3 -c runs/first`"
    )
