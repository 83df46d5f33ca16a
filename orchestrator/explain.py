"""What is wrong with a configuration, in one sentence: by the file, and by the words of each `--set`."""

from collections.abc import Callable, Sequence
from difflib import get_close_matches

from pydantic import ValidationError

Location = tuple[int | str, ...]
LISTED = 8  # known keys that are told; the guide and `penstock config` have them all


def explain(
    error: ValidationError, source: str, overrides: Sequence[str], known: Callable[[Location], list[str]]
) -> str:
    """`known` gives the keys that could stand where an unknown one was found."""
    said = {tuple(each.partition("=")[0].strip().split(".")): each for each in overrides}
    parts, given = [], []
    for item in error.errors():
        location = item["loc"]
        if location[:2] == ("rollout", "context"):
            location = (*location[:3], *location[4:])  # without the policy's name, which nobody wrote there
        words = tuple(str(each) for each in location)
        key, message = ".".join(words), item["msg"].removeprefix("Value error, ")
        unknown = item["type"] == "extra_forbidden"
        told = f"{key}: {message}" if key else message
        part = _unknown(key, known(item["loc"])) if unknown else told
        by = next((each for path, each in said.items() if _within(path, words, unknown)), None)
        if by is None:
            parts.append(part)
        else:
            given.append(f"--set {by}: {part}")
    return "; ".join(([f"{source}: " + "; ".join(parts)] if parts else []) + given)


def _within(path: tuple[str, ...], words: tuple[str, ...], unknown: bool) -> bool:
    """Whether an override of `path` is what is wrong at `words`. A whole section that is known may be wrong by the file as well."""
    return path == words[: len(path)] or ((unknown or len(words) > 1) and words == path[: len(words)])


def _unknown(key: str, known: Sequence[str]) -> str:
    """Which key may be meant, and the first of those that there are."""
    name = key.rpartition(".")[2]
    short = "".join(part[:1] for part in name.split("_"))  # learning_rate: lr
    meant = get_close_matches(name, known, 1) or [each for each in known if "_" in name and each == short]
    listed = ", ".join(known[:LISTED]) + (f" and {len(known) - LISTED} more" if len(known) > LISTED else "")
    return f"{key} is not a known key{f': did you mean {meant[0]}?' if meant else ''} (known: {listed})"
