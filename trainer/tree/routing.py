"""Mixture-of-experts routing, counted as with one row per sample: a merged token counts once per sample that contains it.

    multiplicity m_t    samples of the pack that token t is part of; Σ_t m_t = M, the tokens that one row per sample forwards
    load                load[l, e] = Σ_t m_t · [layer l sent t to expert e], by the experts that the model itself chose
    balance loss        E · Σ_e f_e · P_e      f_e = Σ_{l,t} m_t · [e ∈ top_k(z_lt)] / (L · M)
                                               P_e = Σ_{l,t} m_t · softmax(z_lt)_e / (L · M)

for router logits z of L layers with E experts: transformers' `load_balancing_loss_func` over all rows of the train step together (Switch
Transformer, arXiv:2101.03961, equations 4–6). f has no gradient, so the loss is a sum over passes once f is known. A pack of several passes is
walked once more to compute f, without a graph. Routing is dropless: transformers' experts take every token that a router sends them.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from orchestrator.trajectory.routes import no_experts
from trainer.tree.pack import Pack
from trainer.tree.plan import Longs, TreePlan


def multiplicities(plan: TreePlan, last: Longs) -> Longs:
    """int64[T]: the number of samples that contain each flat token. `last`: int64[samples], flat position of each sample's last token.

    A token is part of a sample when the sample's last token sees it: t ≤ last < subtree_end[t].
    """
    ordered = np.sort(last)
    counts: Longs = np.searchsorted(ordered, plan.subtree_end) - np.searchsorted(
        ordered, np.arange(plan.tokens)
    )
    return counts


def routers_of(model: nn.Module) -> list[nn.Module]:
    """The modules whose router logits transformers records, in order of layer; empty for a dense model."""
    recorded = (getattr(model, "_can_record_outputs", None) or {}).get("router_logits")
    kind = getattr(recorded, "target_class", recorded)
    return [module for module in model.modules() if isinstance(kind, type) and isinstance(module, kind)]


def routers_by_layer(model: nn.Module) -> dict[int, nn.Module]:
    """The routers by layer number, taken from their names: a model may have layers without experts."""
    names = {module: name.split(".") for name, module in model.named_modules()}
    return {int(next(filter(str.isdigit, names[router]))): router for router in routers_of(model)}


R = TypeVar("R", bound="Routing")


def routing_of(kind: type[R], model: nn.Module, pack: Pack, balance: float) -> R | None:
    """The `Routing` of a model over one pack; None for a dense model. Raises ConfigurationError if `balance` is set and there are no experts."""
    routers = routers_of(model)
    if routers:
        return kind(routers, multiplicities(pack.plan, pack.last), balance)
    check_balance(model, balance)
    return None


def check_balance(model: nn.Module, balance: float) -> None:
    """Raise ConfigurationError if `balance` is set and there are no experts."""
    if balance and not routers_of(model):
        raise no_experts("balance", f"{balance}", getattr(model, "name_or_path", ""), "0")


class Routing:
    """Watches the routers while one pack is forwarded pass by pass.

    with routing.watching(ranges): …forward of one pass…
    routing.count()     once per token of the pack
    routing.loss()      then the pass's share of the balance loss, with its graph
    """

    def __init__(self, routers: Sequence[nn.Module], multiplicity: Longs, coefficient: float) -> None:
        """`multiplicity`: int64[T]. `coefficient`: weight of the balance loss in the loss; with 0 only the load is counted."""
        assert routers, "a dense model has no routing to watch"
        self.coefficient = coefficient
        # float64[L, E]; None before the first count, and for routers that do not report it.
        self.load: Tensor | None = None
        self.value = 0.0  # the balance loss of the passes so far, without its coefficient
        self._routers = routers
        self._multiplicity = torch.from_numpy(multiplicity)
        self._rows = len(routers) * int(multiplicity.sum())  # L · M
        self._counted = 0
        self._assigned: Tensor | None = None  # float64[E], L · M · f
        self._weights = torch.empty(0)
        self._seen: list[tuple[Tensor, Tensor]] = []  # logits [T, E] and chosen experts [T, k] of each layer

    @property
    def imbalance(self) -> float | None:
        """The load of the busiest expert ÷ the mean load of its layer, in the worst layer; 1 is perfect balance."""
        return None if self.load is None else float((self.load.amax(1) / self.load.mean(1)).max())

    @property
    def complete(self) -> bool:
        """Whether every token of the pack was counted."""
        return self._counted == len(self._multiplicity)

    @contextmanager
    def watching(self, ranges: Sequence[tuple[int, int]]) -> Iterator[None]:
        """A context that records the routers' outputs; `ranges` are the flat ranges of the forwarded pass."""
        self._weights = torch.cat([self._multiplicity[begin:end] for begin, end in ranges])
        self._seen = []
        hooks = [router.register_forward_hook(self._answered) for router in self._routers]
        try:
            yield
        finally:
            for hook in hooks:  # before activation checkpointing runs the layers again
                hook.remove()

    def _answered(self, router: nn.Module, _: Any, answer: Any) -> None:
        logits, chosen = (answer[0], answer[-1]) if isinstance(answer, tuple) else (answer, None)
        if chosen is not None and not chosen.dtype.is_floating_point and logits.ndim == chosen.ndim == 2:
            self._seen.append((logits, chosen))
        elif self.coefficient:
            raise ValueError(
                f"the routers of this model ({type(router).__name__}) do not answer (logits, …, chosen experts), so its experts' load cannot "
                "be balanced: begin a new run with trainer.balance = 0"
            )

    @torch.no_grad()
    def count(self) -> None:
        """Add the last watched pass to the load and to f."""
        self._counted += len(self._weights)
        if not self._seen:
            return
        weights = self._weights.to(self._seen[0][0].device, torch.float64)
        loads = [_counts(chosen, weights, logits.shape[-1]) for logits, chosen in self._seen]
        top = [
            _counts(logits.topk(chosen.shape[-1], dim=-1).indices, weights, logits.shape[-1])
            for logits, chosen in self._seen
        ]
        load, assigned = torch.stack(loads), torch.stack(top).sum(0)
        self.load = load if self.load is None else self.load + load
        self._assigned = assigned if self._assigned is None else self._assigned + assigned

    def loss(self) -> Tensor:
        """coefficient · the last watched pass's share of the balance loss: a scalar with its graph."""
        assert self._assigned is not None and self.complete, "f is known once every token was counted"
        fractions = self._assigned / self._rows
        total = fractions.new_zeros(())
        for logits, _ in self._seen:
            wide = logits.softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))
            weights = self._weights.to(wide)
            total = total + (weights @ wide / self._rows * fractions.to(wide)).sum()
        total = total * len(fractions)
        self.value += float(total.detach())
        return total * self.coefficient


def _counts(experts: Tensor, weights: Tensor, number: int) -> Tensor:
    """float64[E]: how often each expert occurs in experts [T, k], each row counted with its weight."""
    flat = experts.reshape(-1)
    zeros = torch.zeros(number, dtype=torch.float64, device=experts.device)
    return zeros.scatter_add_(0, flat, weights.repeat_interleave(experts.shape[-1]))
