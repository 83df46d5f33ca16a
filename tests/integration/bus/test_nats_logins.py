"""Logins of NATS: every character can be written in a URL, and a login that the server refuses is called refused."""

from collections.abc import Iterator
from urllib.parse import quote

import pytest

from orchestrator.bus.base import UnfitServer
from tests.integration.bus.rig import connects, served

pytestmark = [pytest.mark.anyio, pytest.mark.services]

USERS = {
    "u": "plain", "at": "p@ss", "delimiters": "a/b:c#d?e&f=g", "percent": "50%", "plus": "a+b c", "me@org": "x", "é/ü": "日本", "%41": "%2F",
}  # fmt: skip


@pytest.fixture(scope="module")
def of_users(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    users = [{"user": user, "password": password} for user, password in USERS.items()]
    yield from served(tmp_path_factory.mktemp("users"), {"authorization": {"users": users}})


@pytest.fixture(scope="module")
def of_a_token(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    yield from served(tmp_path_factory.mktemp("token"), {"authorization": {"token": "ab=/@:%+"}})


@pytest.mark.parametrize("user", USERS)
async def test_a_login_with_escaped_characters_connects(of_users: int, user: str) -> None:
    login = f"{quote(user, safe='')}:{quote(USERS[user], safe='')}"
    await connects(f"nats://{login}@127.0.0.1:{of_users}")


async def test_a_token_with_escaped_characters_connects(of_a_token: int) -> None:
    await connects(f"nats://{quote('ab=/@:%+', safe='')}@127.0.0.1:{of_a_token}")


async def test_a_login_that_is_refused_is_called_refused_at_once_without_being_shown(
    of_users: int, of_a_token: int
) -> None:
    await connects(f"nats://u:plain@127.0.0.1:{of_users}")
    for url, sentence in (
        (
            f"nats://u:secret@127.0.0.1:{of_users}",
            f"127.0.0.1:{of_users} refuses the login in NATS_URL: check its user and password",
        ),
        (f"nats://secret@127.0.0.1:{of_a_token}", f"127.0.0.1:{of_a_token} refuses the login in NATS_URL"),
        (
            f"nats://127.0.0.1:{of_users}",
            f"127.0.0.1:{of_users} requires a login, and NATS_URL has none: write user:password@",
        ),
    ):
        with pytest.raises(UnfitServer, match=sentence) as refused:
            await connects(url)
        assert "secret" not in str(refused.value) and "start it there" not in str(refused.value)
