"""Context policies by name: entry points of the group `penstock.context_policies`, each with its own settings.

A policy is a dataclass or a pydantic model (scaffolds/context/base.py); its fields are the keys next to `policy` in `[rollout.context.NAME]`.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, cast

from pydantic import BaseModel, TypeAdapter, ValidationError
from scaffolds.context.base import ContextPolicy

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.contracts.quote import quoted
from orchestrator.runtime.plugins import load, names
from orchestrator.settings.explain import unknown_key
from orchestrator.settings.rollout import ContextSection

GROUP = "context_policies"
NONE = "none"  # the history only grows


def policy_of(sections: Mapping[str, ContextSection], scaffold: str) -> ContextPolicy | None:
    """The configured policy of a scaffold; None: its history only grows. ConfigurationError names the wrong key."""
    section = sections.get(scaffold)
    if section is None:
        return None
    table = f"rollout.context.{scaffold}"
    if section.policy == NONE:
        for key in section.settings:
            raise ConfigurationError(unknown_key(f"{table}.{key}", ["policy"]))
        return None
    if section.policy not in (known := names(GROUP)):
        raise ConfigurationError(
            f"{table}.policy: unknown context policy {quoted(section.policy)}; known: {', '.join(sorted([*known, NONE]))}"
        )
    return _made(section.policy, section.settings, table)


def _made(name: str, given: Mapping[str, Any], table: str) -> ContextPolicy:
    kind = load(GROUP, name)
    read: Callable[[Any], Any]
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        fields, read = list(kind.model_fields), kind.model_validate
    elif isinstance(kind, type) and dataclasses.is_dataclass(kind):
        fields, read = (
            [field.name for field in dataclasses.fields(kind)],
            TypeAdapter[Any](kind).validate_python,
        )
    else:
        raise ConfigurationError(
            f"{table}.policy: {quoted(name)} is neither a dataclass nor a pydantic model, so its keys are unknown"
        )
    wrong = [unknown_key(f"{table}.{key}", ["policy", *fields]) for key in given if key not in fields]
    try:
        made = None if wrong else read(dict(given))
    except ValidationError as error:
        for item in error.errors():
            key = ".".join([table, *map(str, item["loc"])])
            wrong.append(f"{key}: {item['msg'].removeprefix('Value error, ')}")
    if wrong:
        raise ConfigurationError("; ".join(wrong))
    if not callable(getattr(made, "fit", None)) or not isinstance(getattr(made, "name", None), str):
        raise ConfigurationError(
            f"{table}.policy: {quoted(name)} needs a method `fit` and a `name` (scaffolds.context.base.ContextPolicy)"
        )
    return cast(ContextPolicy, made)
