"""TLS to NATS: certificates of an authority of one's own are trusted where the environment names it, and a refusal says what to change."""

import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import anyio
import pytest
from anyio.abc import SocketAttribute, SocketStream

from orchestrator.bus.base import UnfitServer
from orchestrator.bus.feed import in_background
from tests.integration.bus.rig import connects, served

pytestmark = [pytest.mark.anyio, pytest.mark.services]

NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


@dataclass(frozen=True, slots=True)
class Authority:
    """`directory` holds ca.pem, and server.pem with server.key for the name localhost."""

    directory: Path

    def tls(self, **keys: object) -> dict[str, object]:
        """The server's section."""
        files = {
            "cert_file": str(self.directory / "server.pem"),
            "key_file": str(self.directory / "server.key"),
        }
        return {"tls": {**files, **keys}}

    @property
    def certificate(self) -> str:
        return str(self.directory / "ca.pem")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    directory = tmp_path_factory.mktemp("authority")

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=directory, check=True, capture_output=True)

    (directory / "names").write_text("subjectAltName=DNS:localhost\n")
    openssl("req", "-x509", *NEW_KEY, "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=ca")
    openssl("req", *NEW_KEY, "-keyout", "server.key", "-out", "request", "-subj", "/CN=nats")
    signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "names")
    openssl("x509", "-req", "-in", "request", "-out", "server.pem", *signed)
    return Authority(directory)


@pytest.fixture(scope="module")
def of_tls(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    users = {"authorization": {"users": [{"user": "u", "password": "plain"}]}}
    yield from served(tmp_path_factory.mktemp("tls"), authority.tls() | users)


@pytest.fixture(scope="module")
def of_certificates(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    required = authority.tls(ca_file=authority.certificate, verify=True)
    yield from served(tmp_path_factory.mktemp("certificates"), required)


@pytest.mark.parametrize("scheme", ["tls", "nats"])
async def test_a_server_with_a_trusted_certificate_connects(
    of_tls: int, authority: Authority, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", authority.certificate)
    await connects(f"{scheme}://u:plain@localhost:{of_tls}")


async def test_an_unknown_authority_is_named_as_the_cause(of_tls: int) -> None:
    with pytest.raises(UnfitServer, match=r"certificate .* is refused .*issuer.*: name .* in SSL_CERT_FILE"):
        await connects(f"tls://u:plain@localhost:{of_tls}")


async def test_a_name_that_the_certificate_lacks_is_named_as_the_cause(
    of_tls: int, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", authority.certificate)
    with pytest.raises(UnfitServer, match=r"refused \(.*127\.0\.0\.1.*by a name that the certificate has"):
        await connects(f"tls://u:plain@127.0.0.1:{of_tls}")


async def test_a_server_that_requires_client_certificates_is_refused(
    of_certificates: int, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", authority.certificate)
    with pytest.raises(UnfitServer, match="requires a certificate of its clients"):
        await connects(f"tls://localhost:{of_certificates}")


async def test_a_server_without_tls_is_refused(tmp_path_factory: pytest.TempPathFactory) -> None:
    for port in served(tmp_path_factory.mktemp("plain"), {}):
        with pytest.raises(UnfitServer, match=f"localhost:{port} does not speak TLS"):
            await connects(f"tls://u:plain@localhost:{port}")


async def test_a_program_that_leaves_tls_out_gets_no_login() -> None:
    received = b""

    async def greets(stream: SocketStream) -> None:
        nonlocal received
        async with stream:
            await stream.send(b'INFO {"version": "2.10.0", "max_payload": 1048576}\r\n')
            with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                while True:
                    received += await stream.receive()

    async with (
        await anyio.create_tcp_listener(local_host="localhost") as listener,
        in_background(partial(listener.serve, greets)),
    ):
        port = listener.extra(SocketAttribute.local_port)
        with pytest.raises(UnfitServer, match="does not speak TLS"):
            await connects(f"tls://u:secret@localhost:{port}")
    assert received == b""
