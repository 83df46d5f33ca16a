"""The program of another user of the machine, who attacks a run. Standard library only: any interpreter of that user runs it.

It reads from standard input, as JSON, the facts that every user of the machine can find (listening ports, process ids, paths by their known
names), and tokens that were given to it. It prints attack → answer, as JSON. Nothing of the product is imported.
"""

import base64
import contextlib
import errno
import hashlib
import hmac
import json
import os
import signal
import socket
import struct
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any

Headers = dict[str, str]
Known = dict[str, Any]
Attacks = Iterator[tuple[str, Callable[[], Any]]]

PATIENCE_S = 60.0
LOOPBACK = "127.0.0.1"
GUESS = "A" * 43
PAGE = {"Host": "attacker.example", "Origin": "http://attacker.example", "Content-Type": "text/plain"}
REBOUND = {"Host": "attacker.example"}
CHAT = json.dumps({"model": "policy", "messages": [{"role": "user", "content": "hi"}]}).encode()


def http(
    port: int,
    method: str,
    path: str,
    headers: Headers | None = None,
    body: bytes = b"",
    length: int | None = None,
) -> tuple[int, str]:
    """One request; returns (status, the beginning of the answer)."""
    given = {"Host": f"{LOOPBACK}:{port}", "Connection": "close", **(headers or {})}
    given["Content-Length"] = str(len(body) if length is None else length)
    head = "".join(f"{key}: {value}\r\n" for key, value in given.items())
    with socket.create_connection((LOOPBACK, port), timeout=PATIENCE_S) as connection:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # refused before all of it was sent
            connection.sendall(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + body)
        return answered(connection)


def answered(connection: socket.socket) -> tuple[int, str]:
    """(status, body) of an answer; the end of a connection without one is status 0."""
    raw, length = b"", -1
    with contextlib.suppress(ConnectionResetError):
        while (at := raw.find(b"\r\n\r\n")) < 0 or length < 0 or len(raw) < at + 4 + length:
            if not (some := connection.recv(1 << 16)):
                break
            raw += some
            head = raw.partition(b"\r\n\r\n")[0].lower()
            if b"content-length:" in head:
                length = int(head.partition(b"content-length:")[2].split()[0])
    words, body = raw.split(maxsplit=2), raw.partition(b"\r\n\r\n")[2]
    return (int(words[1]) if len(words) > 1 else 0), body.decode(errors="replace")


def status(
    port: int,
    method: str,
    path: str,
    headers: Headers | None = None,
    body: bytes = b"",
    length: int | None = None,
) -> str:
    return str(http(port, method, path, headers, body, length)[0])


def bearer(token: str) -> Headers:
    return {"Authorization": f"Bearer {token}"}


# ---- the rollout server ----

SERVER_POSTS = (
    "/generate", "/update_weights_from_disk", "/update_weight_version", "/pause_generation", "/continue_generation", "/abort_request",
    "/flush_cache", "/init_weights_update_group", "/begin_weight_update", "/end_weight_update", "/update_weights_from_distributed",
    "/destroy_weights_update_group", "/v1/tokenize",
)  # fmt: skip


def of_server(port: int, headers: Headers) -> list[str]:
    """The different answers of all routes that change or use the policy."""
    forged = json.dumps(
        {"model_path": "/tmp", "weight_version": "666", "new_version": "666", "text": "hi"}
    ).encode()
    return sorted({status(port, "POST", path, headers, forged) for path in SERVER_POSTS})


def rollout_server(known: Known) -> Attacks:
    port = known["ports"]["rollout-server"]
    yield "rollout_server_without_key", lambda: of_server(port, {})
    yield "rollout_server_with_a_guessed_key", lambda: of_server(port, bearer(GUESS))
    yield (
        "rollout_server_by_a_form_of_a_web_page",
        lambda: of_server(port, {**PAGE, "Host": f"{LOOPBACK}:{port}"}),
    )
    yield (
        "rollout_server_by_dns_rebinding",
        lambda: sorted(
            {
                *of_server(port, REBOUND),
                *(status(port, "GET", path, REBOUND) for path in ("/server_info", "/metrics")),
            }
        ),
    )
    yield "rollout_server_slow_head", lambda: slow_head(port, "/ping")


# ---- the gateway ----

CALLS = ("/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens")
ADMIN = ("/admin/sessions", "/admin/sessions/seal", "/admin/sessions/abort", "/admin/sessions/activity")


def calls(port: int, headers: Headers, base: str = "") -> list[str]:
    """The different answers to a call on each wire, and to the listing of models."""
    found = {status(port, "POST", base + path, headers, CHAT) for path in CALLS}
    return sorted({*found, status(port, "GET", base + "/v1/models", headers)})


def admin(port: int, headers: Headers, body: bytes) -> list[str]:
    found = {status(port, "POST", path, headers, body) for path in ADMIN}
    return sorted({*found, status(port, "GET", "/admin/servers", headers)})


def on_socket(path: str, request: str) -> str:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(PATIENCE_S)
        connection.connect(path)
        connection.sendall(request.encode())
        return str(answered(connection)[0])


def gateway(known: Known) -> Attacks:
    port, ended, live, other = known["ports"]["gateway"], known["ended"], known["live"], known["other"]
    lease = json.dumps(known["lease"]).encode()
    yield "gateway_without_token", lambda: calls(port, {})
    yield (
        "gateway_with_a_guessed_token",
        lambda: sorted({*calls(port, bearer(GUESS)), *calls(port, {}, f"/s/{GUESS}")}),
    )
    yield (
        "gateway_with_the_token_of_an_ended_session",
        lambda: sorted({*calls(port, bearer(ended)), *calls(port, {}, f"/s/{ended}")}),
    )
    yield "gateway_with_a_token_on_another_session", lambda: calls(port, {"x-api-key": live}, f"/s/{other}")
    yield "gateway_by_a_form_of_a_web_page", lambda: calls(port, PAGE)
    yield "gateway_admin_without_secret", lambda: admin(port, {}, lease)
    yield "gateway_admin_with_a_guessed_secret", lambda: admin(port, bearer(GUESS), lease)
    yield "gateway_admin_with_the_token_of_a_session", lambda: admin(port, bearer(live), lease)
    yield (
        "gateway_admin_on_the_socket_of_sandboxes",
        lambda: on_socket(
            known["gateway_socket"],
            f"POST /admin/sessions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{GUESS}: x\r\n\r\n",
        ),
    )
    yield "gateway_slow_head", lambda: slow_head(port)
    yield "gateway_slow_body", lambda: slow_body(port, live)
    yield (
        "gateway_body_of_10_gb",
        lambda: status(port, "POST", CALLS[0], bearer(live), CHAT, length=10 * 10**9),
    )
    nested = b'{"model":"policy","messages":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    yield (
        "gateway_nesting_of_100000_brackets",
        lambda: sorted({status(port, "POST", path, bearer(live), nested) for path in CALLS}),
    )
    yield "gateway_zip_bomb", lambda: bombs(port, live)


def trickle(port: int, head: bytes, probe: str = "/health") -> str:
    """Send `head`, then a byte every 0.2 s, until the server ends it. Returns what it did, and whether others, who get `probe`, were answered all
    the time."""
    others = 0
    with socket.create_connection((LOOPBACK, port), timeout=PATIENCE_S) as connection:
        connection.sendall(head)
        connection.settimeout(0.2)
        raw, end = b"", time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            others += http(port, "GET", probe)[0] == 200
            try:
                connection.sendall(b"x")
                some = connection.recv(1 << 16)
            except TimeoutError:
                continue
            except OSError:
                some = b""
            raw += some
            if not some or b"\r\n\r\n" in raw:
                break
        else:
            return "still open"
    ended = raw.split()[1].decode() if raw else "closed"
    return ended if others >= 2 else f"{ended}, but only {others} others were answered"


def slow_head(port: int, probe: str = "/health") -> str:
    return trickle(port, b"POST /v1/chat/completions HTTP/1.1\r\nX-Slow: ", probe)


def slow_body(port: int, token: str) -> str:
    head = f"POST {CALLS[0]} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nContent-Length: 10000\r\n\r\n{{"
    return trickle(port, head.encode())


def bombs(port: int, token: str) -> list[str]:
    """Half a gigabyte of blanks, packed once and twice."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    blanks = b" " * 2**20
    once = b"".join(packer.compress(blanks) for _ in range(512)) + packer.flush()
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    twice = packer.compress(once) + packer.flush()
    answers = {
        status(port, "POST", CALLS[0], {**bearer(token), "Content-Encoding": coding}, body)
        for coding, body in (("gzip", once), ("gzip, gzip", twice))
    }
    return sorted(answers)


# ---- NATS ----


def on_nats(port: int, login: str) -> list[str]:
    """The server's answer after its greeting to a login; if it says nothing, to a subscription to everything and a question to JetStream."""
    with socket.create_connection((LOOPBACK, port), timeout=PATIENCE_S) as connection:
        answer = connection.recv(1 << 16)  # INFO, one line
        connection.sendall(login.encode())
        connection.settimeout(5)
        with contextlib.suppress(TimeoutError, ConnectionResetError):
            answer += connection.recv(1 << 16)
        if b"-ERR" not in answer:
            connection.sendall(
                b"SUB > 1\r\nSUB inbox 2\r\nPUB $JS.API.STREAM.NAMES inbox 0\r\n\r\nPUB x 1\r\nx\r\nPING\r\n"
            )
            with contextlib.suppress(TimeoutError, ConnectionResetError):
                while b"PONG" not in answer and (some := connection.recv(1 << 16)):
                    answer += some
    lines = [
        line
        for line in answer.decode(errors="replace").split("\r\n")
        if line and not line.startswith("INFO ")
    ]
    return sorted({line[:60] for line in lines})


def nats(known: Known) -> Attacks:
    port = known["ports"]["nats"]
    yield "nats_without_login", lambda: on_nats(port, 'CONNECT {"verbose":false}\r\n')
    yield "nats_without_a_word_of_login", lambda: on_nats(port, "SUB > 1\r\n")
    for_guess = json.dumps({"verbose": False, "auth_token": GUESS, "user": "penstock", "pass": GUESS})
    yield "nats_with_a_guessed_token", lambda: on_nats(port, f"CONNECT {for_guess}\r\n")
    yield "nats_monitoring_port", lambda: sorted(set(known["listening"]) - set(known["ports"].values()))


# ---- PostgreSQL ----

ROLES = (
    "penstock",
    "penstock_sql",
    "penstock_gateway",
    "penstock_runner",
    "penstock_trainer",
    "penstock_reader",
    "postgres",
    "nobody",
)
DATABASES = ("penstock", "postgres", "template1")


def next_message(connection: socket.socket) -> tuple[str, bytes]:
    """(kind, content) of PostgreSQL's next message."""
    head = b""
    while len(head) < 5:
        head += (some := connection.recv(5 - len(head)))
        if not some:
            return "end", b""
    length = struct.unpack("!I", head[1:])[0] - 4
    content = b""
    while len(content) < length:
        content += connection.recv(length - len(content))
    return head[:1].decode(), content


def send_message(connection: socket.socket, kind: bytes, content: bytes) -> None:
    connection.sendall(kind + struct.pack("!I", len(content) + 4) + content)


def login(port: int, role: str, database: str, password: str, **more: str) -> str:
    """How far a login gets: `in`, or the SQLSTATE of the refusal."""
    terms = {"user": role, "database": database, **more}
    start = b"".join(f"{key}\0{value}\0".encode() for key, value in terms.items()) + b"\0"
    with socket.create_connection((LOOPBACK, port), timeout=PATIENCE_S) as connection:
        connection.sendall(struct.pack("!II", len(start) + 8, 196608) + start)
        while True:
            kind, content = next_message(connection)
            if kind == "E":
                fields = dict((part[:1].decode(), part[1:].decode()) for part in content.split(b"\0") if part)
                return fields["C"]
            if kind != "R":
                return kind
            code = struct.unpack("!I", content[:4])[0]
            if code == 0:
                return "in"
            if code == 10:
                bare = "n=,r=" + GUESS[:24]
                first = f"n,,{bare}".encode()
                send_message(connection, b"p", b"SCRAM-SHA-256\0" + struct.pack("!I", len(first)) + first)
            elif code == 11:
                send_message(connection, b"p", proof(bare, content[4:].decode(), password))
            else:
                return f"authentication {code}"


def proof(bare: str, challenge: str, password: str) -> bytes:
    """The last message of SCRAM-SHA-256 (RFC 5802)."""
    parts = dict(part.split("=", 1) for part in challenge.split(","))
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), base64.b64decode(parts["s"]), int(parts["i"]))
    key = hmac.digest(salted, b"Client Key", "sha256")
    last = f"c=biws,r={parts['r']}"
    signature = hmac.digest(hashlib.sha256(key).digest(), f"{bare},{challenge},{last}".encode(), "sha256")
    mixed = bytes(a ^ b for a, b in zip(key, signature, strict=True))
    return f"{last},p={base64.b64encode(mixed).decode()}".encode()


def postgres(known: Known) -> Attacks:
    port = known["ports"]["postgres"]
    yield (
        "postgres_without_a_password",
        lambda: sorted({login(port, role, database, "") for role in ROLES for database in DATABASES}),
    )
    yield (
        "postgres_with_a_guessed_password",
        lambda: sorted(
            {login(port, role, "penstock", password) for role in ROLES for password in (role, GUESS)}
        ),
    )
    yield "postgres_replication", lambda: login(port, "penstock", "penstock", "", replication="true")
    yield "postgres_socket", lambda: connects(known["postgres_socket"])
    yield "postgres_socket_directory", lambda: tried(os.listdir, os.path.dirname(known["postgres_socket"]))


def connects(path: str) -> str:
    with socket.socket(socket.AF_UNIX) as connection:
        return tried(connection.connect, path)


def tried(act: Callable[..., object], *given: Any) -> str:
    """`succeeded`, or the name of the error."""
    try:
        act(*given)
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error))
    return "succeeded"


# ---- the dashboard ----

PAGES = (
    "/",
    "/api/me",
    "/api/run",
    "/api/rollouts",
    "/api/groups",
    "/api/batches",
    "/api/system",
    "/api/letters",
    "/api/queue",
    "/api/events",
)
STEERING = ("pause", "resume", "cancel", "weights", "drop", "retry", "drain", "undrain")


def pages(port: int, headers: Headers) -> list[str]:
    found = {status(port, "GET", path, headers) for path in PAGES}
    return sorted(
        {*found, *(status(port, "POST", f"/api/steer/{word}", headers, b"{}") for word in STEERING)}
    )


def dashboard(known: Known) -> Attacks:
    port = known["ports"]["web"]
    cookie = {"Cookie": "; ".join(f"{name}={GUESS}" for name in ("penstock", "penstock_00000000", "token"))}
    upgrade = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
    }
    yield "dashboard_without_token", lambda: pages(port, {})
    yield (
        "dashboard_with_a_guessed_token",
        lambda: sorted({*pages(port, bearer(GUESS)), status(port, "GET", f"/?token={GUESS}")}),
    )
    yield "dashboard_with_a_guessed_cookie", lambda: pages(port, cookie)
    yield "dashboard_by_a_form_of_a_web_page", lambda: pages(port, {**PAGE, "Host": f"{LOOPBACK}:{port}"})
    yield "dashboard_by_dns_rebinding", lambda: pages(port, REBOUND)
    yield (
        "dashboard_events_and_websocket",
        lambda: sorted(
            {
                status(port, "GET", "/api/events", {"Accept": "text/event-stream"}),
                status(port, "GET", "/api/events", upgrade),
            }
        ),
    )
    yield "dashboard_slow_head", lambda: slow_head(port, "/healthz")


# ---- files, processes ----


def files(known: Known) -> Attacks:
    yield "files_of_the_run", lambda: reached(known["paths"]["run"])
    yield "files_in_temporary_directories", lambda: reached(known["paths"]["temporary"])
    yield "files_of_sandboxes", lambda: reached(known["paths"]["sandboxes"])
    yield "files_in_shared_memory", lambda: reached(known["paths"]["memory"])


def reached(paths: list[str]) -> dict[str, list[str]]:
    """Path → what could be done with it; paths with which nothing could be done are left out."""
    return {path: done for path in paths if (done := possible(path))}


def possible(path: str) -> list[str]:
    """Attempts that succeed, although it may be of another kind or not even be seen. What a link leads to has a name of its own."""
    if os.path.islink(path):
        return []
    acts: dict[str, Callable[[], object]] = {
        "list": lambda: os.listdir(path),
        "create": lambda: made(os.path.join(path, "planted")),
        "read": lambda: opened(path, os.O_RDONLY),
        "write": lambda: opened(path, os.O_WRONLY),
        "connect": lambda: connect(path),
    }
    return [name for name, act in acts.items() if tried(act) == "succeeded"]


def connect(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)


def opened(path: str, flags: int) -> None:
    os.close(os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC))


def made(path: str) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC))
    os.unlink(path)


def processes(known: Known) -> Attacks:
    pids = known["pids"]
    private = ("environ", "mem", "maps", "fd", "cwd", "root", "exe", "auxv", "io", "stack", "syscall")
    yield "signals", lambda: sorted({tried(os.kill, pid, signal.SIGKILL) for pid in pids} - {"ESRCH"})
    yield (
        "memory_and_environment_of_processes",
        lambda: sorted({name for pid in pids for name in private if looked(f"/proc/{pid}/{name}")}),
    )
    yield "command_lines", lambda: [text(f"/proc/{pid}/cmdline") for pid in pids]


def looked(path: str) -> bool:
    act = (
        os.listdir
        if path.endswith("/fd")
        else os.readlink
        if path.rsplit("/", 1)[1] in ("cwd", "root", "exe")
        else text
    )
    try:
        return bool(act(path))
    except OSError:
        return False


def text(path: str) -> str:
    with open(path, "rb") as file:
        return file.read(1 << 20).replace(b"\0", b" ").decode(errors="replace")


def open_pages(known: Known) -> dict[str, tuple[int, str]]:
    """Texts that anybody may read over the network: the test looks through it for secrets."""
    ports = known["ports"]
    shown = {f"{name}/metrics": http(port, "GET", "/metrics") for name, port in known["metrics"].items()}
    for name, paths in {
        "rollout-server": ("/model_info", "/server_info", "/v1/loads", "/v1/models", "/health"),
        "gateway": ("/metrics", "/readyz", "/health"),
        "web": ("/healthz",),
    }.items():
        shown |= {name + path: http(ports[name], "GET", path) for path in paths}
    with socket.create_connection((LOOPBACK, ports["nats"]), timeout=PATIENCE_S) as connection:
        shown["nats"] = (200, connection.recv(1 << 16).decode())
    return shown


def main() -> None:
    known = json.load(sys.stdin)
    parts = (rollout_server, gateway, nats, postgres, dashboard, files, processes)
    attacks = {name: act for part in parts for name, act in part(known)}
    attacks["open_pages"] = lambda: open_pages(known)
    found = {}

    def run(name: str) -> None:
        try:
            found[name] = attacks[name]()
        except Exception as error:  # noqa: BLE001  an answer like any other, which no attack expects
            found[name] = f"{type(error).__name__}: {error}"

    later = {"signals"}  # they would end the others' targets if they were not refused
    slow = [threading.Thread(target=run, args=(name,)) for name in attacks if "slow" in name]
    for thread in slow:
        thread.start()
    for name in attacks:
        if "slow" not in name and name not in later:
            run(name)
    for thread in slow:
        thread.join()
    for name in later:
        run(name)
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
