"""The contract between a task's tests and the verifier runner.

`bash /tests/test.sh` runs in a fresh sandbox, in /app, over the pristine environment plus the declared artifacts. It finds the
agent's final message in the file that `$PENSTOCK_ANSWER` names, writes one number in [0, 1] to `REWARD_FILE` and, if it
likes, a list of {"name", "passed", "message"} to `RESULTS_FILE`. No reward file, or one that does not hold a number, is a
failure of the verifier, never a reward of 0.

A script that runs what the agent wrote does so through `$PENSTOCK_UNTRUSTED` (untrusted.py): both share a user, and the agent's program
could otherwise write the reward itself. A script that a signal ended has reached no verdict, whatever the reward file holds.

Where a sandbox cannot show these absolute paths (the `local` provider), the runner puts the directory that stands for /logs into
`$PENSTOCK_LOGS`; a script that should run there too writes to `${PENSTOCK_LOGS:-/logs}/verifier/`.
"""

import math
from typing import Final

import msgspec

from orchestrator.contracts.events import TestResult

TESTS_DIR: Final = "/tests"
REWARD_FILE: Final = "/logs/verifier/reward.txt"
RESULTS_FILE: Final = "/logs/verifier/results.json"
ANSWER_VARIABLE: Final = "PENSTOCK_ANSWER"
LOGS_VARIABLE: Final = "PENSTOCK_LOGS"
UNTRUSTED_VARIABLE: Final = "PENSTOCK_UNTRUSTED"
UNTRUSTED_FILE: Final = "/tests/.penstock/untrusted.py"
SIGNALLED: Final = 128
"""Exit codes of a shell from here on: a signal ended the script, or its last command."""


def parse_reward(text: str | None) -> float:
    """The number in the reward file (None: it does not exist), in [0, 1]. ValueError otherwise."""
    if text is None:
        raise ValueError(f"tests/test.sh wrote no {REWARD_FILE}")
    try:
        reward = float(text)
    except ValueError:
        raise ValueError(f"{REWARD_FILE} must hold one number, got {text.strip()!r:.80}") from None
    if not math.isfinite(reward) or not 0.0 <= reward <= 1.0:
        raise ValueError(f"{REWARD_FILE} must hold a number from 0 to 1, got {text.strip()!r:.80}")
    return reward


def parse_results(json_text: str | None) -> list[TestResult]:
    """The per-test results, empty without a results file. ValueError names what does not fit."""
    if json_text is None:
        return []
    try:
        return msgspec.json.decode(json_text, type=list[TestResult])
    except (msgspec.MsgspecError, UnicodeEncodeError) as error:
        raise ValueError(f"{RESULTS_FILE}: {error}") from error
