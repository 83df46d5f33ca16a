"""A scaffold may lie at a long path: what an index holds of it stays short."""

import pytest

from orchestrator.contracts.limits import MAX_PATH
from orchestrator.pool.speed_noise import KEY_BYTES, key_of

DEEP = "/home/" + "ж" * 2000 + "/agent.py"


@pytest.mark.parametrize(
    "name", ["shell", "/" + "x" * (KEY_BYTES - 1), "/" + "x" * MAX_PATH, DEEP, DEEP + ":Mine"]
)
def test_a_scaffold_has_a_key_that_an_index_holds_and_that_is_its_own(name: str) -> None:
    assert len(key_of(name).encode()) <= KEY_BYTES
    assert key_of(name) == name or key_of(name) not in (key_of(f"{name}x"), key_of(name[1:]))
    assert (key_of(name) == name) is (len(name.encode()) <= KEY_BYTES)
