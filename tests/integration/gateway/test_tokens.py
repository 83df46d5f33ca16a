"""The token of a session is nowhere: not in the data pool, the journals or the logs, although the program that has it prints and saves it.

A program can reach with it only its own session, through the socket, and nothing else of the stack.
"""

import json
import re
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import anyio
import pytest
from sqlalchemy import text

from orchestrator.deploy.embedded.nats import EmbeddedNats
from orchestrator.deploy.embedded.postgres import EmbeddedPostgres
from orchestrator.gateway.sessions.session import token_hash
from orchestrator.gateway_client import GatewayAdmin, SessionBudget
from sandboxes.base import GATEWAY_SOCKET, SandboxSpec
from sandboxes.bubblewrap import BubblewrapProvider
from tests.integration.runner.rig import Rig, a_task, open_rig, says

pytestmark = [pytest.mark.anyio, pytest.mark.services]

CHATTERBOX = """
import http.client, json, os, socket, sys
token, base = os.environ["API_KEY"], os.environ["BASE_URL"]
class Connection(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(sys.argv[1])
connection = Connection("gateway")
body = json.dumps({"model": "policy", "messages": [{"role": "user", "content": "hi"}]})
connection.request("POST", "/" + base.split("/", 3)[3] + "/chat/completions", body, {"x-api-key": token})
assert connection.getresponse().status == 200
print("my key is", token, "at", base)
print(dict(os.environ), file=sys.stderr)
open("config.ini", "w").write(f"key = {token}\\n")
open("/logs/answer.txt", "w").write(f"the key is {token}")
open("/logs/hash.txt", "w").write(token)
"""
MANIFEST = """
name = "chatterbox"
version = "1"
wire = "chat"
argv = ["/usr/bin/python3", "/home/agent/chatterbox.py", "{gateway.socket}"]
harvest = ["/logs/answer.txt"]
[env]
BASE_URL = "{gateway.base_url}"
API_KEY = "{gateway.token}"
[files]
"/home/agent/chatterbox.py" = "chatterbox.py"
"""


async def dump(rig: Rig) -> str:
    """Every row of every table, as text, and in addition the decoded content of bytes."""
    tables = await rig.rows(
        "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p')"
    )
    found = []
    for (table,) in tables:
        found += [str(row) for row in await rig.rows(f"SELECT t::text FROM {table} t")]
    found += [
        str(bytes(row.body)) for row in await rig.rows("SELECT body FROM artifacts WHERE body IS NOT NULL")
    ]
    return "\n".join(found)


async def test_the_token_that_a_program_prints_and_saves_is_kept_nowhere(
    database_url: str,
    nats_server: EmbeddedNats,
    directory: Path,
    model: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[str] = []
    opened = GatewayAdmin.open_session

    async def watched(self: GatewayAdmin, **terms: object) -> object:
        session = await opened(self, **terms)  # type: ignore[arg-type]
        seen.append(session.token)
        return session

    monkeypatch.setattr(GatewayAdmin, "open_session", watched)
    place = directory / "chatterbox"
    place.mkdir()
    (place / "scaffold.toml").write_text(MANIFEST)
    (place / "chatterbox.py").write_text(CHATTERBOX)
    kept: list[bytes] = []
    async with open_rig(database_url, nats_server.url, directory, model, lease_ttl_s=15.0) as rig:
        rig.start_runner()
        rig.start_verifier()
        rollout = await rig.submit(a_task(says("so"), check="grep -q key config.ini"), scaffold=str(place))
        assert await rig.verdict(rollout) == 1.0
        (attempt,) = await rig.attempts(rollout)
        assert attempt.answer == "the key is [token]" and "my key is [token] at" in attempt.log
        # Journals are emptied once Postgres has their content: look at every file there, now and at the end.
        kept += [path.read_bytes() for path in directory.rglob("*") if path.is_file()]
        rows = await dump(rig)
    kept += [path.read_bytes() for path in directory.rglob("*") if path.is_file()]
    (token,) = seen
    logs = "".join(capfd.readouterr())
    assert "rollout.finished" in logs and "chatterbox" in rows, "the search would find nothing"
    assert token_hash(token).hex() in rows
    for place_, where in ((rows, "the data pool"), (logs, "the logs"), (str(kept), "the files of the run")):
        assert token not in place_, f"the token is in {where}"


REACH = """
import json, socket, sys
target = json.loads(sys.argv[1])

def http(method, path, **headers):
    with socket.socket(socket.AF_UNIX) as s:
        s.settimeout(20)
        s.connect(target["gateway"])
        head = "".join(f"{k.replace('_', '-')}: {v}\\r\\n" for k, v in headers.items())
        s.sendall(f"{method} {path} HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\nContent-Length: 2\\r\\n{head}\\r\\n{{}}".encode())
        return int(s.makefile("rb").readline().split()[1])

def connect(family, address):
    with socket.socket(family) as s:
        s.settimeout(5)
        try:
            s.connect(address)
        except OSError as error:
            return type(error).__name__
    return "connected"

found = {name: connect(socket.AF_INET, ("127.0.0.1", port)) for name, port in target["ports"].items()}
found["postgres socket"] = connect(socket.AF_UNIX, target["postgres_socket"])
for path in target["paths"]:
    found[path] = http("POST", path, Authorization="Bearer " + target["admin"])
mine, other = target["mine"], target["other"]
found["mine"] = http("GET", f"/s/{mine}/v1/models")
found["another in the path"] = http("GET", f"/s/{other}/v1/models")
found["another as key"] = http("GET", f"/s/{mine}/v1/models", x_api_key=other)
found["a guess"] = http("GET", "/s/" + "A" * 43 + "/v1/models")
found["a part of mine"] = http("GET", f"/s/{mine[:-1]}/v1/models")
found["the hash of mine"] = http("GET", f"/s/{target['hash']}/v1/models")
found["none"] = http("GET", "/v1/models")
print(json.dumps(found))
"""


async def test_a_sandbox_reaches_its_own_session_and_no_service_of_the_stack(
    database_url: str,
    postgres_server: EmbeddedPostgres,
    nats_server: EmbeddedNats,
    directory: Path,
    model: Path,
) -> None:
    async with open_rig(database_url, nats_server.url, directory, model) as rig:
        settings = rig.settings
        secret = settings.gateway_secret.read_text().strip()
        (run,) = await rig.rows("SELECT name FROM runs")
        async with GatewayAdmin(settings.gateway_url, secret) as admin:
            rollout = await rig.submit(a_task(says("x")))
            async with rig.context.engine.begin() as connection:
                await connection.execute(
                    text(
                        "UPDATE rollouts SET state = 'running', lease_epoch = 1, attempt = 1 WHERE rollout_id = :id"
                    ),
                    {"id": rollout},
                )
            session = await admin.open_session(
                run=run.name,
                rollout=rollout,
                attempt=1,
                epoch=1,
                budget=SessionBudget(max_turns=5, max_context=2048),
            )
            ports = {
                "postgres": urlsplit(database_url).port,
                "nats": urlsplit(nats_server.url).port,
                "the gateway over tcp": urlsplit(settings.gateway_url).port,
            }
            sockets = postgres_server.cluster.sockets
            target = {
                "gateway": GATEWAY_SOCKET,
                "ports": ports,
                "postgres_socket": str(sockets / f".s.PGSQL.{postgres_server.cluster.port}"),
                "admin": secret,
                "paths": [
                    "/admin/sessions", "/admin/sessions/seal", "/admin/sessions/abort", "/admin/servers", "/metrics", "//admin/sessions",
                    f"/s/{session.token}/../../admin/sessions", f"/s/{session.token}/v1/%2e%2e/%2e%2e/%2e%2e/admin/sessions",
                    "http://127.0.0.1/admin/sessions", "/generate", "/update_weights_from_disk",
                ],
                "mine": session.token,
                "other": "B" * 43,
                "hash": token_hash(session.token).hex(),
            }  # fmt: skip
            spec = SandboxSpec(gateway_socket=settings.gateway_socket)
            async with BubblewrapProvider().open(spec) as sandbox:
                ended = await sandbox.exec(["python3", "-c", REACH, json.dumps(target)], timeout_s=100)
            assert ended.ok, ended
            found = json.loads(ended.stdout)
            # From outside, each of these servers answers: a connection that is refused inside would succeed here.
            for name, port in ports.items():
                async with await anyio.connect_tcp("127.0.0.1", port or 0):
                    assert found.pop(name) == "ConnectionRefusedError", name
            assert (
                Path(str(target["postgres_socket"])).is_socket()
                and found.pop("postgres socket") == "FileNotFoundError"
            )
            assert found.pop("mine") == 200
            for path in (*target["paths"],):
                assert found.pop(str(path)) in (400, 404, 405), path
            assert set(found.values()) == {401}, found
            async with aiohttp.ClientSession() as http:
                for headers, status in (
                    ({}, 401),
                    ({"Authorization": f"Bearer {session.token}"}, 401),
                    ({"Authorization": f"Basic {secret}"}, 401),
                    ({"Authorization": f"Bearer {secret[:-1]}"}, 401),
                    ({"Authorization": f"Bearer {secret}"}, 200),
                ):
                    async with http.get(f"{settings.gateway_url}/admin/servers", headers=headers) as answer:
                        assert answer.status == status, headers
            assert settings.gateway_secret.stat().st_mode & 0o077 == 0 and re.fullmatch(r"[\w-]{43}", secret)
