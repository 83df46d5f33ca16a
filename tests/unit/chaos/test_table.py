"""The last line is for machines, and every fault is a violation."""

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from ops.lab.chaos import disk, main, table
from ops.lab.chaos.ledger import Ledger
from ops.lab.chaos.plan import FaultKind
from ops.lab.chaos.regenerated import Spent
from ops.lab.chaos.results import FaultOutcome
from ops.lab.chaos.scenario import Figures, Results
from orchestrator.audit import Checked, Report, Violation
from orchestrator.contracts.states import RunState

DONE = [
    FaultOutcome(
        index=0,
        kind=FaultKind.KILL,
        victim="gateway",
        title="kill gateway",
        at=1.0,
        in_flight=True,
        steps=25,
        commits=0,
        recovery_s=2.0,
        problem="",
    ),
    FaultOutcome(
        index=1,
        kind=FaultKind.STALL,
        victim="runner",
        title="stall runner-nats",
        at=2.0,
        in_flight=False,
        steps=20,
        commits=1,
        recovery_s=0.5,
        problem="",
    ),
    FaultOutcome(
        index=2,
        kind=FaultKind.WIPE,
        victim="nats",
        title="wipe nats",
        at=3.0,
        in_flight=True,
        steps=0,
        commits=1,
        recovery_s=4.0,
        problem="",
    ),
]


def results(found: int = 0, problems: tuple[str, ...] = ()) -> Results:
    named = [Violation("I2", f"group {n} is in two batches", {"group_id": n}) for n in range(found)]
    checked = Checked(
        invariant="I2", name="groups are trained once", examined=7, found=found, violations=named
    )
    return Results(
        list(problems),
        Report(run="chaos", state=RunState.ENDED, checks=[checked], seconds=0.1),
        Figures(steps=90, groups=12, batches=6, spent=Spent(64.0, 8.0)),
    )


def test_the_last_line_has_what_a_gate_needs() -> None:
    line = table.final_line(
        seed=7, scale=20.0, seconds=61.0, planned=3, done=DONE, results=results(), left_out=[]
    )
    summary = json.loads(line)
    assert "\n" not in line
    assert (
        summary["seed"],
        summary["kills"],
        summary["faults"],
        summary["faults_planned"],
        summary["violations"],
    ) == (
        7,
        2,
        3,
        3,
        0,
    )
    assert summary["recovery_p95_s"] == {"gateway": 2.0, "nats": 4.0, "runner": 0.5}
    assert (summary["regenerated_trajectory_s"], summary["regenerated_per_kill_s"]) == (8.0, 4.0)
    assert summary["generated_trajectory_s"] == 64.0
    assert summary["in_flight_share"] == 0.667 and summary["by_kind"] == {"kill": 1, "stall": 1, "wipe": 1}


def test_what_the_audit_finds_and_what_hangs_are_violations_and_so_is_a_run_that_was_never_audited() -> None:
    assert results().violations == 0
    assert results(2, ("there was not: a commit",)).violations == 3
    assert Results().violations == 1


def test_every_violation_is_named_with_its_rows() -> None:
    out = io.StringIO()
    table.show(Console(file=out, width=160), DONE, results(1, ("the trainer was given up",)))
    output = out.getvalue()
    assert "I2: group 0 is in two batches  (group_id=0)" in output and "the trainer was given up" in output
    assert "3 faults (1 kill, 1 stall, 1 wipe), 2 kills; 67 % hit work in flight" in output
    assert "trajectory-seconds generated again: 8.0 of 64.0 (4.00 per kill)" in output


def test_the_table_is_printed_as_the_run_goes_also_after_a_resume() -> None:
    out = io.StringIO()
    many = [replace(DONE[0], index=index) for index in range(2 * table.EVERY + 10)]
    shown = table.Shown(Console(file=out, width=160), many[:20], len(many))
    for count, outcome in enumerate(many[20:], 21):
        shown(outcome)
        tables = [number for number in (50, 100) if number <= count]
        output = out.getvalue()
        assert output.count("recovery, to the first new progress") == len(tables)
        assert all(f"{number} faults ({number} kill), {number} kills" in output for number in tables)


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
            kills=6,
            least=0,
            seed=3,
            time_scale=20.0,
            as_json=False,
            resume=False,
            patience=180.0,
            faults="",
            length=None,
        )
    assert ended.value.code == 130
    output = capsys.readouterr()
    assert (
        "recovery, to the first new progress" in output.out
        and "3 faults (1 kill, 1 stall, 1 wipe)" in output.out
    )
    assert "go on with the same command and --resume" in output.err
