"""The end of a run of the gate: every part, every failure, what was slow and what was left out, for people and as JSON."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from ops import tiers
from ops.gate.part import Ended
from ops.gate.results import Result
from ops.gate.verdict import Judged

SLOWEST = 10
FAST_FILE_S = 5.0  # a file of the tier fast that takes longer belongs into a tier of its own


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """All of one run. `with_changes`: the checkout differs from its commit; `red`: sentences that make it red besides failed tests and troubled
    parts; `remarks`: sentences that do not."""

    commit: str
    with_changes: bool = False
    seconds: float
    parts: Sequence[Ended]
    judged: Sequence[Judged]
    red: Sequence[str]
    remarks: Sequence[str]
    left_out: Sequence[tuple[str, str]]

    @property
    def green(self) -> bool:
        return not (
            self.red or any(one.why for one in self.judged) or any(part.trouble for part in self.parts)
        )


def text(summary: Summary) -> str:
    """The table and the lists, as they are printed."""
    lines = [
        "",
        "===== summary",
        f"{'part':<28}{'seconds':>8}{'tests':>7}{'failed':>7}{'skipped':>9}  why it ran",
    ]
    lines += [
        f"{p.name:<28}{p.seconds:>8.0f}{p.ran:>7}{len(p.failed):>7}{len(p.skipped):>9}  {p.why}"
        for p in summary.parts
    ]
    lines += [f"left out: {name}: {why}" for name, why in summary.left_out]
    lines += [f"slow test: {r.seconds:.1f} s {r.test}" for r in slowest(summary.parts)]
    lines += [
        f"slow file: {seconds:.1f} s {file}: a file of the tier fast takes {FAST_FILE_S:.0f} s at most; name a tier in it"
        for file, seconds in slow_files(summary.parts)
    ]
    lines += [f"left running by {p.name}, and ended: {', '.join(p.left)}" for p in summary.parts if p.left]
    lines += [f"note: {remark}" for remark in summary.remarks]
    for one in summary.judged:
        if one.why is None:
            lines.append(f"FLAKY {one.result.test} ({one.part}; both logs above): {one.result.cause}")
    for one in summary.judged:
        if one.why is not None:
            lines.append(f"FAILED {one.result.test} ({one.part}): {one.why}: {one.result.cause}")
    lines += [f"FAILED {part.name}: {part.trouble}" for part in summary.parts if part.trouble]
    lines += [f"FAILED {sentence}" for sentence in summary.red]
    color, changes = "green" if summary.green else "RED", " with changes" if summary.with_changes else ""
    lines.append(f"the gate is {color}: {summary.seconds:.0f} s, {summary.commit[:12]}{changes}")
    return "\n".join(lines)


def slowest(parts: Collection[Ended]) -> list[Result]:
    """The tests that took longest."""
    return sorted((r for part in parts for r in part.tests.values()), key=lambda r: -r.seconds)[:SLOWEST]


def slow_files(parts: Collection[Ended]) -> list[tuple[str, float]]:
    """Files of the tier fast that took too long, with their seconds."""
    spent: dict[str, float] = {}
    for part in parts:
        if part.name == "fast":
            for result in part.tests.values():
                spent[result.file] = spent.get(result.file, 0.0) + result.seconds
    slow = [(file, seconds) for file, seconds in spent.items() if seconds > FAST_FILE_S]
    return sorted(slow, key=lambda entry: -entry[1])


def as_json(summary: Summary) -> dict[str, Any]:
    """The same for machines: strings, numbers of seconds, lists."""
    return {
        "green": summary.green,
        "commit": summary.commit,
        "with_changes": summary.with_changes,
        "seconds": round(summary.seconds),
        "slowness": round(tiers.slowness(), 2),
        "parts": [
            {
                "part": part.name,
                "why": part.why,
                "seconds": round(part.seconds),
                "tests": part.ran,
                "skipped": len(part.skipped),
                "failed": [result.test for result in part.failed],
                "trouble": part.trouble,
                "left_running": list(part.left),
            }
            for part in summary.parts
        ],
        "failures": [
            {
                "test": one.result.test,
                "part": one.part,
                "cause": one.result.cause,
                "flaky": one.why is None,
                "why": one.why,
            }
            for one in summary.judged
        ],
        "red": list(summary.red),
        "remarks": list(summary.remarks),
        "slowest": [{"test": r.test, "seconds": round(r.seconds, 1)} for r in slowest(summary.parts)],
        "left_out": [{"part": name, "why": why} for name, why in summary.left_out],
    }
