"""Values written as TOML are read back."""

import tomllib
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as some

from orchestrator.deploy.cluster.toml import to_toml

PLAIN = (
    some.booleans() | some.integers(-(2**62), 2**62) | some.floats(allow_nan=False) | some.text(max_size=8)
)
KEYS = some.text(min_size=1, max_size=4)
TABLES = some.dictionaries(
    KEYS,
    some.recursive(
        PLAIN,
        lambda inner: some.lists(inner, max_size=3) | some.dictionaries(KEYS, inner, max_size=3),
        max_leaves=8,
    ),
    max_size=4,
)


@settings(deadline=None)
@given(TABLES)
def test_what_is_written_is_read_back(table: dict[str, Any]) -> None:
    assert tomllib.loads(to_toml(table)) == table
