"""`.ci/run` after the set-up (`python -m ops.gate change`), what it would run (`plan`), and `./ops/test --tier everything` (`everything`).

Exit status: 0 if the gate is green, 1 if it is red, 2 for a wrong command line.
"""

import argparse
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from ops import tiers
from ops.gate import flaky, kept, memory, new_tests, summary, verdict
from ops.gate.part import Ended, end_leftovers, run, set_up
from ops.gate.results import Result
from ops.gate.verdict import Judged
from ops.tiers import Change, Choice, Tier, Tiers
from orchestrator.contracts.numbers import option, real

ROOM = Path("var/gate")
PATIENCE = 4.0  # times its budget: then a part hangs
LEAST_S = 600.0  # before a part hangs
NEW_S = 300.0  # for the runs of new and changed tests: no further run begins after it
NEW_TIMES, NEW_WORKERS = 5, 3
LOW_MB = 5000
RESERVE_S = 60.0  # of the whole limit, for the summary


class Gate:
    """One run. `deadline`: on the monotonic clock; `for_change`: in the shorter form that a commit needs; `commit`: "" if it is unknown or the
    checkout has changes; `goes_on`: parts that ended on this commit count as they ended."""

    def __init__(
        self, mapped: Tiers, deadline: float, *, for_change: bool, commit: str = "", goes_on: bool = False
    ) -> None:
        self.tiers = mapped
        self.deadline = deadline
        self.for_change = for_change
        self.commit = commit
        self.goes_on = goes_on
        self.from_before: list[str] = []
        self.parts: list[Ended] = []
        self.left_out: list[tuple[str, str]] = []

    def run_part(self, choice: Choice) -> Ended | None:
        """One part of a tier; None if no time is left for it."""
        tier, words = choice.part.tier, list(choice.part.arguments)
        directory, name = _directory(choice.part.name), choice.part.name
        if self.goes_on and (before := kept.read(directory, self.commit, name, choice.why)) is not None:
            self.parts.append(before)
            self.from_before.append(name)
            return before
        if self.for_change:
            if not choice.touched:
                words.append("--dry-benches")  # bars judge where the change may have moved them
            words += tier.gate.split()
        ended = self._run(name, choice.why, words, tier)
        if ended is not None and self.commit and not tiers.uncommitted(Path.cwd()):
            kept.keep(directory, self.commit, ended)
        return ended

    def _run(self, name: str, why: str, words: Sequence[str], tier: Tier) -> Ended | None:
        time_left = self.deadline - time.monotonic() - RESERVE_S
        if time_left <= 0:
            self.left_out.append((name, f"{why}; the limit of {self.tiers.limit_s // 60} minutes is reached"))
            return None
        patience = max(LEAST_S, PATIENCE * tier.budget) * tiers.slowness()
        ended = run(name, why, ["./ops/test", *words], _directory(name), min(patience, time_left))
        self.parts.append(ended)
        return ended

    def _run_tests(self, name: str, why: str, tier: Tier, tests: Sequence[str], *more: str) -> Ended | None:
        words = ["--tier", tier.name, *(word for test in tests for word in ("--only", test)), *more]
        return self._run(name, why, words, tier)

    def new_runs(self, parts: Sequence[Ended], new: Sequence[str]) -> list[Judged]:
        """New and changed tests of these parts, under load: all once, then again, five times or as far as time reaches. Each failure is red."""
        owner: dict[str, str] = {}
        seconds: dict[str, float] = {}
        for part in parts:
            for result in part.tests.values():
                test = new_tests.of(result.test)
                if test in new and not result.failed:
                    owner[test] = part.name.split()[0]
                    seconds[test] = seconds.get(test, 0.0) + result.seconds
        chosen: dict[str, list[str]] = {}
        left_s = NEW_S * NEW_WORKERS
        for test in sorted(seconds, key=lambda test: seconds[test]):
            left_s -= seconds[test] * NEW_TIMES
            if left_s < 0:
                self.left_out.append((test, f"{NEW_TIMES} runs of this new or changed test take too long"))
            else:
                chosen.setdefault(owner[test], []).append(test)
        more = ("-n", str(NEW_WORKERS), "--dist", "loadfile")
        judged = []
        began = time.monotonic()
        for number in range(1, NEW_TIMES + 1):
            # Each run is a session of its own: tests of a file may share what they made.
            for tier, tests in chosen.items():
                why = f"{len(tests)} new or changed tests, run {number} of {NEW_TIMES}"
                if number > 1 and time.monotonic() - began > NEW_S:
                    self.left_out.append((f"{tier} new {number}", f"{why}: {NEW_S:.0f} s are over"))
                    continue
                ended = self._run_tests(f"{tier} new {number}", why, self.tiers.named(tier), tests, *more)
                judged += [Judged(ended.name, r, verdict.Why.NEW) for r in ended.failed] if ended else []
        return judged

    def second_runs(self, parts: Sequence[Ended], new: Sequence[str]) -> list[Judged]:
        """Each failed test of these parts once more, alone, and what that says of it."""
        failing = [part for part in parts if part.failed]
        again: dict[str, dict[str, Result]] = {}
        if sum(len(part.failed) for part in failing) <= verdict.SECOND_RUNS:
            for part in failing:
                tests = [result.test for result in part.failed]
                tier = self.tiers.named(part.name.split()[0])
                ended = self._run_tests(f"{part.name} again", "failed tests, alone", tier, tests)
                again[part.name] = ended.tests if ended else {}
        return [
            verdict.judge(part.name, result, again.get(part.name, {}), new)
            for part in failing
            for result in part.failed
        ]


def _directory(part: str) -> Path:
    return (ROOM / part.replace(" ", "-").replace("/", "of")).resolve()


def _turn(change: Change) -> tuple[int, list[str]]:
    """Which slice of the rotation is next, and what should be known about that and about the change."""
    turn, remarks = memory.turn(), []
    if turn is None:
        turn = int(change.commit[:8] or "0", 16)
        remarks.append(f"{memory.place()} cannot be written: the slice follows the commit's hash")
    if change.paths is None:
        remarks.append("the change is unknown: no git, or a clone without enough history")
    return turn, remarks


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ops/gate", description="Runs parts of ./ops/test and says what failed."
    )
    parser.add_argument("what", choices=["change", "everything", "plan"])
    parser.add_argument(
        "--started",
        type=option(real, least=0, most=1e12),
        help="when .ci/run began, in seconds since 1970: its set-up counts",
    )
    parser.add_argument(
        "--json",
        type=Path,
        help="a file for the summary as JSON; it is the last line of the output in any case",
    )
    parser.add_argument(
        "--go-on",
        action="store_true",
        help="everything: go on with a run that was stopped; parts that ended on this commit are not repeated",
    )
    return parser


def main(words: Sequence[str]) -> int:
    """The command line."""
    given = _options().parse_args(words)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    started = time.monotonic() - (time.time() - given.started if given.started else 0.0)
    root, mapped = Path.cwd(), tiers.read()
    # A base that passed here makes the change as small as it is.
    change = tiers.changes(root, os.environ.get("PENSTOCK_BASE") or memory.base(root))
    turn, remarks = _turn(change)
    plan = tiers.every(mapped) if given.what == "everything" else tiers.choose(mapped, change.paths, turn)
    if given.what == "plan":
        print("\n".join(f"{choice.part.name:<14} runs: {choice.why}" for choice in plan.runs))
        print("\n".join(f"{choice.part.name:<14} rests: {choice.why}" for choice in plan.left_out))
        return 0
    for_change = given.what == "change"
    whole = change.commit if change.commit and not tiers.uncommitted(root) else ""
    if given.go_on and (for_change or not whole):
        print(
            "--go-on is for `everything`, in a checkout of a commit without changes: commit them, or leave it out",
            file=sys.stderr,
        )
        return 2
    gate = Gate(
        mapped,
        started + mapped.limit_s if for_change else float("inf"),
        for_change=for_change,
        commit=whole if not for_change else "",
        goes_on=given.go_on,
    )
    if given.started:
        gate.parts.append(set_up(time.monotonic() - started))
    free_mb = shutil.disk_usage(root).free >> 20
    remarks += [f"only {free_mb} MB of disk are free"] if free_mb < LOW_MB else []
    remarks += [f"ended {one}, which a killed run had left" for one in end_leftovers()]
    complaints = list(flaky.complaints(root, datetime.now(UTC).date()))
    listed = {entry.test for entry in flaky.read(root)} if not complaints else set()
    gate.left_out += [(choice.part.name, choice.why) for choice in plan.left_out]
    new = new_tests.changed_tests(root, change.base, change.paths or ())
    parts = [ended for choice in plan.runs if (ended := gate.run_part(choice))]
    if gate.from_before:
        remarks.append(f"ended before, on this commit, and not repeated: {', '.join(gate.from_before)}")
    judged = [*gate.new_runs(parts, new), *gate.second_runs(parts, new)]
    if flood := verdict.too_many(judged, listed):
        complaints.append(flood)
    found = summary.Summary(
        commit=change.commit,
        seconds=time.monotonic() - started + sum(p.seconds for p in parts if p.name in gate.from_before),
        parts=gate.parts,
        judged=judged,
        red=complaints,
        remarks=remarks,
        left_out=gate.left_out,
    )
    if found.green and for_change and change.commit:
        memory.passed(change.commit)
    line = json.dumps(summary.as_json(found))
    print(summary.text(found), line, sep="\n", flush=True)
    if given.json is not None:
        given.json.write_text(line + "\n", encoding="utf-8")
    return 0 if found.green else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
