"""Explains errors of a configuration, in one sentence: by the file, and by each override."""

from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches

from pydantic import ValidationError

from orchestrator.contracts.quote import cut, quoted
from orchestrator.settings.renamed import now_called, renamed_in

Location = tuple[int | str, ...]
_WRITTEN = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false, without quotes",
    "finite_number": "a finite number",
    "model_type": "a table",
    "dict_type": "a table",
    "list_type": "a list",
    "tuple_type": "a list",
    "string_type": "text",
}
LISTED = 8  # known keys that a message lists; the guide and `penstock config` have them all


def explain(
    error: ValidationError,
    source: str,
    overrides: Mapping[tuple[str, ...], str],
    known: Callable[[Location], list[str]],
) -> str:
    """`overrides`: by the parts of their keys. `known` gives the keys that could stand where an unknown one was found."""
    parts, from_overrides = [], []
    for item in error.errors():
        location = item["loc"]
        key_parts = tuple(str(each) for each in location)
        key, message = ".".join(key_parts), item["msg"].removeprefix("Value error, ")
        unknown = item["type"] == "extra_forbidden"
        if item["type"] in _WRITTEN:
            value = item["input"]
            quotes_hint = " without quotes" if isinstance(value, str) and value.strip()[:1].isdigit() else ""
            message = f"must be {_WRITTEN[item['type']]}{quotes_hint}, got {quoted(value)}"
        elif item["type"].startswith(("greater_than", "less_than")):
            message = f"{message.replace('Input should', 'must')}, got {quoted(item['input'])}"
        problem = f"{key}: {message}" if key else message
        if unknown:
            renamed = "; ".join(map(now_called, renamed_in(key, item["input"])))
            problem = renamed or unknown_key(key, known(item["loc"]))
        override = next((each for path, each in overrides.items() if _within(path, key_parts, unknown)), None)
        if override is None:
            parts.append(problem)
        else:
            from_overrides.append(f"override {cut(override)}: {problem}")
    return "; ".join(([f"{source}: " + "; ".join(parts)] if parts else []) + from_overrides)


def _within(path: tuple[str, ...], words: tuple[str, ...], unknown: bool) -> bool:
    """Whether an override of `path` is what is wrong at `words`. A whole section that is known may be wrong by the file as well."""
    return path == words[: len(path)] or ((unknown or len(words) > 1) and words == path[: len(words)])


def unknown_key(key: str, known: Sequence[str]) -> str:
    """Which key may be meant, and the first of those that there are."""
    name = key.rpartition(".")[2]
    initials = "".join(part[:1] for part in name.split("_"))  # learning_rate: lr
    similar = get_close_matches(name, known, 1) or [
        each for each in known if "_" in name and each == initials
    ]
    listed = ", ".join(known[:LISTED]) + (f" and {len(known) - LISTED} more" if len(known) > LISTED else "")
    return (
        f"{cut(key)} is not a known key{f': did you mean {similar[0]}?' if similar else ''} (known: {listed})"
    )
