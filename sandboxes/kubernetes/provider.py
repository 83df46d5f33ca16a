"""The provider `kubernetes`: one pod per sandbox.

    open: POST the Pod (its name follows from rollout, attempt and epoch) → POST its Secret → watch until it runs → exec its supervisor → files
    close: the supervisor ends every program → DELETE the Pod; the cluster removes the Secret with it

A failure at any point leaves at most one pod: a repeated POST finds the pod of the same name (409), and adopts it if it is its own. A
pod without an owner ends itself (supervisor.py) within half of `ttl_s`. Later callers of `open` or `remove_leftovers` remove its remains by label.
The cluster isolates: the RuntimeClass, user namespaces, the NetworkPolicy. A pod has a network interface. The NetworkPolicy restricts it
to the gateway.

| waits for | unblocked by |
|---|---|
| the API server | time: 429, 5xx and lost connections are retried for `start_s` |
| a pod that runs | the scheduler, the image; `start_s` |
"""

from __future__ import annotations

import itertools
import os
import re
import secrets
import socket
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import anyio.to_thread

from sandboxes.base import (
    KilledBy,
    PathRefused,
    Sandbox,
    SandboxError,
    SandboxLost,
    SandboxSpec,
    SandboxSpent,
)
from sandboxes.bubblewrap import check_spec
from sandboxes.directory import FIRST_UID, refuse_build
from sandboxes.ending import ended_by, tasks_ended_by
from sandboxes.from_environment import from_environment
from sandboxes.kubernetes import KUBERNETES, objects
from sandboxes.kubernetes.api import Api, ApiError, Object
from sandboxes.kubernetes.channel import Channel
from sandboxes.kubernetes.objects import (
    OPENING,
    SANDBOX,
    START_ANNOTATION,
    TTL_ANNOTATION,
    Identity,
    copied,
    name_of,
)
from sandboxes.kubernetes.sandbox import PodSandbox
from sandboxes.kubernetes.settings import KubernetesSettings
from sandboxes.owner import work, worker
from sandboxes.users import AGENT, AGENT_UID, refuse_user

_MAX_UID = 65_535
"""Of a pod with a user namespace."""
_GONE_S = 20.0
_AGAIN_S = 0.2
_OVER = re.compile(
    r'Usage of EmptyDir volume "(?P<volume>[^"]*)" exceeds the limit'
    r"|Pod ephemeral local storage usage exceeds the total limit"
    r"|Container \S+ exceeded its local ephemeral storage limit"
)
"""The kubelet's messages for a pod that is over its own limit (pkg/kubelet/eviction/helpers.go)."""
_PAGE = 500
_NEVER = ("InvalidImageName", "CreateContainerConfigError", "ErrImageNeverPull")
"""Reasons that end only with another pod. The kubelet tries again after others, such as ErrImagePull: these have `start_s`."""


class KubernetesProvider:
    """Sandboxes as pods."""

    name = KUBERNETES
    isolated = True
    containers = False
    own_system = True

    def __init__(self, settings: KubernetesSettings | None = None) -> None:
        self.settings = settings or from_environment(KubernetesSettings, KUBERNETES)
        self._api = Api(self.settings)
        self._numbers = itertools.count(1)
        self._removed_at = 0.0

    @classmethod
    def configured(cls, table: Mapping[str, Any]) -> KubernetesProvider:
        """From `[sandbox.kubernetes]`. ValueError names the key."""
        return cls(KubernetesSettings(**table))

    def open(self, spec: SandboxSpec) -> AbstractAsyncContextManager[Sandbox]:
        return self._open(spec)

    @asynccontextmanager
    async def _open(self, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
        refuse_build(spec)
        refuse_user(self, spec)
        check_spec(spec)
        if not self.settings.image:
            raise SandboxError("sandbox.kubernetes.image: name the image in which programs run")
        await anyio.to_thread.run_sync(self._check_binds, spec)
        identity = self._identity(spec)
        gateway = await self._gateway(spec)
        async with self._api.using(), ended_by(partial(self._delete, identity)):
            uid = await self._create(identity, spec, gateway)
            await self._running(identity.name, uid)
            sandbox = PodSandbox(identity.name, spec, gateway=spec.gateway_socket, system=self.settings.image)
            # Programs are ended over the line, so it must outlive a cancellation of our caller.
            line = anyio.CancelScope(shield=True)

            async def end() -> None:
                try:
                    await self._end(sandbox)
                finally:
                    line.cancel()

            async with tasks_ended_by(end, cancelled=True) as tasks:
                await self._join(sandbox, uid, tasks, line)
                tasks.start_soon(self._remove_now_and_then)
                yield sandbox

    def refuses_user(self, user: str) -> str | None:
        """Why programs do not run as `user`, in one clause. None: they do."""
        if user in ("", AGENT):
            return None
        if not self.settings.user_namespaces:
            return "pods need sandbox.kubernetes.user_namespaces for users of their own: enable it, name agent, or remove the user"
        if user.isdecimal() and 0 < int(user) <= _MAX_UID:
            return None
        return f"programs of a pod run as a uid from 1 to {_MAX_UID}: write one, name agent, or remove it"

    def _identity(self, spec: SandboxSpec) -> Identity:
        current, opening = work(), secrets.token_hex(8)
        if current is None:
            name = f"penstock-{secrets.token_hex(8)}"
        else:
            current.opened += 1
            name = name_of(current, current.opened)
        # With user namespaces every pod has its own users. Without, the node counts processes per user.
        uid = AGENT_UID if self.settings.user_namespaces else FIRST_UID + secrets.randbelow(1 << 24)
        if spec.user not in ("", AGENT):
            uid = int(spec.user)
        return Identity(
            name=name, opening=opening, work=current, owner=worker() or self.settings.owner, uid=uid
        )

    def _check_binds(self, spec: SandboxSpec) -> None:
        """Before any object is created: check that the files to copy are not too large."""
        copied_paths = set(copied(spec, self.settings))
        for outside, inside in spec.binds.items():
            if inside not in copied_paths:
                continue
            size = sum(
                Path(at, name).lstat().st_size
                for at, _, names in os.walk(outside.resolve())
                for name in names
            )
            if size > self.settings.copy_mb << 20:
                raise SandboxError(
                    f"{inside} would have to be copied into every pod, {size >> 20} MB: put it into the image and name it in"
                    f" sandbox.kubernetes.baked, or raise sandbox.kubernetes.copy_mb ({self.settings.copy_mb})"
                )

    async def _gateway(self, spec: SandboxSpec) -> str | None:
        """Where the supervisor forwards the gateway's connections: nowhere, through us, or to host:port (an IP, since pods resolve no names)."""
        if spec.gateway_socket is None:
            return None
        if not (address := spec.gateway_address or self.settings.gateway):
            return ""
        host, _, port = address.rpartition(":")
        try:
            found = await anyio.to_thread.run_sync(
                socket.getaddrinfo, host.strip("[]"), int(port), 0, socket.SOCK_STREAM
            )
        except OSError as error:
            raise SandboxError(f"the gateway's name {host} is not known here: {error}") from error
        number = str(found[0][4][0])
        return f"[{number}]:{port}" if ":" in number else f"{number}:{port}"

    async def _create(self, identity: Identity, spec: SandboxSpec, gateway: str | None) -> str:
        """Create Pod and Secret exactly once, even if answers are lost. Returns the pod's uid."""
        try:
            pod = await self._api.request(
                "POST", "pods", "create a pod", body=objects.pod(identity, spec, self.settings)
            )
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise
            pod = await self._api.request("GET", f"pods/{identity.name}", "read a pod")
            if pod["metadata"].get("annotations", {}).get(OPENING) != identity.opening:
                raise SandboxError(
                    f"there is a pod {identity.name} that this worker did not create: another worker holds its lease"
                ) from error
        uid: str = pod["metadata"]["uid"]
        session = objects.session(identity, spec, self.settings, gateway)
        try:
            body = objects.secret(identity, self.settings, session, uid)
            await self._api.request("POST", "secrets", "create a secret", body=body)
        except ApiError as error:
            if error.reason != "AlreadyExists":  # an existing Secret is ours: its name is that of our pod
                raise
        return uid

    async def _running(self, name: str, uid: str) -> None:
        """Wait until the pod runs. `SandboxError` if it never will."""
        deadline = time.monotonic() + self.settings.start_s
        while True:
            remaining_s = deadline - time.monotonic()
            pod = await self._api.request(
                "GET", f"pods/{name}", "read a pod", patience_s=max(remaining_s, 1.0)
            )
            if _runs(pod, uid):
                return
            query = {
                "fieldSelector": f"metadata.name={name}",
                "resourceVersion": pod["metadata"]["resourceVersion"],
            }
            # Dropped, or 410: read it again.
            with suppress(aiohttp.ClientError, TimeoutError, OSError, ApiError):
                with anyio.fail_after(max(remaining_s, 0.0)):
                    async with self._api.watch("pods", query) as events:
                        async for event in events:
                            if event["type"] == "ERROR":
                                break
                            if event["type"] == "DELETED":
                                raise SandboxError(f"the pod {name} was deleted before it ran")
                            if event["type"] in ("ADDED", "MODIFIED"):
                                pod = event["object"]
                                if _runs(pod, uid):
                                    return
            if time.monotonic() > deadline:
                raise SandboxError(
                    f"the pod {name} does not run after {self.settings.start_s:g} s (sandbox.kubernetes.start_s): {_state(pod)}"
                )
            await anyio.sleep(_AGAIN_S)

    async def _join(
        self, sandbox: PodSandbox, uid: str, tasks: anyio.abc.TaskGroup, line: anyio.CancelScope
    ) -> None:
        """Connect to the supervisor and send the sandbox's files."""
        channel = sandbox.channel = Channel(
            self._api,
            sandbox.id,
            pushed=sandbox.on_message,
            joined=sandbox.joined,
            parted=sandbox.parted,
        )

        async def why_lost() -> SandboxError | None:
            try:
                pod = await self._api.request(
                    "GET", f"pods/{sandbox.id}", "read a pod", patience_s=self.settings.ttl_s / 2
                )
            except ApiError as error:
                return SandboxLost(f"the pod {sandbox.id} is gone") if error.status == 404 else None
            except SandboxError:
                return None
            if pod["metadata"]["uid"] != uid or pod["status"].get("phase") in ("Succeeded", "Failed"):
                sandbox.out_of = _used_up(pod)
                error_type = SandboxSpent if sandbox.out_of is not None else SandboxLost
                return error_type(f"the pod {sandbox.id} has ended: {_state(pod)}")
            return None

        async def keep() -> None:
            with line:
                await channel.run(why_lost)
            sandbox.lost(channel.failed or SandboxLost("lost"))

        sandbox.opened(tasks)
        tasks.start_soon(keep)
        try:
            binds = {
                outside: inside
                for outside, inside in sandbox.spec.binds.items()
                if inside in copied(sandbox.spec, self.settings)
            }
            spec = sandbox.spec
            await sandbox.place(spec.files, spec.directories, binds, modes=spec.modes, work_links=spec.links)
        except PathRefused as error:
            raise SandboxError(
                f"cannot place {error.path} into the pod {sandbox.id}: {error.reason.value}"
            ) from error

    async def _end(self, sandbox: PodSandbox) -> None:
        await sandbox.close()
        channel = sandbox.channel
        if channel is not None and channel.failed is None:
            with anyio.move_on_after(5), suppress(SandboxError):
                await channel.ask({"op": "end"})

    async def _delete(self, identity: Identity) -> None:
        """Delete our own pod only, with as many retries as needed."""
        with anyio.move_on_after(_GONE_S), suppress(SandboxError):
            found = await self._api.request("GET", f"pods/{identity.name}", "read a pod", patience_s=_GONE_S)
            if found["metadata"].get("annotations", {}).get(OPENING) == identity.opening:
                await self._remove(found)

    async def _remove(self, pod: Object) -> None:
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "gracePeriodSeconds": 1,
            "preconditions": {"uid": pod["metadata"]["uid"]},
        }
        try:
            await self._api.request(
                "DELETE", f"pods/{pod['metadata']['name']}", "delete a pod", body=options, patience_s=_GONE_S
            )
        except ApiError as error:
            if error.status not in (404, 409):  # gone, or another pod has its name
                raise

    async def remove_leftovers(self) -> int:
        """Remove pods whose supervisor ended, or that never ran, a `ttl_s` ago: their owners are dead. Each pod has the `ttl_s` and `start_s` of its
        own run. Returns their number."""
        self._removed_at = time.monotonic()
        found = 0
        async with self._api.using():
            query = {"labelSelector": SANDBOX, "limit": str(_PAGE)}
            while True:
                listed = await self._api.request(
                    "GET", "pods", "list pods", query=query, patience_s=self.settings.ttl_s
                )
                now = self._api.server_time_s
                for pod in listed["items"]:
                    if _abandoned(pod, now, self.settings):
                        await self._remove(pod)
                        found += 1
                if not (next_page := listed["metadata"].get("continue")):
                    return found
                query = {**query, "continue": next_page}

    async def _remove_now_and_then(self) -> None:
        """Call `remove_leftovers` periodically: one of the open sandboxes does it for this process."""
        while True:
            await anyio.sleep(self.settings.ttl_s / 4)
            if time.monotonic() - self._removed_at > self.settings.ttl_s / 2:
                with suppress(SandboxError):  # the next one tries again
                    await self.remove_leftovers()

    async def problems(self) -> tuple[str, ...]:
        try:
            _ = self.settings.server, self.settings.space, self.settings.token()
            await self.remove_leftovers()
            async with self.open(SandboxSpec()) as sandbox:
                result = await sandbox.exec(["true"], timeout_s=60)
        except ValueError as error:
            return (f"sandbox.kubernetes.{error}.",)
        except SandboxError as error:
            return (f"{error}.",)
        return () if result.ok else (f"`true` ends with exit code {result.exit_code} in a pod.",)


def _runs(pod: Object, uid: str) -> bool:
    """Whether the pod runs. SandboxError if it never will."""
    name, status = pod["metadata"]["name"], pod.get("status", {})
    if pod["metadata"]["uid"] != uid or "deletionTimestamp" in pod["metadata"]:
        raise SandboxError(f"the pod {name} was deleted before it ran")
    if status.get("phase") in ("Succeeded", "Failed"):
        raise SandboxError(f"the pod {name} ended before it could be used: {_state(pod)}")
    for container in status.get("containerStatuses", ()):
        waiting = container.get("state", {}).get("waiting", {})
        if waiting.get("reason") in _NEVER:
            raise SandboxError(
                f"the pod {name} cannot start: {waiting['reason']}: {waiting.get('message', '')}"
            )
    return bool(status.get("phase") == "Running")


def _state(pod: Object) -> str:
    """The cluster's report on the pod, in one line."""
    status = pod.get("status", {})
    words = [status.get("phase", "?"), status.get("reason", ""), status.get("message", "")]
    words += [
        each.get("message", "") for each in status.get("conditions", ()) if each.get("status") == "False"
    ]
    for container in status.get("containerStatuses", ()):
        for state in container.get("state", {}).values():
            words += [state.get("reason", ""), state.get("message", "")]
    return ", ".join(dict.fromkeys(word.strip() for word in words if word.strip()))[:600]


def _used_up(pod: Object) -> KilledBy | None:
    """The limit that its programs exceeded, if the cluster ended the pod for that."""
    status = pod.get("status", {})
    for container in status.get("containerStatuses", ()):
        if container.get("state", {}).get("terminated", {}).get("reason") == "OOMKilled":
            return KilledBy.MEMORY
    # A node that is low on a resource evicts pods too, also those within their limits.
    if status.get("reason") == "Evicted" and (over := _OVER.match(status.get("message", ""))):
        return KilledBy.MEMORY if over["volume"] == objects.SHARED_MEMORY else KilledBy.DISK
    return None


def _abandoned(pod: Object, now_s: float, settings: KubernetesSettings) -> bool:
    meta, status = pod["metadata"], pod.get("status", {})
    if "deletionTimestamp" in meta:
        return False
    ttl_s, start_s = (
        _own(meta, TTL_ANNOTATION, settings.ttl_s),
        _own(meta, START_ANNOTATION, settings.start_s),
    )
    if status.get("phase") in ("Succeeded", "Failed"):
        end_times = [
            each["state"]["terminated"].get("finishedAt")
            for each in status.get("containerStatuses", ())
            if "terminated" in each.get("state", {})
        ]
        return (
            now_s - max(map(_time, filter(None, end_times)), default=_time(meta["creationTimestamp"]))
            > ttl_s / 2
        )
    if status.get("phase") == "Pending":
        return now_s - _time(meta["creationTimestamp"]) > start_s + ttl_s
    return False


def _own(meta: Object, annotation: str, ours: float) -> float:
    """A duration of the pod's own run, or ours if it has none."""
    try:
        return float(meta.get("annotations", {})[annotation])
    except (KeyError, ValueError):
        return ours


def _time(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
