"""A work directory in a place where tests usually keep their own files: the checks know it by its other name, `/app`.

Files in `/tmp`, `/root` and homes count as the tests' own, because nothing of the agent's crosses there. Where WORKDIR is there, all of it does.
"""

import posixpath
import re
from typing import Final

from orchestrator.tasks.environment import DOCKERFILE
from orchestrator.tasks.harbor import CONTEXT, TESTS, Task
from orchestrator.tasks.last_stage import workdir_of
from orchestrator.tasks.traps.paid_text import JUDGES
from sandboxes.base import WORK

_AFTER: Final = r"(?=[/\s\"'`;,:)}\]&|<>]|$)"


def work_place(task: Task) -> str:
    """The work directory that the tests see, if it lies in such a place; "" for another one, or an unknown one."""
    settings = task.settings
    own = f"{TESTS}{DOCKERFILE}"
    path = own if settings.verifier.is_separate and own in task.files else f"{CONTEXT}{DOCKERFILE}"
    work = settings.judging.get("workdir")
    if not (isinstance(work, str) and work) and path in task.files:
        work = workdir_of(task.files[path].data.decode(errors="replace"))
    if not isinstance(work, str):
        return ""
    work = posixpath.normpath(posixpath.join("/", work))
    return work if f"{work}/".startswith(tuple(f"{place}/" for place in JUDGES)) else ""


def by_other_name(text: str, work: str) -> str:
    """`text` with `/app` in place of the work directory.

    >>> by_other_name("sort /tmp/out > /tmp/tmpx; cat /srv/tmp/y /tmpx", "/tmp")
    'sort /app/out > /app/tmpx; cat /srv/tmp/y /tmpx'
    """
    return (
        re.sub(rf"(?<![\w./~}}-]){re.escape(work)}{_AFTER}", WORK, text, flags=re.MULTILINE) if work else text
    )
