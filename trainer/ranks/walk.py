"""One walk of all ranks: each over its own pack, with the same gathers and reductions in the same order.

A forward pass gathers every layer once; one with a backward pass gathers every layer twice and reduces it once. A rank whose tree has other
passes than its neighbour's would wait for ever. So the ranks tell each other what they are going to do and walk in rounds of one kind:

    rank 0      look  learn learn       learn       look = forward alone, a trunk on the way down
    rank 1      look  learn idle  ...               learn = forward, loss, backward
    rounds      look  learn learn       learn

Who has nothing of that kind to do is *idle*: it forwards one token and learns nothing from it, which touches every parameter and adds a
gradient of exactly zero. A loss that is not finite does not end the walk: from then on that rank's losses are zero, and all skip the train step
at its end.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from orchestrator.contracts.branch import Branch
from orchestrator.progress import current
from trainer.logprobs import CHUNK
from trainer.ranks.meeting import Ranks
from trainer.ranks.routing import SpreadRouting
from trainer.tree.execute import Objective, Scores, Walk
from trainer.tree.forward import pass_of
from trainer.tree.pack import Pack
from trainer.tree.path import Path
from trainer.tree.plan import FlatTree, Longs


def score_together(model: nn.Module, pack: Pack, ranks: Ranks, head_chunk: int = CHUNK) -> Scores:
    """Logprobs and entropies of this rank's pack, without any graph."""
    walk = Walk(model, pack, head_chunk, None)
    _look(walk, model, pack, ranks)
    return walk.scores()


def backward_together(
    model: nn.Module,
    pack: Pack,
    objective: Objective,
    ranks: Ranks,
    head_chunk: int = CHUNK,
    routing: SpreadRouting | None = None,
) -> Scores:
    """Add the gradients of all ranks' losses to the parameters'. `loss` of the answer is this rank's alone; NaN: it was not finite."""
    if routing is not None and routing.coefficient:
        _look(Walk(model, pack, head_chunk, routing), model, pack, ranks)
        routing.meet(ranks)  # each pass's share depends on the load of all ranks
    walk = Walk(model, pack, head_chunk, routing)
    finite = _WhileFinite(objective)
    visits = iter(walk.visits())
    for learn, mine in rounds([visit.learn for visit in walk.visits()], ranks):
        if mine:
            walk.go(next(visits), finite)
        else:
            idle(model, learn=learn)
    if routing is not None and not routing.coefficient:
        routing.meet(ranks)
    found = walk.scores()
    return Scores(found.logprobs, found.entropies, math.nan if finite.lost else found.loss)


def rounds(learns: Sequence[bool], ranks: Ranks) -> list[tuple[bool, bool]]:
    """(learn, mine) of every round: its kind, the same on all ranks, and whether this rank's next visit is made in it."""
    return aligned(ranks.exchange(list(learns)))[ranks.rank]


def aligned(plans: Sequence[Sequence[bool]]) -> list[list[tuple[bool, bool]]]:
    """The rounds of each rank, from what all of them plan. A round looks as long as any rank is about to look.

    >>> aligned([[False, True, True], [True]])
    [[(False, True), (True, True), (True, True)], [(False, False), (True, True), (True, False)]]
    """
    at = [0] * len(plans)
    found: list[list[tuple[bool, bool]]] = [[] for _ in plans]
    while any(place < len(plan) for place, plan in zip(at, plans, strict=True)):
        learn = all(plan[place] for place, plan in zip(at, plans, strict=True) if place < len(plan))
        for rank, plan in enumerate(plans):
            mine = at[rank] < len(plan) and plan[at[rank]] == learn
            found[rank].append((learn, mine))
            at[rank] += mine
    return found


def idle(model: nn.Module, *, learn: bool) -> None:
    """Forward one token; with `learn` backward too, for gradients of zero."""
    current().moved()
    nothing = torch.empty(0, dtype=torch.int64, device=next(model.parameters()).device)
    with torch.set_grad_enabled(learn):
        logp, _ = pass_of(model)(_ONE_TOKEN, Path(0), nothing, nothing, nothing.double(), CHUNK)
    if learn:
        torch.autograd.backward([logp], [torch.zeros_like(logp)])


_ONE_TOKEN = FlatTree([Branch(np.zeros(1, np.int32))]).plan


class _WhileFinite:
    """An objective whose losses are zero from the first one on that is not finite."""

    def __init__(self, objective: Objective) -> None:
        self._objective = objective
        self.lost = False

    def __call__(self, rows: Longs, logp: Tensor) -> Tensor:
        if not self.lost:
            loss = self._objective(rows, logp)
            if bool(loss.detach().isfinite()):
                return loss
            self.lost = True
        return logp[:0].sum()  # of nothing: zero, and so is its gradient


def _look(walk: Walk, model: nn.Module, pack: Pack, ranks: Ranks) -> None:
    """Forward every pass without a graph."""
    for number, (_, mine) in enumerate(rounds([False] * len(pack.passes), ranks)):
        if mine:
            walk.look(number)  # whoever has passes left makes one in every round
        else:
            idle(model, learn=False)
