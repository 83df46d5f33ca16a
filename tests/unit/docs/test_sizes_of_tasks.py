"""The table "Sizes and lengths" names the limits of tasks as they are."""

from pathlib import Path

import pytest

from orchestrator.tasks import key_values, sizes
from orchestrator.tasks.message import MAX_MESSAGE_BYTES

PAGE = Path(__file__).parents[3] / "ops/guides/what-happens-when.md"
_, _, TABLE = PAGE.read_text().partition("## Sizes and lengths")


@pytest.mark.parametrize(
    ("begin", "limits"),
    [
        ("| `task.toml` |", (sizes.TASK_TOML_BYTES, sizes.MAX_DEPTH)),
        ("| `instruction.md`", (MAX_MESSAGE_BYTES,)),
        (
            "| a Dockerfile",
            (sizes.DOCKERFILE_BYTES, sizes.MAX_INSTRUCTIONS, sizes.MAX_COPIED, sizes.MAX_SEARCHED),
        ),
        ("| variable of", (sizes.VARIABLE_BYTES, sizes.VARIABLES_BYTES)),
        ("| `env` table", (key_values.ENV_TABLE_BYTES, key_values.WORD_BYTES)),
    ],
)
def test_the_table_of_sizes_names_the_limits_of_a_task(begin: str, limits: tuple[int, ...]) -> None:
    [row] = [line for line in TABLE.splitlines() if line.startswith(begin)]
    assert [limit for limit in limits if f"{limit:,}" not in row] == []
