"""URLs of NATS: the ones that name servers, and the ones that are refused in one sentence without their login."""

from pathlib import Path

import pytest

from orchestrator.bus.address_file import url_of_file
from orchestrator.bus.base import BusUnavailable, UnfitServer
from orchestrator.bus.link import Link, login_of, places_of, urls_of


@pytest.mark.parametrize(
    ("url", "login"),
    [
        ("nats://h:4222", {}),
        ("h", {}),
        ("nats://to%40k%2Fen@h", {"token": "to@k/en"}),
        ("tls://us%3Aer:p%40ss@h", {"user": "us:er", "password": "p@ss"}),
        ("wss://u:p@h", {"user": "u", "password": "p"}),
    ],
)
def test_a_login_is_decoded(url: str, login: dict[str, str]) -> None:
    assert urls_of(url) == [url] and login_of(url) == login


def test_the_servers_of_a_cluster_stand_between_commas() -> None:
    named = "nats://u:p@a:1, tls://b ,c"
    assert urls_of(named) == ["nats://u:p@a:1", "tls://b", "c"]
    assert places_of(named) == "a:1 or b:4222 or c:4222"


def test_a_file_names_the_server_that_it_holds_now(tmp_path: Path) -> None:
    file = tmp_path / "a run" / "url"
    file.parent.mkdir()
    for port in (1, 2):
        file.write_text(f"nats://secret@127.0.0.1:{port}\n")
        assert urls_of(url_of_file(file)) == [f"nats://secret@127.0.0.1:{port}"]
        assert places_of(url_of_file(file)) == f"127.0.0.1:{port}"
    file.unlink()
    with pytest.raises(
        UnfitServer,
        match=r"^the file /\S+/a run/url, which NATS_URL names, cannot be read .*: `penstock up` writes it$",
    ):
        urls_of(url_of_file(file))


@pytest.mark.parametrize(
    "url",
    [
        "http://u:secret@h",
        "nats://u:sec/ret@h",
        "nats://u:secret@h:port",
        "nats://u:secret@h:0",
        "nats://",
        "nats://u:secret@[::1",
        "nats://u:secret@h:999999",
        "nats://u:secret@h?tls=true",
        "nats://u:secret@h/streams",
        "nats://u:secret@h,ws://h2",
        "postgresql://u:secret@h/d",
        "file://secret@h/run/url",
        ",",
        " , ,",
    ],
)
def test_what_names_no_server_is_one_sentence_without_its_login(url: str) -> None:
    with pytest.raises(UnfitServer) as refused:
        urls_of(url)
    assert (
        "secret" not in str(refused.value)
        and "sec/" not in str(refused.value)
        and "\n" not in str(refused.value)
    )


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "it is empty"),
        (b" \n", "it is empty"),
        (b"nats://h:99999", "its content is not the URL of one server"),
        (b"nats://secret@[::1", "its content is not the URL of one server"),
        (b"http://secret@h", "its content is not the URL of one server"),
        (b"nats://secret@h:1/streams", "its content is not the URL of one server"),
        (b"nats://a:1,nats://b:2", "its content is not the URL of one server"),
        (b"nats://h\xff:1", "it is not UTF-8 text"),
    ],
)
@pytest.mark.anyio
async def test_a_file_that_names_no_server_is_one_sentence_and_a_server_that_is_away(
    tmp_path: Path, content: bytes, why: str
) -> None:
    file = tmp_path / "url"
    file.write_bytes(content)
    with pytest.raises(
        UnfitServer, match=rf"^the file \S+/url, which NATS_URL names, cannot be read \({why}\)"
    ):
        urls_of(url_of_file(file))
    assert places_of(url_of_file(file)) == f"the address in {file}"
    file.write_text("nats://127.0.0.1:1")
    link = Link(url_of_file(file), "test", lambda: None)
    file.write_bytes(content)  # its starter was killed while it wrote
    with pytest.raises(BusUnavailable, match=rf"^NATS does not answer at the address in \S+/url \({why}"):
        await link.open(0.2)


def test_no_url_names_no_server_and_no_link_is_made_for_it() -> None:
    assert urls_of("") == []
    with pytest.raises(UnfitServer, match=r"^NATS_URL names no server: write nats://host:4222$"):
        Link("", "test", lambda: None)
