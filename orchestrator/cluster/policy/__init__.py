"""What rendered objects must hold beyond their schemas: one function a rule, its first line the rule's sentence.

for finding in broken(objects): print(finding)      # deployment/first-web: … (rule fixed-images)
"""

from collections.abc import Sequence

from orchestrator.cluster.objects import Object
from orchestrator.cluster.policy import network, objects
from orchestrator.cluster.policy.rules import RULES, Seen, sentence

__all__ = ["RULES", "broken", "network", "objects", "sentence"]


def broken(found: Sequence[Object]) -> list[str]:
    """Every finding of every rule."""
    seen = Seen.of(found)
    return [f"{finding} (rule {name})" for name, check in RULES.items() for finding in check(seen)]
