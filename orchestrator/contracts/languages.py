"""Values in texts of other languages: one function per language, which gives the value the quoting of that language.

YAML has its own writer (`orchestrator.deploy.cluster.render.text`), TOML too (`orchestrator.deploy.cluster.toml`); HTML is `html.escape`, URLs are
`urllib.parse.quote`, a shell's words that contain no variable are `shlex.quote`.

A `$` or `%` of ours that the other language has to expand is written as `VARIABLE` or `SPECIFIER` until then: no value contains them.
"""

import json
import re
from collections.abc import Sequence
from typing import Final, TypeVar

from orchestrator.contracts.quote import quoted

Value = TypeVar("Value")
VARIABLE: Final = "\ue024"
"""Stands for the `$` of a variable that we name ourselves."""
SPECIFIER: Final = "\ue025"
"""Stands for the `%` of a systemd specifier that we name ourselves."""
_PLAIN: Final = frozenset("-_./:=,@%+")


def shell_word(text: str) -> str:
    """One word of a POSIX shell, in which only variables of our own are expanded.

    >>> print(shell_word("a-b"), shell_word(f"{VARIABLE}BIN/penstock"), shell_word('5 $ and "x"'))
    a-b "$BIN/penstock" "5 \\$ and \\"x\\""
    """
    if text and all((letter.isascii() and letter.isalnum()) or letter in _PLAIN for letter in text):
        return text
    for special in '\\"`$':
        text = text.replace(special, f"\\{special}")
    return f'"{text.replace(VARIABLE, "$")}"'


def here_document(text: str) -> str:
    """The lines of an unquoted here-document, in which only variables of our own are expanded."""
    for special in "\\`$":
        text = text.replace(special, f"\\{special}")
    return text.replace(VARIABLE, "$")


def systemd_value(text: str) -> str:
    """The whole value of a setting that is one text or one path. ValueError for a line break, and for an end that systemd does not read as text.

    >>> print(systemd_value("/srv/50%"))
    /srv/50%%
    """
    if text != text.strip(" ") or text.endswith("\\"):
        raise ValueError(
            f"{quoted(text)} cannot be written into a unit of systemd: remove the blank or the backslash at its end"
        )
    return _of_unit(text)


def _of_unit(text: str) -> str:
    if any(ord(letter) < 32 for letter in text):
        raise ValueError(
            f"{quoted(text)} cannot be written into a unit of systemd: remove its control characters"
        )
    return text.replace("%", "%%").replace(SPECIFIER, "%")


def systemd_word(text: str) -> str:
    """One of several words of a setting, such as a variable of Environment= or a path of ReadOnlyPaths=. ValueError for a line break.

    >>> print(systemd_word("A=b"), systemd_word('A=a "b"'))
    A=b "A=a \\"b\\""
    """
    value = _of_unit(text)
    if value and not any(letter in " ;'\"\\" for letter in value):
        return value
    for special in '\\"':
        value = value.replace(special, f"\\{special}")
    return f'"{value}"'


def systemd_argument(text: str) -> str:
    """One word of a command line, in which systemd also expands variables. ValueError for a line break.

    >>> print(systemd_argument("5$"))
    5$$
    """
    return systemd_word(text.replace("$", "$$"))


def systemd_command(argv: Sequence[str]) -> str:
    """A command line. systemd expands no variables in the path of the program, and leaves `$$` there as it is. ValueError for a line break, and
    for a quote or a backslash in the path, which systemd refuses.

    >>> print(systemd_command(["/opt/a$b/run", "5$"]))
    /opt/a$b/run 5$$
    """
    program, *arguments = argv
    if any(letter in "\\\"'" for letter in program):
        raise ValueError(
            f"{quoted(program)} cannot be the program of a unit of systemd: remove the quotes and backslashes from its path"
        )
    return " ".join([systemd_word(program), *map(systemd_argument, arguments)])


def sbatch_value(text: str) -> str:
    """The value of an option in an `#SBATCH` line. sbatch expands no variables there. ValueError for a line break.

    >>> print(sbatch_value("rl"), sbatch_value('rl "team" #1'))
    rl "rl \\"team\\" #1"
    """
    if any(ord(letter) < 32 for letter in text):
        raise ValueError(
            f"{quoted(text)} cannot be written into an #SBATCH line: remove its control characters"
        )
    if text and all((letter.isascii() and letter.isalnum()) or letter in _PLAIN for letter in text):
        return text
    for special in '\\"':
        text = text.replace(special, f"\\{special}")
    return f'"{text}"'


def without_interpolation(value: Value) -> Value:
    """A document whose texts Compose and Kubernetes take literally: both expand variables after one `$`. Variables of our own are expanded.

    >>> without_interpolation({"command": ["echo", "5$"], "ports": 3})
    {'command': ['echo', '5$$'], 'ports': 3}
    """
    found: object = value
    if isinstance(value, str):
        found = value.replace("$", "$$").replace(VARIABLE, "$")
    elif isinstance(value, dict):
        found = {key: without_interpolation(each) for key, each in value.items()}
    elif isinstance(value, list):
        found = [without_interpolation(each) for each in value]
    return found  # type: ignore[return-value]


def toml_text(text: str) -> str:
    """A basic string of TOML.

    >>> print(toml_text('a "b"'))
    "a \\"b\\""
    """
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def url_host(host: str) -> str:
    """A host in a URL with a port.

    >>> print(url_host("127.0.0.1"), url_host("::1"))
    127.0.0.1 [::1]
    """
    return f"[{host}]" if ":" in host else host


def json_text(text: str) -> str:
    """A text in double quotes, for JSON and for the configuration of NATS.

    >>> print(json_text('a "b"'))
    "a \\"b\\""
    """
    return json.dumps(text, ensure_ascii=False)


def markdown_code(text: str) -> str:
    """A text as code in a line of Markdown, in which nothing else is read as Markdown or HTML. Line breaks become blanks; so does an empty text.

    >>> print(markdown_code("a | <b>"), markdown_code("two ` and ``"))
    `a | <b>` ``` two ` and `` ```
    """
    line = re.sub(r"\r\n|\r|\n", " ", text) or " "
    fence = "`" * (max(map(len, re.findall("`+", line)), default=0) + 1)
    if line.strip(" ") and (line[0] in "` " or line[-1] in "` "):
        line = f" {line} "  # a reader removes one blank from both ends
    return f"{fence}{line}{fence}"


def sql_text(text: str) -> str:
    """A text in a statement that another program runs, so that it cannot be a parameter.

    >>> print(sql_text("it's"))
    'it''s'
    """
    return "'" + text.replace("'", "''") + "'"


def postgres_setting(text: str) -> str:
    """The value of a setting in postgresql.conf.

    >>> print(postgres_setting("/srv/it's"))
    '/srv/it''s'
    """
    return sql_text(text.replace("\\", "\\\\"))


def like(text: str) -> str:
    """The pattern of SQL's LIKE and ILIKE that matches exactly `text`.

    >>> print(like("50%_\\\\"))
    50\\%\\_\\\\
    """
    for special in "\\%_":
        text = text.replace(special, f"\\{special}")
    return text
