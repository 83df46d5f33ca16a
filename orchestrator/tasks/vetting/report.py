"""The results of the controls of one task, and its level."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum, auto
from typing import Any, Final

import msgspec

from orchestrator.contracts.vetting import VETTING, Level, Vetting
from orchestrator.tasks.vetting.findings import Control, Finding, TaskFault


class Status(StrEnum):
    """How a control ended."""

    HOLDS = auto()
    FAILS = auto()
    SKIPPED = auto()
    REPORTED = auto()  # it found something that takes no level


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlResult:
    """One control of one task. `details`: numbers for people, in one line; `seconds`: of wall clock."""

    control: Control
    status: Status
    findings: tuple[Finding, ...] = ()
    details: str = ""
    seconds: float = 0.0


def result_of(
    control: Control, findings: Sequence[Finding], *, details: str = "", seconds: float = 0.0
) -> ControlResult:
    """The result of a control that ran."""
    status = Status.REPORTED if findings else Status.HOLDS
    if any(finding.counts for finding in findings):
        status = Status.FAILS
    return ControlResult(
        control=control, status=status, findings=tuple(findings), details=details, seconds=seconds
    )


NEEDED: Final[dict[Level, tuple[Control, ...]]] = {
    Level.WELL_FORMED: (Control.FORM,),
    Level.BUILDS: (Control.BUILD,),
    Level.CONTROLS_HOLD: (Control.ORACLE, Control.NOTHING, Control.FLAKY, Control.LEAK, Control.BUDGET),
    Level.VETTED: (Control.TAMPER,),
}
"""The controls that each level needs besides those of the levels before it."""


def level_of(results: Sequence[ControlResult]) -> Level:
    """The highest level whose controls all hold."""
    held = {result.control for result in results if result.status in (Status.HOLDS, Status.REPORTED)}
    reached = Level.NONE
    for level, controls in NEEDED.items():
        if not held.issuperset(controls):
            break
        reached = level
    return reached


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReport:
    """The vetting of one task. `place`: where it was read; `sha256`: its content hash, empty if it cannot be read; `undecided`: why the platform
    could not finish, empty: it did; `limits`: what its sandboxes were granted (`budget.limits_of`), empty in older reports; `at`: when it ended, ISO
    8601 in UTC, or empty; `kept`: an earlier call made it."""

    place: str
    name: str
    sha256: str
    provider: str
    times: int
    results: tuple[ControlResult, ...]
    undecided: str = ""
    warnings: tuple[str, ...] = ()
    limits: Mapping[str, float] = field(default_factory=dict)
    at: str = ""
    kept: bool = False

    @property
    def level(self) -> Level:
        return level_of(self.results)

    @property
    def findings(self) -> tuple[Finding, ...]:
        return tuple(finding for result in self.results for finding in result.findings)

    @property
    def faults(self) -> tuple[TaskFault, ...]:
        """The faults that cost it a level, each once."""
        return tuple(dict.fromkeys(f.fault for f in self.findings if f.counts))

    @property
    def seconds(self) -> float:
        return sum(result.seconds for result in self.results)

    @property
    def vetting(self) -> Vetting:
        """The part of the report that travels with the task."""
        return Vetting(sha256=self.sha256, level=self.level, times=self.times, provider=self.provider)

    def to_json(self) -> dict[str, Any]:
        """Every part, for files, rows and `--json`."""
        return {
            "task": self.name,
            "place": self.place,
            "sha256": self.sha256,
            "level": self.level.value,
            "provider": self.provider,
            "times": self.times,
            "version": VETTING,
            "undecided": self.undecided,
            "seconds": round(self.seconds, 2),
            "warnings": list(self.warnings),
            "limits": dict(self.limits),
            "at": self.at,
            "controls": [
                {
                    "control": result.control.value,
                    "status": result.status.value,
                    "details": result.details,
                    "seconds": round(result.seconds, 2),
                    "findings": [
                        {
                            "fault": finding.fault.value,
                            "where": finding.where,
                            "says": finding.says,
                            "remedy": finding.what_to_do,
                            "counts": finding.counts,
                        }
                        for finding in result.findings
                    ],
                }
                for result in self.results
            ],
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> "TaskReport":
        """The inverse of `to_json`. ValueError for anything else."""
        try:
            stored = msgspec.convert(found, _Stored)
            results = tuple(
                ControlResult(
                    control=Control(each.control),
                    status=Status(each.status),
                    details=each.details,
                    seconds=each.seconds,
                    findings=tuple(
                        Finding(
                            control=Control(each.control),
                            fault=TaskFault(finding.fault),
                            says=finding.says,
                            where=finding.where,
                            remedy=finding.remedy,
                        )
                        for finding in each.findings
                    ),
                )
                for each in stored.controls
            )
        except msgspec.ValidationError as error:
            raise ValueError(f"this is not a report of `penstock tasks vet`: {error}") from error
        return TaskReport(
            place=stored.place,
            name=stored.task,
            sha256=stored.sha256,
            provider=stored.provider,
            times=stored.times,
            undecided=stored.undecided,
            warnings=tuple(stored.warnings),
            limits=stored.limits,
            at=stored.at,
            results=results,
        )


class _StoredFinding(msgspec.Struct, kw_only=True):
    fault: str
    says: str
    where: str = ""
    remedy: str = ""


class _StoredControl(msgspec.Struct, kw_only=True):
    control: str
    status: Status
    details: str = ""
    seconds: float = 0.0
    findings: list[_StoredFinding] = msgspec.field(default_factory=list)


class _Stored(msgspec.Struct, kw_only=True):
    task: str
    place: str
    sha256: str
    provider: str
    times: int
    version: int
    controls: list[_StoredControl]
    undecided: str = ""
    warnings: list[str] = msgspec.field(default_factory=list)
    limits: dict[str, float] = msgspec.field(default_factory=dict)
    at: str = ""
