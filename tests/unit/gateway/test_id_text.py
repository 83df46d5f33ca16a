"""Token ids as JSON text."""

import json

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.gateway.servers.client.id_text import MAX_ENTRIES, json_ids


@settings(deadline=None)  # the first call makes the table
@given(st.lists(st.integers(0, MAX_ENTRIES - 1), max_size=50))
def test_ids_come_back_as_they_were(ids: list[int]) -> None:
    assert read(ids) == ids


@pytest.mark.parametrize("ids", [[], [-1, 5], [MAX_ENTRIES], [0, 2**31 - 1], [-(2**31)]])
def test_ids_of_no_vocabulary_are_written_too_so_that_the_server_refuses_them(ids: list[int]) -> None:
    assert read(ids) == ids


def read(ids: list[int]) -> list[int]:
    text = msgspec.json.encode({"input_ids": json_ids(np.array(ids, dtype="<i4"))})
    found: list[int] = json.loads(text)["input_ids"]
    return found
