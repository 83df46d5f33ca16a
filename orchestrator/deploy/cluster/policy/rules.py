"""A rule of the policy, and its input."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from orchestrator.deploy.cluster.objects import (
    Object,
    Pod,
    called,
    pods,
)


@dataclass(frozen=True)
class RenderedObjects:
    """All objects of one directory."""

    objects: Sequence[Object]
    pods: list[Pod] = field(default_factory=list)

    @classmethod
    def of(cls, objects: Sequence[Object]) -> "RenderedObjects":
        return cls(objects, list(pods(objects)))

    def kind(self, *kinds: str) -> list[Object]:
        return [found for found in self.objects if found.get("kind") in kinds]

    def containers(self) -> Iterator[tuple[str, Pod, Object]]:
        for pod in self.pods:
            for container in pod.containers:
                yield f"{called(pod.of)}: container {container.get('name')}", pod, container


Rule = Callable[[RenderedObjects], Iterator[str]]
RULES: dict[str, Rule] = {}


def rule(function: Rule) -> Rule:
    """Registers it under its name, with hyphens."""
    RULES[function.__name__.replace("_", "-")] = function
    return function


def sentence(name: str) -> str:
    """The demand of a rule."""
    return (RULES[name].__doc__ or "").partition("\n")[0]
