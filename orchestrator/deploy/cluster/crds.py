"""Restated structural schemas of the operators' objects that we use: CloudNativePG, KEDA, LeaderWorkerSet and the
Prometheus operator. Strict: a field that is not here is refused, even if the operator knows it. Pods inside are checked by Kubernetes's schemas.
"""

from typing import Any

Schema = dict[str, Any]

TEXT: Schema = {"type": "string", "minLength": 1}
FLAG: Schema = {"type": "boolean"}
COUNT: Schema = {"type": "integer", "minimum": 0}
TEXTS: Schema = {"type": "object", "additionalProperties": TEXT}
QUANTITY: Schema = {"type": "string", "pattern": r"^[0-9.]+(m|k|Ki|M|Mi|G|Gi|T|Ti)?$"}
DURATION: Schema = {"type": "string", "pattern": r"^([0-9]+(ms|s|m|h|d|w|y))+$"}


def strict(required: tuple[str, ...] = (), **properties: Schema) -> Schema:
    """An object with these properties only."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def listed(items: Schema, least: int = 1) -> Schema:
    return {"type": "array", "items": items, "minItems": least}


AMOUNTS = strict(cpu=QUANTITY, memory=QUANTITY)
POD: Schema = {"$comment": "pod template", "type": "object", "required": ["metadata", "spec"]}
SELECTOR = strict(
    matchLabels=TEXTS,
    matchExpressions=listed(
        strict(
            ("key", "operator"),
            key=TEXT,
            operator={"enum": ["In", "NotIn", "Exists", "DoesNotExist"]},
            values=listed(TEXT),
        )
    ),
)
RELABELING = strict(
    action={"enum": ["replace", "keep", "drop", "labelmap", "labeldrop", "labelkeep"]},
    targetLabel=TEXT,
    sourceLabels=listed(TEXT),
    replacement=TEXT,
    regex=TEXT,
)

CLUSTER = strict(
    ("instances", "storage"),
    instances={"type": "integer", "minimum": 1},
    imageName=TEXT,
    bootstrap=strict(
        initdb=strict(("database", "owner"), database=TEXT, owner=TEXT, postInitApplicationSQL=listed(TEXT))
    ),
    storage=strict(size=QUANTITY, storageClass=TEXT),
    resources=strict(requests=AMOUNTS, limits=AMOUNTS),
    postgresql=strict(
        parameters=TEXTS,
        synchronous=strict(("method", "number"), method={"enum": ["any", "first"]}, number=COUNT),
    ),
)
SCALED = strict(
    ("scaleTargetRef", "triggers"),
    scaleTargetRef=strict(("name",), apiVersion=TEXT, kind=TEXT, name=TEXT),
    minReplicaCount=COUNT,
    maxReplicaCount={"type": "integer", "minimum": 1},
    pollingInterval=COUNT,
    advanced=strict(
        horizontalPodAutoscalerConfig=strict(
            behavior=strict(
                scaleDown=strict(
                    stabilizationWindowSeconds={"type": "integer", "minimum": 0, "maximum": 3600},
                    policies=listed(
                        strict(
                            ("type", "value", "periodSeconds"),
                            type={"enum": ["Pods", "Percent"]},
                            value={"type": "integer", "minimum": 1},
                            periodSeconds={"type": "integer", "minimum": 1, "maximum": 1800},
                        )
                    ),
                )
            )
        )
    ),
    triggers=listed(
        strict(
            ("type", "metadata", "authenticationRef"),
            type={"const": "postgresql"},
            metadata=strict(
                ("query", "targetQueryValue"),
                query=TEXT,
                targetQueryValue={"type": "string", "pattern": "^[0-9]+$"},
                dbName=TEXT,
            ),
            authenticationRef=strict(("name",), name=TEXT),
        )
    ),
)
LOGIN = strict(
    ("secretTargetRef",),
    secretTargetRef=listed(strict(("parameter", "name", "key"), parameter=TEXT, name=TEXT, key=TEXT)),
)
GROUPS = strict(
    ("leaderWorkerTemplate",),
    replicas=COUNT,
    startupPolicy={"enum": ["LeaderCreated", "LeaderReady"]},
    rolloutStrategy=strict(
        type={"const": "RollingUpdate"},
        rollingUpdateConfiguration=strict(maxUnavailable=COUNT, maxSurge=COUNT),
    ),
    networkConfig=strict(subdomainPolicy={"enum": ["Shared", "UniquePerReplica"]}),
    leaderWorkerTemplate=strict(
        ("workerTemplate",),
        size={"type": "integer", "minimum": 1},
        restartPolicy={"enum": ["RecreateGroupOnPodRestart", "None"]},
        leaderTemplate=POD,
        workerTemplate=POD,
    ),
)
MONITOR = strict(
    ("selector", "podMetricsEndpoints"),
    selector=SELECTOR,
    podMetricsEndpoints=listed(
        strict(
            ("port",),
            port=TEXT,
            path=TEXT,
            interval=DURATION,
            honorLabels=FLAG,
            relabelings=listed(RELABELING),
        )
    ),
)
RULES = strict(
    ("groups",),
    groups=listed(
        strict(
            ("name",),
            name=TEXT,
            interval=DURATION,
            rules=listed(
                strict(
                    ("expr",),
                    alert=TEXT,
                    record=TEXT,
                    expr=TEXT,
                    **{"for": DURATION},
                    labels=TEXTS,
                    annotations=TEXTS,
                )
            ),
        )
    ),
)

SPECS: dict[tuple[str, str], Schema] = {
    ("postgresql.cnpg.io/v1", "Cluster"): CLUSTER,
    ("keda.sh/v1alpha1", "ScaledObject"): SCALED,
    ("keda.sh/v1alpha1", "TriggerAuthentication"): LOGIN,
    ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"): GROUPS,
    ("monitoring.coreos.com/v1", "PodMonitor"): MONITOR,
    ("monitoring.coreos.com/v1", "PrometheusRule"): RULES,
}
METADATA = strict(("name", "namespace"), name=TEXT, namespace=TEXT, labels=TEXTS, annotations=TEXTS)


def schema(api: str, kind: str) -> Schema | None:
    """The schema of a whole object; None for a kind that is not restated here."""
    spec = SPECS.get((api, kind))
    if spec is None:
        return None
    return strict(
        ("apiVersion", "kind", "metadata", "spec"),
        apiVersion={"const": api},
        kind={"const": kind},
        metadata=METADATA,
        spec=spec,
    )
