"""Prints every key of Harbor's models of a `task.toml`, one per line: `environment.healthcheck.command`. Runs in an environment that has `harbor`."""

import sys
import typing
from collections.abc import Iterator
from importlib import import_module
from typing import Any


def inner(annotation: Any) -> Iterator[Any]:
    """The models that an annotation names, also within lists and unions."""
    if isinstance(annotation, type) and typing.get_origin(annotation) is None:
        if hasattr(annotation, "model_fields"):
            yield annotation
        return
    for argument in typing.get_args(annotation):
        yield from inner(argument)


def keys(model: Any, prefix: str = "") -> Iterator[str]:
    """The keys of a model and of those below it."""
    for name, field in model.model_fields.items():
        yield f"{prefix}{name}"
        for below in inner(field.annotation):
            yield from keys(below, f"{prefix}{name}.")


if __name__ == "__main__":
    config = import_module("harbor.models.task.config").TaskConfig
    config.model_rebuild()
    sys.stdout.write("".join(f"{key}\n" for key in dict.fromkeys(keys(config))))
