"""Gradients as the trainer makes them: `trainer.update.train_step` itself, stopped where the optimizer would step."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from trainer.loss.metrics import TrainStepMetrics
from trainer.samples import Sample
from trainer.update import UpdateSettings, train_step

Gradients = Mapping[str, Tensor]  # by parameter name


def step_gradients(
    model: nn.Module, samples: Sequence[Sample], settings: UpdateSettings, trainer_version: int = 0
) -> tuple[TrainStepMetrics, Gradients]:
    """The metrics of one train step and the gradient that its optimizer would get, before clipping. The model stays as it is.

    The model must be attached to tree attention. A skipped step has no gradients: an empty mapping.
    """
    gradients: dict[str, Tensor] = {}

    def take(*_: Any) -> None:
        gradients.update({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})

    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.0)
    optimizer.register_step_pre_hook(take)
    unclipped = replace(settings, max_grad_norm=math.inf, spike_grad_norm=math.inf, bias_rate=0.0)
    metrics = train_step(model, optimizer, samples, unclipped, trainer_version=trainer_version)
    return metrics, gradients
