"""The person at this machine."""

import getpass
import os
import socket


def current_user() -> str:
    """`user@host` of who started this process, as far as this machine knows."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a user id without a name
        name = str(os.getuid())
    return f"{name}@{socket.gethostname()}"
