"""YAML files of tasks, and the values of compose files. Errors are ValueError; `at` is how their sentences begin.

Scalars of compose files are read by YAML 1.2, as compose reads them: `yes`, `0123`, `12:30` and `1.10` are texts.
"""

import re
import shlex
from collections import Counter
from collections.abc import Mapping
from typing import Any, ClassVar, Final

import yaml

from orchestrator.contracts.quote import quoted
from orchestrator.tasks.bundle import check_path

_VARIABLE: Final = re.compile(r"\$(?:\$|\{([^{}]*)\}|([A-Za-z_][A-Za-z0-9_]*)|)")
_DEFAULT: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?::?-(.*))?", re.DOTALL)


MAX_VALUES: Final = 100_000
"""Of a file, counting what an alias repeats."""
MAX_CHARACTERS: Final = 1 << 20
"""Of the texts of a file, counting what an alias repeats. A file without aliases may be as large as a task's file is read."""


class _Strict(yaml.SafeLoader):  # type: ignore[misc]  # yaml has no types
    """No key twice: the first of the two would be lost. Aliases (`*name`) and merged mappings (`<<: *name`) stay small."""

    def get_single_node(self) -> yaml.Node | None:
        node = super().get_single_node()
        _weigh(node, {}, set())
        return node


def _weigh(node: yaml.Node | None, known: dict[int, tuple[int, int]], above: set[int]) -> tuple[int, int]:
    """The number of values in a node and of characters in their texts, each alias written out. YAMLError for too many, for a value that holds
    itself, and for a key that comes twice."""
    if not isinstance(node, yaml.CollectionNode):
        return 1, 0 if node is None else len(node.value)
    if id(node) in known:
        return known[id(node)]
    if id(node) in above:
        raise yaml.constructor.ConstructorError(None, None, "an alias names what holds it", node.start_mark)
    above.add(id(node))
    inner = node.value
    if isinstance(node, yaml.MappingNode):
        names = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        if (twice := next((name for name, count in names.items() if count > 1), None)) is not None:
            raise yaml.constructor.ConstructorError(
                None, None, f"the key {quoted(twice)} comes twice", node.start_mark
            )
        inner = [each for pair in node.value for each in pair]
    sizes = [_weigh(each, known, above) for each in inner]
    values, characters = 1 + sum(size for size, _ in sizes), sum(length for _, length in sizes)
    above.remove(id(node))
    for count, most, what in (
        (values, MAX_VALUES, "values"),
        (characters, MAX_CHARACTERS, "characters in its texts, each alias written out"),
    ):
        if count > most:
            raise yaml.constructor.ConstructorError(
                None, None, f"it has more than {most:,} {what}", node.start_mark
            )
    known[id(node)] = values, characters
    return values, characters


class _Plain(_Strict):
    """Only null, true, false and whole numbers are no texts. `<<` merges, as compose has it."""

    yaml_implicit_resolvers: ClassVar[dict[str, list[tuple[str, re.Pattern[str]]]]] = {}


_Plain.add_implicit_resolver(
    "tag:yaml.org,2002:null", re.compile(r"(~|null|Null|NULL|)\Z"), ["~", "n", "N", ""]
)
_Plain.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"(true|True|TRUE|false|False|FALSE)\Z"), list("tTfF")
)
_Plain.add_implicit_resolver(
    "tag:yaml.org,2002:int", re.compile(r"(0|-?[1-9][0-9]{0,17})\Z"), list("-0123456789")
)
_Plain.add_implicit_resolver("tag:yaml.org,2002:merge", re.compile(r"<<\Z"), ["<"])


def document(text: str, name: str, *, plain: bool = False) -> Any:
    """The content of a YAML file. ValueError names the line of an error. `plain`: a compose file."""
    try:
        loader = (_Plain if plain else _Strict)(text)
        try:
            return loader.get_single_data()
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}" if mark is not None else ""
        raise ValueError(f"{name}{line} is not YAML: {getattr(error, 'problem', None) or error}") from None
    except (RecursionError, ValueError) as error:
        raise ValueError(f"{name} is not YAML: {error}") from None


def mapping(text: str, name: str, *, plain: bool = False) -> dict[str, Any]:
    """A YAML file that is a mapping."""
    found = document(text, name, plain=plain)
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise ValueError(f"{name} must be a mapping with keys, got {quoted(found)}")
    return found


def given(table: Mapping[str, Any], key: str, nothing: Any) -> Any:
    """The value of a key; `nothing` where it is missing or null."""
    value = table.get(key)
    return nothing if value is None else value


def text_of(key: str, value: Any, at: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{at}{key} must be text, got {quoted(value)}")
    return value


def build_of(value: Any, at: str) -> tuple[str, str]:
    """(folder, Dockerfile in it) of the key `build`; the folder is "" for the one of the file itself."""
    build = {"context": value} if isinstance(value, str) else value
    if not isinstance(build, dict):
        raise ValueError(f"{at}build must be a folder or a mapping, got {quoted(value)}")
    for key, inner in build.items():
        if key == "args" and inner:
            raise ValueError(
                f"{at}build.args is not honoured: write its values into the Dockerfile, as in ARG NAME=value"
            )
        if key not in ("context", "dockerfile", "args"):
            raise ValueError(f"{at}build.{key} is not honoured: write it into the Dockerfile")
    context = path_of("build.context", build.get("context", "."), at)
    return context, path_of("build.dockerfile", build.get("dockerfile", "Dockerfile"), at)


def path_of(key: str, value: Any, at: str) -> str:
    """A path inside of the task; empty: the directory of the file itself."""
    path = text_of(key, value, at).removeprefix("./").rstrip("/")
    if path in ("", "."):
        return ""
    try:
        check_path(path)
    except ValueError as error:
        raise ValueError(f"{at}{key}: {error}") from None
    return path


def pairs_of(value: Any, at: str) -> list[tuple[str, Any]]:
    """The variables of the key `environment`, in order; None: without a value."""
    if isinstance(value, dict):
        return [(str(name), text) for name, text in value.items()]
    if isinstance(value, list):
        parts = (str(each).partition("=") for each in value)
        return [(name, text if separator else None) for name, separator, text in parts]
    raise ValueError(f"{at}environment must be a list or a mapping, got {quoted(value)}")


def words_of(key: str, value: Any, at: str) -> tuple[str, ...]:
    """A program and its arguments: a list, or a text that is split as a shell would, without running one."""
    if isinstance(value, str):
        try:
            words = shlex.split(value)
        except ValueError as error:
            raise ValueError(f"{at}{key} cannot be split into words: {error}, got {quoted(value)}") from None
    elif isinstance(value, list) and all(isinstance(each, str | int) for each in value):
        words = [str(each) for each in value]
    else:
        raise ValueError(f"{at}{key} must be text or a list of texts, got {quoted(value)}")
    if any("\0" in word for word in words):
        raise ValueError(f"{at}{key} holds a NUL character: remove it")
    return tuple(words)


def interpolated(value: Any, at: str, known: Mapping[str, str]) -> Any:
    """`value` with each `$$` as `$`, `${NAME:-text}` as that text, and the variables that are `known`. ValueError for another variable: nothing of
    the machine's own reaches a task."""
    if isinstance(value, dict):
        return {key: interpolated(each, at, known) for key, each in value.items()}
    if isinstance(value, list):
        return [interpolated(each, at, known) for each in value]
    if not isinstance(value, str):
        return value

    def replaced(found: re.Match[str]) -> str:
        if found[0] == "$$":
            return "$"
        form = _DEFAULT.fullmatch(found[1] if found[1] is not None else found[2] or "")
        if form is not None and (form[1] in known or form[2] is not None):
            return known.get(form[1], form[2] or "")
        raise ValueError(
            f"{at}{quoted(value)} takes a variable of the machine: write its value, or $$ for the sign itself"
        )

    return _VARIABLE.sub(replaced, value)
