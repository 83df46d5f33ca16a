"""Every key of the configuration: its type, default, scope and sentence. `penstock config --explain` and the guide print these.

A key inside a table with user-chosen names has NAME in the place of that name: `reward.process.NAME.weight`.
"""

import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from orchestrator.contracts.quote import cut
from orchestrator.settings.config import Config
from orchestrator.settings.renamed import now_called, renamed_in
from orchestrator.settings.scope import Scope, model_in, scope_of

NAME = "NAME"
FOLLOWING = "then"  # later stages have the keys of the first


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One key. `default` is a plain value, as JSON has it; None: the key must be given."""

    name: str
    type: str
    default: Any
    scope: Scope
    sentence: str

    @property
    def section(self) -> str:
        """The first part of the name."""
        return self.name.partition(".")[0]


def keys() -> Sequence[Key]:
    """All keys, in the order of their declaration."""
    return [
        key
        for section, field in Config.model_fields.items()
        if (model := model_in(field.annotation)) is not None
        for key in _below(model, section, section)
    ]


def _below(model: type[BaseModel], name: str, path: str) -> Iterator[Key]:
    """`path` is `name` without the names that people choose."""
    for key, field in model.model_fields.items():
        inner = model_in(field.annotation)
        is_mapping = get_origin(field.annotation) in (dict, Mapping)
        if inner is None or is_mapping or key == FOLLOWING:
            yield Key(
                name=f"{name}.{key}",
                type=_written(field.annotation),
                default=_default(field),
                scope=scope_of(Config, f"{path}.{key}"),
                sentence=field.description or "",
            )
        if inner is not None and key != FOLLOWING:
            yield from _below(inner, f"{name}.{key}{f'.{NAME}' if is_mapping else ''}", f"{path}.{key}")


def _default(field: FieldInfo) -> Any:
    value = field.get_default(call_default_factory=True, validated_data={})
    return None if value is PydanticUndefined else plain_value(value)


def plain_value(value: Any) -> Any:
    """A value of the configuration as JSON has it."""
    match value:
        case BaseModel():
            return value.model_dump(mode="json")
        case Enum():
            return value.value
        case tuple() | list():
            return [plain_value(each) for each in value]
        case Mapping():
            return {key: plain_value(each) for key, each in value.items()}
        case _:
            return value


def _written(annotation: Any) -> str:
    """A type in the words of the file.

    >>> _written(int), _written(tuple[str, ...]), _written(dict[str, float]), _written(Literal["a", "b"]), _written(int | None)
    ('integer', 'list of strings', 'table of numbers', 'a | b', 'integer')
    """
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _written(arguments[0])
    if origin is Literal:
        return " | ".join(map(str, arguments))
    if origin in (Union, types.UnionType):
        return " | ".join(_written(each) for each in arguments if each is not type(None))
    if origin in (list, tuple):
        return f"list of {_written(arguments[0])}s"
    if origin in (dict, Mapping):
        return f"table of {_written(arguments[1])}s"
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return " | ".join(str(each.value) for each in annotation)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "table"
    return {bool: "boolean", int: "integer", float: "number", str: "string"}[annotation]


def chosen(wanted: Sequence[str]) -> Sequence[Key]:
    """The keys of these names or sections; all of them without any. ValueError, one sentence, names the nearest keys of an unknown one."""
    all_keys = keys()
    found: dict[str, Key] = {}
    for name in wanted:
        matching = [each for each in all_keys if _within(each.name.split("."), name.split("."))]
        if not matching:
            raise ValueError(_unknown(name, [each.name for each in all_keys]))
        found |= {each.name: each for each in matching}
    return list(found.values()) if wanted else all_keys


def _within(parts: Sequence[str], wanted: Sequence[str]) -> bool:
    """Whether a key is the wanted one or below it, whatever name people chose."""
    return len(parts) >= len(wanted) and all(
        part in (given_part, NAME) for part, given_part in zip(parts, wanted, strict=False)
    )


def _unknown(name: str, known: Sequence[str]) -> str:
    if renamed_in(name):
        return now_called(name)
    last = name.rpartition(".")[2]
    near = [each for each in known if each.rpartition(".")[2] == last] or get_close_matches(name, known, 3)
    hint = f"did you mean {' or '.join(near[:3])}?" if near else "`penstock config --explain` lists all keys"
    return f"{cut(name)} is not a known key: {hint}"


def value_of(config: Config, name: str) -> Any:
    """The value of a key in a configuration, as JSON has it. Of a key below a name that people choose: name → value."""
    node: Any = config
    parts = name.split(".")
    for index, part in enumerate(parts):
        if part == NAME:
            rest = parts[index + 1 :]
            return {each: plain_value(_at(child, rest)) for each, child in node.items()}
        node = getattr(node, part)
    return plain_value(node)


def _at(node: Any, parts: Sequence[str]) -> Any:
    for part in parts:
        node = getattr(node, part)
    return node


def is_given(table: Mapping[str, Any], name: str) -> bool:
    """Whether a file, as TOML has it, gives a key; of a key below a name that people choose, for any of these names.

    >>> is_given({"queue": {"capacity": 4}}, "queue.capacity"), is_given({"queue": {}}, "queue.capacity")
    (True, False)
    >>> is_given({"reward": {"process": {"mine": {"weight": 1}}}}, "reward.process.NAME.weight")
    True
    """
    part, _, rest = name.partition(".")
    children = list(table.values()) if part == NAME else [table[part]] if part in table else []
    return any(not rest or (isinstance(child, Mapping) and is_given(child, rest)) for child in children)
