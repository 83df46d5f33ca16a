"""The contract between a task's tests and the verifier runner.

`bash /tests/test.sh` runs in a fresh sandbox, in /app, on the pristine environment plus the declared artifacts. It finds the
agent's final message in the file that `$PENSTOCK_ANSWER` names. It writes one number in [0, 1] to `REWARD_FILE`, or one or several named numbers to
`REWARD_JSON`; one of them is the reward, and `true` is 1, `false` 0. Optionally it writes
a list of {"name", "passed", "message"} to `RESULTS_FILE` and an object about the process to `PROCESS_FILE`:
{name: number or [number of step 0, of step 1, …]}, in [-1, 1], which `[reward.process.NAME]` with `source = "verifier"`
weights. Where `REWARD_JSON` describes the result (it has a text, say), the number in `REWARD_FILE` is the reward, unless the description has
another one named `reward`. A missing reward file, or one without a number, is a failure of the verifier, never a reward of 0. With a valid one
there is a verdict if the script ended by itself: its exit status, and invalid other files, are notes in the verdict's log.

A script runs the agent's programs through `$PENSTOCK_UNTRUSTED` (untrusted.py): both share a user, so the agent's program
could otherwise write the reward itself. A script ended by a signal has reached no verdict, even with a reward file. It takes its random draws
from `$PENSTOCK_SEED`, a number that is the same in every verification of one attempt.

If a sandbox cannot show these absolute paths (the `local` provider), the runner puts the replacement of /logs into
`$PENSTOCK_LOGS`; a script that should run there too writes to `${PENSTOCK_LOGS:-/logs}/verifier/`.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from orchestrator.contracts.events import TestResult
from orchestrator.contracts.quote import quoted

TESTS_DIR: Final = "/tests"
REWARD_FILE: Final = "/logs/verifier/reward.txt"
REWARD_JSON: Final = "/logs/verifier/reward.json"
REWARD_KEY: Final = "reward"
RESULTS_FILE: Final = "/logs/verifier/results.json"
PROCESS_FILE: Final = "/logs/verifier/process.json"
MAX_SIGNALS: Final = 64
MAX_NAME: Final = 64
MAX_STEPS: Final = 20_000
SIGNAL_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")
EXACT: Final = 1e-9
"""The largest difference of two numbers that are the same but for the rounding of sums: 0.2 + 0.4 + 0.3 + 0.1 is 1.0000000000000002."""
_ROUNDED: Final = 0.005
"""The largest difference between a reward and the same reward in another file, one of them rounded."""
ANSWER_VARIABLE: Final = "PENSTOCK_ANSWER"
LOGS_VARIABLE: Final = "PENSTOCK_LOGS"
UNTRUSTED_VARIABLE: Final = "PENSTOCK_UNTRUSTED"
UNTRUSTED_FILE: Final = "/tests/.penstock/untrusted.py"
UNTRUSTED_LIMITS: Final = "/tests/.penstock/limits"
SIGNALLED: Final = 128
"""Exit statuses from here on look like a signal's, and need not be one."""
_SHELLS: Final = ("bash", "sh", "dash")


def shell_options(script: bytes) -> tuple[str, ...]:
    """The options of bash in a script's first line, as in `#!/bin/bash -e`. ValueError if it names another interpreter."""
    first = script.split(b"\n", 1)[0]
    if not first.startswith(b"#!"):
        return ()
    words = first[2:].decode(errors="replace").split()
    if words and words[0].rpartition("/")[2] == "env":
        words = [word for word in words[1:] if word != "-S"]
    if not words or words[0].rpartition("/")[2] not in _SHELLS:
        raise ValueError(
            f"begins with {quoted(first.decode(errors='replace'))}, and is run by bash: call that program from a shell script"
        )
    return tuple(words[1:])


@dataclass(frozen=True, slots=True)
class Scores:
    """The reward, in [0, 1], and the named numbers that it was chosen from; None: it has no name. `note`: why the other file does not count."""

    reward: float
    components: dict[str, float] | None = None
    note: str | None = None


class Described(ValueError):
    """`reward.json` is an object of the tests' own, with values that are not numbers. `reward`: its value of that name, None without one."""

    def __init__(self, sentence: str, reward: object) -> None:
        super().__init__(sentence)
        self.reward = reward


def parse_reward(
    text: str | None,
    json_text: str | None = None,
    *,
    named: bool = False,
    performance: str = "",
    partial: bool = False,
) -> Scores:
    """The reward from the two files that may hold it (None: the file is missing). ValueError otherwise.

    With both, `reward.json` counts if the tests name it (`named`), as the format requires; otherwise it is not from the tests. `performance` names
    the number that is the reward. Without it, this is the number named `reward`, or the only number. A number without a name is called `reward`.
    `partial`: these are the numbers of one step, so others may hold the reward; it counts as 0 here.

    In an object, true is 1 and false is 0. Where there is a text as well, one of them is the reward only if `performance` names it: an object with
    one of them and without a number `reward` is a description there.
    An object with other values than numbers raises Described; if there is a valid text as well, this is the reward, and a note says so. The two must
    not contradict each other: the object has no value named `reward`, or the same one. Nothing else makes an invalid JSON harmless, so that no work
    can choose between two rewards by what it leads the tests to write.
    """
    if json_text is not None and (named or text is None):
        try:
            return _scores_of_json(json_text, performance, partial=partial, alone=text is None)
        except Described as error:
            if (scores := _in_its_place(text, error, performance)) is None:
                raise
            return scores
    return _scores_of_text(text, performance, partial=partial)


def _in_its_place(text: str | None, described: Described, performance: str) -> Scores | None:
    """The reward in `reward.txt` next to a description; None if it is invalid, is not the number that is wanted, or differs from the description."""
    if text is None or performance not in ("", REWARD_KEY):
        return None
    try:
        found = _scores_of_text(text, performance)
    except ValueError:
        return None
    other = described.reward
    if other is not None and not (isinstance(other, int | float) and _finite(other)):
        return None
    if other is not None and abs(other - found.reward) > _ROUNDED:
        return None
    return Scores(found.reward, note=f"the reward is the number in {REWARD_FILE}: {described}")


def rounded(number: float) -> float:
    """-1, 0 or 1 for a number that differs from it by no more than EXACT; else the number.

    >>> rounded(0.2 + 0.4 + 0.3 + 0.1), rounded(0.7 + 0.2 + 0.1), rounded(0.1 + 0.2)
    (1.0, 1.0, 0.30000000000000004)
    """
    return next((whole for whole in (0.0, 1.0, -1.0) if same(number, whole)), number)


def same(number: float | None, other: float | None) -> bool:
    """Whether two numbers differ by no more than EXACT, or both are missing."""
    return number == other if number is None or other is None else abs(number - other) <= EXACT


def _scores_of_text(text: str | None, performance: str, *, partial: bool = False) -> Scores:
    if text is None:
        raise ValueError(f"tests/test.sh wrote no {REWARD_FILE} and no {REWARD_JSON}")
    try:
        reward = rounded(float(text))
    except ValueError:
        raise ValueError(f"{REWARD_FILE} must hold one number, got {quoted(text.strip())}") from None
    if not math.isfinite(reward) or not 0.0 <= reward <= 1.0:
        raise ValueError(f"{REWARD_FILE} must hold a number from 0 to 1, got {quoted(text.strip())}")
    if performance not in ("", REWARD_KEY) and not partial:
        raise ValueError(
            f"{REWARD_FILE} holds one number without a name, and [verifier].performance asks for {quoted(performance)}"
        )
    return Scores(reward)


def _scores_of_json(text: str, performance: str, *, partial: bool, alone: bool) -> Scores:
    """`alone`: no other file may hold the reward."""
    try:
        found = json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{REWARD_JSON} must hold a number, or an object of numbers: {error}") from None
    values = _without_flags(found) if isinstance(found, dict) else {REWARD_KEY: found}
    flags = {name for name in values if isinstance(found, dict) and isinstance(found[name], bool)}
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            sentence = f"{REWARD_JSON}: {quoted(name)} must be a finite number, got {quoted(value)}"
            raise (
                Described(sentence, values.get(REWARD_KEY))
                if isinstance(found, dict)
                else ValueError(sentence)
            )
    for name, value in values.items():
        if not _finite(value):
            raise ValueError(f"{REWARD_JSON}: {quoted(name)} must be a finite number, got {quoted(value)}")
    for flaw in component_flaws(values):
        raise ValueError(f"{REWARD_JSON}: {flaw}")
    chosen = performance or (next(iter(values)) if len(values) == 1 else REWARD_KEY)
    if flags and not alone:
        _check_described(values, flags, chosen, performance)
    if chosen not in values and partial:
        return Scores(0.0, {name: float(value) for name, value in values.items()})
    if chosen not in values:
        raise ValueError(_names_no_reward(values, performance))
    reward = rounded(float(values[chosen]))
    if not 0.0 <= reward <= 1.0:
        raise ValueError(f"{REWARD_JSON} must hold a reward from 0 to 1, got {quoted(reward)}")
    components = {name: float(value) for name, value in values.items()} | {chosen: reward}
    return Scores(reward, components if isinstance(found, dict) else None)


def _check_described(values: Mapping[str, float], flags: Set[str], chosen: str, performance: str) -> None:
    """Described if an object with `flags`, the names of true and false, has no number that is the reward in place of a text."""
    if chosen == REWARD_KEY and chosen in flags:
        is_true = bool(values[chosen])
        raise Described(
            f"{REWARD_JSON}: {quoted(REWARD_KEY)} must be a number if {REWARD_FILE} holds another one, got {quoted(is_true)}",
            values[chosen],
        )
    if chosen not in values:
        raise Described(_names_no_reward(values, performance), None)
    if chosen in flags and not performance:
        raise Described(
            f"{REWARD_JSON}: {quoted(chosen)} is not the reward if {REWARD_FILE} holds one: name it in [verifier].performance if it is",
            None,
        )


def _without_flags(found: Mapping[str, Any]) -> dict[str, Any]:
    """The values of an object, with 1.0 for true and 0.0 for false."""
    return {name: float(value) if isinstance(value, bool) else value for name, value in found.items()}


def _names_no_reward(values: Mapping[str, float], performance: str) -> str:
    names = ", ".join(repr(name) for name in values)[:300] or "none"
    if performance:
        return f"{REWARD_JSON} has no number {quoted(performance)}, which [verifier].performance asks for, got {names}"
    return (
        f"{REWARD_JSON} must say which of its numbers is the reward: "
        f"call it {quoted(REWARD_KEY)}, or name it in [verifier].performance, got {names}"
    )


def component_flaws(components: Mapping[str, float]) -> Iterator[str]:
    """Errors in the named numbers of a verdict, as sentences."""
    if len(components) > MAX_SIGNALS:
        yield f"{len(components)} names are more than {MAX_SIGNALS}"
    for name, value in components.items():
        if not name.isprintable() or not 0 < len(name) <= MAX_NAME:
            yield f"{quoted(name)} is not a name: use 1 to {MAX_NAME} printable characters"
        if not _finite(value):
            yield f"{quoted(name)} must be a finite number, got {quoted(value)}"


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name comes twice")
    return found


def _finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def parse_results(json_text: str | None) -> list[TestResult]:
    """The per-test results, empty without a results file. ValueError names the invalid value."""
    if json_text is None:
        return []
    try:
        return msgspec.json.decode(json_text, type=list[TestResult])
    except (msgspec.MsgspecError, UnicodeEncodeError) as error:
        raise ValueError(f"{RESULTS_FILE}: {error}") from error


Process = dict[str, float | list[float]]


def parse_process(json_text: str | None) -> Process | None:
    """The content of the process file, None without one. ValueError names the invalid value."""
    if json_text is None:
        return None
    try:
        found = msgspec.json.decode(json_text, type=Process)
    except (msgspec.MsgspecError, UnicodeEncodeError) as error:
        raise ValueError(f"{PROCESS_FILE}: {error}") from error
    found = {
        name: [*map(rounded, each)] if isinstance(each, list) else rounded(each)
        for name, each in found.items()
    }
    for flaw in process_flaws(found):
        raise ValueError(f"{PROCESS_FILE}: {flaw}")
    return found


def process_flaws(signals: Mapping[str, float | list[float]]) -> Iterator[str]:
    """Errors in a verifier's process values, as sentences."""
    if len(signals) > MAX_SIGNALS:
        yield f"{len(signals)} names are more than {MAX_SIGNALS}"
    for name, value in signals.items():
        if not SIGNAL_NAME.fullmatch(name):
            yield f"{name!r:.80} is not a name: use 1 to 64 characters of a-z, 0-9 and _"
        numbers = value if isinstance(value, list) else [value]
        if len(numbers) > MAX_STEPS:
            yield f"{name} has numbers of {len(numbers)} steps, more than {MAX_STEPS}"
        wrong = next((number for number in numbers if not -1 <= number <= 1), None)  # also NaN
        if wrong is not None:
            yield f"{name} is {wrong}, it must lie in [-1, 1]"
