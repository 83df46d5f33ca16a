"""Attempts to reach more than a task may, each by a program in a real bubblewrap sandbox. None of them leaves the proxy."""

import pytest

from tests.integration.egress.rig import PUBLIC, open_world
from tests.violations import nothing_got_out

pytestmark = [pytest.mark.anyio, pytest.mark.tier("tasks")]

CLOUD = "169.254.169.254"


async def refused_all(
    attempts: list[str], hosts: tuple[str, ...] | None, *, names: dict[str, list[list[str]]] | None = None
) -> list[str]:
    """Each attempt prints a status: none may be a success, and no connection may leave the proxy. Returns the reasons in the log."""
    async with open_world(hosts) as opened:
        opened.world.names |= names or {}
        printed = (await opened.python("\n".join(f"print({attempt})" for attempt in attempts))).split()
        nothing_got_out(
            {f"a connection to {address}": f"one of {attempts}" for address in opened.world.dialled}
        )
        for attempt, status in zip(attempts, printed, strict=True):
            assert status in {"400", "403", "405", "411", "502", "505", "closed"}, (attempt, status)
        assert len(opened.world.reasons()) == len(attempts)
        return opened.world.reasons()


LITERALS = (
    PUBLIC, "1572395042", "0x5db8d822", "0135.0270.0330.0042", "0x5d.0xb8.0xd8.0x22", "93.184.55330", "93.12113442", "[::ffff:93.184.216.34]",
    "[2606:2800:220:1::1]", "[2606:2800:220:1::1%25eth0]", "093.184.216.34", "\\uff19\\uff13.184.216.34",
)  # fmt: skip


@pytest.mark.parametrize("form", ["http", "connect"])
async def test_addresses_in_any_spelling_are_no_way_around_an_allow_list(form: str) -> None:
    written = [
        f"status(get('http://{each}/'.encode().decode('latin-1'), 'example.org'))"
        if form == "http"
        else f"status(tunnel('{each}:443'.encode().decode('latin-1'))[0])"
        for each in LITERALS
    ]
    await refused_all(written, ("example.org",))


INSIDE = (
    "127.0.0.1", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "0.0.0.0", "0", "10.0.0.1", "172.16.0.1", "192.168.1.1", "100.64.0.1", CLOUD,
    "2852039166", "0xA9FEA9FE", "224.0.0.1", "255.255.255.255", "198.18.0.1", "192.0.0.192", "[::1]", "[::]", "[fd00:ec2::254]", "[fe80::1]",
    "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", f"[::ffff:{CLOUD}]", "[2002:7f00:1::]", "[2002:a9fe:a9fe::]", "[64:ff9b::a9fe:a9fe]",
    "[64:ff9b:1::a9fe:a9fe]", "[::127.0.0.1]", "[2001:0:a9fe:a9fe::1]", "[ff02::1]", "localhost", "localhost.", "metadata",
)  # fmt: skip


@pytest.mark.parametrize("form", ["http", "connect"])
async def test_no_address_of_this_machine_of_its_network_or_of_a_metadata_service_is_public(
    form: str,
) -> None:
    written = [
        f"status(get('http://{each}/'))" if form == "http" else f"status(tunnel('{each}:443')[0])"
        for each in INSIDE
    ]
    await refused_all(written, None)


async def test_an_allowed_name_that_leads_to_a_private_address_is_refused() -> None:
    private = {
        "a.example.org": [["10.1.2.3"]],
        "b.example.org": [[CLOUD]],
        "c.example.org": [["fd00:ec2::254"]],
        "d.example.org": [["::ffff:127.0.0.1"]],
        "e.example.org": [["2002:a00:1::"]],
        "f.example.org": [["64:ff9b::7f00:1"]],
        "g.example.org": [[PUBLIC, "127.0.0.1"]],
    }
    attempts = [f"status(get('http://{name}/'))" for name in private]
    attempts += [f"through('{name}:443', '{name}')" for name in private]
    reasons = await refused_all(attempts, ("*.example.org",), names=private)
    assert all("not public" in reason for reason in reasons)


async def test_a_name_that_answers_differently_the_second_time_is_looked_up_once() -> None:
    async with open_world() as opened:
        world = opened.world
        world.names["a.example.org"] = [[PUBLIC], ["127.0.0.1"]]
        assert "page of" in await opened.python("print(page('http://a.example.org/'))")
        assert (world.looked_up, world.dialled) == (["a.example.org"], [(PUBLIC, 80)])
        # The next connection asks again, and is checked again.
        assert (await opened.python("print(status(get('http://a.example.org/')))")).strip() == "403"
        assert world.dialled == [(PUBLIC, 80)]


async def test_a_redirect_is_a_new_request_that_is_checked_again() -> None:
    async with open_world() as opened:
        line = b"GET /go HTTP/1.1"
        opened.world.answers[line] = (
            f"HTTP/1.1 302 Found\r\nLocation: http://{CLOUD}/latest/meta-data/\r\nContent-Length: 0\r\n\r\n".encode()
        )
        text = "try:\n page('http://a.example.org/go')\nexcept urllib.error.HTTPError as error:\n print(error.code)"
        assert (await opened.python(text)).strip() == "403"
        assert opened.world.dialled == [(PUBLIC, 80)]


async def test_other_ports_are_closed() -> None:
    attempts = [f"status(tunnel('example.org:{port}')[0])" for port in (22, 25, 53, 80, 853, 8443, 0, 99999)]
    attempts += [f"status(get('http://example.org:{port}/'))" for port in (22, 443, 8080)]
    await refused_all([*attempts, "status(tunnel('example.org')[0])"], ("example.org",))


async def test_the_host_header_must_be_the_host_of_the_url() -> None:
    attempts = [
        "status(get('http://example.org/', 'evil.org'))",
        "status(get('http://example.org/', 'example.org:8080'))",
        "status(get('http://example.org/', ''))",
        "status(tunnel('example.org:443', 'evil.org:443')[0])",
        r"status(raw(b'GET http://example.org/ HTTP/1.1\r\n\r\n'))",
        r"status(raw(b'GET http://example.org/ HTTP/1.1\r\nHost: example.org\r\nHost: evil.org\r\n\r\n'))",
    ]
    await refused_all(attempts, ("example.org",))


async def test_a_url_with_a_user_is_refused() -> None:
    attempts = [
        "status(get('http://example.org@evil.org/', 'evil.org'))",
        "status(get('http://user:word@example.org/', 'example.org'))",
        "status(tunnel('example.org@evil.org:443')[0])",
        "status(get('http://evil.org\\\\@example.org/', 'example.org'))",
        "status(get('http://evil.org#@example.org/', 'example.org'))",
    ]
    await refused_all(attempts, ("example.org",))


async def test_a_wildcard_covers_names_below_its_suffix_alone() -> None:
    names = (
        "evilexample.org", "example.org", "example.org.evil.org", "a.example.org.evil.org", "example.orgx", "a.example-org.com",
        "*.example.org", ".example.org", "a..example.org",
    )  # fmt: skip
    attempts = [f"status(get('http://{name}/'))" for name in names]
    attempts += [f"status(tunnel('{name}:443')[0])" for name in names]
    await refused_all(attempts, ("*.example.org",))


async def test_upper_case_and_a_trailing_dot_are_the_same_name() -> None:
    await refused_all(
        ["status(get('http://EVIL.ORG./'))", "status(tunnel('EVIL.org.:443')[0])"], ("example.org",)
    )
    async with open_world() as opened:
        assert "page of GET /" in await opened.python("print(get('http://A.Example.ORG./', 'a.example.org'))")
        assert "page of GET /" in await opened.python("print(through('Example.ORG.:443', 'example.org'))")
        assert opened.world.looked_up == ["a.example.org", "example.org"]
        assert b"Host: a.example.org\r\n" in opened.world.seen[0]


async def test_the_client_hello_must_name_the_host_of_the_connect() -> None:
    async with open_world() as opened:
        for name in ("'evil.org'", "'other.example.org'", "None", "'127.0.0.1'"):
            assert (await opened.python(f"print(through('a.example.org:443', {name}))")).strip() == "closed"
        assert opened.world.reasons() == [
            "the TLS ClientHello names another server (SNI): 'evil.org'",
            "the TLS ClientHello names another server (SNI): 'other.example.org'",
            "the TLS ClientHello names no server (SNI)",
            "the TLS ClientHello names no server (SNI)",
        ]
        # The server saw a connection, and not a byte.
        assert set(opened.world.seen) <= {b"no TLS"}


async def test_a_tunnel_carries_nothing_but_tls() -> None:
    raws = [
        rb"b'SSH-2.0-OpenSSH_9.2\r\n'",
        rb"b'GET / HTTP/1.1\r\nHost: example.org\r\n\r\n'",
        rb"b'\x16\x02\x00\x00\x05hello'",
        rb"b'\x16\x03\x01\x00\x05\x02\x00\x00\x01\x00'",
        rb"b'\x16\x03\x01\xff\xff'",
        rb"b'\x00' * 200000",
    ]
    async with open_world() as opened:
        for each in raws:
            text = (
                f"answer, stream = tunnel('example.org:443')\ntry:\n stream.sendall({each.decode()})\n"
                "except OSError: pass\nprint(status(answer), rest(stream)[:60])"
            )
            printed = await opened.python(text)
            assert printed.startswith("200 b") and "HTTP" not in printed, printed
        assert len(opened.world.reasons()) == len(raws)
        assert all("only TLS is forwarded" in reason for reason in opened.world.reasons())
        assert set(opened.world.seen) <= {b"no TLS"}


async def test_a_request_smuggled_behind_another_reaches_no_server() -> None:
    second = r"GET http://evil.org/second HTTP/1.1\r\nHost: evil.org\r\n\r\n"
    first = r"GET http://example.org/first HTTP/1.1\r\nHost: example.org\r\n"
    async with open_world() as opened:
        printed = await opened.python(f"print(raw(b'{first}\\r\\n{second}'))")
        assert "page of GET /first" in printed and "second" not in printed
        printed = await opened.python(f"print(raw(b'{first}Content-Length: 0\\r\\n\\r\\n{second}'))")
        assert "page of GET /first" in printed and "second" not in printed
        # One that waits for the answer first finds a closed connection.
        text = (
            f"s = proxy(); s.sendall(b'{first}\\r\\n'); print(rest(s).decode())\n"
            f"try:\n s.sendall(b'{second}'); print(rest(s))\nexcept OSError: print('closed')"
        )
        assert "second" not in await opened.python(text)
        assert len(opened.world.seen) == 3 and not any(b"second" in each for each in opened.world.seen)
        assert opened.world.reasons() == ["a second request on one connection"] * 3


async def test_heads_that_two_readers_understand_differently_are_refused() -> None:
    start = r"POST http://example.org/ HTTP/1.1\r\nHost: example.org\r\n"
    bodies = [
        r"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", r"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        r"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab", r"Content-Length: +1\r\n\r\na", r"Content-Length: 1, 1\r\n\r\na",
        r"Content-Length : 1\r\n\r\na", r"X: a\r\n folded\r\n\r\n", r"X: a\nHost: evil.org\r\n\r\n", r"X: a\rHost: evil.org\r\n\r\n",
        r"X\x00: a\r\n\r\n", r" Host: evil.org\r\n\r\n",
    ]  # fmt: skip
    lines = [
        r"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n",
        r"GET https://example.org/ HTTP/1.1\r\nHost: example.org\r\n\r\n",
        r"GET ftp://example.org/ HTTP/1.1\r\nHost: example.org\r\n\r\n",
        r"GET  http://example.org/ HTTP/1.1\r\nHost: example.org\r\n\r\n",
        r"GET http://example.org/ HTTP/2.0\r\nHost: example.org\r\n\r\n",
        r"GET http://example.org/\r\n\r\n",
        r"GET http://example.org/ a HTTP/1.1\r\nHost: example.org\r\n\r\n",
        r"PRI * HTTP/2.0\r\n\r\n",
    ]
    attempts = [f"status(raw(b'{start}{body}'))" for body in bodies] + [
        f"status(raw(b'{line}'))" for line in lines
    ]
    await refused_all(attempts, ("example.org",))


async def test_an_upgrade_of_the_protocol_is_not_passed_on() -> None:
    async with open_world() as opened:
        head = r"GET http://example.org/ HTTP/1.1\r\nHost: example.org\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n\r\n"
        await opened.python(f"raw(b'{head}')")
        assert b"upgrade" not in opened.world.seen[0].lower()
        opened.world.answers[b"GET /ws HTTP/1.1"] = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n"
        assert (await opened.python("print(status(get('http://example.org/ws')))")).strip() == "502"


async def test_nothing_is_reached_without_the_proxy_and_udp_does_not_leave() -> None:
    text = f"""
def tried(call):
    try:
        call()
        return 'reached'
    except OSError as error:
        return type(error).__name__
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
print(
    tried(lambda: socket.create_connection(('{PUBLIC}', 443), 5)),
    tried(lambda: socket.create_connection(('10.0.0.1', 80), 5)),
    tried(lambda: socket.getaddrinfo('example.org', 443)),
    tried(lambda: udp.sendto(b'x', ('{PUBLIC}', 443))),
    tried(lambda: udp.sendto(b'x', ('8.8.8.8', 53))),
    tried(lambda: socket.socket(socket.AF_INET6, socket.SOCK_DGRAM).sendto(b'x', ('2606:2800:220:1::1', 443))),
    sorted(name for _, name in socket.if_nameindex()),
)
"""
    async with open_world(None) as opened:
        printed = await opened.python(text)
        if "reached" in printed or opened.world.dialled:
            nothing_got_out({"without the proxy": (printed, opened.world.dialled)})
        assert printed.strip().endswith("['lo']") and opened.world.log == [], printed


async def test_the_proxy_reaches_neither_its_own_port_nor_the_services_of_its_machine() -> None:
    own = "urlsplit(os.environ['HTTP_PROXY']).port"
    attempts = [
        f"status(get('http://127.0.0.1:%d/' % {own}))",
        f"status(tunnel('127.0.0.1:%d' % {own})[0])",
        f"status(tunnel('[::1]:%d' % {own})[0])",
        "status(tunnel('127.0.0.1:443')[0])",
        "status(tunnel('localhost.example.org:443')[0])",
    ]
    await refused_all(attempts, None, names={"localhost.example.org": [["127.0.0.1"]]})


async def test_another_sandbox_does_not_see_the_listener() -> None:
    async with open_world() as opened, open_world(("other.org",)) as other:
        assert (await other.python("print(status(get('http://example.org/')))")).strip() == "403"
        await other.sandbox.exec(["true"])
        seen = await opened.python("print(os.listdir('/run/penstock-egress'), os.listdir('/run'))")
        assert (
            seen.strip() == "['proxy.sock', 'relay.py'] ['penstock-egress']"
            or "penstock-gateways" not in seen
        )
        change = "try:\n open('/run/penstock-egress/relay.py', 'a')\nexcept OSError as error: print(type(error).__name__)"
        assert (await opened.python(change)).strip() in ("PermissionError", "OSError")
