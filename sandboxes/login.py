"""The login name of this process's user."""

import getpass
import os


def login_name() -> str:
    """The login name of who started this process; its number if the number has no name, as in containers of an arbitrary user."""
    try:
        return getpass.getuser()  # noqa: TID251
    except (ImportError, KeyError, OSError):  # KeyError until Python 3.12
        return str(os.getuid())
