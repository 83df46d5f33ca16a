"""The egress proxy of a machine without IPv6, without descriptors, or with a network that drops packets: every program gets an answer."""

import errno
import socket
from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from types import SimpleNamespace

import anyio
import anyio.abc
import pytest

from orchestrator.contracts.hosts import Address, HostList
from orchestrator.contracts.network import Access
from orchestrator.runner.egress import addresses, proxy
from orchestrator.runner.egress.addresses import in_turns
from orchestrator.runner.egress.proxy import Proxy
from tests import virtual_time

pytestmark = pytest.mark.anyio

V4, V6 = "93.184.216.34", "2606:2800:220:1::"


@pytest.fixture
def anyio_backend() -> object:
    return virtual_time.BACKEND


class Peer(anyio.abc.ByteStream):
    """It sends `sends` and ends; `got`: everything that arrives."""

    def __init__(self, sends: bytes = b"") -> None:
        self.sends, self.got = sends, b""

    async def receive(self, max_bytes: int = 65536) -> bytes:
        await anyio.lowlevel.checkpoint()
        if not self.sends:
            raise anyio.EndOfStream
        sent, self.sends = self.sends, b""
        return sent

    async def send(self, item: bytes) -> None:
        self.got += item

    async def send_eof(self) -> None:
        pass

    async def aclose(self) -> None:
        pass


async def reached(found: Sequence[str], server: Mapping[str, str]) -> tuple[list[str], bytes]:
    """The addresses that are dialled for a name with the addresses `found`, and the answer. `server`: what a dialled address does."""
    dialled: list[str] = []

    async def resolve(name: str) -> Sequence[Address]:
        return [ip_address(each) for each in found]

    async def dial(address: Address, port: int) -> anyio.abc.ByteStream:
        dialled.append(str(address))
        match server.get(str(address), "drops"):
            case "drops":
                await anyio.sleep_forever()
            case "refuses":
                raise ConnectionRefusedError("connection refused")
        return Peer(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    client = Peer(b"GET http://a.org/ HTTP/1.1\r\nHost: a.org\r\n\r\n")
    await Proxy(Access(HostList.of(["a.org"]), 1 << 20), resolve=resolve, dial=dial).serve(client)
    return dialled, client.got.partition(b"\r\n")[0]


def without(patch: pytest.MonkeyPatch, number: int) -> None:
    """Sockets of IPv6 fail with this error."""

    def opened(family: int, kind: int) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(number, "no such socket")
        return socket.socket(family, kind)

    names = ("AF_INET", "AF_INET6", "SOCK_DGRAM")
    patch.setattr(
        addresses, "socket", SimpleNamespace(socket=opened, **{each: getattr(socket, each) for each in names})
    )


@pytest.mark.parametrize("found", [[V4, V6], [V6, V4]])
async def test_a_name_with_addresses_of_both_kinds_is_reached_on_a_machine_without_ipv6(
    found: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    without(monkeypatch, errno.EAFNOSUPPORT)
    dialled, answer = await reached(found, {V4: "answers", V6: "refuses"})
    assert dialled[-1] == V4 and answer == b"HTTP/1.1 200 OK"


async def test_an_address_that_cannot_be_checked_is_refused_and_the_program_gets_an_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    without(monkeypatch, errno.EMFILE)
    dialled, answer = await reached([V4, V6], {V4: "answers"})
    assert not dialled and answer.startswith(b"HTTP/1.1 503 ")


async def test_addresses_that_drop_packets_leave_the_others_their_part_of_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    virtual_time.show(monkeypatch, proxy)
    six = [f"{V6}{number}" for number in range(1, 6)]
    dialled, answer = await reached([*six, V4], {V4: "answers"})
    assert dialled == [six[0], V4] and answer == b"HTTP/1.1 200 OK"
    dialled, answer = await reached([six[0], six[1], V4], {six[1]: "answers"})
    assert dialled == [six[0], V4, six[1]] and answer == b"HTTP/1.1 200 OK"
    dialled, answer = await reached([*six, V4], {})
    assert dialled == [six[0], V4, six[1], six[2]] and answer.startswith(b"HTTP/1.1 504 ")
    dialled, answer = await reached([V4], {V4: "refuses"})
    assert dialled == [V4] and answer.startswith(b"HTTP/1.1 502 ")


def test_addresses_of_both_kinds_come_by_turns() -> None:
    found = [ip_address(each) for each in ("2606::1", "2606::2", "2606::3", "8.8.8.8")]
    assert [str(each) for each in in_turns(found)] == ["2606::1", "8.8.8.8", "2606::2", "2606::3"]
    assert in_turns(found[3:]) == found[3:]
