"""Characters of the texts in messages: the most that a reader takes, and the most that our senders put in.

A sender cuts what an agent, a program or an error made too long (`quote.cut_to`). A value that a person wrote is refused early, by a sentence.
"""

from typing import Final

LONGEST_NAME: Final = 128
LONGEST_LABEL: Final = 256
LONGEST_SENTENCE: Final = 4_000
LONGEST_PATH: Final = 4_096
LONGEST_LOG: Final = 16_384
LONGEST_PAYLOAD: Final = 1 << 26
"""A server's largest message is 64 MiB."""

LONGEST_SUBMISSION: Final = 128
"""Of a submission's id, in `LONGEST_LABEL`."""
LONGEST_AGENT: Final = 64
"""Of an agent's path within a scaffold. In `LONGEST_NAME`, as are the next two."""
LONGEST_TOOL: Final = 100
"""Of a tool's name in a timing."""
MOST_TOOL_CALLS: Final = 1_000
"""Of an attempt whose times, exit codes and sizes are recorded: its result must fit one message. Later calls leave no record."""
LONGEST_BRANCH_REASON: Final = LONGEST_NAME
"""Of the reason that a scaffold gives for rewriting its history."""
LONGEST_REASON: Final = 1_000
"""Of why an attempt or a verification ended as it did. In `LONGEST_SENTENCE`, as is the next one."""
LONGEST_REJECTION: Final = 2_000
"""Of why a task is not accepted."""
LONGEST_KEPT_LOG: Final = 4_096
"""Of the log of an attempt or a verification. In `LONGEST_LOG`."""
LONGEST_SYSTEM: Final = 512
"""Of the name of what a sandbox runs on. In `LONGEST_SENTENCE`."""
