"""Levels, reports and their page; a changed byte loses the level."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.contracts.vetting import Level, Vetting
from orchestrator.tasks.vetting.findings import Control, Finding, TaskFault
from orchestrator.tasks.vetting.page import page
from orchestrator.tasks.vetting.report import ControlResult, Status, TaskReport, level_of, result_of
from orchestrator.tasks.vetting.required import check_level
from orchestrator.vetting.many import finished
from orchestrator.vetting.records import FILE, FileRecords, next_to

pytestmark = pytest.mark.anyio
SHA = "ab" * 32


def finding(control: Control, fault: TaskFault, says: str = "it does") -> Finding:
    return Finding(control=control, fault=fault, says=says, where="here")


def report(*failing: Finding, skipped: tuple[Control, ...] = (), sha256: str = SHA) -> TaskReport:
    results = []
    for control in Control:
        if control in skipped:
            results.append(ControlResult(control=control, status=Status.SKIPPED))
        else:
            results.append(result_of(control, [f for f in failing if f.control is control], seconds=0.5))
    return TaskReport(
        place="suite/a", name="a", sha256=sha256, provider="bubblewrap", times=3, results=tuple(results)
    )


@pytest.mark.parametrize(
    ("failing", "level"),
    [
        ((), Level.VETTED),
        ((finding(Control.INSTRUCTION, TaskFault.UNNAMED),), Level.VETTED),
        ((finding(Control.TAMPER, TaskFault.PROBE_PAYS),), Level.CONTROLS_HOLD),
        ((finding(Control.LEAK, TaskFault.LEAK_IN_ENV),), Level.BUILDS),
        ((finding(Control.FLAKY, TaskFault.RANDOM),), Level.BUILDS),
        ((finding(Control.BUILD, TaskFault.DOES_NOT_BUILD),), Level.WELL_FORMED),
        ((finding(Control.FORM, TaskFault.NOT_WELL_FORMED),), Level.NONE),
    ],
)
def test_a_level_needs_its_controls_and_those_of_the_levels_before(
    failing: tuple[Finding, ...], level: Level
) -> None:
    found = report(*failing)
    assert found.level is level is found.vetting.level
    assert found.faults == tuple(f.fault for f in failing if f.counts)


def test_a_control_that_did_not_run_does_not_hold() -> None:
    assert report(skipped=(Control.LEAK,)).level is Level.BUILDS
    assert level_of([]) is Level.NONE


def test_a_report_comes_back_from_json() -> None:
    found = replace(
        report(finding(Control.TAMPER, TaskFault.PROBE_PAYS)),
        limits={"memory_mb": 512},
        at="2026-01-02T03:04+00:00",
    )
    again = TaskReport.from_json(json.loads(json.dumps(found.to_json())))
    assert again.to_json() == found.to_json() and again.level is found.level
    for broken in (
        {},
        found.to_json() | {"controls": 7},
        found.to_json() | {"controls": [{"control": "x", "status": "holds"}]},
    ):
        with pytest.raises(ValueError):
            TaskReport.from_json(broken)


async def test_reports_are_kept_next_to_the_tasks_and_the_newest_counts(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/task.toml").write_text("")
    (tmp_path / "b.jsonl").write_text("")
    assert next_to(tmp_path) == next_to(tmp_path / "a") == next_to(tmp_path / "b.jsonl") == tmp_path / FILE
    records = FileRecords(tmp_path / FILE)
    assert await records.find(SHA) is None
    await records.add(report(finding(Control.TAMPER, TaskFault.PROBE_PAYS)))
    await records.add(report())
    with (tmp_path / FILE).open("a") as file:
        file.write('{"a line that a crash has cut')
    again = FileRecords(tmp_path / FILE)
    found = await again.find(SHA)
    assert found is not None and found.level is Level.VETTED
    await again.add(report(sha256="cd" * 32))
    assert set(FileRecords(tmp_path / FILE).vettings()) == {SHA, "cd" * 32}
    old = report(sha256="ef" * 32).to_json() | {"version": 0}
    with (tmp_path / FILE).open("a") as file:
        file.write(json.dumps(old) + "\n")
    assert "ef" * 32 not in FileRecords(tmp_path / FILE).vettings()


def test_a_second_call_asks_again_only_for_what_is_missing() -> None:
    until_controls = report(skipped=(Control.TAMPER,))
    assert finished(until_controls, Level.CONTROLS_HOLD) and finished(until_controls, Level.BUILDS)
    assert not finished(until_controls, Level.VETTED) and finished(report(), Level.VETTED)
    after_form = tuple(control for control in Control if control is not Control.FORM)
    assert not finished(report(skipped=after_form), Level.BUILDS)
    assert finished(report(finding(Control.TAMPER, TaskFault.PROBE_PAYS)), Level.VETTED)


@pytest.mark.parametrize(
    ("control", "fault"),
    [
        (Control.FORM, TaskFault.NOT_WELL_FORMED),
        (Control.BUILD, TaskFault.DOES_NOT_BUILD),
        (Control.TAMPER, TaskFault.DOES_NOT_BUILD),
        (Control.ORACLE, TaskFault.ORACLE_FAILS),
        (Control.ORACLE, TaskFault.ORACLE_HAS_NO_VERDICT),
        (Control.NOTHING, TaskFault.NOTHING_HAS_NO_VERDICT),
        (Control.FLAKY, TaskFault.RANDOM),
        (Control.LEAK, TaskFault.NOT_SEARCHED),
        (Control.BUDGET, TaskFault.SLOW_TESTS),
        (Control.BUDGET, TaskFault.TIGHT_LIMITS),
        (Control.TAMPER, TaskFault.PROBE_HAS_NO_VERDICT),
    ],
)
def test_a_fault_whose_cause_may_lie_outside_of_the_task_is_looked_at_again(
    control: Control, fault: TaskFault
) -> None:
    after = tuple(each for each in Control if list(Control).index(each) > list(Control).index(control))
    for level in (Level.WELL_FORMED, Level.BUILDS, Level.VETTED):
        assert not finished(report(finding(control, fault), skipped=after), level)


def test_a_level_counts_for_exactly_these_bytes() -> None:
    vetting = Vetting(sha256=SHA, level=Level.VETTED, times=3, provider="bubblewrap")
    check_level("a", SHA, Level.VETTED, vetting)
    check_level("a", SHA, Level.BUILDS, None, vetting)
    with pytest.raises(ValueError, match=r"task 'a' has not been vetted as it is now.*penstock tasks vet"):
        check_level("a", "cd" * 32, Level.VETTED, vetting)
    lower = Vetting(sha256=SHA, level=Level.BUILDS, times=3, provider="bubblewrap")
    with pytest.raises(ValueError) as refused:
        check_level("a", SHA, Level.VETTED, lower)
    assert str(refused.value) == (
        "task 'a' has only the level builds, and this run requires vetted (tasks.require): run "
        "`penstock tasks vet DIRECTORY -c RUN --until vetted`, correct what it finds, and publish it again"
    )
    with pytest.raises(ValueError):
        check_level(
            "a", SHA, Level.BUILDS, Vetting(sha256=SHA, level=Level.VETTED, times=3, provider="x", version=2)
        )


def test_the_page_escapes_every_text_and_loads_nothing() -> None:
    evil = '<script>alert("x")</script>\x1b[2J\u202e'
    found = replace(
        report(finding(Control.TAMPER, TaskFault.PROBE_PAYS, evil)),
        name=evil,
        place=evil,
        undecided=evil,
        warnings=(evil,),
    )
    text = page([found, report()], Level.VETTED)
    assert "<script" not in text and "\x1b" not in text and "\u202e" not in text
    assert text.count("&lt;script&gt;") >= 5 and "default-src 'none'" in text
    assert not any(word in text for word in ("http://", "https://", "<img", "<link", " src="))
    assert "1 vetted" in text and "probe-pays" in text
