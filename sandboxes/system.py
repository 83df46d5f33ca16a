"""The system around a sandbox's own places, by a name that stays: `sha256:` and the digest of an image, or the distribution of its machine."""

from __future__ import annotations

import functools
import platform
import re

_WORD = re.compile(r"[A-Za-z0-9._+~-]{1,60}")


def system_of(sandbox: object) -> str | None:
    """The system of an open sandbox; None: its provider does not say."""
    return getattr(sandbox, "system", None) or None


@functools.cache
def of_this_machine() -> str:
    """`host:` and the distribution with its version, as in `host:debian-12`."""
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return "host:unknown"
    words = (release.get("ID", ""), release.get("VERSION_ID", ""))
    return "host:" + ("-".join(word for word in words if _WORD.fullmatch(word)) or "unknown")
