"""Kubernetes: the roles of the run as Deployments, StatefulSets, LeaderWorkerSets and the Job that migrates the data pool."""

import hashlib
import json
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.contracts.languages import VARIABLE
from orchestrator.contracts.processes import ProcessRole
from orchestrator.deploy.cluster.placement import PlacedProcess
from orchestrator.deploy.cluster.processes import (
    Links,
    ProcessCommand,
    Where,
    command,
    key_files,
    migrate,
    pool_of,
    read_by,
    secrets_of,
    wait,
)
from orchestrator.deploy.cluster.render.objects import (
    HOME,
    TRUTH,
    Object,
    container,
    disruption,
    headless,
    made,
    makes_pods,
    named,
    own_probes,
    pod,
    quantities,
    secret_directory,
    secret_file,
    server_probes,
)
from orchestrator.deploy.cluster.topology import (
    Resources,
    Role,
    RunnerPool,
    SecretKey,
    ServerEngine,
    ServerPool,
    Topology,
)

SMALL = Resources(cpus=0.5, memory_gb=0.5, disk_gb=1)
SERVER_START_S = 3600  # hundreds of gigabytes of weights are read from a shared directory
FINISHED_S = 3600
SHM: Object = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "8G"}}
"""Shared memory of one pod's processes, part of the container's memory. The runtime's own /dev/shm has 64 MB; ranks that exceed it end by SIGBUS."""
SHM_MOUNT: Object = {"name": "shm", "mountPath": "/dev/shm"}
ALONE = (ProcessRole.TRAINER, ProcessRole.WEB)
GRACE_S = {
    ProcessRole.ORCHESTRATOR: 30,
    ProcessRole.GATEWAY: 60,
    ProcessRole.RUNNER: 120,
    ProcessRole.VERIFIER: 60,
    ProcessRole.TRAINER: 60,
    ProcessRole.WEB: 10,
    ProcessRole.ROLLOUT_SERVER: 60,
}


def _secret_volumes(files: Sequence[SecretKey]) -> list[Object]:
    found: list[Object] = []
    for name in dict.fromkeys(key.name for key in files):
        keys = dict.fromkeys(key.key for key in files if key.name == name)
        items = [{"key": key, "path": key} for key in keys]
        found.append({"name": f"secret-{name}", "secret": {"secretName": name, "items": items}})
    return found


def _secret_mounts(files: Sequence[SecretKey]) -> list[Object]:
    names = dict.fromkeys(key.name for key in files)
    return [
        {"name": f"secret-{name}", "mountPath": secret_directory(name), "readOnly": True} for name in names
    ]


@dataclass(frozen=True, slots=True)
class Workloads:
    """Creates the objects of the roles. `settings`: the text of penstock.toml."""

    topology: Topology
    links: Links
    settings: str

    # --- parts of a pod ---------------------------------------------------------------------------------------

    def where(self, address: str = "0.0.0.0", **others: str) -> Where:
        """Every pod has the same paths."""
        return Where(home=HOME, secret=secret_file, address=address, **others)

    def _volumes(self, files: Sequence[SecretKey], *, state: bool = True) -> list[Object]:
        found: list[Object] = [
            {"name": "settings", "configMap": {"name": named(self.topology, "settings")}},
            {"name": "tmp", "emptyDir": {}},
        ]
        if state:
            found.append({"name": "state", "emptyDir": {}})
        return [*found, *_secret_volumes(files)]

    def _mounts(self, files: Sequence[SecretKey]) -> list[Object]:
        found: list[Object] = [
            {
                "name": "settings",
                "mountPath": f"{HOME}/penstock.toml",
                "subPath": "penstock.toml",
                "readOnly": True,
            },
            {"name": "state", "mountPath": f"{HOME}/.penstock"},
            {"name": "tmp", "mountPath": "/tmp"},
        ]
        return [*found, *_secret_mounts(files)]

    def _shared(self, *, read_only: bool) -> tuple[Object, Object]:
        claim = self.topology.shared.claim or named(self.topology, "shared")
        return (
            {"name": "shared", "persistentVolumeClaim": {"claimName": claim}},
            {"name": "shared", "mountPath": self.topology.shared.path, "readOnly": read_only},
        )

    def _annotations(self, role: str) -> dict[str, str]:
        """A change of the settings that the role reads restarts its pods. A change of another role's count does not."""
        own = json.dumps(read_by(role, tomllib.loads(self.settings)), sort_keys=True)
        return {"penstock/settings": hashlib.sha256(own.encode()).hexdigest()[:16]}

    def _wait(self, role: str, *, run: bool) -> Object:
        files = secrets_of(self.topology, role)
        environment = [{"name": name, "value": secret_file(key)} for name, key in files.items()]
        return container(
            "wait",
            self.topology.images.penstock,
            wait(self.where(), run=run),
            environment=environment,
            mounts=self._mounts(list(files.values())),
            resources=quantities(SMALL),
        )

    def _environment(self, made_of: ProcessCommand, *more: Object) -> list[Object]:
        variables = [{"name": name, "value": value} for name, value in made_of.environment.items()]
        return [*more, *variables]

    def _process(
        self,
        process: PlacedProcess,
        role: Role,
        resources: Resources,
        *,
        where: Where | None = None,
        environment: Sequence[Object] = (),
        shared: str = "",
        ranks: bool = False,
        probes: Object | None = None,
        **pod_others: Any,
    ) -> Object:
        """The pod of one of the product's processes. `ranks`: it has several, which share memory."""
        starts = command(self.topology, process, where or self.where())
        files = [*starts.files.values(), *key_files(self.topology, process)]
        volumes, mounts = (
            self._volumes(files, state=not pod_others.pop("kept_state", False)),
            self._mounts(files),
        )
        if shared:
            volume, mount = self._shared(read_only=shared == "read")
            volumes.append(volume)
            mounts.append(mount)
        if ranks:
            volumes.append(SHM)
            mounts.append(SHM_MOUNT)
        main = container(
            process.role,
            self.topology.images.penstock,
            starts.argv,
            environment=self._environment(starts, *environment),
            ports=process.ports,
            mounts=mounts,
            resources=quantities(resources, len(process.gpus), self.topology.kubernetes.gpu_resource),
            probes=own_probes() if probes is None else probes,
        )
        return pod(
            self.topology,
            process.role,
            pool=process.pool,
            containers=[main],
            volumes=volumes,
            grace_s=GRACE_S[process.role],
            selector=role.node_selector,
            gpus=len(process.gpus),
            init=[self._wait(process.role, run=process.role != ProcessRole.ORCHESTRATOR)],
            annotations=self._annotations(process.role),
            spread=process.role not in ALONE,
            **pod_others,
        )

    def _deployment(
        self, process: PlacedProcess, name: str, template: Object, *, replicas: int | None, surge: bool
    ) -> Object:
        strategy: Object = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
        spec: Object = {} if replicas is None else {"replicas": replicas}
        spec |= {
            "revisionHistoryLimit": 3,
            "strategy": strategy if surge else {"type": "Recreate"},
            "selector": {"matchLabels": dict(template["metadata"]["labels"])},
            "template": template,
        }
        return made(self.topology, "apps/v1", "Deployment", name, process.role, spec, pool=process.pool)

    def _set(
        self,
        process: PlacedProcess,
        name: str,
        template: Object,
        *,
        replicas: int,
        claims: Sequence[Object] = (),
    ) -> Object:
        spec: Object = {
            "serviceName": named(self.topology, name),
            "replicas": replicas,
            "revisionHistoryLimit": 3,
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "RollingUpdate"},
            "selector": {"matchLabels": dict(template["metadata"]["labels"])},
            "template": template,
        }
        if claims:
            spec["persistentVolumeClaimRetentionPolicy"] = {"whenDeleted": "Retain", "whenScaled": "Retain"}
            spec["volumeClaimTemplates"] = list(claims)
        return made(self.topology, "apps/v1", "StatefulSet", name, process.role, spec, pool=process.pool)

    # --- the roles --------------------------------------------------------------------------------------------

    def migration(self) -> list[Object]:
        """`alembic upgrade head`, before the other processes: every pod waits for the schema."""
        files = list(secrets_of(self.topology, ProcessRole.MIGRATE).values())
        environment = [
            {"name": name, "value": secret_file(key)}
            for name, key in secrets_of(self.topology, ProcessRole.MIGRATE).items()
        ]
        main = container(
            ProcessRole.MIGRATE,
            self.topology.images.penstock,
            migrate(self.where()),
            environment=environment,
            mounts=self._mounts(files),
            resources=quantities(SMALL),
            workingDir=TRUTH,
        )
        template = pod(
            self.topology,
            ProcessRole.MIGRATE,
            containers=[main],
            volumes=self._volumes(files),
            grace_s=30,
            restartPolicy="OnFailure",
        )
        spec = {
            "backoffLimit": 6,
            "activeDeadlineSeconds": 1800,
            "ttlSecondsAfterFinished": FINISHED_S,
            "template": template,
        }
        return [made(self.topology, "batch/v1", "Job", ProcessRole.MIGRATE, ProcessRole.MIGRATE, spec)]

    def orchestrators(self, process: PlacedProcess) -> list[Object]:
        """Any number of orchestrators: they share the work by the data pool."""
        section = self.topology.orchestrators
        template = self._process(process, section, section.resources)
        return [
            self._deployment(
                process, ProcessRole.ORCHESTRATOR, template, replicas=section.replicas, surge=True
            ),
            disruption(self.topology, ProcessRole.ORCHESTRATOR, ProcessRole.ORCHESTRATOR),
        ]

    def gateways(self, process: PlacedProcess) -> list[Object]:
        """Each gateway has its own name and journal: an attempt stays with the gateway that opened its session."""
        section = self.topology.gateways
        address = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
        template = self._process(
            process,
            section,
            section.resources,
            where=self.where(f"{VARIABLE}(POD_IP)"),
            environment=[address],
            shared="read",
            probes=own_probes("http"),
            kept_state=True,
        )
        claim_spec: Object = {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": f"{section.journal_gb}G"}},
        }
        if self.topology.kubernetes.storage_class:
            claim_spec["storageClassName"] = self.topology.kubernetes.storage_class
        claim = {"metadata": {"name": "state"}, "spec": claim_spec}
        return [
            headless(self.topology, ProcessRole.GATEWAY, ProcessRole.GATEWAY, process.ports),
            self._set(process, ProcessRole.GATEWAY, template, replicas=section.replicas, claims=[claim]),
            disruption(self.topology, ProcessRole.GATEWAY, ProcessRole.GATEWAY),
        ]

    def runners(self, process: PlacedProcess, pool: RunnerPool) -> list[Object]:
        """Runners and verifiers. If KEDA scales them, only KEDA sets their number."""
        scaled = bool(pool.max_replicas) and self.topology.kubernetes.autoscaling
        name = process.name
        template = self._process(
            process,
            pool,
            pool.resources,
            account=named(self.topology, "sandboxes") if makes_pods(pool) else "",
        )
        replicas = None if scaled else pool.replicas
        return [
            self._deployment(process, name, template, replicas=replicas, surge=True),
            disruption(self.topology, name, process.role, process.pool),
        ]

    def servers(self, process: PlacedProcess) -> list[Object]:
        """Each server has its own name: gateways lease them one by one, so they are not scaled automatically."""
        pool = pool_of(self.topology, process)
        keys = key_files(self.topology, process)
        volume, _ = self._shared(read_only=True)
        sglang = pool.engine is ServerEngine.SGLANG
        main = self._server(process, pool)

        def template(containers: list[Object]) -> Object:
            return pod(
                self.topology,
                ProcessRole.ROLLOUT_SERVER,
                pool=pool.name,
                containers=containers,
                volumes=[
                    {"name": "tmp", "emptyDir": {}},
                    volume,
                    *([SHM] if sglang else []),
                    *_secret_volumes(keys),
                ],
                grace_s=GRACE_S[ProcessRole.ROLLOUT_SERVER],
                selector=pool.node_selector,
                gpus=len(process.gpus),
            )

        name = f"rollout-server-{pool.name}"
        budget = (
            [disruption(self.topology, name, ProcessRole.ROLLOUT_SERVER, pool.name)]
            if pool.replicas > 1
            else []
        )
        if pool.nodes == 1:
            service = headless(self.topology, name, ProcessRole.ROLLOUT_SERVER, process.ports, pool.name)
            return [service, self._set(process, name, template([main]), replicas=pool.replicas), *budget]
        worker = _follower(main)
        return [
            self._group(process, name, pool.replicas, pool.nodes, template([main]), template([worker])),
            *budget,
        ]

    def _server(self, process: PlacedProcess, pool: ServerPool) -> Object:
        location = self.where(
            leader=f"{VARIABLE}(LWS_LEADER_ADDRESS)",
            node=f"{VARIABLE}(LWS_WORKER_INDEX)",
        )
        start_command = command(self.topology, process, location)
        _, mount = self._shared(read_only=True)
        sglang = pool.engine is ServerEngine.SGLANG
        return container(
            ProcessRole.ROLLOUT_SERVER,
            self.topology.images.sglang if sglang else self.topology.images.penstock,
            start_command.argv,
            environment=self._environment(start_command, {"name": "HOME", "value": "/tmp"}),
            ports=process.ports,
            mounts=[
                {"name": "tmp", "mountPath": "/tmp"},
                mount,
                *([SHM_MOUNT] if sglang else []),
                *_secret_mounts(key_files(self.topology, process)),
            ],
            resources=quantities(pool.resources, len(process.gpus), self.topology.kubernetes.gpu_resource),
            probes=server_probes(SERVER_START_S if sglang else 300),
        )

    def trainer(self, process: PlacedProcess) -> list[Object]:
        """Exactly one: a set keeps a pod's name until it is certainly gone. If it spans several machines, all end together."""
        section = self.topology.trainer
        location = self.where(leader=f"{VARIABLE}(LWS_LEADER_ADDRESS)", node=f"{VARIABLE}(LWS_WORKER_INDEX)")
        template = self._process(
            process,
            section,
            section.resources,
            where=location,
            shared="write",
            ranks=True,
            environment=[{"name": "HOME", "value": "/tmp"}],
            probes=own_probes(start_s=SERVER_START_S),
        )
        if section.nodes == 1:
            service = headless(self.topology, ProcessRole.TRAINER, ProcessRole.TRAINER, process.ports)
            return [service, self._set(process, ProcessRole.TRAINER, template, replicas=1)]
        main = template["spec"]["containers"][0]
        worker = {**template, "spec": {**template["spec"], "containers": [_follower(main)]}}
        return [self._group(process, ProcessRole.TRAINER, 1, section.nodes, template, worker)]

    def _group(
        self, process: PlacedProcess, name: str, replicas: int, size: int, leader: Object, worker: Object
    ) -> Object:
        spec = {
            "replicas": replicas,
            "startupPolicy": "LeaderCreated",
            "rolloutStrategy": {
                "type": "RollingUpdate",
                "rollingUpdateConfiguration": {"maxUnavailable": 1, "maxSurge": 0},
            },
            "networkConfig": {"subdomainPolicy": "Shared"},
            "leaderWorkerTemplate": {
                "size": size,
                "restartPolicy": "RecreateGroupOnPodRestart",
                "leaderTemplate": leader,
                "workerTemplate": worker,
            },
        }
        return made(
            self.topology,
            "leaderworkerset.x-k8s.io/v1",
            "LeaderWorkerSet",
            name,
            process.role,
            spec,
            pool=process.pool,
        )

    def web(self, process: PlacedProcess) -> list[Object]:
        """The dashboard, on loopback of its pod: `kubectl port-forward` reaches it, the network does not."""
        section = self.topology.web
        template = self._process(process, section, section.resources)
        return [self._deployment(process, ProcessRole.WEB, template, replicas=1, surge=False)]


def _follower(leader: Object) -> Object:
    """The container of the other machines. Only the leader has probes."""
    found = {key: value for key, value in leader.items() if not key.endswith("Probe")}
    found["ports"] = [port for port in leader["ports"] if port["name"] == "meeting"]
    return found
