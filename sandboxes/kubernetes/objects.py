"""The objects of one sandbox: a Pod, and a Secret that is deleted with it."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sandboxes.base import DEFAULT_ENV, PLACED, WRITABLE, SandboxSpec
from sandboxes.inside import bundle
from sandboxes.kubernetes.api import Object
from sandboxes.kubernetes.settings import KubernetesSettings
from sandboxes.owner import LeasedWork

SANDBOX = "penstock.dev/sandbox"
"""Label of every pod and Secret; its value is the name of both."""
OPENING = "penstock.dev/opening"
"""Annotation: the `open` call that created the object. Objects of other calls are not adopted."""
TTL_ANNOTATION, START_ANNOTATION = "penstock.dev/ttl-s", "penstock.dev/start-s"
"""Annotations: the settings of the run that created the object. Other runs of the namespace remove it by them."""
SHARED_MEMORY = "shm"
"""The volume of /dev/shm."""
CONTAINER = "work"
SUPERVISOR = "/etc/penstock"
BUNDLE = f"{SUPERVISOR}/supervisor.pyz"
_RIGHTS = ["CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "SETGID", "SETPCAP", "SETUID"]
"""Capabilities of the supervisor, root in its pod, all of them within the Pod Security Standard "baseline". Programs have none."""
_UNSAFE = re.compile(r"[^a-z0-9]+")
_MAX_LABEL = 63  # characters of a label's value, which a pod's name must also fit
_OWN = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """One sandbox: its name, the same at every retry, and the `opening` that requests it."""

    name: str
    opening: str
    work: LeasedWork | None
    owner: str
    uid: int


def name_of(work: LeasedWork, ordinal: int) -> str:
    """A name derived from the work, so that a repeated request addresses the same pod.

    >>> from sandboxes.owner import WorkKind
    >>> name_of(LeasedWork(run="first run", rollout=12, attempt=3, epoch=7, kind=WorkKind.ATTEMPT), 1)
    'penstock-first-run-7d48-r12-a3-e7-attempt-1'
    """
    run = _UNSAFE.sub("-", work.run.lower()).strip("-")[:20]
    # Two runs may have the same name in lower case.
    run_digest = hashlib.sha256(work.run.encode()).hexdigest()[:4]
    name = f"penstock-{run}-{run_digest}-r{work.rollout}-a{work.attempt}-e{work.epoch}-{work.kind}-{ordinal}"
    if len(name) <= _MAX_LABEL:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:12]
    return f"{name[: _MAX_LABEL - len(digest) - 1].rstrip('-')}-{digest}"


def label(value: str) -> str:
    """A valid label value: at most 63 letters, digits, dots, dashes, underlines."""
    return _OWN.sub("-", value)[:_MAX_LABEL].strip("-._")


def metadata(identity: Identity, settings: KubernetesSettings) -> Object:
    """The common metadata of Pod and Secret."""
    work = identity.work
    work_labels = {} if work is None else {
        "penstock.dev/run": label(work.run), "penstock.dev/rollout": str(work.rollout),
        "penstock.dev/attempt": str(work.attempt), "penstock.dev/epoch": str(work.epoch), "penstock.dev/kind": work.kind,
    }  # fmt: skip
    labels = {
        **settings.labels,
        "app.kubernetes.io/name": "penstock",
        "app.kubernetes.io/component": "sandbox",
        SANDBOX: identity.name,
        "penstock.dev/owner": label(identity.owner),
        **work_labels,
    }
    annotations = {
        OPENING: identity.opening,
        TTL_ANNOTATION: f"{settings.ttl_s:g}",
        START_ANNOTATION: f"{settings.start_s:g}",
    }
    return {"name": identity.name, "labels": labels, "annotations": annotations}


def pod(identity: Identity, spec: SandboxSpec, settings: KubernetesSettings) -> Object:
    """The Pod. It contains no secrets."""
    limits = spec.limits
    memory, disk = limits.memory_mb + settings.memory_headroom_mb, limits.disk_mb + settings.copy_mb
    resources = {
        "cpu": f"{limits.cpus or settings.cpu:g}",
        "memory": f"{memory}Mi",
        "ephemeral-storage": f"{disk + 64}Mi",
    }
    places = {
        **{f"place-{number}": inside for number, inside in enumerate((*WRITABLE, *PLACED))},
        **{f"bound-{number}": inside for number, inside in enumerate(copied(spec, settings))},
        "penstock": "/run/penstock",
    }
    volumes: list[Object] = [{"name": name, "emptyDir": {"sizeLimit": f"{disk}Mi"}} for name in places]
    mounts: list[Object] = [{"name": name, "mountPath": inside} for name, inside in places.items()]
    # Files in this volume count as memory.
    volumes += [
        {"name": SHARED_MEMORY, "emptyDir": {"medium": "Memory", "sizeLimit": f"{limits.memory_mb}Mi"}}
    ]
    mounts += [{"name": SHARED_MEMORY, "mountPath": "/dev/shm"}]
    volumes += [{"name": "supervisor", "secret": {"secretName": identity.name, "defaultMode": 0o400}}]
    mounts += [{"name": "supervisor", "mountPath": SUPERVISOR, "readOnly": True}]
    container: Object = {
        "name": CONTAINER,
        "image": settings.image,
        "command": ["python3", "-IS", BUNDLE, "supervisor"],
        "resources": {"requests": resources, "limits": resources},
        "volumeMounts": mounts,
        "workingDir": "/",
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "runAsUser": 0,
            "runAsGroup": 0,
            "privileged": False,
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"], "add": _RIGHTS},
        },
    }
    body: Object = {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": int(settings.active_s),
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "hostUsers": not settings.user_namespaces,
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
        "volumes": volumes,
    }
    if settings.runtime_class:
        body["runtimeClassName"] = settings.runtime_class
    if settings.node_selector:
        body["nodeSelector"] = dict(settings.node_selector)
    if settings.image_pull_secrets:
        body["imagePullSecrets"] = [{"name": name} for name in settings.image_pull_secrets]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata(identity, settings), "spec": body}


def secret(
    identity: Identity, settings: KubernetesSettings, session: Mapping[str, Any], pod_uid: str
) -> Object:
    """The Secret: the supervisor and its session. The cluster's garbage collector deletes it with its pod."""
    files = {"supervisor.pyz": bundle(), "session.json": json.dumps(session).encode()}
    owner = {"apiVersion": "v1", "kind": "Pod", "name": identity.name, "uid": pod_uid}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "immutable": True,
        "metadata": {**metadata(identity, settings), "ownerReferences": [owner]},
        "data": {name: base64.b64encode(data).decode() for name, data in files.items()},
    }


def session(
    identity: Identity, spec: SandboxSpec, settings: KubernetesSettings, gateway: str | None
) -> Object:
    """The supervisor's session. `gateway`: None for none, empty for through the owner, else host:port."""
    return {
        "uid": identity.uid,
        "grace_s": settings.ttl_s / 2,
        "first_s": settings.start_s,
        "gateway": gateway,
        "env": {**DEFAULT_ENV, **({"USER": spec.user} if spec.user else {}), **spec.env},
    }


def copied(spec: SandboxSpec, settings: KubernetesSettings) -> Sequence[str]:
    """The paths inside to which bound files of this machine are copied."""
    return [inside for inside in spec.binds.values() if inside not in settings.baked]
