"""Rules for rendered objects beyond their schemas: one function per rule, its first line the rule's sentence.

for finding in broken(objects): print(finding)      # deployment/first-web: … (rule fixed-images)
"""

from collections.abc import Sequence

from orchestrator.deploy.cluster.objects import Object
from orchestrator.deploy.cluster.policy import network, objects
from orchestrator.deploy.cluster.policy.rules import RULES, RenderedObjects, sentence

__all__ = ["RULES", "broken", "network", "objects", "sentence"]


def broken(found: Sequence[Object]) -> list[str]:
    """Every finding of every rule."""
    manifests = RenderedObjects.of(found)
    return [f"{finding} (rule {name})" for name, check in RULES.items() for finding in check(manifests)]
