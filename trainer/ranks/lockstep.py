"""One walk of all ranks: each over its own pack, with the same gathers and reductions in the same order.

A forward pass gathers every layer once. With a backward pass, every layer is gathered twice and reduced once. A rank whose tree has other
passes than another rank's would wait forever. So the ranks exchange their plans and walk in rounds of one kind:

    rank 0      look  learn learn       learn       look = forward alone, a trunk on the way down
    rank 1      look  learn idle  ...               learn = forward, loss, backward
    rounds      look  learn learn       learn

A rank without a pass of that kind is *idle*: it forwards one token and learns nothing from it. That touches every parameter and adds a
gradient of exactly zero. A loss that is not finite does not end the walk: from then on that rank's losses are zero, and all ranks skip the
train step at the end.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from orchestrator.runtime.liveness import current
from orchestrator.trajectory.branch import Branch
from trainer.logprobs import CHUNK
from trainer.ranks.process_group import Ranks
from trainer.ranks.routing import SpreadRouting
from trainer.tree.execute import Objective, Scores, Walk
from trainer.tree.forward import pass_of
from trainer.tree.pack import Pack
from trainer.tree.path import Path
from trainer.tree.plan import FlatTree, Longs


def score_together(model: nn.Module, pack: Pack, ranks: Ranks, head_chunk: int = CHUNK) -> Scores:
    """Logprobs and entropies of this rank's pack, without any graph."""
    walk = Walk(model, pack, head_chunk=head_chunk, routing=None)
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
    """Add the gradients of all ranks' losses to the parameters'. The returned `loss` is this rank's alone; NaN: it was not finite."""
    if routing is not None and routing.coefficient:
        _look(Walk(model, pack, head_chunk=head_chunk, routing=routing), model, pack, ranks)
        routing.meet(ranks)  # each pass's share depends on the load of all ranks
    walk = Walk(model, pack, head_chunk=head_chunk, routing=routing)
    finite = _WhileFinite(objective)
    visits = iter(walk.visits())
    for learn, takes_part in rounds([visit.learn for visit in walk.visits()], ranks):
        if takes_part:
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
    """The rounds of each rank, from the plans of all ranks. A round is a look if the next visit of any rank is a look.

    >>> aligned([[False, True, True], [True]])
    [[(False, True), (True, True), (True, True)], [(False, False), (True, True), (True, False)]]
    """
    at = [0] * len(plans)
    found: list[list[tuple[bool, bool]]] = [[] for _ in plans]
    while any(position < len(plan) for position, plan in zip(at, plans, strict=True)):
        learn = all(plan[position] for position, plan in zip(at, plans, strict=True) if position < len(plan))
        for rank, plan in enumerate(plans):
            takes_part = at[rank] < len(plan) and plan[at[rank]] == learn
            found[rank].append((learn, takes_part))
            at[rank] += takes_part
    return found


def idle(model: nn.Module, *, learn: bool) -> None:
    """Forward one token; with `learn` backward too, for gradients of zero."""
    current().progressed()
    empty = torch.empty(0, dtype=torch.int64, device=next(model.parameters()).device)
    with torch.set_grad_enabled(learn):
        logp, _ = pass_of(model)(_ONE_TOKEN, Path(0), empty, empty, empty.double(), CHUNK)
    if learn:
        torch.autograd.backward([logp], [torch.zeros_like(logp)])


_ONE_TOKEN = FlatTree([Branch(own=np.zeros(1, np.int32))]).plan


class _WhileFinite:
    """An objective whose losses are zero after the first loss that is not finite."""

    def __init__(self, objective: Objective) -> None:
        self._objective = objective
        self.lost = False

    def __call__(self, rows: Longs, logp: Tensor) -> Tensor:
        if not self.lost:
            loss = self._objective(rows, logp)
            if bool(loss.detach().isfinite()):
                return loss
            self.lost = True
        return logp[:0].sum()  # an empty sum: zero, with gradient zero


def _look(walk: Walk, model: nn.Module, pack: Pack, ranks: Ranks) -> None:
    """Forward every pass without a graph."""
    for number, (_, takes_part) in enumerate(rounds([False] * len(pack.passes), ranks)):
        if takes_part:
            walk.forward_only(number)  # a rank with passes left makes one in every round
        else:
            idle(model, learn=False)
