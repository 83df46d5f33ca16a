"""Forward and backward over a pack, pass by pass, in bounded memory.

    trunk, on the way down   forward without a graph; its keys and values lengthen the path
    leaf                     forward, loss, backward; gradients for the path's keys and values add up in path.py
    trunk, on the way up     forward again, now with its graph; autograd.backward([logprobs, keys, values], [their gradients])

A pack within the budget is one leaf: one forward, one backward. The loss is called with whole samples: once the last loss edge of a sample has
its logprob, the gradients at all its edges are known, also for edges in trunks whose backward pass is still to come. So a loss may couple the
tokens of a sample in any way, but not tokens of different samples. The walk is depth-first over a list: it does not recurse, however many trunks
a path has.
"""

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from orchestrator.runtime.liveness import current
from orchestrator.runtime.phase_timer import phase
from trainer.logprobs import CHUNK
from trainer.mixed_precision import computing
from trainer.tree.forward import pass_of
from trainer.tree.pack import Pack
from trainer.tree.passes import Pass
from trainer.tree.path import Path
from trainer.tree.plan import Longs
from trainer.tree.routing import Routing

Objective = Callable[[Longs, Tensor], Tensor]
"""(rows int64[n], logprobs [n] with gradient) → scalar loss. The rows are those of LossEdges, in order; every sample among them is whole.
The losses of all calls add up to the pack's."""


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """Trainer logprobs and entropies of a pack's loss edges, [E] each, without gradient; NaN where nothing was forwarded."""

    logprobs: Tensor
    entropies: Tensor
    loss: float = 0.0


@dataclass(frozen=True, slots=True)
class Visit:
    """One forward pass of a walk. `learn`: with its graph, the loss and a backward pass; otherwise it lengthens the path."""

    number: int  # of the pass
    learn: bool


def score(model: nn.Module, pack: Pack, head_chunk: int = CHUNK, routing: Routing | None = None) -> Scores:
    """Logprobs and entropies alone, without any graph. `routing` counts every token."""
    return computing(model, lambda: _score(model, pack, head_chunk, routing))


def backward(
    model: nn.Module,
    pack: Pack,
    objective: Objective,
    head_chunk: int = CHUNK,
    routing: Routing | None = None,
) -> Scores:
    """Add the gradients of the pack's loss to the parameters'. A loss that is not finite ends it at once, with incomplete gradients.

    `routing` counts every token, and adds the gradients of its balance loss if its coefficient is not 0.
    """
    return computing(model, lambda: _backward(model, pack, objective, head_chunk, routing))


def _score(model: nn.Module, pack: Pack, head_chunk: int, routing: Routing | None) -> Scores:
    walk = Walk(model, pack, head_chunk=head_chunk, routing=routing)
    for number in range(len(pack.passes)):
        walk.forward_only(number)
    return walk.scores()


def _backward(
    model: nn.Module, pack: Pack, objective: Objective, head_chunk: int, routing: Routing | None
) -> Scores:
    if routing is not None and routing.coefficient and len(pack.passes) > 1:
        _score(model, pack, head_chunk, routing)  # each pass's share depends on the load of all
    walk = Walk(model, pack, head_chunk=head_chunk, routing=routing)
    for visit in walk.visits():
        if not walk.go(visit, objective):
            break
    return walk.scores()


class Walk:
    """One walk over a pack's passes: `forward_only` for each in order, or `go` on all `visits`."""

    def __init__(self, model: nn.Module, pack: Pack, *, head_chunk: int, routing: Routing | None) -> None:
        parameter = next(model.parameters())
        dtype = torch.float64 if parameter.dtype == torch.float64 else torch.float32
        self._model, self._pack, self._chunk, self._routing = model, pack, head_chunk, routing
        self._tree_pass = pass_of(model)
        self._device = parameter.device
        unset = torch.full((len(pack.edges),), math.nan, dtype=dtype, device=self._device)
        self.logp, self.entropy, self._d_logp = unset, unset.clone(), unset.clone()
        self._loss = 0.0
        self.path = Path(max((pass_.past for pass_ in pack.passes), default=0))
        self._pass_of, self._last_pass = _places(pack)
        self.edges_of = _grouped(self._pass_of, len(pack.passes))
        self._ended_by = _grouped(self._last_pass, len(pack.passes))

    def scores(self) -> Scores:
        """The scores of the passes so far."""
        return Scores(self.logp, self.entropy, self._loss)

    def visits(self) -> list[Visit]:
        """All visits that compute the gradients of the pack, in order."""
        found: list[Visit] = []
        open_trunks: list[int] = []
        for number, pass_ in enumerate(self._pack.passes):
            while open_trunks and open_trunks[-1] != pass_.parent:
                found.append(Visit(open_trunks.pop(), True))
            if pass_.trunk:
                found.append(Visit(number, False))
                open_trunks.append(number)
            elif len(self.edges_of[number]) or self._routing is not None:
                found.append(Visit(number, True))  # other leaves have no predictors, only last tokens
        return found + [Visit(number, True) for number in reversed(open_trunks)]

    def go(self, visit: Visit, objective: Objective) -> bool:
        """Make one visit. False: the loss is not finite."""
        if visit.learn:
            return self.learn(visit.number, objective)
        with torch.no_grad():
            self.descend(visit.number)
        return True

    def forward_only(self, number: int) -> None:
        """Forward a pass without a graph."""
        pass_ = self._pack.passes[number]
        with torch.no_grad():
            self.forward(pass_, self.edges_of[number])
            self.path.extend(pass_.trunk)
            if self._routing is not None:
                self._routing.count()

    def forward(self, one: Pass, rows: Longs) -> Tensor:
        """Forward one pass (or only its chain, if `one.ranges` is cut to it), store the logprobs of the edges `rows` and return them."""
        current().progressed()
        self.path.begin(one.past)
        with phase("forward"):
            all_tokens = one.past == 0 and one.tokens == self._pack.plan.tokens
            plan = self._pack.plan if all_tokens else self._pack.plan.part(one.ranges, one.past)
            edges = self._pack.edges
            starts = np.cumsum([0, *(end - begin for begin, end in one.ranges)])
            position = edges.position[rows]
            inside = np.searchsorted([begin for begin, _ in one.ranges], position, "right") - 1
            flat = position - np.array([begin for begin, _ in one.ranges])[inside] + starts[inside]
            with nullcontext() if self._routing is None else self._routing.watching(one.ranges):
                logp, entropy = self._tree_pass(
                    plan,
                    self.path,
                    self._tensor(flat),
                    self._tensor(edges.target[rows]),
                    self._tensor(edges.temperature[rows]),
                    self._chunk,
                )
        places = self._tensor(rows)
        self.logp[places], self.entropy[places] = logp.detach(), entropy
        return logp

    def descend(self, number: int) -> None:
        """Forward a trunk's chain for the passes below it: store its keys and values, and the logprobs of samples that end further down."""
        pass_ = self._pack.passes[number]
        rows = self.edges_of[number]
        chain = Pass(ranges=pass_.ranges[:1], past=pass_.past, trunk=pass_.trunk, parent=pass_.parent)
        self.forward(chain, rows[self._last_pass[rows] != number])
        self.path.extend(pass_.trunk)

    def learn(self, number: int, objective: Objective) -> bool:
        """Forward a pass with its graph, compute the loss of the samples that end in it, and run backward. False: the loss is not finite."""
        pass_, rows, ended = self._pack.passes[number], self.edges_of[number], self._ended_by[number]
        logp = self.forward(pass_, rows)
        if len(ended):
            places = self._tensor(ended)
            leaf = self.logp[places].requires_grad_()
            with phase("loss"):
                with torch.enable_grad():
                    loss = objective(ended, leaf)
                self._loss += float(loss.detach())
                if not math.isfinite(self._loss):
                    return False
                torch.autograd.backward(loss)
            self._d_logp[places] = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
        outputs, gradients = self.path.arrived(pass_.trunk) if pass_.trunk else ([], [])
        balance = self._balance()
        with phase("backward"):
            torch.autograd.backward(
                [logp, *outputs, *balance],
                [self._d_logp[self._tensor(rows)], *gradients, *map(torch.ones_like, balance)],
            )
        return True

    def _balance(self) -> list[Tensor]:
        """The balance loss's share of the pass just forwarded, if there is one."""
        if self._routing is None:
            return []
        if not self._routing.complete:
            self._routing.count()
        return [self._routing.loss()] if self._routing.coefficient else []

    def _tensor(self, values: np.ndarray) -> Tensor:
        return torch.from_numpy(values).to(self._device)


def _places(pack: Pack) -> tuple[Longs, Longs]:
    """int64[E] twice: the pass in which an edge's predictor is forwarded, and the pass of the last edge of its sample."""
    starts = np.array([begin for pass_ in pack.passes for begin, _ in pass_.ranges], np.int64)
    owner = np.array([i for i, pass_ in enumerate(pack.passes) for _ in pass_.ranges], np.int64)
    order = np.argsort(starts)
    edges = pack.edges
    pass_of = owner[order][np.searchsorted(starts[order], edges.position, "right") - 1]
    last_edge = np.searchsorted(edges.sample, edges.sample, "right") - 1
    return pass_of, pass_of[last_edge]


def _grouped(number_of: Longs, count: int) -> list[Longs]:
    """For each of `count` numbers, the edges with that number, in order."""
    order = np.argsort(number_of, kind="stable")
    return np.split(order, np.searchsorted(number_of[order], np.arange(1, count))) if count else []
