"""The person at this machine."""

import socket

from sandboxes.login import login_name


def current_user() -> str:
    """`user@host` of who started this process, as far as this machine knows."""
    return f"{login_name()}@{socket.gethostname()}"
