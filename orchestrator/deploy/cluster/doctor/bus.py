"""NATS: version, JetStream, each stream's replicas and leader, and, with a monitoring port, when it syncs."""

import json
from collections.abc import Callable
from typing import Any

import aiohttp
import nats.errors

from orchestrator.bus.address_file import named_file, read_address
from orchestrator.bus.base import UnfitServer
from orchestrator.bus.client import NatsClient
from orchestrator.bus.link import OLDEST_SERVER, login_of, urls_of
from orchestrator.bus.subjects import STREAMS
from orchestrator.deploy.cluster.doctor import clocks
from orchestrator.deploy.cluster.doctor.expected import Expected
from orchestrator.deploy.embedded.doctor import DoctorCheck
from orchestrator.runtime.unreachable import fix_of

PATIENCE_S = 3.0


async def checks(url: str, expected: Expected, now: Callable[[], float]) -> list[DoctorCheck]:
    """All checks; a single one if no server answers."""
    client = await _connected(url)
    if isinstance(client, DoctorCheck):
        return [client]
    try:
        found = [_version(client), *await _streams(client, expected, now)]
    finally:
        await client.close()
    if not expected.monitors:
        detail = "not known: name the address of its monitoring port (--monitor)"
        return [*found, DoctorCheck(name="NATS fsync", ok=True, detail=detail)]
    return [*found, *[await syncs(monitor) for monitor in expected.monitors]]


async def _connected(url: str) -> NatsClient | DoctorCheck:
    """A connected client, or the check that failed."""
    errors: list[Exception] = []

    async def collect(error: Exception) -> None:
        """Collect errors: the client's own final error only states that no server is left."""
        errors.append(error)

    file = named_file(url)
    client = NatsClient()
    try:
        urls = urls_of(url)
        client = NatsClient(read_address(file)[1] if file is not None else None)
        await client.connect(
            urls,
            **login_of(urls[0]),
            connect_timeout=PATIENCE_S,
            allow_reconnect=False,
            max_reconnect_attempts=1,  # one immediate retry: before its first connection the client ignores `allow_reconnect`
            reconnect_time_wait=0,
            error_cb=collect,
            name="penstock-doctor",
        )
    except (OSError, UnfitServer, nats.errors.Error) as error:
        await client.close()  # a connection without any message is still open
        reason = errors[-1] if errors else error
        detail = f"does not answer ({str(reason) or 'no reply'})"
        return DoctorCheck(name="NATS", ok=False, detail=detail, fix=fix_of(url, "NATS_URL"))
    return client


def _version(client: NatsClient) -> DoctorCheck:
    version = client.connected_server_version
    old = (version.major, version.minor) < OLDEST_SERVER
    oldest = ".".join(map(str, OLDEST_SERVER))
    return DoctorCheck(
        name="NATS version",
        ok=not old,
        detail=str(client._server_info["version"]),
        fix=f"upgrade it to {oldest} or newer" if old else "",
    )


async def _streams(client: NatsClient, expected: Expected, now: Callable[[], float]) -> list[DoctorCheck]:
    """Every stream, up to the first about which JetStream does not answer, and the clock of the server that answers first."""
    found: list[DoctorCheck] = []
    stamped = False
    for stream in STREAMS:
        requested_at = now()
        try:
            reply = await client.request(f"$JS.API.STREAM.INFO.{stream.name}", b"", timeout=PATIENCE_S)
        except (nats.errors.TimeoutError, nats.errors.NoRespondersError):
            fix = (
                "start it with -js and a store directory; of a cluster, bring back a majority of its servers"
            )
            silent = "JetStream does not answer"
            return [
                *found,
                DoctorCheck(name=f"NATS stream {stream.name}", ok=False, detail=silent, fix=fix),
            ]
        info = json.loads(reply.data)
        if not stamped and info.get("ts"):
            found.append(clocks.of_nats(requested_at, info["ts"], now()))
            stamped = True
        found.append(judged(stream.name, info, expected.replicas))
    return found


def judged(name: str, info: dict[str, Any], replicas: int) -> DoctorCheck:
    """Judge JetStream's report about one stream."""
    title = f"NATS stream {name}"
    if "error" in info:
        absent = info["error"].get("code") == 404
        fix = "`penstock reconcile` makes it" if absent else "its reason is NATS's own: see its log"
        return DoctorCheck(name=title, ok=False, detail=info["error"].get("description", "unknown"), fix=fix)
    stored_replicas, cluster = info["config"]["num_replicas"], info.get("cluster") or {}
    detail = f"{stored_replicas} {'replica' if stored_replicas == 1 else 'replicas'}"
    if stored_replicas < replicas:
        fix = (
            f"name all {replicas} servers in NATS_URL, with commas, and start the orchestrator again: it raises them"
            f" (or: nats stream edit {name} --replicas {replicas})"
        )
        return DoctorCheck(
            name=title,
            ok=False,
            detail=f"{detail}, {replicas} are expected: it goes with its server",
            fix=fix,
        )
    if stored_replicas > 1:
        out_of_sync = [
            replica["name"]
            for replica in cluster.get("replicas", ())
            if replica.get("offline") or not replica.get("current")
        ]
        if not cluster.get("leader"):
            return DoctorCheck(
                name=title,
                ok=False,
                detail=f"{detail}, no leader",
                fix="bring back a majority of NATS's servers",
            )
        if out_of_sync:
            return DoctorCheck(
                name=title,
                ok=False,
                detail=f"{detail}, behind or away: {', '.join(out_of_sync)}",
                fix=f"start {', '.join(out_of_sync)}",
            )
        detail += f", led by {cluster['leader']}"
    return DoctorCheck(name=title, ok=True, detail=detail)


async def syncs(monitor: str) -> DoctorCheck:
    """When NATS syncs. Never a defect: only tasks that are not accepted are in NATS alone (ops/guides/what-happens-when.md)."""
    title = f"NATS fsync, {monitor}"
    try:
        timeout = aiohttp.ClientTimeout(total=PATIENCE_S)
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(f"{monitor}/jsz?config=1") as answer,
        ):
            jetstream = (await answer.json()).get("config")
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        fix = "open its monitoring port: http_port in its configuration"
        return DoctorCheck(
            name=title,
            ok=False,
            detail=f"not known: it does not answer ({str(error) or 'no reply'})",
            fix=fix,
        )
    if not isinstance(jetstream, dict) or not (
        jetstream.get("sync_always") or jetstream.get("sync_interval")
    ):
        return DoctorCheck(
            name=title,
            ok=False,
            detail="not known: it does not say",
            fix="start it with -js and a store directory",
        )
    if jetstream.get("sync_always"):
        return DoctorCheck(name=title, ok=True, detail="at every write")
    interval_s = jetstream["sync_interval"] / 1e9
    return DoctorCheck(
        name=title,
        ok=True,
        detail=f"every {interval_s:g} s; messages that a power cut destroys are published again, except tasks that were not accepted yet",
    )
