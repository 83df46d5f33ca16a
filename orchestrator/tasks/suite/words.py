"""The closed vocabulary of the generated suite: names are words, file contents are words and digits.

A small policy copies names from the instruction into a command. That works only if every name is one token. So the
names are few, short and lower-case, and none is a substring of another word, of an extension, of a command word or of a
Python keyword that a task uses. A tokenizer for the suite must give each entry of `WORDS`, `EXTENSIONS` and
`COMMAND_WORDS` one id; digits are single tokens.
"""

from typing import Final

WORDS: Final[tuple[str, ...]] = (
    *("oak", "elm", "fig", "plum", "rose", "fern", "moss", "reed"),
    *("lake", "hill", "wolf", "bear", "crow", "dove", "lamb", "goat"),
    *("duck", "swan", "gold", "iron", "jade", "ruby", "silk", "wool"),
    *("drum", "harp", "horn", "boat", "cart", "ship", "tent", "flag"),
)
"""Names of files, folders, functions and modules, and the words inside files."""

EXTENSIONS: Final[tuple[str, ...]] = ("txt", "md", "log", "dat")
"""Extensions of data files; code files end in `py`, which is a command word."""

COMMAND_WORDS: Final[tuple[str, ...]] = (
    *("echo", "awk", "sort", "head", "tail", "grep", "wc", "cat", "ls", "mv", "cp", "rm", "mkdir", "sed"),
    *("def", "return", "print", "END", "py", "touch"),
    *("F", "c", "i", "l", "n", "p", "s", "v", "w", "x"),
)
"""Every run of letters that a demonstrated command may hold in addition to `WORDS` and `EXTENSIONS`."""

DONE: Final = "done"
"""The final message when the task asks for a change instead of an answer."""
