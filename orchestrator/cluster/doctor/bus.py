"""NATS: version, JetStream, each stream's replicas and leader, and when it syncs, where a monitoring port tells."""

import json
from collections.abc import Callable
from typing import Any

import aiohttp
import nats.errors
from nats.aio.client import Client

from orchestrator.bus.link import OLDEST_SERVER, urls_of
from orchestrator.bus.subjects import STREAMS
from orchestrator.cluster.doctor import clocks
from orchestrator.cluster.doctor.expected import Expected
from orchestrator.embedded.doctor import Check

PATIENCE_S = 3.0


async def checks(url: str, expected: Expected, now: Callable[[], float]) -> list[Check]:
    """All of them; one alone when nobody answers."""
    said: list[Exception] = []

    async def heard(error: Exception) -> None:
        """The client's own error in the end is only that no server is left."""
        said.append(error)

    client = Client()
    try:
        await client.connect(
            urls_of(url),
            connect_timeout=PATIENCE_S,
            allow_reconnect=False,
            max_reconnect_attempts=1,  # once more, at once: before its first connection the client heeds no `allow_reconnect`
            reconnect_time_wait=0,
            error_cb=heard,
            name="penstock-doctor",
        )
    except (OSError, nats.errors.Error) as error:
        await client.close()  # a connection on which nothing was said is open still
        reason = said[-1] if said else error
        return [
            Check(
                "NATS", False, f"does not answer ({str(reason) or 'no reply'})", "start it, or mend NATS_URL"
            )
        ]
    try:
        version = client.connected_server_version
        old = (version.major, version.minor) < OLDEST_SERVER
        oldest = ".".join(map(str, OLDEST_SERVER))
        found = [
            Check("NATS version", not old, str(client._server_info["version"]), f"upgrade it to {oldest} or newer" if old else "")
        ]  # fmt: skip
        stamped = False
        for stream in STREAMS:
            before = now()
            try:
                reply = await client.request(f"$JS.API.STREAM.INFO.{stream.name}", b"", timeout=PATIENCE_S)
            except (nats.errors.TimeoutError, nats.errors.NoRespondersError):
                fix = "start it with -js and a store directory; of a cluster, bring back a majority of its servers"
                found.append(Check(f"NATS stream {stream.name}", False, "JetStream does not answer", fix))
                break
            told = json.loads(reply.data)
            if not stamped and told.get("ts"):
                found.append(clocks.of_nats(before, told["ts"], now()))
                stamped = True
            found.append(judged(stream.name, told, expected.replicas))
    finally:
        await client.close()
    if not expected.monitors:
        return [
            *found,
            Check("NATS fsync", True, "not known: name the address of its monitoring port (--monitor)"),
        ]
    return [*found, *[await syncs(monitor) for monitor in expected.monitors]]


def judged(name: str, told: dict[str, Any], replicas: int) -> Check:
    """What JetStream says of one stream."""
    title = f"NATS stream {name}"
    if "error" in told:
        absent = told["error"].get("code") == 404
        fix = "penstock reconcile makes it" if absent else "its reason is NATS's own: see its log"
        return Check(title, False, told["error"].get("description", "unknown"), fix)
    have, cluster = told["config"]["num_replicas"], told.get("cluster") or {}
    detail = f"{have} {'replica' if have == 1 else 'replicas'}"
    if have < replicas:
        fix = (
            f"name all {replicas} servers in NATS_URL, with commas, and start the orchestrator again: it raises them"
            f" (or: nats stream edit {name} --replicas {replicas})"
        )
        return Check(title, False, f"{detail}, {replicas} are expected: it goes with its server", fix)
    if have > 1:
        away = [
            one["name"] for one in cluster.get("replicas", ()) if one.get("offline") or not one.get("current")
        ]
        if not cluster.get("leader"):
            return Check(title, False, f"{detail}, no leader", "bring back a majority of NATS's servers")
        if away:
            return Check(
                title, False, f"{detail}, behind or away: {', '.join(away)}", f"start {', '.join(away)}"
            )
        detail += f", led by {cluster['leader']}"
    return Check(title, True, detail)


async def syncs(monitor: str) -> Check:
    """Never a defect: nothing lies in NATS alone but tasks that are not accepted (ops/guides/what-happens-when.md)."""
    title = f"NATS fsync, {monitor}"
    try:
        timeout = aiohttp.ClientTimeout(total=PATIENCE_S)
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(f"{monitor}/jsz?config=1") as answer,
        ):
            told = (await answer.json()).get("config")
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        fix = "open its monitoring port: http_port in its configuration"
        return Check(title, False, f"not known: it does not answer ({str(error) or 'no reply'})", fix)
    if not isinstance(told, dict) or not (told.get("sync_always") or told.get("sync_interval")):
        return Check(title, False, "not known: it does not say", "start it with -js and a store directory")
    if told.get("sync_always"):
        return Check(title, True, "at every write")
    every = told["sync_interval"] / 1e9
    return Check(
        title,
        True,
        f"every {every:g} s; what a power cut takes is published again, but tasks that nobody accepted",
    )
