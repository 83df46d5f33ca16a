"""Assigns tests to the tiers of ./ops/test and chooses those of `.ci/run --touched`. Standard library only; the map is ops/tiers.toml.

    python ops/tiers.py pytest NAME     # the test files that a tier runs, as arguments, one per line
    python ops/tiers.py budget NAME     # seconds on this machine
    python ops/tiers.py limit           # seconds of all of .ci/run --touched
    python ops/tiers.py choose          # the tiers for HEAD: one tier with its reason per line on stderr, one command per line on stdout
    python ops/tiers.py choose --all    # every tier but the optional ones: required for a commit that resolves an issue

A command's line begins with the seconds that must be left of the limit for it to start (0: it always starts).
Seconds are those of the reference machine (REFERENCE_S) times this machine's `slowness`, so a slow machine runs fewer tiers.

A commit's change is the difference from the commit that PENSTOCK_BASE names, or by default the changes of the last twelve hours' commits.
Without git, or if a shallow clone does not contain them, every tier runs.
"""

import os
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
HOURS = 12
REFERENCE_S = 0.115
"""CPU seconds of `_work` on the machine where the planned times were measured (2 cores, CPython 3.11)."""


class When(StrEnum):
    """When `.ci/run --touched` runs a tier."""

    ALWAYS = "always"
    TURNS = "turns"
    BY_HAND = "by_hand"
    WITHIN = "within"
    OPTIONAL = "optional"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """One tier. `budget`, `planned`: seconds; globs are relative to the repository."""

    name: str
    when: When
    budget: int
    planned: int
    again: Sequence[str] = ()
    paths: Sequence[str] = ()
    runs: Sequence[str] = field(default=("",))
    command: str = ""

    def commands(self) -> list[str]:
        """The commands that start it, one for each of its parts."""
        command = self.command or f"./ops/test --tier {self.name}"
        return [f"{command} {run}".rstrip() for run in self.runs]


@dataclass(frozen=True, slots=True)
class Tiers:
    """The map. `everything`: globs of the paths that touch every tier."""

    limit_s: int
    everything: Sequence[str]
    tiers: Mapping[str, Tier]

    def named(self, name: str) -> Tier:
        """The tier of that name. Raises ValueError with the known names."""
        if name not in self.tiers:
            raise ValueError(f"unknown tier {name!r}; known: {', '.join(self.tiers)}")
        return self.tiers[name]


@dataclass(frozen=True, slots=True)
class Choice:
    """Whether `.ci/run --touched` runs a tier, and why, as the end of a sentence."""

    tier: Tier
    runs: bool
    why: str


def read(file: Path = REPOSITORY / "ops" / "tiers.toml") -> Tiers:
    """Read the map. Raises ValueError if a tier has an unknown key or lacks one."""
    document = tomllib.loads(file.read_text(encoding="utf-8"))
    tiers = {}
    for name, keys in document["tiers"].items():
        try:
            tiers[name] = Tier(name=name, **{**keys, "when": When(keys["when"])})
        except (TypeError, KeyError) as problem:
            raise ValueError(f"{file.name}: [tiers.{name}]: {problem}") from None
    return Tiers(60 * document["limit_minutes"], document["everything"], tiers)


def matches(path: str, globs: Collection[str]) -> bool:
    """Whether a path, relative to the repository, fits one of the globs, and none that starts with `!`."""
    negated = [glob[1:] for glob in globs if glob.startswith("!")]
    return any(_pattern(glob).fullmatch(path) for glob in globs) and not (negated and matches(path, negated))


_WRITTEN = {"**": ".*", "*": "[^/]*", "?": "[^/]", "{": "(?:", "}": ")", ",": "|"}


@cache
def _pattern(glob: str) -> re.Pattern[str]:
    parts: list[str] = re.findall(r"\*\*|.", glob)
    return re.compile("".join(_WRITTEN.get(part, re.escape(part)) for part in parts))


_MARK = re.compile(r"""^pytestmark = (?:\[[^\]]*)?pytest\.mark\.tier\("(\w+)"\)""", re.MULTILINE)


def marked(path: str, root: Path = REPOSITORY) -> str:
    """The tier that a test file names: `pytestmark = pytest.mark.tier("NAME")`; `fast` without such a mark."""
    found = _MARK.search((root / path).read_text(encoding="utf-8"))
    return found[1] if found else "fast"


def test_files(root: Path = REPOSITORY) -> list[str]:
    """Every test file, relative to the repository."""
    return sorted(str(file.relative_to(root)) for file in (root / "tests").rglob("test_*.py"))


def files(tier: Tier, among: Sequence[str], root: Path = REPOSITORY) -> list[str]:
    """The test files that a tier runs: those marked with it, and those of other tiers that it runs again."""
    return [path for path in among if marked(path, root) == tier.name or matches(path, tier.again)]


def owned(tiers: Tiers, among: Sequence[str], root: Path = REPOSITORY) -> dict[str, list[str]]:
    """The test files of each tier. Raises ValueError for a mark that names an unknown tier."""
    found: dict[str, list[str]] = {name: [] for name in tiers.tiers}
    for path in among:
        found[tiers.named(marked(path, root)).name].append(path)
    return found


def arguments(tiers: Tiers, tier: Tier, among: Sequence[str]) -> list[str]:
    """The pytest arguments that select a tier's test files: their names, or for `fast`, which takes the rest, `--ignore` for all others."""
    if tier.name != "fast":
        return files(tier, among)
    return sorted(
        f"--ignore={path}" for name, paths in owned(tiers, among).items() if name != "fast" for path in paths
    )


def touched(tiers: Tiers, changed: Sequence[str], root: Path = REPOSITORY) -> dict[str, str]:
    """The tiers that a change affects, each with one path of the change."""
    found: dict[str, str] = {}
    tests = test_files(root)
    for path in changed:
        every = matches(path, tiers.everything)
        for tier in tiers.tiers.values():
            if tier.name in found:
                continue
            listed = files(tier, tests, root)
            if every or path in listed or matches(path, tier.paths) or _served(path, listed, root):
                found[tier.name] = path
    return found


def _served(path: str, tests: Sequence[str], root: Path) -> bool:
    """Whether a file below tests/ that holds no tests (a rig, a program) is named by a test, or by a rig that a test names."""
    changed = Path(path)
    if changed.parts[0] != "tests" or changed.name.startswith("test_"):
        return False
    names = {changed.stem}
    rigs = [file for file in (root / "tests").rglob("*.py") if not file.name.startswith("test_")]
    texts = {file.stem: file.read_text(encoding="utf-8") for file in rigs if file.name != "conftest.py"}
    while added := {stem for stem, text in texts.items() if stem not in names and _names(text, names)}:
        names |= added
    near = changed.name == "conftest.py"  # serves all tests of its directory
    return any(
        Path(test).is_relative_to(changed.parent) if near else _names((root / test).read_text("utf-8"), names)
        for test in tests
    )


def _names(text: str, stems: Collection[str]) -> bool:
    return re.search(rf"\b(?:{'|'.join(map(re.escape, stems))})\b", text) is not None


def slowness() -> float:
    """How many times slower one core is than the reference machine's, at least 1: the fastest of three measurements in CPU time."""
    return max(1.0, min(_work() for _ in range(3)) / REFERENCE_S)


def _work() -> float:
    started = time.process_time()
    total = 0
    for number in range(5_000_000):
        total += number
    return time.process_time() - started


def lines(chosen: Sequence[Choice], commit: str, slow: float, *, everything: bool = False) -> Iterator[str]:
    """The command lines of `.ci/run --touched`, each after the seconds that it needs. Those that may be left out begin elsewhere for each commit."""
    first = [choice.tier for choice in chosen if choice.runs and choice.tier.when is When.ALWAYS]
    later = [choice.tier for choice in chosen if choice.runs and choice.tier.when is not When.ALWAYS]
    start = int(commit[8:16] or "0", 16) % max(1, len(later))
    for tier in (*first, *later[start:], *later[:start]):
        needed = 0 if everything or tier.when is When.ALWAYS else round(tier.planned * slow)
        for command in tier.commands():
            yield f"{needed} {command}"


def turns(tiers: Tiers) -> tuple[frozenset[str], frozenset[str]]:
    """The alternating tiers in two halves of about the same planned time."""
    halves: tuple[list[Tier], list[Tier]] = ([], [])
    for tier in sorted((t for t in tiers.tiers.values() if t.when is When.TURNS), key=lambda t: -t.planned):
        min(halves, key=lambda half: sum(t.planned for t in half)).append(tier)
    return frozenset(t.name for t in halves[0]), frozenset(t.name for t in halves[1])


def choose(
    tiers: Tiers, commit: str, changed: Sequence[str] | None, *, everything: bool = False
) -> Iterator[Choice]:
    """The choice of `.ci/run --touched` for a commit (its hash). `changed`: the paths of its change, None if they are unknown."""
    half = turns(tiers)[int(commit[:8] or "0", 16) % 2]
    concerned = touched(tiers, changed or ())
    for tier in tiers.tiers.values():
        path = concerned.get(tier.name)
        if tier.when is When.OPTIONAL:
            yield Choice(tier, False, "optional")
        elif tier.when is When.WITHIN:
            yield Choice(tier, False, "./ops/test begins with it")
        elif everything:
            yield Choice(tier, True, "every tier was requested")
        elif tier.when is When.BY_HAND:
            advice = f"; the change touches {path}: run it with ./ops/test --tier {tier.name}" if path else ""
            yield Choice(tier, False, f"by hand alone{advice}")
        elif tier.when is When.ALWAYS:
            yield Choice(tier, True, "always")
        elif changed is None:
            yield Choice(tier, True, "what the commit changes is not known")
        elif path:
            yield Choice(tier, True, f"the change touches {path}")
        elif tier.name in half:
            yield Choice(tier, True, "its turn")
        else:
            yield Choice(tier, False, "untouched, and another commit's turn")


def changes(root: Path, base: str | None) -> tuple[str, list[str] | None]:
    """HEAD's hash and the paths of its change; "" and None without git. The paths are None if the history does not reach far enough."""
    try:
        commit = _git(root, "rev-parse", "HEAD").strip()
    except (OSError, subprocess.CalledProcessError):
        return "", None
    try:
        if base:
            merge_base = _git(root, "merge-base", base, "HEAD").strip()
            return commit, _git(root, "diff", "--name-only", merge_base, "HEAD").splitlines()
        since = int(_git(root, "show", "-s", "--format=%ct", "HEAD")) - 3600 * HOURS
        shallow = _git(root, "rev-parse", "--is-shallow-repository").strip() == "true"
        # For a shallow clone's oldest commits git shows the whole tree as changed, which would look like one large change.
        if shallow and int(_git(root, "log", "--format=%ct", "HEAD").split()[-1]) >= since:
            return commit, None
        listed = _git(root, "log", "-m", "--name-only", "--format=", f"--since={since}", "HEAD")
        return commit, sorted(set(listed.split("\n")) - {""})
    except (subprocess.CalledProcessError, ValueError, IndexError):
        return commit, None


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=True)
    return done.stdout


def main(words: Sequence[str]) -> int:
    """The command line."""
    tiers = read()
    match list(words):
        case ["pytest", name]:
            print("\n".join(arguments(tiers, tiers.named(name), test_files())))
        case ["budget", name]:
            print(round(tiers.named(name).budget * slowness()))
        case ["limit"]:
            print(tiers.limit_s)
        case ["choose", *rest] if rest in ([], ["--all"]):
            commit, changed = changes(REPOSITORY, os.environ.get("PENSTOCK_BASE"))
            found = list(choose(tiers, commit, changed, everything=bool(rest)))
            for choice in found:
                print(
                    f"{choice.tier.name:<11} {'runs' if choice.runs else 'rests'}: {choice.why}",
                    file=sys.stderr,
                )
            planned, slow = sum(choice.tier.planned for choice in found if choice.runs), slowness()
            print(
                f"planned: {planned / 60:.0f} minutes, times {slow:.1f} on this machine; what does not fit into {tiers.limit_s / 60:.0f} is left out",
                file=sys.stderr,
            )
            print("\n".join(lines(found, commit, slow, everything=bool(rest))))
        case _:
            raise ValueError("known: pytest NAME, budget NAME, limit, choose [--all]")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except ValueError as problem:
        sys.exit(f"tiers: {problem}")
