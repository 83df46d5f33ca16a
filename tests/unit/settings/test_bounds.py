"""Numbers of a configuration that fit where they are stored and added."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, get_args

import annotated_types
import pytest
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.contracts.numbers import INT8
from orchestrator.runtime.backoff import doubled
from orchestrator.settings.config import Config, load
from orchestrator.settings.timeouts import MAX_S, SCALED


def numbers(kind: type[BaseModel] = Config, prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """The keys of numbers, in sections and in their parts."""
    for name, field in kind.model_fields.items():
        if field.annotation in (int, float):
            yield f"{prefix}{name}", field
        for part in (field.annotation, *get_args(field.annotation)):
            if isinstance(part, type) and issubclass(part, BaseModel):
                yield from numbers(part, f"{prefix}{name}.")


def most(field: FieldInfo) -> Any:
    """The largest value that a number may have."""
    bounds: list[Any] = [
        bound.le if isinstance(bound, annotated_types.Le) else bound.lt
        for bound in field.metadata
        if isinstance(bound, annotated_types.Le | annotated_types.Lt)
    ]
    return min(bounds, default=None)


def test_every_whole_number_has_an_upper_bound_that_the_data_pool_holds() -> None:
    whole = {key: most(field) for key, field in numbers() if field.annotation is int}
    assert len(whole) > 30
    assert {key: bound for key, bound in whole.items() if bound is None or bound > INT8} == {}


def test_every_duration_and_every_size_has_an_upper_bound() -> None:
    sizes = {key: most(field) for key, field in numbers() if key.endswith(("_s", "_seconds", "_mb"))}
    assert len(sizes) > 94
    assert {key: bound for key, bound in sizes.items() if bound is None} == {}
    durations = [most(field) for _, field in numbers() if SCALED in field.metadata]
    assert max(bound or 0 for bound in durations) == MAX_S


def test_the_longest_duration_can_be_added_to_the_time_and_its_retries_too() -> None:
    for first_s in (1.0, float(MAX_S)):
        for times in (0, 1, 20, 50, 1000):
            assert datetime.now(UTC) + timedelta(seconds=doubled(first_s, times))


@pytest.mark.parametrize(
    "override",
    [
        "rollout.lease_ttl_s=1e14",
        "rollout.retry_delay_s=1e14",
        "timeouts.arrival_s=1e14",
        "timeouts.pool_idle_s=1e7",
        "queue.max_attempts=1001",
        "gateway.spool_mb=1e300",
    ],
)
def test_a_number_above_its_bound_is_refused_by_its_key(override: str) -> None:
    with pytest.raises(ConfigurationError, match=override.partition("=")[0].replace(".", r"\.")):
        load(None, [override])
