"""The remedy for a run without the wanted reward, from its reason: what the fault alone would advise is often not the cause."""

import re
from typing import Final

from orchestrator.contracts.no_verdict import NoVerdict

_READ_ONLY: Final = re.compile(r"read-only file system|\bEROFS\b|\[Errno 30\]", re.IGNORECASE)
OUTSIDE: Final = "it writes outside of its work directory"
_REMEDIES: Final = (
    (
        re.compile("must say which of its numbers is the reward"),
        "name the number that is the reward in [verifier].performance, or call it reward in reward.json",
    ),
    (
        re.compile(r"has no number .* which \[verifier\]\.performance asks for"),
        "write this number into reward.json, or name another one in [verifier].performance",
    ),
    (
        re.compile("must hold a (number|reward) from 0 to 1"),
        "make tests/test.sh write a reward from 0 to 1: divide points by the most that can be earned, and write 0 for a penalty",
    ),
    (
        re.compile(r"must hold|must be a finite number|reward\.json: "),
        "make tests/test.sh write one number, and nothing else, into reward.txt, or an object of numbers into reward.json",
    ),
    (
        _READ_ONLY,
        "let the work lie below the work directory ([environment].workdir or WORKDIR names another one), /tmp, /home/agent or, on an image of "
        "bubblewrap, a directory of data (/data) that it has or that artifacts of task.toml names: everything else of an image is read-only",
    ),
)


def writes_outside(reason: str) -> bool:
    """Whether a program failed because it wrote where a sandbox is read-only."""
    return _READ_ONLY.search(reason) is not None


def remedy_of(reason: str) -> str:
    """The remedy for this reason; empty: that of the fault."""
    for pattern, remedy in _REMEDIES:
        if pattern.search(reason):
            return remedy
    known = (each.value for each in NoVerdict if each is not NoVerdict.REWARD)
    return next((cause.remedy.replace("`", "") for cause in known if reason.startswith(cause.says)), "")
