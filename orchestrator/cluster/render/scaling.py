"""Kubernetes: how many runners and verifiers there are, by the work that waits for them and the work that they hold (KEDA)."""

from orchestrator.cluster.placement import Process
from orchestrator.cluster.processes import secrets_of
from orchestrator.cluster.render.objects import Object, made, named
from orchestrator.cluster.topology import RunnerPool, Topology

WORK = {"runner": ("queued", "running"), "verifier": ("finished", "verifying")}
"""States of a rollout, by who takes it: it waits, it is held."""
CALM_S = (
    600  # so long there is less work before a runner goes: what it holds is given back, so not for every lull
)


def counted(topology: Topology, process: Process) -> str:
    """SQL: what waits for such runners, and what those of this pool hold. By what waits alone, runners that are busy with all there is would be
    too many, and be ended in the middle of it."""
    waits, held = WORK[process.role]
    return (
        f"SELECT count(*) FROM rollouts WHERE run_id = (SELECT run_id FROM runs WHERE name = '{topology.name}') "
        f"AND state IN ('{waits}', '{held}') AND (state = '{waits}' OR lease_owner LIKE '%:{process.name}')"
    )


def scaled(topology: Topology, process: Process, pool: RunnerPool) -> list[Object]:
    """A ScaledObject of KEDA: a runner for as many rollouts as it has slots. Only runners and verifiers: what they hold is leased, and one that is
    told to end gives it back within its grace; a gateway, a rollout server or a trainer is what somebody else waits for."""
    if not pool.max_replicas or not topology.kubernetes.autoscaling:
        return []
    trigger = {
        "type": "postgresql",
        "metadata": {
            "query": counted(topology, process),
            "targetQueryValue": f"{pool.slots}",
            # KEDA shares connections between all triggers that write the same here, also where the login's URL leads elsewhere.
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
