"""The tiers of ./ops/test (ops/tiers.toml): their test files, and the parts that `.ci/run` runs for a change. Standard library only.

    python ops/tiers.py pytest NAME [K/N]  # the test files that a tier runs, as arguments, one per line; K/N: every N-th from the K-th
    python ops/tiers.py budget NAME        # seconds on this machine: those of the reference machine (REFERENCE_S) times its `slowness`

A commit's change is the difference from the last commit that passed here (ops/gate/memory.py) or that PENSTOCK_BASE names, or else from the newest
one that is four hours older. Without git, or if a shallow clone does not reach back that far, it is unknown, and everything that fits runs.
"""

import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
HOURS = 4
REFERENCE_S = 0.115
"""CPU seconds of `_work` on the machine where the planned times were measured (2 cores, CPython 3.11)."""


class When(StrEnum):
    """When a tier runs (ops/tiers.toml)."""

    ALWAYS = "always"
    TURNS = "turns"
    BY_HAND = "by_hand"
    OPTIONAL = "optional"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """One tier. `budget`: seconds of all of it; `planned`: of one of its `parts`; `gate`: its arguments in `.ci/run`."""

    name: str
    when: When
    budget: int
    planned: int
    parts: int = 1
    again: Sequence[str] = ()
    gate: str = ""


@dataclass(frozen=True, slots=True)
class Rule:
    """The tiers that a path concerns if it fits one of the globs; the most telling first."""

    paths: Sequence[str]
    tiers: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiers:
    """The map. `everything`: globs of the paths that concern every tier; `touched_s`, `slice_s`: quiet seconds; `limit_s`: seconds."""

    touched_s: int
    slice_s: int
    limit_s: int
    everything: Sequence[str]
    tiers: Mapping[str, Tier]
    rules: Sequence[Rule]

    def named(self, name: str) -> Tier:
        """The tier of that name. Raises ValueError with the known names."""
        if name not in self.tiers:
            raise ValueError(f"unknown tier {name!r}; known: {', '.join(self.tiers)}")
        return self.tiers[name]

    def rule(self, path: str) -> Rule | None:
        """The first rule that fits a path; None if none does."""
        return next((rule for rule in self.rules if matches(path, rule.paths)), None)

    def place(self, path: str) -> int:
        """The place of this rule among all; behind the last one if none fits."""
        rule = self.rule(path)
        return len(self.rules) if rule is None else self.rules.index(rule)


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a tier: the `at`-th of its parts, None for all of it."""

    tier: Tier
    at: int | None = None

    @property
    def name(self) -> str:
        return self.tier.name if self.at is None else f"{self.tier.name} {self.at}/{self.tier.parts}"

    @property
    def arguments(self) -> list[str]:
        """Those of ./ops/test that select it."""
        return [
            "--tier",
            self.tier.name,
            *([] if self.at is None else ["--part", f"{self.at}/{self.tier.parts}"]),
        ]


@dataclass(frozen=True, slots=True)
class Choice:
    """A part, and why it runs, or why it is left out, as the end of a sentence. `touched`: a change concerns it."""

    part: Part
    why: str
    touched: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """The parts that run, in order, and those that are left out."""

    runs: Sequence[Choice]
    left_out: Sequence[Choice]


def read(file: Path = REPOSITORY / "ops" / "tiers.toml") -> Tiers:
    """Read the map. Raises ValueError if a tier or a rule has an unknown key, lacks one or names an unknown tier."""
    document = tomllib.loads(file.read_text(encoding="utf-8"))
    tiers = {}
    for name, keys in document["tiers"].items():
        try:
            tiers[name] = Tier(name=name, **{**keys, "when": When(keys["when"])})
        except (TypeError, KeyError) as problem:
            raise ValueError(f"{file.name}: [tiers.{name}]: {problem}") from None
    try:
        rules = [Rule(**keys) for keys in document.get("rules", [])]
    except TypeError as problem:
        raise ValueError(f"{file.name}: [[rules]]: {problem}") from None
    found = Tiers(
        touched_s=document["touched_s"],
        slice_s=document["slice_s"],
        limit_s=60 * document["limit_minutes"],
        everything=document["everything"],
        tiers=tiers,
        rules=rules,
    )
    for rule in rules:
        for name in rule.tiers:
            found.named(name)
    return found


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


def arguments(tiers: Tiers, tier: Tier, among: Sequence[str], part: str = "") -> list[str]:
    """The pytest arguments that select a tier's test files: their names, or for `fast`, which takes the rest, `--ignore` for all others.

    `part`: K/N, every N-th file from the K-th. Raises ValueError for another form.
    """
    if tier.name != "fast":
        return _part(files(tier, among), part)
    return sorted(
        f"--ignore={path}" for name, paths in owned(tiers, among).items() if name != "fast" for path in paths
    )


def _part(found: list[str], part: str) -> list[str]:
    if not part:
        return found
    at, _, parts = part.partition("/")
    if not (at.isdigit() and parts.isdigit() and int(at) < int(parts)):
        raise ValueError(f"a part is K/N with 0 <= K < N, not {part!r}")
    return found[int(at) :: int(parts)]


def touched(tiers: Tiers, changed: Sequence[str], root: Path = REPOSITORY) -> dict[str, str]:
    """The tiers that a change concerns, the most telling first, each with one path of the change."""
    return {name: path for name, (_, path) in _ranked(tiers, changed, root).items()}


def _ranked(tiers: Tiers, changed: Sequence[str], root: Path) -> dict[str, tuple[int, str]]:
    """These tiers, each with its lowest place in the rules of the change's paths, paths of earlier rules first; `len(tiers)` for a path that
    concerns every tier."""
    found: dict[str, tuple[int, str]] = {}
    for path in sorted(changed, key=tiers.place):
        ranks = {name: rank for rank, name in enumerate(_named(tiers, path, root))}
        if matches(path, tiers.everything) or not (path.startswith("tests/") or tiers.rule(path)):
            ranks = dict.fromkeys(tiers.tiers, len(tiers.tiers)) | ranks
        for name, rank in ranks.items():
            if name not in found or rank < found[name][0]:
                found.pop(name, None)  # of one rank, the tier of the earlier path comes first
                found[name] = (rank, path)
    return dict(sorted(found.items(), key=lambda item: item[1][0]))


def _named(tiers: Tiers, path: str, root: Path) -> Sequence[str]:
    """The tiers of a path's rule; of a file below tests/ those of the tests that it holds or serves."""
    if not path.startswith("tests/") or matches(path, tiers.everything):
        rule = tiers.rule(path)
        return rule.tiers if rule else ()
    itself = {path} if Path(path).name.startswith("test_") and (root / path).is_file() else set()
    its_tests = sorted(itself | _served(path, root))
    return [tier.name for tier in tiers.tiers.values() if files(tier, its_tests, root)]


def _served(path: str, root: Path) -> frozenset[str]:
    """The test files that a file below tests/ that holds no tests (a rig, a program) serves: they name it, or a rig that names it."""
    changed = Path(path)
    if changed.name.startswith("test_"):
        return frozenset()
    if changed.name == "conftest.py":  # serves all tests of its directory
        return frozenset(test for test in test_files(root) if Path(test).is_relative_to(changed.parent))
    named_by = _named_by(root)
    reached, waiting = {changed.stem}, [changed.stem]
    tests = set()
    while waiting:
        for user in named_by.get(waiting.pop(), ()):
            stem = Path(user).stem
            if stem.startswith("test_"):
                tests.add(user)
            elif stem not in reached:
                reached.add(stem)
                waiting.append(stem)
    return frozenset(tests)


@cache
def _named_by(root: Path) -> Mapping[str, Sequence[str]]:
    """Stems of files below tests/ -> the Python files below tests/ in which they are a word."""
    stems = {file.stem for file in (root / "tests").rglob("*") if file.is_file()}
    found: dict[str, list[str]] = {}
    for file in (root / "tests").rglob("*.py"):
        if file.name != "conftest.py":
            text = file.read_text(encoding="utf-8")
            for stem in stems & set(re.findall(r"[\w-]+|\w+", text)) - {file.stem}:
                found.setdefault(stem, []).append(str(file.relative_to(root)))
    return found


@cache
def slowness() -> float:
    """How many times slower one core is than the reference machine's, at least 1: the fastest of three measurements in CPU time."""
    return max(1.0, min(_work() for _ in range(3)) / REFERENCE_S)


def _work() -> float:
    started = time.process_time()
    total = 0
    for number in range(5_000_000):
        total += number
    return time.process_time() - started


def slices(tiers: Tiers) -> list[Part]:
    """The parts that take turns, each of at most `slice_s` quiet seconds."""
    return [part for tier in tiers.tiers.values() if tier.when is When.TURNS for part in _parts(tier, 0)]


def _parts(tier: Tier, turn: int) -> list[Part]:
    """All parts of a tier, beginning with the one whose turn it is."""
    if tier.parts == 1:
        return [Part(tier)]
    return [Part(tier, (turn + offset) % tier.parts) for offset in range(tier.parts)]


def choose(tiers: Tiers, changed: Sequence[str] | None, turn: int, owed: Sequence[str] = ()) -> Plan:
    """The parts that `.ci/run` runs. `changed`: the paths of the change, None if they are unknown; `turn`: which slice of the rotation is next;
    `owed`: the names of parts that earlier changes touched and for which no time was left.

    Parts that a change concerns until their quiet seconds are spent; then the first slice from the `turn`-th that is not among them.
    """
    runs = [Choice(Part(tier), "always") for tier in tiers.tiers.values() if tier.when is When.ALWAYS]
    left_out = []
    due = _due(tiers, changed, turn, owed)
    seconds_left = tiers.touched_s
    for choice in due.values():
        tier = choice.part.tier
        if tier.when is When.BY_HAND:
            why = f"{choice.why}, and it is run by hand: ./ops/test --tier {tier.name}"
            left_out.append(Choice(choice.part, why))
        elif tier.planned <= seconds_left:
            seconds_left -= tier.planned
            runs.append(choice)
        else:
            left_out.append(Choice(choice.part, f"{choice.why}; no time is left for it", touched=True))
    rotation = slices(tiers)
    taken = {choice.part.name for choice in runs}
    turned = rotation[turn % len(rotation) :] + rotation[: turn % len(rotation)] if rotation else []
    following = next((part for part in turned if part.name not in taken), None)
    if following is not None:
        runs.append(Choice(following, "its turn", touched=following.name in due))
        left_out = [choice for choice in left_out if choice.part.name != following.name]
    return Plan(runs, left_out)


def _due(tiers: Tiers, changed: Sequence[str] | None, turn: int, owed: Sequence[str]) -> Mapping[str, Choice]:
    """The parts that changes concern, by name, the first to run first: those of the most telling tier of each path, those that are owed, those of
    the other tiers; at the end, where a path concerns every tier, those of the rest, beginning with another tier each time."""
    last = len(tiers.tiers)
    if changed is None:
        ranked = [(last, name, "what the commit changes is not known") for name in tiers.tiers]
    else:
        ranked = [
            (rank, name, f"the change touches {path}")
            for name, (rank, path) in _ranked(tiers, changed, REPOSITORY).items()
        ]
    ruled = [each for each in ranked if each[0] < last]
    rest = ranked[len(ruled) :]
    at = turn % len(rest) if rest else 0
    ordered = [
        (rank, Choice(part, why, touched=True))
        for rank, name, why in [*ruled, *rest[at:], *rest[:at]]
        if (tier := tiers.named(name)).when in (When.TURNS, When.BY_HAND)
        for part in (_parts(tier, turn) if tier.when is When.TURNS else [Part(tier)])
    ]
    known = {part.name: part for part in slices(tiers)}
    earlier = [
        Choice(known[name], "an earlier change touched it and it did not fit", touched=True)
        for name in owed
        if name in known
    ]
    first = [choice for rank, choice in ordered if rank == 0]
    found: dict[str, Choice] = {}
    for choice in [*first, *earlier, *(choice for _, choice in ordered)]:
        found.setdefault(choice.part.name, choice)
    return found


def every(tiers: Tiers) -> Plan:
    """Every tier but the optional ones, whole."""
    runs = [Choice(Part(t), "everything") for t in tiers.tiers.values() if t.when is not When.OPTIONAL]
    return Plan(runs, [Choice(Part(t), "optional") for t in tiers.tiers.values() if t.when is When.OPTIONAL])


@dataclass(frozen=True, slots=True)
class Change:
    """HEAD's hash ("" without git), the commit that the checkout is compared with, and the paths that differ; None where they are unknown."""

    commit: str
    base: str | None = None
    paths: Sequence[str] | None = None


def changes(root: Path, base: str | None) -> Change:
    """The change of the checkout, with what is not committed, against `base`, a commit, or else against the newest one that is `HOURS` older than
    HEAD. It is unknown without git, if the base does not exist, and if a shallow clone does not reach back that far."""
    try:
        commit = _git(root, "rev-parse", "HEAD").strip()
    except (OSError, subprocess.CalledProcessError):
        return Change("")
    try:
        if base:
            found = _git(root, "merge-base", base, "HEAD").strip()
        else:
            before = int(_git(root, "show", "-s", "--format=%ct", "HEAD")) - 3600 * HOURS
            found = _git(root, "rev-list", "-1", f"--before={before}", "HEAD").strip()
        if not found:
            return Change(commit)
        differ = _git(root, "diff", "--name-only", found).splitlines()
        differ += _git(root, "ls-files", "--others", "--exclude-standard").splitlines()
        return Change(commit, found, sorted({*differ}))
    except (subprocess.CalledProcessError, ValueError):
        return Change(commit)


def uncommitted(root: Path) -> bool:
    """Whether files of the checkout differ from HEAD. Raises CalledProcessError without git."""
    return bool(_git(root, "status", "--porcelain").strip())


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=True)
    return done.stdout


def main(words: Sequence[str]) -> int:
    """The command line."""
    tiers = read()
    match list(words):
        case ["pytest", name, *part] if len(part) < 2:
            print("\n".join(arguments(tiers, tiers.named(name), test_files(), *part)))
        case ["budget", name]:
            print(round(tiers.named(name).budget * slowness()))
        case _:
            raise ValueError("known: pytest NAME [K/N], budget NAME")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except ValueError as problem:
        sys.exit(f"tiers: {problem}")
