"""`.ci/run` after the set-up (`python -m ops.gate change`), what it would run (`plan`), and `./ops/test --tier everything` (`everything`).

Exit status: 0 if the gate is green, 1 if it is red, 2 for a wrong command line.
"""

import argparse
import json
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Collection, Sequence
from datetime import UTC, date, datetime
from pathlib import Path

from ops import tiers
from ops.gate import flaky, kept, memory, new_tests, summary, verdict
from ops.gate.part import Ended, end_leftovers, run, set_up
from ops.gate.results import Result
from ops.gate.verdict import Judged
from ops.tiers import Change, Choice, Tier, Tiers

ROOM = Path("var/gate")
PATIENCE = 4.0  # times its budget: then a part hangs
MIN_S = 600.0  # before a part hangs
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
        self.red: list[str] = []

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
        ended = self._run(
            name, choice.why, words, tier, has_tests=bool(tiers.files(tier, tiers.test_files()))
        )
        if ended is None:
            self.red.append(
                f"{name} did not begin: the limit of {self.tiers.limit_s // 60} minutes was reached"
            )
        if ended is not None and self.commit and not tiers.uncommitted(Path.cwd()):
            kept.keep(directory, self.commit, ended)
        return ended

    def _run(self, name: str, why: str, words: Sequence[str], tier: Tier, *, has_tests: bool) -> Ended | None:
        time_left = self.deadline - time.monotonic() - RESERVE_S
        if time_left <= 0:
            self.left_out.append((name, f"{why}; the limit of {self.tiers.limit_s // 60} minutes is reached"))
            return None
        patience = max(MIN_S, PATIENCE * tier.budget) * tiers.slowness()
        command, limit_s = ["./ops/test", *words], min(patience, time_left)
        ended = run(name, why, command, _directory(name), limit_s, has_tests=has_tests)
        self.parts.append(ended)
        return ended

    def _run_tests(
        self, name: str, why: str, part: str, tests: Sequence[str], *more: str, has_tests: bool = False
    ) -> Ended | None:
        """Some tests of a part, such as `failpoints 1/3`: which tests it has may depend on its number."""
        tier, *numbered = part.split()
        words = ["--tier", tier, *(word for number in numbered for word in ("--part", number))]
        words += [word for test in tests for word in ("--only", test)]
        return self._run(name, why, [*words, *more], self.tiers.named(tier), has_tests=has_tests)

    def new_runs(self, parts: Sequence[Ended], new: Sequence[str]) -> list[Judged]:
        """New and changed tests of these parts, under load: all once, then again, five times or as far as time reaches. Each failure is red."""
        owner: dict[str, str] = {}
        seconds: dict[str, float] = {}
        for part in parts:
            for result in part.tests.values():
                test = new_tests.of(result.test)
                if test in new and result.passed:
                    owner[test] = part.name
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
            for part_name, tests in chosen.items():
                why = f"{len(tests)} new or changed tests, run {number} of {NEW_TIMES}"
                if number > 1 and time.monotonic() - began > NEW_S:
                    self.left_out.append((f"{part_name} new {number}", f"{why}: {NEW_S:.0f} s are over"))
                    continue
                ended = self._run_tests(
                    f"{part_name} new {number}", why, part_name, tests, *more, has_tests=True
                )
                judged += [Judged(ended.name, r, verdict.Why.NEW) for r in ended.failed] if ended else []
        return judged

    def second_runs(self, parts: Sequence[Ended], new: Sequence[str]) -> list[Judged]:
        """Each failed test of these parts once more, alone, and what that says of it."""
        failing = [part for part in parts if part.failed]
        again: dict[str, dict[str, Result]] = {}
        if sum(len(part.failed) for part in failing) <= verdict.SECOND_RUNS:
            for part in failing:
                tests = [result.test for result in part.failed]
                ended = self._run_tests(f"{part.name} again", "failed tests, alone", part.name, tests)
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


def low_disk(root: Path) -> list[str]:
    """A remark if the disk may become full during the run."""
    free_mb = shutil.disk_usage(root).free >> 20
    return [f"only {free_mb} MB of disk are free"] if free_mb < LOW_MB else []


def _seconds(text: str) -> float:
    """A time of day in seconds since 1970. It reads no number of the product, which may be broken."""
    if not re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,9})?", text):
        raise argparse.ArgumentTypeError(f"must be a number from 0 to 1e+12, not {text[:40]!r}")
    return float(text)


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ops/gate", description="Runs parts of ./ops/test and says what failed."
    )
    parser.add_argument("what", choices=["change", "everything", "plan"])
    parser.add_argument(
        "--started",
        type=_seconds,
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


def _flakes(judged: Sequence[Judged], listed: Collection[str], today: date) -> list[str]:
    """Why the flakes of this run that are not on the list make it red, as sentences."""
    found = verdict.unlisted(judged, listed)
    sentences = [verdict.too_many(found), *flaky.overdue(memory.flaked(found, today), today)]
    return [sentence for sentence in sentences if sentence]


def _say(found: summary.Summary, file: Path | None) -> int:
    """Print the summary, and write its JSON to a file; returns the exit status."""
    line = json.dumps(summary.as_json(found))
    print(summary.text(found), line, sep="\n", flush=True)
    try:
        if file is not None:
            file.write_text(line + "\n", encoding="utf-8")
    except OSError as problem:
        print(f"{file} cannot be written ({problem.strerror}): choose another --json", file=sys.stderr)
        return 1
    return 0 if found.green else 1


def main(words: Sequence[str]) -> int:
    """The command line."""
    given = _options().parse_args(words)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    started = time.monotonic() - (time.time() - given.started if given.started else 0.0)
    root, mapped = Path.cwd(), tiers.read()
    # A base that passed here makes the change as small as it is.
    change = tiers.changes(root, os.environ.get("PENSTOCK_BASE") or memory.base(root))
    turn, remarks = _turn(change)
    everything = given.what == "everything"
    plan = tiers.every(mapped) if everything else tiers.choose(mapped, change.paths, turn, memory.owed())
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
    remarks += low_disk(root)
    remarks += [f"ended {one}, which a killed run had left" for one in end_leftovers()]
    today = datetime.now(UTC).date()
    complaints = list(flaky.complaints(root, today))
    listed = {entry.test for entry in flaky.read(root)} if not complaints else set()
    gate.left_out += [(choice.part.name, choice.why) for choice in plan.left_out]
    new = new_tests.changed_tests(root, change.base, change.paths or ())
    parts = [ended for choice in plan.runs if (ended := gate.run_part(choice))]
    if gate.from_before:
        remarks.append(f"ended before, on this commit, and not repeated: {', '.join(gate.from_before)}")
    judged = [*gate.new_runs(parts, new), *gate.second_runs(parts, new)]
    complaints += [*gate.red, *_flakes(judged, listed, today)]
    found = summary.Summary(
        commit=change.commit,
        with_changes=bool(change.commit) and not whole,
        seconds=time.monotonic() - started + sum(p.seconds for p in parts if p.name in gate.from_before),
        parts=gate.parts,
        judged=judged,
        red=complaints,
        remarks=remarks,
        left_out=gate.left_out,
    )
    if found.green and for_change and whole:
        owed = [choice.part.name for choice in plan.left_out if choice.touched]
        memory.passed(whole, ran=[part.name for part in parts], owed=owed)
    return _say(found, given.json)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
