"""A command that a sentence recommends means the run of the command that printed it."""

import sys
from pathlib import Path

import pytest

from orchestrator.cli import main
from orchestrator.cli.hints import carried
from orchestrator.cli.import_tasks import _print as print_imported
from orchestrator.cli.status import StatusReport
from orchestrator.cli.status import _show as show
from orchestrator.cli.vet import _print as print_reports
from orchestrator.contracts.states import RunState
from orchestrator.contracts.vetting import Level
from orchestrator.tasks.importing.report import Imported, ImportOutcome
from orchestrator.tasks.vetting.findings import Control, Finding, TaskFault
from orchestrator.tasks.vetting.report import TaskReport, result_of

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


def test_a_sentence_about_a_run_that_is_here_names_no_run(
    run: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run)
    sentence(capsys, monkeypatch, "up", "--set", "rollout.scaffolds={oracle=1.0}")
    assert carried("start it (`penstock up -c RUN` does)") == "start it (`penstock up` does)"


def test_what_status_vet_and_import_print_means_the_run_of_the_command(
    run: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sentence(capsys, monkeypatch, "up", "-c", run, "--set", "rollout.scaffolds={oracle=1.0}")
    report = StatusReport(
        run="first",
        state=RunState.ACTIVE,
        groups={},
        dead_letters=0,
        stages=[],
        stall_causes={},
        stuck=[],
        servers=["`penstock up` starts its own again"],
        drains=[],
        no_signal=None,
        failed_batches=["see `penstock trainer verify`"],
    )
    show(None, report, "")
    printed = capsys.readouterr().out
    assert (
        "`penstock up -c runs/first` starts" in printed
        and "`penstock trainer verify -c runs/first`" in printed
    )
    finding = Finding(control=Control.FORM, fault=TaskFault.NOT_WELL_FORMED, says="no")
    result = result_of(Control.FORM, [finding])
    print_reports(
        [TaskReport(place="a", name="a", sha256="", provider="local", times=1, results=(result,))], Level.NONE
    )
    assert "remedy: run `penstock tasks check -c runs/first`" in capsys.readouterr().out
    print_imported(
        [
            Imported(
                name="a", source="b", outcome=ImportOutcome.IMPORTED, note="run `penstock tasks vet` first"
            )
        ]
    )
    assert "1 task: run `penstock tasks vet -c runs/first` first" in capsys.readouterr().out
