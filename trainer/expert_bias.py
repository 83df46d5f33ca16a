"""The selection bias of a mixture of experts: added to a router's scores to choose experts, and not to weigh them.

    b_e ← b_e + rate · sign(mean load − load_e)        after every train step that is applied, in each layer

An expert with more than its share of the tokens becomes less likely to be chosen, one with less more likely; no gradient is involved
(auxiliary-loss-free load balancing: arXiv:2408.15664, algorithm 1; DeepSeek-V3, arXiv:2412.19437, section 2.1.2, with a rate of 0.001). The
load counts a merged token as often as it stands in samples (routing.py), so merged and unmerged training move the same biases. With routing
replay it is that of the recorded experts.
"""

import torch
from torch import Tensor, nn

from orchestrator.contracts.errors import ConfigurationError
from trainer.routing import routers_of

_NAME = "e_score_correction_bias"  # in MiniMax-M2, DeepSeek-V3 and what is made like them


def biases_of(model: nn.Module) -> list[Tensor]:
    """The selection biases [E], in order of layer; none in models without."""
    tensors = [*model.named_buffers(), *model.named_parameters()]
    return [tensor for name, tensor in tensors if name.rpartition(".")[2] == _NAME]


def check_biases(model: nn.Module) -> None:
    """Raise ConfigurationError when there is not one selection bias for each router."""
    if not biases_of(model) or len(biases_of(model)) != len(routers_of(model)):
        raise ConfigurationError(
            "trainer.bias_rate is above 0, but this model's experts are chosen without a bias: set it to 0"
        )


@torch.no_grad()
def move_biases(model: nn.Module, load: Tensor | None, rate: float) -> float | None:
    """Move every bias against its expert's `load` [L, E], in place; nothing with rate 0.

    Returns the largest distance between two biases of one layer then, None for a model without any. Raises ConfigurationError when a rate is
    given and nothing was counted.
    """
    biases = biases_of(model)
    if rate:
        if load is None:
            raise ConfigurationError(
                "the routers of this model do not tell what they choose, so their biases cannot be moved: set trainer.bias_rate to 0"
            )
        for bias, counts in zip(biases, load, strict=True):
            bias += rate * torch.sign(counts.mean() - counts).to(bias)
    return max((float(bias.max() - bias.min()) for bias in biases), default=None)
