"""Keys of a configuration that do nothing together with its other keys, one sentence each. Unknown names are refused elsewhere (`preflight`)."""

from collections.abc import Callable, Iterator
from typing import Final

from scaffolds.base import ScaffoldKind
from scaffolds.find import find

from orchestrator.contracts.choices import Anchor, MismatchMask, RateSchedule, WeightTransport
from orchestrator.contracts.network import Grant
from orchestrator.contracts.queue_window import FIFO, GREEDY, WINDOWED
from orchestrator.settings.config import Config
from orchestrator.settings.keys import keys, value_of
from orchestrator.settings.providers import ImagesSection
from orchestrator.settings.trainer import RATIO_BOUNDS

Counts = Callable[[Config], bool]


def _provider(name: str) -> tuple[Counts, str]:
    return lambda config: config.sandbox.provider == name, f'sandbox.provider = "{name}"'


_OWN_SERVERS: Final[Counts] = lambda config: not config.servers.urls
_LORA: Final[tuple[Counts, str]] = (lambda config: config.trainer.lora_rank > 0, "trainer.lora_rank above 0")
_FALLING: Final[tuple[Counts, str]] = (
    lambda config: config.trainer.schedule is not RateSchedule.CONSTANT,
    'trainer.schedule = "linear" or "cosine"',
)
_IMAGES: Final[tuple[Counts, str]] = (
    lambda config: bool(config.sandbox.images.directory),
    "sandbox.images.directory",
)
_RATIOS: Final[tuple[Counts, str]] = (
    lambda config: config.trainer.loss in RATIO_BOUNDS,
    f"a trainer.loss with a ratio ({', '.join(RATIO_BOUNDS)})",
)
_ADVANTAGES: Final[tuple[Counts, str]] = (
    lambda config: config.trainer.loss != "sft",
    'a trainer.loss with advantages, which "sft" does not use',
)
_NOISE: Final[tuple[Counts, str]] = (
    lambda config: config.reward.measures_noise,
    'reward.speed_weight above 0, and reward.zero_signal = "returns" or reward.advantage_std',
)
NEEDS: Final[dict[str, tuple[Counts, str]]] = {
    "sandbox.container": _provider("container"),
    "sandbox.images": _provider("bubblewrap"),
    **{f"sandbox.images.{key}": _IMAGES for key in ImagesSection.model_fields.keys() - {"directory"}},
    "sandbox.kubernetes": _provider("kubernetes"),
    "sandbox.max_memory_mb": (
        lambda config: config.sandbox.max_memory_mb >= config.sandbox.memory_mb,
        "at least sandbox.memory_mb",
    ),
    "sandbox.max_disk_mb": (
        lambda config: config.sandbox.max_disk_mb >= config.sandbox.disk_mb,
        "at least sandbox.disk_mb",
    ),
    "web.exposed": (lambda config: not config.web.loopback, "a web.host that other machines reach"),
    "sandbox.egress_mb": (lambda config: config.sandbox.egress is not Grant.NONE, "sandbox.egress"),
    "queue.window_fraction": (
        lambda config: config.queue.policy not in (FIFO, GREEDY),
        f'a queue.policy with a window ("{WINDOWED}", or one of your own)',
    ),
    "rollout.observation_characters": (
        lambda config: config.rollout.observation_lines == 0,
        "rollout.observation_lines = 0",
    ),
    "sampling.repetition_probability": (
        lambda config: config.sampling.repetition_tokens > 0,
        "sampling.repetition_tokens above 0",
    ),
    "reward.batch_scale": _ADVANTAGES,
    "reward.noise_replays": _NOISE,
    "reward.noise_interval_s": _NOISE,
    "servers.embedded": (_OWN_SERVERS, "an empty servers.urls"),
    "servers.command": (_OWN_SERVERS, "an empty servers.urls"),
    "servers.hang_s": (_OWN_SERVERS, "an empty servers.urls"),
    "servers.max_running": (
        lambda config: _OWN_SERVERS(config) and not config.servers.command,
        "embedded rollout servers",
    ),
    "servers.max_total_tokens": (
        lambda config: _OWN_SERVERS(config) and not config.servers.command,
        "embedded rollout servers",
    ),
    "servers.sender_address": (
        lambda config: config.servers.transport is WeightTransport.DISTRIBUTED,
        'servers.transport = "distributed"',
    ),
    "trainer.ratio_min": _RATIOS,
    "trainer.ratio_max": _RATIOS,
    "trainer.negative_scale": _ADVANTAGES,
    "trainer.permute_advantages": _ADVANTAGES,
    "trainer.lora_alpha": _LORA,
    "trainer.lora_targets": _LORA,
    "trainer.decay_steps": _FALLING,
    "trainer.last_lr_share": _FALLING,
    "trainer.decay_vectors": (lambda config: config.trainer.weight_decay > 0, "trainer.weight_decay above 0"),
    "trainer.tis_max": (
        lambda config: config.trainer.anchor is Anchor.PROXIMAL and config.trainer.mask is MismatchMask.NONE,
        'trainer.anchor = "proximal" without a mask',
    ),
    "trainer.icepop_min": (
        lambda config: config.trainer.mask is MismatchMask.ICEPOP,
        'trainer.mask = "icepop"',
    ),
    "trainer.icepop_max": (
        lambda config: config.trainer.mask is MismatchMask.ICEPOP,
        'trainer.mask = "icepop"',
    ),
    "trainer.mis_max": (lambda config: config.trainer.mask is MismatchMask.MIS, 'trainer.mask = "mis"'),
}
"""A key, or all keys below it: whether they count in a configuration, and what they need."""


def no_effect(config: Config) -> list[str]:
    """The keys with a value of their own that does nothing in this configuration, with the reason."""
    return [*_unneeded(config), *_parts(config), *_capacity(config), *_limits(config), *_contexts(config)]


def _unneeded(config: Config) -> Iterator[str]:
    for key in keys():
        for name, (counts, needs) in NEEDS.items():
            if not f"{key.name}.".startswith(f"{name}.") or counts(config):
                continue
            if value_of(config, key.name) != key.default:
                yield f"{key.name} has no effect: it needs {needs}"
            break  # one reason is enough


def _parts(config: Config) -> Iterator[str]:
    groups = config.queue.batch_groups
    if config.trainer.parts > groups:
        yield (
            f"trainer.parts has no effect above queue.batch_groups: a batch of {groups} groups has {groups} train steps, "
            f"not {config.trainer.parts}"
        )


def _capacity(config: Config) -> Iterator[str]:
    queue = config.queue
    if queue.capacity > queue.places:
        rest = (
            ""
            if queue.policy in (FIFO, GREEDY)
            else f", and only widens the window to {queue.window} positions"
        )
        yield (
            f"queue.capacity = {queue.capacity} has no effect on the groups in flight above (queue.max_staleness + 1) · queue.batch_groups = "
            f"{queue.places}{rest}"
        )


def _limits(config: Config) -> Iterator[str]:
    for stage in config.stage.all:
        where = "stage" if stage is config.stage else f"stage.then ({stage.name})"
        for domain in stage.limits:
            if not stage.has(domain):
                yield f"{where}.limits.{domain} holds in evaluations alone: {domain} has no share in the stage's domains"


def _contexts(config: Config) -> Iterator[str]:
    for name in config.rollout.context:
        try:
            is_white = find(name).manifest.kind is ScaffoldKind.WHITE
        except (ValueError, ImportError):  # `check_scaffolds` names the error
            continue
        if not is_white:
            yield f"rollout.context.{name} has no effect: {name} is a black box, which manages its context itself; penstock up refuses it"
        elif config.rollout.scaffolds.get(name, 0.0) <= 0:
            yield f"rollout.context.{name} holds in evaluations alone: {name} has no share in rollout.scaffolds"
