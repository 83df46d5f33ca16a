"""Routing replay: tokens go to the experts that the rollout server's routers chose, with the gates of the current routers.

    recorded experts e_1 … e_k of a token, current router logits z      gate(e_i) = s(z)[e_i] ÷ Σ_j s(z)[e_j]

s is the softmax or the sigmoid of the model's own router, with the division only if the model has it. The gradient flows through z.
So a token is computed by the experts that produced its behavior logprob, even if rounding, other kernels or newer weights would choose
others. Tokens without recorded routes go where the current router sends them.

Routes reach a layer with the arguments of its attention. Activation checkpointing passes them again when it reruns the layer.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from orchestrator.trajectory.branch import Branch
from orchestrator.trajectory.routes import NOT_RECORDED, Routes, check_replay
from trainer.tree.plan import Longs, TreePlan
from trainer.tree.routing import multiplicities, routers_of


def _softmax_gates(router: Any, logits: Tensor, chosen: Tensor) -> Tensor:
    wide = logits.softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32)).gather(1, chosen)
    return (wide / wide.sum(-1, keepdim=True) if router.norm_topk_prob else wide).to(logits.dtype)


def _sigmoid_gates(router: Any, logits: Tensor, chosen: Tensor) -> Tensor:
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32)).sigmoid().gather(1, chosen)
    return wide / wide.sum(-1, keepdim=True)


_GATES: Mapping[str, Callable[[Any, Tensor, Tensor], Tensor]] = {
    "qwen3_moe": _softmax_gates,
    "minimax_m2": _sigmoid_gates,
}
"""model_type → (router, logits [T, E], chosen int64[T, k]) → gates [T, k], computed as in transformers' router of that model_type."""


class _LayerHooks:
    """The hooks of one layer: its attention receives the routes, its router uses them."""

    def __init__(self, kind: str, attention: nn.Module, router: nn.Module) -> None:
        self._layer = int(attention.layer_idx)  # type: ignore[arg-type]
        self._gates = _GATES[kind]
        self._routes: Tensor | None = None
        attention.register_forward_pre_hook(self._bring, with_kwargs=True)
        router.register_forward_hook(self)

    def _bring(self, _: nn.Module, __: Any, options: dict[str, Any]) -> None:
        routes = options.get("routes")
        self._routes = None if routes is None else routes[:, self._layer]

    def __call__(self, router: nn.Module, _: Any, answer: Any) -> Any:
        if self._routes is None:
            return answer
        logits, _, live = answer
        chosen = torch.where(self._routes == NOT_RECORDED, live, self._routes)
        return logits, self._gates(router, logits, chosen), chosen


def attach_replay(model: nn.Module) -> None:
    """Make the model's forward accept `routes` (`routes_of`); without them it is unchanged. Attaching twice has no further effect.

    Raises ConfigurationError for a model without experts, or with routers that are not known here.
    """
    config = model.config.to_dict()  # type: ignore[operator, union-attr]
    check_replay(config, model.name_or_path)
    if replays(model):
        return
    routers = routers_of(model)
    for layer in model.modules():
        attention = [m for m in layer.children() if hasattr(m, "layer_idx")]
        layer_routers = [router for router in routers if any(module is router for module in layer.modules())]
        if len(attention) == len(layer_routers) == 1:
            _LayerHooks(config["model_type"], attention[0], layer_routers[0])
    assert replays(model), "every router lies in a layer with one attention"


def replays(model: nn.Module) -> bool:
    """Whether `attach_replay` was called."""
    return all(
        any(isinstance(hook, _LayerHooks) for hook in router._forward_hooks.values())
        for router in routers_of(model)
    )


def routes_of(model: nn.Module, routes: Routes | None) -> dict[str, Tensor]:
    """The forward pass's arguments for routes int16[T, layers, top_k]: int64 on the model's device; empty for None."""
    if routes is None:
        return {}
    assert replays(model), "call attach_replay before routes are replayed"
    return {"routes": torch.from_numpy(routes).to(next(model.parameters()).device).long()}


def check_routes(model: nn.Module, branches: Iterable[Branch]) -> None:
    """Raise ValueError if branches, or their kept prefixes, were routed by a model of another shape, whose experts this one does not have."""
    router: Any = routers_of(model)[0]
    config: Any = model.config
    shape, count = (config.num_hidden_layers, router.top_k), router.num_experts
    checked = set[Branch]()
    for branch in branches:
        ancestor: Branch | None = branch
        while ancestor is not None and ancestor not in checked:
            routes = ancestor.routes
            if routes is not None and (
                routes.shape[1:] != shape or int(routes.max(initial=NOT_RECORDED)) >= count
            ):
                raise ValueError(
                    f"routes of {routes.shape[1]} layers, {routes.shape[2]} experts per token and ids up to {routes.max(initial=0)}: "
                    f"this model has {shape[0]} layers, {shape[1]} of {count} experts per token"
                )
            checked.add(ancestor)
            ancestor = ancestor.parent


def replayed_tokens(plan: TreePlan, last: Longs) -> int:
    """How many tokens have routes to replay, counted as one row per sample would forward them. `last`: flat position of each sample's last token."""
    if plan.routes is None or not plan.tokens:
        return 0
    return int(multiplicities(plan, last)[plan.routes[:, 0, 0] != NOT_RECORDED].sum())
