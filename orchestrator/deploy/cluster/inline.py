"""Finds secrets in a text: a login in a URL, an option that takes a key."""

import re
from collections.abc import Iterable, Iterator

_LOGIN = re.compile(r"://[^/\s@\"']*@")
_PARAMETER = re.compile(
    r"://\S*[?&;](password|passwd|pass|pwd|secret|(access_|auth_|api_)?token|api_?key)=[^&\s]", re.I
)
_OPTIONS = (("--ap", "--api-key"), ("--ad", "--admin-api-key"), ("--ssl-keyfile-", "--ssl-keyfile-password"))
"""Options of rollout servers. argparse accepts an abbreviated option, from the first text on."""


def login(text: str) -> bool:
    """Whether a URL of `text` has something before its @ (a password, or a token alone), or a secret among its parameters.

    >>> [login(f"nats://{place}:4222") for place in ("host", "me:word@host", "token@host", "one:4222,token@two")]
    [False, True, True, True]
    """
    return bool(_LOGIN.search(text) or _PARAMETER.search(text))


def secret_options(argv: Iterable[object]) -> Iterator[str]:
    """The options of a command line that are followed by a secret, or contain one after their `=`.

    >>> list(secret_options(["--tp-size", "2", "--api-key=word"]))
    ['--api-key']
    """
    for part in argv:
        name = re.split(r"[=\s]", str(part).strip(), maxsplit=1)[0].replace("_", "-")
        for shortest, option in _OPTIONS:
            if name.startswith(shortest) and option.startswith(name):
                yield option
