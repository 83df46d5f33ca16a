"""Valid values of the keys of a `task.toml`. Each check returns a description of a valid value if the value is invalid; None: it is valid."""

import re
import unicodedata
from collections.abc import Callable
from enum import StrEnum
from typing import Any, Final

from orchestrator.contracts.hosts import HostList
from orchestrator.contracts.network import NetworkMode
from orchestrator.contracts.numbers import is_finite
from orchestrator.contracts.quote import quoted
from orchestrator.tasks.reserved import reserved
from sandboxes.users import is_user

ValueCheck = Callable[[Any], str | None]


class RewardStrategy(StrEnum):
    """How the rewards of the steps make the reward of a task: their mean, or that of the last step that was graded."""

    MEAN = "mean"
    FINAL = "final"


class EnvironmentMode(StrEnum):
    """Where the tests of a task run: in the environment of the agent, or in one of their own."""

    SHARED = "shared"
    SEPARATE = "separate"


VERSIONS: Final = re.compile(r"1(\.[0-9]{1,4}){0,2}")
VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,254}")
ENV_TABLE_BYTES: Final = 64 * 1024
WORD_BYTES: Final = 64 * 1024
"""Of a command, and of the arguments of a program together: Linux takes no argument of 128 KB."""
HOUR: Final = 3600.0
WEEK: Final = 7 * 86400.0
_SIZE: Final = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)([KMG])", re.IGNORECASE)
REWARD: Final = "reward"
MAX_STEPS: Final = 32
"""Of one task."""
STEP_NAME: Final = 'a name of 1 to 64 characters for a directory: without < > : " / \\ | ? *, dots or spaces at its end, or control characters'
_NOT_IN_NAMES: Final = re.compile(r'[<>:"/\\|?*\x00-\x1f\x7f\ud800-\udfff]')
_DEVICES: Final = re.compile(r"(CON|PRN|AUX|NUL|CONIN\$|CONOUT\$|(COM|LPT)[1-9¹²³])", re.IGNORECASE)
_OF_THE_MACHINE: Final = re.compile(r"\$\{([^}:]+)(?::-(.*))?\}")
"""Harbor's pattern of a value that is a variable of the machine."""
_IMAGE: Final = re.compile(r"[a-zA-Z0-9][\w.\-/:@]{0,511}", re.ASCII)


def number(value: Any) -> str | None:
    return None if is_finite(value) and value > 0 else "a number above 0"


def whole(value: Any) -> str | None:
    return None if _is_whole(value) and value > 0 else "a whole number above 0"


def _is_whole(value: Any) -> bool:
    """Whether Harbor reads a value as a whole number: 2048.0 is one."""
    return type(value) is int or (type(value) is float and value.is_integer())


def seconds(value: Any) -> str | None:
    known = isinstance(value, int | float) and not isinstance(value, bool)
    return None if known and 0 < value <= HOUR else f"seconds above 0, at most {HOUR:g}"


def wall(value: Any) -> str | None:
    """A limit of an agent or of tests."""
    fits = number(value) is None and value <= WEEK
    return None if fits else f"a number of seconds above 0, at most {WEEK:g}"


def pause(value: Any) -> str | None:
    return (
        None
        if value == 0 and type(value) in (int, float)
        else seconds(value) and f"seconds from 0 to {HOUR:g}"
    )


def retries(value: Any) -> str | None:
    return None if _is_whole(value) and 1 <= value <= 1000 else "a whole number from 1 to 1000"


def size(value: Any) -> str | None:
    fits = isinstance(value, str) and _SIZE.fullmatch(value.strip())
    return None if fits else 'a size such as "2G" or "512M"'


def megabytes(text: str) -> int:
    """`"2G"` as MB, by Harbor's rules."""
    found = _SIZE.fullmatch(text.strip())
    assert found is not None
    return int(float(found[1]) * {"K": 1 / 1024, "M": 1, "G": 1024}[found[2].upper()])


def version(value: Any) -> str | None:
    return None if isinstance(value, str) and VERSIONS.fullmatch(value) else 'a version 1 such as "1.4"'


def any_version(value: Any) -> str | None:
    """Harbor never checks it, and authors write the version of their task there."""
    fits = isinstance(value, str) and 0 < len(value) <= 64 and value.isprintable()
    return None if fits else 'a version such as "1.4"'


def component(value: Any) -> str | None:
    fits = isinstance(value, str) and 0 < len(value) <= 64 and value.isprintable()
    return None if fits else "the name of a number in reward.json"


def step_name(value: Any) -> str | None:
    """Harbor's rule for a directory below steps/, and our limit of its length."""
    fits = (
        isinstance(value, str)
        and value.strip()
        and value.isprintable()
        and len(value) <= 64
        and not value.endswith((".", " "))
        and not _NOT_IN_NAMES.search(value)
        and not _DEVICES.fullmatch(value.partition(".")[0].rstrip(" "))
    )
    return None if fits else STEP_NAME


def steps(value: Any) -> str | None:
    """The check of the steps together. Names that one file system may hold to be the same are duplicates."""
    names = [unicodedata.normalize("NFC", each["name"]).casefold() for each in value]
    if len(set(names)) < len(names):
        return "steps of different names, also where upper and lower case are the same"
    return None if len(value) <= MAX_STEPS else f"at most {MAX_STEPS} steps"


def min_reward(value: Any) -> str | None:
    """A number from 0 to 1 for the reward, or any finite number for each named number of reward.json."""
    if isinstance(value, dict):
        known = value and all(
            component(name) is None and is_finite(least) and (name != REWARD or 0 <= least <= 1)
            for name, least in value.items()
        )
        return (
            None
            if known
            else "a table of finite numbers by their names in reward.json, from 0 to 1 for reward"
        )
    return None if is_finite(value) and 0 <= value <= 1 else "a number from 0 to 1, or a table of numbers"


def _one_of(members: type[StrEnum], value: Any) -> str | None:
    *others, last = (f'"{member}"' for member in members)
    return None if value in tuple(members) else f"{', '.join(others)} or {last}"


def strategy(value: Any) -> str | None:
    return _one_of(RewardStrategy, value)


def mode(value: Any) -> str | None:
    return _one_of(EnvironmentMode, value)


def path(value: Any) -> str | None:
    """An empty one is none: the settings drop the key."""
    return None if isinstance(value, str) and "\0" not in value else "a path"


def command(value: Any) -> str | None:
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        return "a shell command"
    return (
        None
        if len(value.encode(errors="replace")) <= WORD_BYTES
        else f"a shell command of at most {WORD_BYTES // 1024} KB"
    )


def image(value: Any) -> str | None:
    """An empty name is none: the settings drop the key."""
    known = isinstance(value, str) and (not value or _IMAGE.fullmatch(value))
    return None if known else "the name of an image"


def user(value: Any) -> str | None:
    """An empty name is none: the settings drop the key."""
    return None if value == "" or is_user(value) else "the name of a user or its uid, without a group"


def flag(value: Any) -> str | None:
    return None if isinstance(value, bool) else "true or false"


def network_mode(value: Any) -> str | None:
    return _one_of(NetworkMode, value)


def hosts(value: Any) -> str | None:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        return "a list of hosts"
    try:
        HostList.of(value)
    except ValueError as error:
        return f"a list of names of hosts, *.suffix or single addresses: {error}"
    return None


def default(text: str) -> str | None:
    """The value of a variable, as Harbor reads it where the machine has none of that name: the default of `${NAME:-default}`, any other text as it
    is. None: `${NAME}`, which has no value."""
    found = _OF_THE_MACHINE.fullmatch(text)
    return text if found is None else found[2]


def variables(value: Any) -> str | None:
    if not isinstance(value, dict):
        return "a table of variables"
    for name, text in value.items():
        if not VARIABLE.fullmatch(name):
            return f"a table of variables: {quoted(name)} is not a valid environment variable name; use letters, digits and _, and no digit first"
        if (why := reserved(name)) is not None:
            return f"without {name}: {why}"
        if not isinstance(text, str):
            return f"a table of texts: write the value of {name} in quotes"
        if "\0" in text:
            return f"a table of texts without NUL characters, {name} has one"
        if default(text) is None:
            return (
                f"a table of values: {name} is {quoted(text)}, and nothing of the machine's own variables reaches a sandbox: "
                "write the value, or ${…:-value}"
            )
    total = sum(len(name.encode()) + len(text.encode()) + 2 for name, text in value.items())
    return None if total <= ENV_TABLE_BYTES else f"at most {ENV_TABLE_BYTES // 1024} KB in all"
