"""`penstock tasks vet` refuses none of the well-made tasks, and finds each planted fault by its name."""

from collections.abc import Iterator

import pytest
from _pytest.mark import ParameterSet

from ops.lab.task_set import ALL, PLAIN, WITH_IMAGES, made
from ops.lab.task_set.repository import repository
from orchestrator.contracts.vetting import Level
from orchestrator.settings.sandbox import SandboxSection
from orchestrator.tasks.harbor import Task
from orchestrator.tasks.probes import PROBES, Probe, probe
from orchestrator.tasks.vetting.findings import Control, TaskFault
from orchestrator.tasks.vetting.report import Status, TaskReport
from orchestrator.vetting.task import Options, vet
from sandboxes.bubblewrap import BubblewrapProvider
from tests.integration.tasks.vetting_faults import PLANTED

pytestmark = [pytest.mark.anyio, pytest.mark.tier("vetting")]

SECTION = SandboxSection(memory_mb=1024, processes=128, cpu_s=60, disk_mb=128)
NAMES = list(PLAIN)
SLOW = ("sleeps past its time", "fills the disk", "is a fork bomb", "never ends", "eats all memory")
"""Probes of seconds each: on one task."""
FILLS_THE_MACHINE = {
    "is a fork bomb",
    "eats all memory",
    "fills the disk",
    "breaks the limit of memory rather than fail",
    "breaks the limit of disk rather than fail",
    "breaks the limit of processes rather than fail",
}
assert {each.name for each in PROBES} >= FILLS_THE_MACHINE, "a probe has another name now"


async def vetted(files: dict[str, bytes], probes: list[Probe], *, times: int = 1) -> TaskReport:
    found: Task | str
    try:
        found = Task.from_files(files)
    except ValueError as error:
        found = str(error)
    until = Level.VETTED if probes else Level.CONTROLS_HOLD
    options = Options(section=SECTION, times=times, until=until, probes=probes, agent_s=3.0, at_once=2)
    return await vet("here", found, BubblewrapProvider(), options)


def probes_of(number: int) -> list[Probe]:
    """A part of the probes: every probe meets two of the well-made tasks."""
    parts = len(NAMES) // 2
    quick = [each for each in PROBES if each.name not in SLOW]
    slow = [each for each in PROBES if each.name in SLOW and number == 0]
    return quick[number % parts :: parts] + slow


def well_made() -> Iterator[ParameterSet]:
    """The well-made tasks; one whose probes fill the machine runs with no other test next to it."""
    for number, name in enumerate(NAMES):
        fills = FILLS_THE_MACHINE & {each.name for each in probes_of(number)}
        yield pytest.param(name, id=name, marks=[pytest.mark.alone] if fills else [])


@pytest.mark.parametrize("name", list(well_made()))
@pytest.mark.timeout(280)
async def test_a_well_made_task_is_vetted(name: str) -> None:
    report = await vetted(made(name), probes_of(NAMES.index(name)))
    assert [(finding.fault, finding.says) for finding in report.findings if finding.counts] == []
    assert report.level is Level.VETTED and not report.undecided
    assert {result.control for result in report.results if result.status is not Status.SKIPPED} == set(
        Control
    )


@pytest.mark.parametrize("name", PLANTED)
@pytest.mark.timeout(120)
async def test_a_planted_fault_is_found_by_name(name: str) -> None:
    planted = PLANTED[name]
    probes = [probe(planted.probe)] if planted.probe else []
    times = 2 if planted.fault is TaskFault.RANDOM else 1
    report = await vetted(dict(planted.files), probes, times=times)
    assert planted.fault in report.faults, [(f.fault, f.says) for f in report.findings]
    finding = next(f for f in report.findings if f.fault is planted.fault)
    assert finding.where == planted.probe or not planted.probe
    assert finding.what_to_do and not report.level.reaches(Level.VETTED)
    if planted.probe:  # the fault is that of the tests: the other controls hold
        assert report.faults == (planted.fault,), [(f.fault, f.says) for f in report.findings]


def test_there_are_enough_of_both() -> None:
    assert len(PLAIN) >= 20 and len(PLANTED) >= 55 and len(ALL) == len(PLAIN) + len(WITH_IMAGES)
    assert {planted.fault for planted in PLANTED.values()} >= set(TaskFault) - {
        TaskFault.PROBE_LEAKS,  # tests/unit/tasks/vetting
        TaskFault.UNNAMED,  # takes no level
        TaskFault.NOT_SEARCHED,  # of an image: test_vetting_images.py
    }


def test_the_tasks_are_of_the_kinds_that_real_sets_have_and_the_same_each_time() -> None:
    kinds = {
        "repository", "history", "database", "service", "mcp", "binary", "named", "compiled", "collected", "separate", "many-files", "pytest",
        "pip", "apt", "node", "user", "named-user", "stages", "cloned", "steps", "as-root",
    }  # fmt: skip
    assert kinds <= set(ALL)
    repository.cache_clear()
    first = {name: Task.from_files(made(name)) for name in ("repository", "database", "binary")}
    repository.cache_clear()
    assert {name: Task.from_files(made(name)).content_hash for name in first} == {
        name: task.content_hash for name, task in first.items()
    }
    packs = [file.size for path, file in first["repository"].files.items() if path.endswith(".pack")]
    assert sum(packs) > 5_000_000 and first["binary"].files["environment/files/samples.bin"].size > 20_000_000
