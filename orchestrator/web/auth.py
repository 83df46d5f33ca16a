"""The token of a dashboard and the values derived from it. The holder of the token may view and steer.

The cookie and the steering key are digests of the token with a purpose. A page of another site can read neither, and cannot make a browser steer.
The cookie is enough to view and to steer, as /api/me gives its holder the steering key. A leaked cookie (cookies do not know ports) does not reveal
the token, and ends with it: once a new token is made.
"""

import hashlib
import hmac
from pathlib import Path

from orchestrator.contracts.errors import ConfigurationError, ServiceError
from orchestrator.runtime.secret_file import kept_secret


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
    """The token in `file`, created (mode 0600) if absent. Raises ConfigurationError if the file is empty, ValueError if it holds no
    secret, ServiceError if it cannot be written."""
    try:
        token = kept_secret(file)
    except OSError as error:
        raise ServiceError(
            f"the dashboard's token in {file} can be neither read nor made: {error.strerror}"
        ) from error
    if len(token) < 16:
        raise ConfigurationError(
            f"the dashboard's token in {file} is missing or too short: remove the file, and a new one is made"
        )
    return token
