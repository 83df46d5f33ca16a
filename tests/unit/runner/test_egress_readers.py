"""Input of the egress proxy: names of hosts, heads of requests, ClientHellos, addresses. Untrusted bytes raise nothing but a refusal."""

import contextlib
import ssl
from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.contracts.hosts import HostList, host_of
from orchestrator.runner.egress import client_hello, heads
from orchestrator.runner.egress.addresses import is_ours, not_public
from orchestrator.runner.egress.client_hello import NotTls
from orchestrator.runner.egress.heads import Malformed


def hello(name: str | None) -> bytes:
    """A ClientHello of this Python."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    out = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), out, server_hostname=name).do_handshake()
    return out.read()


def test_the_name_of_a_client_hello_is_found_once_all_of_it_is_there() -> None:
    data = hello("a.example.org")
    assert client_hello.server_name(data) == "a.example.org"
    assert all(client_hello.server_name(data[:cut]) is None for cut in range(len(data)))
    assert client_hello.server_name(hello(None)) == ""


def test_a_client_hello_may_be_spread_over_records_and_be_followed_by_others() -> None:
    message = hello("a.example.org")[5:]
    pieces = [message[:3], message[3:70], message[70:]]
    records = b"".join(b"\x16\x03\x01" + len(piece).to_bytes(2, "big") + piece for piece in pieces)
    assert client_hello.server_name(records + b"\x14\x03\x03") == "a.example.org"


def spread(message: bytes, size: int) -> bytes:
    """A handshake message in TLS records of `size` bytes."""
    pieces = [message[at : at + size] for at in range(0, len(message), size)]
    return b"".join(b"\x16\x03\x01" + len(piece).to_bytes(2, "big") + piece for piece in pieces)


def test_a_client_hello_in_many_small_records_is_refused_before_it_is_whole() -> None:
    announced = b"\x01" + (60_000).to_bytes(3, "big") + bytes(60_000)
    most = client_hello.MAX_RECORDS
    assert client_hello.server_name(spread(announced[: most - 1], 1)) is None
    with pytest.raises(NotTls, match="more than 16 TLS records"):
        client_hello.server_name(spread(announced[: most + 1], 1))
    whole = hello("a.example.org")[5:]
    assert client_hello.server_name(spread(whole, -(-len(whole) // most))) == "a.example.org"


@pytest.mark.parametrize(
    ("extensions", "why"),
    [
        (b"".join(kind.to_bytes(2, "big") + bytes(2) for kind in range(1, 16_000)), "128 extensions"),
        (b"\0\0\0\x0b\0\x09" + bytes(6) + b"\1\0\0", "several servers"),  # two empty names, then an unknown kind
    ],
)  # fmt: skip
def test_a_client_hello_of_many_parts_is_refused_at_the_first_too_many(extensions: bytes, why: str) -> None:
    content = (
        b"\3\3" + bytes(32) + b"\0" + b"\0\2\0\0" + b"\1\0" + len(extensions).to_bytes(2, "big") + extensions
    )
    message = b"\1" + len(content).to_bytes(3, "big") + content
    with pytest.raises(NotTls, match=why):
        client_hello.server_name(spread(message, 1 << 14))


@given(st.binary(max_size=300))
def test_any_bytes_are_a_client_hello_or_not_and_raise_nothing_else(data: bytes) -> None:
    for prefix in (b"", b"\x16\x03\x01", b"\x16\x03\x01\x00\x40\x01\x00\x00\x3c\x03\x03"):
        with contextlib.suppress(NotTls):
            client_hello.server_name(prefix + data)


@given(st.integers(0, 500), st.integers(0, 255))
def test_a_client_hello_with_one_changed_byte_raises_nothing_else(at: int, value: int) -> None:
    data = bytearray(hello("a.example.org"))
    data[at % len(data)] = value
    with contextlib.suppress(NotTls):
        client_hello.server_name(bytes(data))


@given(st.binary(max_size=300))
def test_any_head_is_a_request_or_refused_and_what_is_written_is_read_the_same(data: bytes) -> None:
    for prefix in (b"", b"GET http://a.org/", b"GET http://a.org/ HTTP/1.1\r\nHost: a.org\r\n"):
        try:
            found = heads.request(prefix + data + heads.END)
        except Malformed:
            continue
        if not found.tunnel:
            line, _, rest = found.head.partition(b"\r\n")
            method, path, version = line.split(b" ")
            again = heads.request(
                b"%s http://%s%s %s\r\n%s" % (method, str(found.host).encode(), path, version, rest)
            )
            assert (again.host, again.port, again.body, again.head) == (
                found.host,
                80,
                found.body,
                found.head,
            )


@given(st.binary(max_size=200))
def test_any_head_of_a_response_is_forwarded_or_refused(data: bytes) -> None:
    for prefix in (b"", b"HTTP/1.1 200 OK\r\n"):
        try:
            written, _ = heads.response(prefix + data + heads.END)
        except Malformed:
            continue
        assert written.endswith(heads.END)


@given(st.text(max_size=80))
def test_any_text_is_a_host_in_one_spelling_or_refused(text: str) -> None:
    try:
        found = host_of(text)
    except ValueError:
        return
    assert host_of(str(found)) == found


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("A.Example.ORG.", "a.example.org"),
        ("b\u00fccher.example", "xn--bcher-kva.example"),
        ("\uff41.example", "a.example"),
        ("1.2.3.4", ip_address("1.2.3.4")),
        ("[2001:DB8::1]", ip_address("2001:db8::1")),
    ],
)
def test_a_host_has_one_spelling(text: str, host: object) -> None:
    assert host_of(text) == host


@pytest.mark.parametrize(
    "text", ["", ".", "a", "a..b", "-a.org", "a.org:80", "a b.org", "a.org/x", "1.2.3", "0x7f.1",
      "01.2.3.4", "a.1", "[a.org]", "[::1%lo]", "a.org\n", "*.a.org"]
)  # fmt: skip
def test_what_is_not_a_host_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not|has no domain"):
        host_of(text)


def test_a_list_allows_names_suffixes_and_addresses_and_says_what_is_beyond_it() -> None:
    listed = HostList.of(["a.org", "*.b.org", "8.8.8.8"])
    assert all(listed.allows(host_of(each)) for each in ("a.org", "x.b.org", "x.y.b.org", "8.8.8.8"))
    assert not any(listed.allows(host_of(each)) for each in ("x.a.org", "b.org", "xb.org", "8.8.4.4"))
    assert listed.beyond(["a.org", "*.x.b.org", "*.b.org", "8.8.8.8"]) is None
    assert listed.beyond(["*.org"]) == "*.org" and listed.beyond(["*.a.org"]) == "*.a.org"
    with pytest.raises(ValueError, match="wildcard of an address"):
        HostList.of(["*.1.2.3.4"])


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "2606:2800:220:1::1", "::ffff:8.8.8.8", "64:ff9b::808:808", "2002:808:808::1"]
)
def test_public_addresses_are_public_also_inside_others(address: str) -> None:
    assert not_public(ip_address(address)) is None


def test_an_address_of_this_machine_is_known() -> None:
    assert is_ours(ip_address("127.0.0.1")) and not is_ours(ip_address("93.184.216.34"))
