"""The last line is what machines read, and whatever went wrong is a violation."""

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from orchestrator.audit import Checked, Report, Violation
from orchestrator.chaos import disk, main, table
from orchestrator.chaos.again import Spent
from orchestrator.chaos.course import Figures, Results
from orchestrator.chaos.ledger import Ledger
from orchestrator.chaos.plan import Kind
from orchestrator.chaos.tally import Outcome

DONE = [
    Outcome(0, Kind.KILL, "gateway", "kill gateway", 1.0, True, 25, 0, 2.0, ""),
    Outcome(1, Kind.STALL, "runner", "stall runner-nats", 2.0, False, 20, 1, 0.5, ""),
    Outcome(2, Kind.WIPE, "nats", "wipe nats", 3.0, True, 0, 1, 4.0, ""),
]


def results(found: int = 0, problems: tuple[str, ...] = ()) -> Results:
    named = [Violation("I2", f"group {n} is in two batches", {"group_id": n}) for n in range(found)]
    checked = Checked("I2", "groups are trained once", 7, found, named)
    return Results(
        list(problems), Report("chaos", "ended", [checked], 0.1), Figures(90, 12, 6, Spent(64.0, 8.0))
    )


def test_the_last_line_has_what_a_gate_needs() -> None:
    line = table.final_line(
        seed=7, scale=20.0, seconds=61.0, planned=3, done=DONE, results=results(), left_out=[]
    )
    said = json.loads(line)
    assert "\n" not in line
    assert (said["seed"], said["kills"], said["faults"], said["faults_planned"], said["violations"]) == (
        7,
        2,
        3,
        3,
        0,
    )
    assert said["recovery_p95_s"] == {"gateway": 2.0, "nats": 4.0, "runner": 0.5}
    assert (said["regenerated_trajectory_s"], said["regenerated_per_kill_s"]) == (8.0, 4.0)
    assert said["generated_trajectory_s"] == 64.0
    assert said["in_flight_share"] == 0.667 and said["by_kind"] == {"kill": 1, "stall": 1, "wipe": 1}


def test_what_the_audit_finds_and_what_hangs_are_violations_and_so_is_a_run_that_was_never_audited() -> None:
    assert results().violations == 0
    assert results(2, ("there was not: a commit",)).violations == 3
    assert Results().violations == 1


def test_every_violation_is_named_with_its_rows() -> None:
    out = io.StringIO()
    table.show(Console(file=out, width=160), DONE, results(1, ("the trainer was given up",)))
    said = out.getvalue()
    assert "I2: group 0 is in two batches  (group_id=0)" in said and "the trainer was given up" in said
    assert "3 faults (1 kill, 1 stall, 1 wipe), 2 kills; 67 % hit work in flight" in said
    assert "trajectory-seconds generated again: 8.0 of 64.0 (4.00 per kill)" in said


def test_the_table_is_printed_as_the_run_goes_also_after_a_resume() -> None:
    out = io.StringIO()
    many = [replace(DONE[0], index=index) for index in range(2 * table.EVERY + 10)]
    shown = table.Shown(Console(file=out, width=160), many[:20], len(many))
    for count, outcome in enumerate(many[20:], 21):
        shown(outcome)
        tables = [number for number in (50, 100) if number <= count]
        said = out.getvalue()
        assert said.count("recovery, to the first new progress") == len(tables)
        assert all(f"{number} faults ({number} kill), {number} kills" in said for number in tables)


def test_a_run_that_is_interrupted_shows_the_table_of_what_was_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def interrupted(console: Console, directory: Path, *_: object) -> tuple[Results, bool]:
        with Ledger(directory) as ledger:
            for outcome in DONE:
                ledger.fault(outcome.line())
        return Results(), True

    monkeypatch.setattr(main, "ROOT", tmp_path)
    monkeypatch.setattr(main, "make_policy", lambda directory, seed: directory)
    monkeypatch.setattr(main, "_run", interrupted)
    monkeypatch.setattr(disk, "mount", lambda place: False)
    with pytest.raises(SystemExit) as ended:
        main.main(
            kills=6, least=0, seed=3, time_scale=20.0, as_json=False, resume=False, patience=180.0, faults="", length=None
        )  # fmt: skip
    assert ended.value.code == 130
    said = capsys.readouterr()
    assert (
        "recovery, to the first new progress" in said.out and "3 faults (1 kill, 1 stall, 1 wipe)" in said.out
    )
    assert "go on with the same command and --resume" in said.err
