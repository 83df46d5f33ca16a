"""The selection bias of a mixture of experts: added to a router's scores to choose experts, but not to weigh them.

`trainer.expert_bias` names the rule:

    frozen   b_e ← b_e                                          the default
    balance  b_e ← b_e + rate · sign(mean load − load_e)        after every train step that is applied, in each layer

The rule "joint" does not exist. A router weighs the chosen experts by σ(s_e) / Σ σ(s_j), which does not contain b. The bias b only affects which
experts are chosen, and that choice is constant except where two experts change places. So ∂loss/∂b is 0 wherever it exists. MiniMax's report
states that the bias is optimised jointly and gives no formula.

With balance, an expert with more than its share of the tokens becomes less likely to be chosen, an expert with less more likely. No gradient is
involved (auxiliary-loss-free load balancing: arXiv:2408.15664, algorithm 1; DeepSeek-V3, arXiv:2412.19437, section 2.1.2, with a rate of 0.001).
The load counts a merged token once per sample that contains it (tree/routing.py), so merged and unmerged training move the biases equally. With
routing replay the load is that of the recorded experts.
"""

import torch
from torch import Tensor, nn

from orchestrator.contracts.errors import ConfigurationError
from trainer.tree.routing import routers_of

_NAME = "e_score_correction_bias"  # in MiniMax-M2, DeepSeek-V3 and similar models


def biases_of(model: nn.Module) -> list[Tensor]:
    """The selection biases [E], in order of layer; empty for a model without them."""
    tensors = [*model.named_buffers(), *model.named_parameters()]
    return [tensor for name, tensor in tensors if name.rpartition(".")[2] == _NAME]


def check_biases(model: nn.Module) -> None:
    """Raise ConfigurationError unless each router has one selection bias."""
    if not biases_of(model) or len(biases_of(model)) != len(routers_of(model)):
        raise ConfigurationError(
            'trainer.expert_bias is "balance", but this model\'s experts are chosen without a bias: begin a new run with '
            'trainer.expert_bias = "frozen"'
        )


@torch.no_grad()
def move_biases(model: nn.Module, load: Tensor | None, rate: float) -> float | None:
    """Move every bias against its expert's `load` [L, E], in place. Rate 0 moves nothing.

    Returns the largest distance between two biases of one layer afterwards; None for a model without biases. Raises ConfigurationError if a rate is
    set and no load was counted.
    """
    biases = biases_of(model)
    if rate:
        if load is None:
            raise ConfigurationError(
                "the routers of this model do not report their choices, so their biases stay: begin a new run with trainer.expert_bias = 'frozen'"
            )
        for bias, counts in zip(biases, load, strict=True):
            bias += rate * torch.sign(counts.mean() - counts).to(bias)
    return max((float(bias.max() - bias.min()) for bias in biases), default=None)
