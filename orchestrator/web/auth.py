"""The token of a dashboard and the values derived from it. The holder of the token may view and steer.

The cookie and the steering key are digests of the token with a purpose. A leaked cookie (cookies do not know ports) is therefore not the token, and
a page of another site, which can read neither, cannot make a browser steer.
"""

import hashlib
import hmac
import os
import secrets
from pathlib import Path

from orchestrator.contracts.errors import ConfigurationError, ServiceError


class Keys:
    """One token. Comparisons take constant time, independent of the first difference."""

    def __init__(self, token: str) -> None:
        self.token = token
        self.cookie = self._derived("cookie")
        self.steering = self._derived("steering")
        # Two dashboards of one host do not share a cookie.
        self.cookie_name = f"penstock_{self._derived('name')[:8]}"

    def _derived(self, purpose: str) -> str:
        return hmac.new(self.token.encode(), f"penstock.web.{purpose}".encode(), hashlib.sha256).hexdigest()

    def is_token(self, given: str) -> bool:
        return _same(given, self.token)

    def is_cookie(self, given: str) -> bool:
        return _same(given, self.cookie)

    def is_steering(self, given: str) -> bool:
        return _same(given, self.steering)


def _same(given: str, right: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), right.encode())


def kept_token(file: Path) -> str:
    """The token in `file`, created (mode 0600) if absent. Raises ConfigurationError if the file is empty, ServiceError if it cannot be
    written."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        token = file.read_text(encoding="ascii").strip()
        if len(token) < 16:
            raise ConfigurationError(
                f"the dashboard's token in {file} is missing or too short: remove the file, and a new one is made"
            ) from None
        return token
    except OSError as error:
        raise ServiceError(
            f"the dashboard cannot keep its token in {file}: {error}; make room there"
        ) from error
    with os.fdopen(descriptor, "w") as opened:
        token = secrets.token_urlsafe(32)
        opened.write(token + "\n")
    return token
