"""The dashboard's door: which requests it admits, the headers of every answer, and its messages when something is wrong or away."""

import os
import re
import stat
from contextlib import AsyncExitStack
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine
from yarl import URL

from ops.lab.chaos.plan import FaultKind
from ops.lab.chaos.relay import listening
from orchestrator.contracts.errors import ConfigurationError
from orchestrator.runtime import http_connections
from orchestrator.runtime.metrics import measuring
from orchestrator.settings.config import Config
from orchestrator.settings.timeouts import Timeouts, use
from orchestrator.web import server
from orchestrator.web.api import ROUTES
from orchestrator.web.requests import get
from tests import builders, slow_heads
from tests.integration.pool.rig import small
from tests.integration.web.rig import configured, dashboard
from tests.waiting import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.services, pytest.mark.tier("look")]

PAGES = ("/", "/run", "/queue", "/system", "/groups/1", "/rollouts/1?step=3", "/no/such/page")
QUESTIONS = (
    "/api/me",
    "/api/run",
    "/api/series",
    "/api/queue",
    "/api/system",
    "/api/letters",
    "/api/actions",
)


async def test_the_printed_url_lets_in_and_the_token_leaves_the_address(
    engine: AsyncEngine, database_url: str, tmp_path: Path
) -> None:
    await builders.make_run(engine, small("first"))
    async with dashboard(configured("first", database_url), tmp_path) as web:
        printed = (tmp_path / "web.url").read_text().strip()
        assert printed == f"{web.address}/?token={web.token}" and web.address.startswith("http://127.0.0.1:")
        for file in ("web.url", "web.token"):
            assert stat.S_IMODE((tmp_path / file).stat().st_mode) == 0o600
        async with web.session.get(
            f"{web.address}/queue?token={web.token}&run=first", allow_redirects=False
        ) as got:
            assert (got.status, got.headers["Location"]) == (303, "/queue?run=first")
            (cookie,) = got.headers.getall("Set-Cookie")
            assert "HttpOnly" in cookie and "SameSite=Strict" in cookie and web.token not in cookie
        assert (await web.get("/api/me", {}))[0] == 200  # by the cookie alone
        async with web.session.get(f"{web.address}/run") as got:
            assert got.status == 200 and "<title>Penstock</title>" in await got.text()


@pytest.mark.parametrize(
    "path", ["//evil.test/", "/%5cevil.test/", "/%5c%5cevil.test", "/%09/evil.test/", "/%2f%2fevil.test/"]
)
async def test_no_path_with_the_right_token_leads_to_another_host(
    database_url: str, tmp_path: Path, path: str
) -> None:
    async with dashboard(configured("run", database_url), tmp_path) as web:
        url = URL(f"{web.address}{path}?token={web.token}", encoded=True)
        async with web.session.get(url, allow_redirects=False) as got:
            where = got.headers["Location"]
            assert (
                got.status == 303
                and re.match(r"/(?![/\\])", where)
                and where.isascii()
                and where.isprintable()
            )
            assert "\\" not in where and URL(web.address).join(URL(where)).host == "127.0.0.1"


@pytest.mark.parametrize("path", [*PAGES, *QUESTIONS])
async def test_without_the_right_token_nothing_of_the_run_is_shown(
    engine: AsyncEngine, database_url: str, tmp_path: Path, path: str
) -> None:
    await builders.make_run(engine, small("first"))
    async with dashboard(configured("first", database_url), tmp_path) as web:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Cookie": "penstock=1; penstock_0=x"}):
            async with web.session.get(web.address + path, headers={**headers, "Accept": "text/html"}) as got:
                answer = await got.text()
                assert got.status == 401 and "token" in answer and "first" not in answer
        wrong = f"{web.address}{path}{'&' if '?' in path else '?'}token=wrong"
        async with web.session.get(wrong, allow_redirects=False) as got:
            assert got.status == 401 and "Set-Cookie" not in got.headers


async def test_every_answer_carries_the_policy_and_no_answer_of_the_api_is_kept(
    engine: AsyncEngine, database_url: str, tmp_path: Path
) -> None:
    await builders.make_run(engine, small("first"))
    async with dashboard(configured("first", database_url), tmp_path) as web:
        for path in (
            *PAGES,
            *QUESTIONS,
            "/static/main.js",
            "/static/../server.py",
            "/api/nothing",
            "/healthz",
            "/api/events",
        ):
            async with web.session.get(web.address + path, headers=web.bearer) as got:
                policy = got.headers["Content-Security-Policy"]
                assert (
                    "default-src 'none'" in policy
                    and "script-src 'self'" in policy
                    and "unsafe" not in policy
                ), path
                assert "frame-ancestors 'none'" in policy and "base-uri 'none'" in policy
                assert got.headers["X-Content-Type-Options"] == "nosniff"
                assert got.headers["Referrer-Policy"] == "no-referrer"
                if path.startswith("/api/"):
                    assert got.headers["Cache-Control"] == "no-store"


def test_the_pages_hold_no_inline_script_or_style_and_reach_for_nothing_elsewhere() -> None:
    static = Path(server.__file__).parent / "static"
    index = (static / "index.html").read_text()
    assert "<style" not in index and " style=" not in index and "onclick" not in index
    assert index.count("<script") == index.count('<script src="/static/') + index.count(
        '<script type="module" src="/static/'
    )
    for file in static.rglob("*"):
        if file.suffix in (".js", ".css", ".html") and file.parent.name != "vendor":
            written = file.read_text()
            for bad in (
                "innerHTML",
                "dangerouslySetInnerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
                "new Function",
            ):
                assert bad not in written, f"{file.name} uses {bad}"
            assert "https://" not in written and "//cdn" not in written, file.name
            assert "http://" not in written.replace("http://www.w3.org/", ""), file.name


async def test_another_name_for_this_host_and_another_site_are_refused(
    engine: AsyncEngine, database_url: str, tmp_path: Path
) -> None:
    await builders.make_run(engine, small("first"))
    async with dashboard(configured("first", database_url), tmp_path) as web:
        port = urlsplit(web.address).port
        for host in (
            "evil.example",
            f"evil.example:{port}",
            "127.0.0.1.evil.example",
            "[::2]:80",
            "10.0.0.7",
        ):
            status, answer = await web.get("/api/me", {**web.bearer, "Host": host})
            assert status == 403 and "loopback" in answer["error"]
        for host in (
            f"localhost:{port}",
            "127.0.0.1",
            f"[::1]:{port}",
            "localhost:9999",
        ):  # the last: through a tunnel
            assert (await web.get("/api/me", {**web.bearer, "Host": host}))[0] == 200
        origin = {**web.bearer, "Origin": "http://127.0.0.1:1"}
        assert (await web.post("/api/steer/pause", headers=origin))[0] == 403
        assert (await web.post("/api/steer/pause", headers={**web.bearer, "Origin": web.address}))[0] == 200


async def test_a_cookie_alone_does_not_steer(engine: AsyncEngine, database_url: str, tmp_path: Path) -> None:
    await builders.make_run(engine, small("first"))
    async with dashboard(configured("first", database_url), tmp_path) as web:
        async with web.session.get(f"{web.address}/?token={web.token}"):
            pass
        status, answer = await web.post("/api/steer/pause", headers={})
        assert status == 403 and "X-Penstock-Steer" in answer["error"]
        assert (await web.post("/api/steer/pause", headers={"X-Penstock-Steer": "wrong"}))[0] == 403
        me = (await web.get("/api/me", {}))[1]
        assert (await web.post("/api/steer/pause", headers={"X-Penstock-Steer": me["steering"]}))[0] == 200
        assert web.token not in str(me)


@pytest.mark.parametrize(
    ("path", "status", "sentence"),
    [
        ("/api/queue?run=nowhere", 404, "run 'nowhere' does not exist"),
        ("/api/queue?run=No%20Name", 400, "cannot name a run"),
        ("/api/series?points=many", 400, "points must be a whole number from 10 to 1000, not 'many'"),
        ("/api/curves?first=-1", 400, "first must be a whole number"),
        ("/api/series?points=²", 400, "points must be a whole number"),
        ("/api/letters?limit=99999999999999999999999", 400, "limit must be a whole number"),
        ("/api/letters/m999", 404, "dead letter 'm999' does not exist"),
        ("/api/letters/%00", 404, "does not exist"),
        ("/api/nothing", 404, "there is nothing here"),
        ("/api/steer/pause", 404, "there is nothing here"),
    ],
)
async def test_a_wrong_question_is_answered_with_one_sentence(
    engine: AsyncEngine, database_url: str, tmp_path: Path, path: str, status: int, sentence: str
) -> None:
    await builders.make_run(engine, small("first"))
    async with dashboard(configured("first", database_url), tmp_path) as web:
        found, body = await web.get(path)
        assert found == status and sentence in body["error"] and "\n" not in body["error"]
        assert "Traceback" not in str(body)


async def test_a_wrong_order_is_answered_with_one_sentence(
    engine: AsyncEngine, database_url: str, tmp_path: Path
) -> None:
    await builders.make_run(engine, small("first"))
    async with dashboard(configured("first", database_url), tmp_path) as web:
        for path, body, status, sentence in (
            ("/api/steer/cancel", {"group": "7"}, 400, "group must be the number of a group"),
            ("/api/steer/cancel", {"group": 7}, 409, "group 7 does not exist"),
            ("/api/steer/cancel", [7], 400, "the body must be a JSON object"),
            ("/api/steer/pause", {"reason": 7}, 400, "reason must be text"),
            ("/api/steer/pause", {"reason": "x" * 501}, 400, "reason must be text of at most 500"),
            ("/api/steer/pause?run=nowhere", {}, 404, "run 'nowhere' does not exist"),
            ("/api/steer/resume", {}, 409, "admission is open"),
            ("/api/steer/weights", {"domains": {"coding": "2"}}, 400, "domains must be an object of weights"),
            ("/api/steer/weights", {"domains": {"coding": 2}}, 409, "takes no domain 'coding'"),
            ("/api/steer/drop", {"letter": "x1"}, 400, "letter must be m and the number"),
            ("/api/steer/drop", {"letter": "m1"}, 404, "dead letter m1 does not exist"),
            ("/api/steer/drop", {"letter": "g1"}, 409, "cannot be dropped"),
            ("/api/steer/retry", {"letter": "m1"}, 404, "dead letter m1 does not exist"),
            ("/api/steer/everything", {}, 405, "POST is not for this path"),
        ):
            found, answer = await web.post(path, body)
            assert (found, sentence in answer["error"]) == (status, True), (path, answer)
        assert (await web.get("/api/actions"))[1] == []
        async with web.session.post(
            f"{web.address}/api/steer/pause", data=b"{" * 70_000, headers=web.bearer
        ) as got:
            assert got.status == 413 and "too large" in (await got.json(content_type=None))["error"]
        for broken in (b"{no", b"\xff", b'{"reason": "\xff"}', b"[" * 3_000, b'{"reason":' * 3_000):
            async with web.session.post(
                f"{web.address}/api/steer/pause", data=broken, headers=web.bearer
            ) as got:
                assert got.status == 400
                assert "must be a JSON object" in (await got.json(content_type=None))["error"]


async def test_an_internal_error_is_counted_and_reported_without_details(
    engine: AsyncEngine, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(request: object) -> object:
        raise KeyError("secret inside")

    await builders.make_run(engine, small("first"))
    monkeypatch.setattr("orchestrator.web.server.ROUTES", (*ROUTES, get("/api/fails", fails)))
    with measuring() as process:
        async with dashboard(configured("first", database_url), tmp_path) as web:
            status, body = await web.get("/api/fails")
            assert (status, body) == (500, {"error": "the dashboard failed to answer this; its log says why"})
            counted = process.registry.get_sample_value("penstock_web_errors_total", {"method": "GET"})
            assert counted == 1.0


async def test_an_empty_run_and_an_empty_database_have_pages(
    engine: AsyncEngine, database_url: str, tmp_path: Path
) -> None:
    async with dashboard(configured("first", database_url), tmp_path) as web:
        status, body = await web.get("/api/run")
        assert status == 404 and body["error"] == "run 'first' does not exist in this database"
        await builders.make_run(engine, small("first"))
        for question in QUESTIONS:
            assert (await web.get(question))[0] == 200, question
        _, queue = await web.get("/api/queue")
        assert queue["positions"] == [] and "waits for tasks" in queue["status"]["why"]


async def test_while_postgres_is_away_it_says_so_and_goes_on_when_it_is_back(
    engine: AsyncEngine, database_url: str, tmp_path: Path
) -> None:
    await builders.make_run(engine, small("first"))
    parts = urlsplit(database_url)
    async with listening() as relay:  # refuses: as if Postgres were not there yet
        url = parts._replace(netloc=parts.netloc.replace(f":{parts.port}", f":{relay.port}")).geturl()
        async with dashboard(configured("first", url), tmp_path) as web:
            status, body = await web.get("/api/queue")
            assert status == 503 and "PostgreSQL" in body["error"] and "\n" not in body["error"]
            assert (await web.post("/api/steer/pause"))[0] == 503
            async with web.session.get(f"{web.address}/queue", headers=web.bearer) as got:
                assert got.status == 200  # the page itself is there, and reports it
            assert parts.hostname and parts.port
            relay.to = (parts.hostname, parts.port)
            await web.until("/api/queue", 200)
            relay.part(FaultKind.CUT, delay_s=0.0, seed=0)
            await web.until("/api/queue", 503)
            relay.pass_on()
            await web.until("/api/queue", 200)
            status, _ = await web.post("/api/steer/pause")
            assert status == 200


async def test_followers_hear_of_a_change_and_only_one_look_is_made_for_all(
    engine: AsyncEngine, database_url: str, tmp_path: Path
) -> None:
    run = await builders.make_run(engine, small("first"))
    async with dashboard(configured("first", database_url), tmp_path) as web:

        async def follow(lines: list[bytes], at_least: int) -> None:
            async with web.session.get(f"{web.address}/api/events", headers=web.bearer) as stream:
                assert stream.headers["Content-Type"] == "text/event-stream"
                async for line in stream.content:
                    if line.startswith(b"data: "):
                        lines.append(line)
                        if len(lines) >= at_least:
                            return

        lines: list[list[bytes]] = [[], [], []]
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                for one in lines:
                    tasks.start_soon(follow, one, 2)
                await eventually(lambda: all(lines))  # each has its first event
                async with engine.connect() as connection:
                    query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'penstock-web' AND datname = current_database()"

                    async def shared() -> bool:
                        """Whether there is one connection for all of them; the pool opens it again when it has been too long in use."""
                        found = await connection.scalar(text(query))
                        await connection.rollback()  # a transaction sees the same statistics again and again
                        return bool(found == 1)

                    await eventually(shared)
                await builders.accepted(engine, run, ["a"])
        assert all(b'"away":""' in line for one in lines for line in one)


async def test_followers_are_sent_a_sentence_while_postgres_refuses_the_reading_and_go_on_once_it_does_not(
    engine: AsyncEngine, database_url: str, tmp_path: Path
) -> None:
    await builders.make_run(engine, small("first"))

    async def rename(table: str, name: str) -> None:
        async with engine.begin() as connection:
            await connection.execute(text(f"ALTER TABLE {table} RENAME TO {name}"))

    async with dashboard(configured("first", database_url), tmp_path) as web:
        with anyio.fail_after(60):
            async with web.session.get(f"{web.address}/api/events", headers=web.bearer) as stream:

                async def until(words: bytes) -> None:
                    while words not in await stream.content.readuntil(b"\n\n"):
                        pass

                await until(b'"away":""')
                await rename("actions", "moved")
                await until(b'"away":"PostgreSQL refuses what this page reads')
                await rename("moved", "actions")
                await until(b'"away":""')


def test_only_loopback_is_listened_on_unless_a_person_says_what_that_means() -> None:
    for host in ("0.0.0.0", "192.168.0.7", "example.org", "::"):
        with pytest.raises(ValueError, match=r"SSH tunnel, or set web\.exposed = true"):
            Config.model_validate({"web": {"host": host}})
        assert Config.model_validate({"web": {"host": host, "exposed": True}}).web.host == host
    for host in ("127.0.0.1", "::1", "localhost", "127.8.8.8"):
        assert Config.model_validate({"web": {"host": host}}).web.host == host


async def test_a_restarted_dashboard_has_its_address_and_token_again(
    engine: AsyncEngine, database_url: str, tmp_path: Path
) -> None:
    await builders.make_run(engine, small("first"))
    async with dashboard(configured("first", database_url), tmp_path) as web:
        before = web.address, web.token
    async with dashboard(configured("first", database_url), tmp_path) as web:
        assert (web.address, web.token) == before
    (tmp_path / "web.token").write_text("")
    with pytest.raises(ConfigurationError, match="remove the file, and a new one is made"):
        await server.serve(
            server.WebSettings(
                config=configured("first", database_url),
                token_file=tmp_path / "web.token",
                url_file=tmp_path / "u",
            )
        )


async def test_a_taken_port_is_reported_in_one_sentence(database_url: str, tmp_path: Path) -> None:
    async with dashboard(configured("first", database_url), tmp_path) as web:
        port = urlsplit(web.address).port
        assert port is not None
        with pytest.raises(ConfigurationError, match=f"cannot listen on 127.0.0.1:{port} .* or set web.port"):
            server.listen("127.0.0.1", port)


async def test_logs_hold_no_token(
    database_url: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async with dashboard(configured("first", database_url), tmp_path) as web:
        async with web.session.get(f"{web.address}/?token={web.token}"):
            pass
        await web.get("/api/me")
        printed = capfd.readouterr()
        assert web.token not in printed.out + printed.err


async def test_a_static_file_is_sent_once_and_no_other_file_is(database_url: str, tmp_path: Path) -> None:
    async with dashboard(configured("first", database_url), tmp_path) as web:
        async with web.session.get(f"{web.address}/static/main.js") as got:
            assert got.status == 200 and got.content_type == "text/javascript"
            tag = got.headers["ETag"]
        async with web.session.get(f"{web.address}/static/main.js", headers={"If-None-Match": tag}) as got:
            assert got.status == 304
        for path in ("../server.py", "..%2fserver.py", "pages", "%2e%2e/keys.py", "/etc/passwd", ""):
            address = URL(f"{web.address}/static/{path}", encoded=True)
            async with web.session.get(address) as got:
                assert got.status in (401, 404), path
        assert os.listdir(tmp_path)


@pytest.mark.parametrize("sent", slow_heads.BEGINNINGS)
async def test_a_head_that_does_not_arrive_ends_its_connection_and_others_are_answered(
    database_url: str, tmp_path: Path, sent: bytes
) -> None:
    with use(Timeouts(request_head_s=0.5)):
        async with dashboard(configured("run", database_url), tmp_path) as web:

            async def answered() -> bool:
                async with web.session.get(f"{web.address}/healthz") as answer:
                    return answer.status == 200

            await slow_heads.until_closed(web.address, sent, answered)


async def test_connections_without_end_close_one_another_and_no_reader_notices(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_connections, "CONNECTIONS", 8)
    async with dashboard(configured("run", database_url), tmp_path) as web, AsyncExitStack() as held:
        at = urlsplit(web.address)
        streams = []
        for _ in range(24):
            stream = await held.enter_async_context(await anyio.connect_tcp(at.hostname or "", at.port or 0))
            streams.append(stream)
            async with web.session.get(f"{web.address}/healthz") as answer:
                assert answer.status == 200
        for stream in streams[:8]:  # the oldest
            with anyio.fail_after(60), pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                await stream.receive()
