"""Why a verification reaches no verdict: every cause of a `verifier_failure`. The guide write-tests.md has them as a table."""

import enum
from dataclasses import dataclass
from typing import Final

from orchestrator.contracts.limits import MAX_REASON
from orchestrator.contracts.quote import cut_to

NOTE: Final = "note: "
"""How the lines begin that the platform adds at the head of a verdict's log: what was odd and changed nothing."""


class Responsible(enum.StrEnum):
    """Who must fix it. What the agent left behind is a cause of its own only if the same tests reach a verdict without it."""

    TASK = "the task's"
    PLATFORM = "the platform's"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """`says`: the beginning of the reason. `remedy`: what a person can do."""

    what: str
    says: str
    fault: Responsible
    remedy: str


class NoVerdict(enum.Enum):
    """The causes. A reward file that is valid after the script ended by itself always is a verdict."""

    LIMIT = Cause(
        what="the script, or all its programs together, reached a limit",
        says="tests/test.sh was ended: ",
        fault=Responsible.TASK,
        remedy="let the tests need less, or raise `[verifier].timeout_sec` or the limit",
    )
    SIGNAL = Cause(
        what="a signal ended the script itself",
        says="tests/test.sh was ended by signal ",
        fault=Responsible.TASK,
        remedy="look for what sends it: `kill`, a crash of bash",
    )
    REWARD = Cause(
        what="the reward file is missing or not valid",
        says="no valid reward: ",
        fault=Responsible.TASK,
        remedy="write 0 first, then the result",
    )
    STEPS = Cause(
        what="the rewards of the steps make no reward of the task",
        says="no reward of all steps: ",
        fault=Responsible.TASK,
        remedy="name the number in `[verifier].performance`",
    )
    REFUSED = Cause(
        what="the environment of the tests cannot be built from the task and the agent's files",
        says="the tests cannot begin: ",
        fault=Responsible.TASK,
        remedy="the reason names the file or the key",
    )
    SPENT = Cause(
        what="the programs used up their sandbox as a whole",
        says="the sandbox of the tests is used up: ",
        fault=Responsible.TASK,
        remedy="let the tests need less, or raise the limit",
    )
    LOST = Cause(
        what="something outside ended the sandbox",
        says="the sandbox of the tests is lost: ",
        fault=Responsible.PLATFORM,
        remedy="see the verifier's log: a node, an engine, a kill by hand",
    )
    SANDBOX = Cause(
        what="the provider failed",
        says="the sandbox of the tests failed: ",
        fault=Responsible.PLATFORM,
        remedy="`penstock doctor --sandbox`",
    )
    MACHINE = Cause(
        what="the verifier's machine failed: disk, memory, descriptors",
        says="the verifier's machine failed: ",
        fault=Responsible.PLATFORM,
        remedy="the reason is the system's own",
    )
    OURS = Cause(
        what="Penstock's own code raised an error",
        says="the verifier runner raised ",
        fault=Responsible.PLATFORM,
        remedy="see its log: the traceback is a bug to report",
    )
    LEASE = Cause(
        what="the verifier runner died or hung",
        says="the verifier runner",
        fault=Responsible.PLATFORM,
        remedy="see its log, and `penstock status`",
    )

    def of(self, detail: object) -> str:
        """The reason of one verification."""
        return cut_to(f"{self.value.says}{detail}", MAX_REASON)
