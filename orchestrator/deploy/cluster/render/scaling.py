"""Kubernetes: the number of runners and verifiers, by the waiting work and the work that they hold (KEDA)."""

from orchestrator.contracts.processes import ProcessRole
from orchestrator.contracts.states import RolloutState
from orchestrator.deploy.cluster.placement import PlacedProcess
from orchestrator.deploy.cluster.processes import secrets_of
from orchestrator.deploy.cluster.render.objects import Object, made, named
from orchestrator.deploy.cluster.topology import RunnerPool, Topology
from orchestrator.queries.autoscaling import work_of_pool

WORK = {
    ProcessRole.RUNNER: (RolloutState.QUEUED, RolloutState.RUNNING),
    ProcessRole.VERIFIER: (RolloutState.FINISHED, RolloutState.VERIFYING),
}
"""States of a rollout, by role: waiting, held."""
# Seconds with less work before a runner is removed: it gives back its work, so not for every lull.
CALM_S = 600


def counted(topology: Topology, process: PlacedProcess) -> str:
    """SQL: the work that waits for such runners, plus the work that this pool holds. With the waiting work alone, runners that are busy with all of
    it would count as too many, and be ended in the middle of it."""
    queued, busy = WORK[process.role]
    return work_of_pool(topology.name, queued, busy, process.name)


def scaled(topology: Topology, process: PlacedProcess, pool: RunnerPool) -> list[Object]:
    """A ScaledObject of KEDA: one runner per as many rollouts as it has slots. Only runners and verifiers: their work is leased, and one that is
    ended gives it back within its grace. Other processes wait for a gateway, a rollout server or a trainer."""
    if not pool.max_replicas or not topology.kubernetes.autoscaling:
        return []
    trigger = {
        "type": "postgresql",
        "metadata": {
            "query": counted(topology, process),
            "targetQueryValue": f"{pool.slots}",
            # KEDA shares connections between all triggers with the same value here, even if the login's URL leads elsewhere.
            "dbName": named(topology, process.name),
        },
        "authenticationRef": {"name": named(topology, process.name)},
    }
    spec = {
        "scaleTargetRef": {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "name": named(topology, process.name),
        },
        "minReplicaCount": pool.replicas,
        "maxReplicaCount": pool.max_replicas,
        "pollingInterval": 15,
        "advanced": {
            "horizontalPodAutoscalerConfig": {
                "behavior": {
                    "scaleDown": {
                        "stabilizationWindowSeconds": CALM_S,
                        "policies": [{"type": "Pods", "value": 1, "periodSeconds": CALM_S}],
                    }
                }
            }
        },
        "triggers": [trigger],
    }
    key = secrets_of(topology, process.role)["DATABASE_URL_FILE"]
    login = {"secretTargetRef": [{"parameter": "connection", "name": key.name, "key": key.key}]}
    return [
        made(topology, "keda.sh/v1alpha1", kind, process.name, process.role, each, pool=process.pool)
        for kind, each in (("TriggerAuthentication", login), ("ScaledObject", spec))
    ]
