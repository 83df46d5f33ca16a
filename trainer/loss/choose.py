"""The losses by name."""

from collections.abc import Callable, Mapping

from trainer.loss.base import Loss
from trainer.loss.cispo import Cispo
from trainer.loss.dapo import Dapo
from trainer.loss.grpo import Grpo
from trainer.loss.gspo import Gspo
from trainer.loss.reinforce import Reinforce
from trainer.loss.sft import Sft

BOUNDED: Mapping[str, Callable[[float, float], Loss]] = {
    "cispo": Cispo,
    "grpo": Grpo,
    "dapo": Dapo,
    "gspo": Gspo,
}
UNBOUNDED: Mapping[str, Callable[[], Loss]] = {"reinforce": Reinforce, "sft": Sft}


def make_loss(name: str, ratio_min: float, ratio_max: float) -> Loss:
    """The loss `name` with these absolute ratio bounds, which `reinforce` and `sft` ignore. ValueError lists the known names."""
    if name in BOUNDED:
        return BOUNDED[name](ratio_min, ratio_max)
    if name in UNBOUNDED:
        return UNBOUNDED[name]()
    raise ValueError(f"unknown loss {name!r}; known: {', '.join([*BOUNDED, *UNBOUNDED])}")
