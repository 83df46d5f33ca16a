"""Which configuration counts: that of the run, or that of the file.

A run keeps its original configuration, in `runs.config`. Keys with the mark `PROCESS` are an exception: how much this machine does,
where it listens, how patient it is. Every process takes those from the file at each start. `orchestrator.settings.config.effective` combines the
two. Of another run, whose file a process does not have, `orchestrator.settings.newest_start.newest_config` combines them. A few files read the
configuration in a run's row as it is; tests/unit/settings/test_scope.py lists them with their reasons.

The scope of a key is a mark in its annotation, `Annotated[Positive, PROCESS]`. A mark at a section applies to all of its keys without
their own. A key without any mark has the scope `RUN`.
"""

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, get_args, get_origin

from pydantic import BaseModel, ValidationInfo
from pydantic.fields import FieldInfo


class Scope(StrEnum):
    """Whose value of a key counts."""

    RUN = "run"  # the run's: its original value
    PROCESS = "process"  # the file's, as each process reads it at its start


RUN: Final = Scope.RUN
PROCESS: Final = Scope.PROCESS

AS_STORED: Final = {"stored": True}
"""The context in which the configuration of a run's row is validated: a bound that came after its run began must not make it unreadable."""


def is_stored(info: ValidationInfo) -> bool:
    """Whether a value comes from a run's row, so that bounds newer than the run do not hold."""
    return isinstance(info.context, dict) and info.context.get("stored") is True


def mark_of(field: FieldInfo) -> Scope | None:
    """The mark in the field's own annotation."""
    return next((mark for mark in field.metadata if isinstance(mark, Scope)), None)


def model_in(annotation: Any) -> type[BaseModel] | None:
    """The section that an annotation holds: itself, or as the item of a list or a table of them."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for each in get_args(annotation) if (found := model_in(each)) is not None), None)


def fields_on(model: type[BaseModel], key: str) -> Iterator[FieldInfo]:
    """The fields on the way to a dotted key, as far as there are any."""
    inner: type[BaseModel] | None = model
    for part in key.split("."):
        if inner is None or (field := inner.model_fields.get(part)) is None:
            return
        yield field
        inner = model_in(field.annotation)


def is_section(model: type[BaseModel], path: Sequence[str]) -> bool:
    """Whether a key of `model`, by its parts, holds keys that Penstock names, and not names that people choose."""
    found: Any = model
    for part in path:
        if get_origin(found) in (dict, Mapping):
            found = get_args(found)[1]
        elif (section := model_in(found)) is not None and part in section.model_fields:
            found = section.model_fields[part].annotation
        else:
            return False
    return get_origin(found) not in (dict, Mapping, list, tuple) and model_in(found) is not None


def scope_of(model: type[BaseModel], key: str) -> Scope:
    """The last mark on the way to a dotted key of `model`. A key that is not known has the scope of its section."""
    marks = [mark for field in fields_on(model, key) if (mark := mark_of(field)) is not None]
    return marks[-1] if marks else RUN


def merged(
    model: type[BaseModel], stored: Mapping[str, Mapping[str, Any]], own: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Raw sections: the run's keys of `stored` and the process's keys of `own`. A key that only one of them has counts where it belongs."""
    found: dict[str, dict[str, Any]] = {}
    for name in {**stored, **own}:
        of_run, of_process = (
            {key: value for key, value in section.items() if scope_of(model, f"{name}.{key}") is scope}
            for section, scope in ((stored.get(name, {}), RUN), (own.get(name, {}), PROCESS))
        )
        found[name] = of_run | of_process
    return found
