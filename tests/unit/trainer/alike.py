"""Whether a model that is spread over ranks equals the model of a single rank, in everything that it computes with."""

from typing import Any

import torch

from trainer.ranks.fsdp import whole


def differences(spread: Any, expected: Any) -> list[str]:
    """The names of the parts in which `spread` differs, bit for bit; includes tied tensors, attributes and settings."""
    ours, theirs = (
        {
            **dict(model.named_parameters(remove_duplicate=False)),
            **dict(model.named_buffers(remove_duplicate=False)),
            **{
                f"{name}.{key}": value
                for name, module in model.named_modules()
                for key, value in vars(module).items()
                if isinstance(value, torch.Tensor)
            },
        }
        for model in (spread, expected)
    )
    assert list(ours) == list(theirs) and any("inv_freq" in name for name in ours)
    found = []
    for name, tensor in theirs.items():
        mine = whole(ours[name])
        same = torch.equal(mine, tensor) and mine.dtype == tensor.dtype and mine.device == tensor.device
        if not same or ours[name].requires_grad != tensor.requires_grad:
            found.append(name)
    tied = [
        {frozenset(name for name in given if given[name] is one) for one in given.values()}
        for given in (ours, theirs)
    ]
    settings = [
        {
            "training": [module.training for module in model.modules()],
            "configuration": model.config.to_dict(),
            "attention": model.config._attn_implementation,
            "experts": getattr(model.config, "_experts_implementation", None),
            **{
                f"{name}.{key}": value
                for name, module in model.named_modules()
                for key, value in vars(module).items()
                if isinstance(value, str | int | float | bool | None)
                and "fsdp" not in key
                and key != "_is_hf_initialized"  # only loading uses it
            },
        }
        for model in (spread, expected)
    ]
    found += [] if tied[0] == tied[1] else ["tied"]
    return found + [
        key for key in settings[0].keys() | settings[1] if settings[0].get(key) != settings[1].get(key)
    ]
