"""Characters of the texts in messages: the most that a reader takes, and the most that our senders put in.

A sender cuts what an agent, a program or an error made too long (`quote.cut_to`). A value that a person wrote is refused early, by a sentence.
"""

from typing import Final

MAX_NAME_LENGTH: Final = 128
MAX_LABEL: Final = 256
MAX_SENTENCE: Final = 4_000
MAX_PATH: Final = 4_096
MAX_LOG: Final = 16_384
MAX_PAYLOAD: Final = 1 << 26
"""A server's largest message is 64 MiB."""

MAX_SUBMISSION: Final = 128
"""Of a submission's id, in `MAX_LABEL`."""
MAX_AGENT: Final = 64
"""Of an agent's path within a scaffold. In `MAX_NAME_LENGTH`, as are the next two."""
MAX_TOOL: Final = 100
"""Of a tool's name in a timing."""
MAX_TOOL_CALLS: Final = 1_000
"""Of an attempt whose times, exit codes and sizes are recorded: its result must fit one message. Later calls leave no record."""
MAX_BRANCH_REASON: Final = MAX_NAME_LENGTH
"""Of the reason that a scaffold gives for rewriting its history."""
MAX_GIVEN_REASON: Final = 500
"""Of the reason that a person gives for an action."""
MAX_REASON: Final = 1_000
"""Of why an attempt or a verification ended as it did. In `MAX_SENTENCE`, as is the next one."""
MAX_REJECTION: Final = 2_000
"""Of why a task is not accepted."""
MAX_KEPT_LOG: Final = 4_096
"""Of the log of an attempt or a verification. In `MAX_LOG`."""
MAX_SYSTEM: Final = 512
"""Of the name of what a sandbox runs on. In `MAX_SENTENCE`."""
