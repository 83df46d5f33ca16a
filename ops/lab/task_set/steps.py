"""A task of two steps, and one whose programs run as root inside; neither needs an image."""

from collections.abc import Callable
from typing import Final

from ops.lab.task_set.small import SAME, Files, checks, env, task

_SALES: Final = "shop,euros\nnorth,30\nsouth,4\nnorth,12\neast,7\n"
_STEPS: Final = """\
multi_step_reward_strategy = "mean"

[[steps]]
name = "shops"
min_reward = 1.0

[[steps]]
name = "totals"
[steps.agent]
timeout_sec = 300.0
"""


def _step(name: str, instruction: str, solution: str, tests: str) -> Files:
    files = {"instruction.md": instruction, "solution/solve.sh": solution, "tests/test.sh": tests}
    return {f"steps/{name}/{path}": text.encode() for path, text in files.items()}


def _steps() -> Files:
    """Two instructions, one after the other, in one sandbox; the second one needs what the first one left."""
    return {
        "task.toml": _STEPS.encode(),
        env("sales.csv"): _SALES.encode(),
        **_step(
            "shops",
            "sales.csv has the columns shop and euros. Write the names of the shops into shops.txt: each once, in alphabetical order, one per line.",
            "tail -n +2 sales.csv | cut -d, -f1 | sort -u > shops.txt",
            checks(SAME.format("shops.txt", "east\nnorth\nsouth")),
        ),
        **_step(
            "totals",
            "Write totals.txt: for each shop of shops.txt, in its order, a line with the name, a space and the sum of its euros in sales.csv.",
            "while read -r shop; do\n  awk -F, -v shop=\"$shop\" '$1 == shop { sum += $2 } END { print shop, sum }' sales.csv\n"
            "done < shops.txt > totals.txt\n",
            checks(SAME.format("totals.txt", "east 7\nnorth 42\nsouth 4")),
        ),
    }


def _as_root() -> Files:
    """Agent and tests are root inside: uid 0, without rights beyond the work directory."""
    return task(
        "Write the uid as which your programs run into uid.txt, and set the permissions of the file uid.txt to 600.",
        "id -u > uid.txt; chmod 600 uid.txt",
        checks(f'[ "$(id -u)" = 0 ] && {SAME.format("uid.txt", "0")} && [ "$(stat -c %a uid.txt)" = 600 ]'),
        toml='[agent]\nuser = "root"\n\n[verifier]\nuser = "root"\n',
    )


STEPS_AND_USERS: Final[dict[str, Callable[[], Files]]] = {"steps": _steps, "as-root": _as_root}
