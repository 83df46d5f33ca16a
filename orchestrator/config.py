"""What people write: one TOML file plus dotted overrides, validated once, frozen, unknown keys refused by name.

`load` returns the resolved configuration; its JSON form is what `runs.config` keeps. Times are seconds, sizes are counts unless named.
"""

import ipaddress
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BaseModel, Field, ValidationError, computed_field, model_validator

from orchestrator.clock import SCALED, Clock, Seconds, Wait
from orchestrator.contracts.errors import ConfigurationError
from orchestrator.contracts.ids import check_name
from orchestrator.course import DomainLimits, NextStage, Positive, Section, StageSection
from orchestrator.environment import named
from orchestrator.explain import explain
from orchestrator.providers import ContainerSection, KubernetesSection
from orchestrator.sampling import SamplingSection as SamplingSection

Decay = Annotated[float, Field(ge=0, lt=1)]

FILE = "penstock.toml"


class RunSection(Section):
    """Which run, and the seed that every other seed derives from."""

    name: str = "default"
    seed: int = 0

    @model_validator(mode="after")
    def _name(self) -> "RunSection":
        check_name("run", self.name)
        return self


class ServicesSection(Section):
    """Services to use instead of the embedded ones. Empty: $DATABASE_URL / $NATS_URL, else started by `penstock up`. Servers of one NATS cluster
    are named with commas between them; from three on, streams have three replicas."""

    database_url: str = ""
    nats_url: str = ""


class PolicySection(Section):
    """The first policy: a Hugging Face directory with weights, config and tokenizer. `directory`: where the weights of all versions are kept;
    gateways, rollout servers and trainer see it at the same path. Empty: .penstock/policies beside penstock.toml."""

    model: str = ""
    directory: str = ""


class QueueSection(Section):
    """Windowed FIFO. `capacity` (N) bounds dispatched − resolved − consumed; the window is max(1, ⌊fraction · N⌋)."""

    policy: str = "windowed"
    batch_groups: Positive = 8  # P
    max_staleness: Annotated[int, Field(ge=0)] = 2  # S: batches
    capacity: Positive = 24  # N
    window_fraction: Annotated[float, Field(gt=0, le=1)] = 0.3
    group_size: Annotated[int, Field(ge=2)] = 4  # G
    max_attempts: Positive = 3
    min_batch_groups: Annotated[int, Field(ge=0)] = 0  # P_min; 0 = ⌈P/2⌉
    # The circuit breaker: nothing is dispatched while this share of the attempts that ended lately failed for the platform's sake.
    breaker_rate: Annotated[float, Field(gt=0, le=1)] = 0.5
    breaker_attempts: Positive = 50  # fewer say nothing
    breaker_window_s: Seconds = 60.0

    @computed_field  # type: ignore[prop-decorator]
    @property
    def window(self) -> int:
        """W, in queue positions."""
        return max(
            1, math.floor(round(self.window_fraction * self.capacity, 9))
        )  # 0.29 · 100 is not 29 in binary

    @property
    def short_batch(self) -> int:
        """P_min, in groups."""
        return self.min_batch_groups or math.ceil(self.batch_groups / 2)

    @model_validator(mode="after")
    def _fits(self) -> "QueueSection":
        if self.capacity < self.batch_groups:
            raise ValueError(
                f"queue.capacity ({self.capacity}) must be at least queue.batch_groups ({self.batch_groups}), else no batch ever fills"
            )
        return self


class NoContext(Section):
    """The history only grows."""

    policy: Literal["none"]


class _Turns(Section):
    """Once a history holds `max_turns` turns (a reply and what came back for it), the newest `keep_turns` stay."""

    max_turns: Positive = 8

    @model_validator(mode="after")
    def _shrinks(self) -> Self:
        keep = getattr(self, "keep_turns", 0)
        if keep >= self.max_turns:
            raise ValueError(f"keep_turns ({keep}) must be less than max_turns ({self.max_turns})")
        return self


class SlidingWindowContext(_Turns):
    """Nothing stands for what goes."""

    policy: Literal["sliding_window"]
    keep_turns: Positive = 4


class PeriodicSummaryContext(_Turns):
    """A summary of the policy's own making stands for what goes; asking for it is one of its turns."""

    policy: Literal["periodic_summary"]
    keep_turns: Annotated[int, Field(ge=0)] = 1


class DropRepliesContext(Section):
    """Past this share of `stage.max_context`, replies and tool returns go, but for the newest `keep_turns` turns."""

    policy: Literal["drop_replies"]
    past: Annotated[float, Field(gt=0, le=1)] = 0.3
    keep_turns: Annotated[int, Field(ge=0)] = 1


ContextSection = Annotated[
    NoContext | SlidingWindowContext | PeriodicSummaryContext | DropRepliesContext,
    Field(discriminator="policy"),
]
"""Context management of one white-box scaffold."""


class RolloutSection(Section):
    """Runners: concurrent rollouts, leases, time limits of an attempt, the shares of scaffolds among new groups, and the context
    management of white-box scaffolds by their name."""

    slots: Positive = 8
    verify_slots: Positive = 2
    scaffolds: dict[str, float] = Field(default={"shell": 1.0})
    context: dict[str, ContextSection] = Field(default={})
    lease_ttl_s: Seconds = 30.0
    timeout_s: Seconds = 300.0
    stall_s: Seconds = 60.0
    retry_delay_s: Wait = 1.0
    remind_s: Seconds = 300.0  # an assignment that nobody took for so long is owed again
    max_resumes: Annotated[int, Field(ge=0)] = 3  # of one rollout; 0: a lost runner costs the attempt
    train_timeouts: bool = False  # an agent's own timeout: trained as a failure, else filtered

    @model_validator(mode="after")
    def _shares(self) -> "RolloutSection":
        if min(self.scaffolds.values(), default=0) < 0 or sum(self.scaffolds.values()) <= 0:
            raise ValueError(f"scaffolds must be shares >= 0 with at least one above 0, not {self.scaffolds}")
        return self


class SandboxSection(Section):
    """The provider and the limits of one sandbox. `base_images`: what a Dockerfile may begin FROM where no image is built, because this
    machine's own system stands for it."""

    provider: str = "bubblewrap"
    base_images: tuple[str, ...] = (
        "debian:12",
        "debian:12-slim",
        "debian:bookworm",
        "debian:bookworm-slim",
        "python:3.11",
        "python:3.11-slim",
        "python:3.11-bookworm",
        "python:3.11-slim-bookworm",
    )
    memory_mb: Positive = 512
    processes: Positive = 64
    cpu_s: Positive = 60
    disk_mb: Positive = 64
    container: ContainerSection = ContainerSection()
    kubernetes: KubernetesSection = KubernetesSection()


class GatewaySection(Section):
    """Where the gateway listens. Port 0 takes a free one; the Unix socket is what sandboxes see.

    `unproven_template`: what to do with a model whose chat template rewrites what was said before, so that a conversation does not extend.
    `refuse` to start, or render every request whole and make it a sample of its own (`per_request`).
    `spool_mb`: recorded steps that Postgres does not have yet are kept in memory and on disk; with so many of them new completions wait.
    `routes_mb`: with trainer.routing_replay, a step whose message would be larger is recorded without routes, or with fewer. Where the bus
    takes less (an external NATS as it comes: 1 MiB), that holds.
    `replay_hold_s`: how long a resumed program's request that is not on record waits for those that are, before it counts as diverged.
    For runners on other hosts (ops/guides/hosts.md): `sandbox_port` is a second port with what sandboxes may reach and nothing else, 0: none;
    `secret_file` the admin secret that all gateways of a run and their runners read, empty: beside the run, made by the gateway; `urls` the
    gateways that runners use, none: the one beside them.
    """

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 0
    sandbox_port: Annotated[int, Field(ge=0, le=65535)] = 0
    secret_file: str = ""
    urls: tuple[str, ...] = ()
    body_limit_mb: Positive = 64
    spool_mb: Annotated[float, Field(gt=0)] = 512.0
    routes_mb: Annotated[float, Field(gt=0)] = 6.0
    session_ttl_s: Seconds = 3600.0
    replay_hold_s: Seconds = 2.0
    canary_tolerance: Annotated[float, Field(gt=0)] = 0.02  # not given: as trainer.dtype (CANARY_TOLERANCES)
    unproven_template: Literal["refuse", "per_request"] = "refuse"

    @model_validator(mode="after")
    def _ports(self) -> "GatewaySection":
        if self.port and self.port == self.sandbox_port:
            raise ValueError(
                f"port and sandbox_port are both {self.port}: sandboxes must not reach the admin API, so give them a port of their own"
            )
        return self


class ServersSection(Section):
    """Rollout servers that speak SGLang's protocol: given ones (`urls`), else as many as `embedded` says are started here.

    Those are the embedded server for CPUs, or what `command` says, a program with arguments: in these `{model}` is the policy's directory,
    `{port}` the port of 127.0.0.1 to listen on and `{seed}` a number of each server's own. It has options of its own in the
    place of `max_running` and `max_total_tokens`.
    The last `evaluation` of them serve what open evaluations pin, and never train; without any, evaluations run on the newest version alone.
    Each is looked at every `probe_s`; `silence_s` after its last answer its calls go on elsewhere. A call leaves the server that has its
    session's prefix when it would wait there for more than `spill_s`. `lease_ttl_s` after its last sign of life a gateway loses its
    servers to another one.

    New weights travel through a directory that trainer and servers see, or (`transport` distributed) by a process that the gateway starts
    and that sends them to the server's own processes; `sender_address` is where servers reach this machine. A server that does not take
    them so reads the directory.
    """

    urls: list[str] = Field(default=[])
    embedded: Positive = 1
    evaluation: Annotated[int, Field(ge=0)] = 0
    command: list[str] = Field(default=[])
    max_running: Positive = 64
    max_total_tokens: Positive = 262144
    probe_s: Seconds = 0.5
    silence_s: Seconds = 5.0
    spill_s: Seconds = 2.0
    lease_ttl_s: Seconds = 10.0
    drain_s: Seconds = 3.0  # after a pause, before requests that the server holds are cut off
    update_s: Seconds = 600.0  # to load new weights
    retry_s: Seconds = 10.0  # longest wait after a weight sync that failed
    look_s: Seconds = 2.0  # between looks for versions that the bus did not tell
    transport: Literal["directory", "distributed"] = "directory"
    sender_address: str = "127.0.0.1"

    @model_validator(mode="after")
    def _listens(self) -> "ServersSection":
        if self.command and not any("{port}" in part for part in self.command):
            raise ValueError("servers.command must say where to listen: use {port} in one of its parts")
        if self.evaluation >= (count := len(self.urls) or self.embedded):
            raise ValueError(
                f"servers.evaluation is {self.evaluation} of {count}: leave at least one rollout server for training, for example with "
                f"servers.embedded = {self.evaluation + 1}"
            )
        return self

    def starts(self, model: str, port: int, seed: int) -> tuple[str, ...]:
        """`command` with its places filled in; empty: the embedded server."""
        places = {"{model}": model, "{port}": str(port), "{seed}": str(seed)}
        return tuple(re.sub("|".join(places), lambda found: places[found[0]], part) for part in self.command)


class ProcessesSection(Section):
    """Processes that `penstock up` keeps alive. One that dies starts again after `restart_first_s`, after each further death in a row
    after twice as long, at most `restart_longest_s`; `restart_limit` deaths within `restart_window_s` and it is given up."""

    restart_first_s: Seconds = 0.1
    restart_longest_s: Seconds = 10.0
    restart_limit: Positive = 8
    restart_window_s: Seconds = 60.0


class RewardSection(Section):
    """Composite reward: performance + beta · speed + alpha · process; alpha is `process_weight` / steps of the rollout."""

    process_weight: float = 0.1
    speed_weight: float = 0.1
    gamma: Annotated[float, Field(ge=0, le=1)] = 1.0  # discount of rewards to go, per step
    leave_one_out: bool = False  # the baseline leaves a member's own return out
    advantage_std: bool = False  # divide by the group's standard deviation of performance + 1e-4
    batch_scale: Literal["none", "std", "whiten"] = "none"  # divide by the batch's spread; whiten: centre too
    zero_signal: Literal["performance", "returns"] = "performance"  # what must differ for a group to train


LossName = Literal["cispo", "grpo", "dapo", "gspo", "reinforce", "sft"]

RATIO_BOUNDS: Mapping[str, tuple[float, float]] = {
    "cispo": (0.0, 5.0),
    "grpo": (0.8, 1.2),
    "dapo": (0.8, 1.28),
    "gspo": (0.9997, 1.0004),
}
"""`trainer.ratio_min` and `ratio_max` where they are not given; the other losses have no ratio."""


CANARY_TOLERANCES: Mapping[str, float] = {"float32": 0.02, "bfloat16": 0.2}
"""`gateway.canary_tolerance` where it is not given, by `trainer.dtype`: bfloat16 rounds logprobs of a sharp policy by up to 0.1."""


class TrainerSection(Section):
    """The loss and AdamW (ops/guides/losses.md). Ratio bounds are absolute: an offset of 0.2 above 1 is written 1.2."""

    ranks: Positive = 1  # processes of this machine that train together (ops/guides/ranks.md)
    lora_rank: Annotated[int, Field(ge=0)] = (
        0  # r of low-rank adapters (ops/guides/lora.md); 0: all weights train
    )
    lora_alpha: Positive = 32  # their scale is alpha ÷ r
    lora_targets: Annotated[tuple[str, ...], Field(min_length=1)] = ("all",)  # names of linear layers
    parts: Positive = 1  # U, the train steps of one batch
    loss: LossName = "cispo"
    ratio_min: float = 0.0  # not given: the loss's own (RATIO_BOUNDS)
    ratio_max: Annotated[float, Field(allow_inf_nan=False)] = 5.0  # not given: the loss's own
    negative_scale: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0  # of negative advantages
    balance: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0  # of a mixture of experts: router loss
    bias_rate: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0  # of its selection bias
    routing_replay: bool = False  # the experts that rollout servers recorded are used again
    aggregation: Literal["token", "prompt", "sample"] = "token"  # what counts the same in the denominator
    anchor: Literal["behavior", "proximal"] = (
        "behavior"  # of the ratio; proximal: the trainer before the batch
    )
    mask: Literal["none", "icepop", "mis"] = "none"  # tokens or samples of too large a mismatch do not train
    tis_max: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 2.0  # proximal, no mask: largest weight
    icepop_min: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.5  # trainer ÷ behavior, per token
    icepop_max: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 5.0
    mis_max: Annotated[float, Field(gt=0, allow_inf_nan=False)] = (
        2.0  # trainer ÷ behavior, product of a sample
    )
    lr: Annotated[float, Field(gt=0)] = 1e-5  # the highest rate
    schedule: Literal["constant", "linear", "cosine"] = "constant"  # of the rate, after the warm-up
    warmup_steps: Annotated[int, Field(ge=0)] = 0  # train steps of linear rise
    decay_steps: Annotated[int, Field(ge=0)] = (
        0  # the train step of the run from which on lr is last_lr_share · lr
    )
    last_lr_share: Annotated[float, Field(ge=0, le=1)] = 0.0
    betas: tuple[Decay, Decay] = (0.9, 0.95)
    eps: Annotated[float, Field(gt=0)] = 1e-8  # smaller for small gradients: 1e-15 in MiniMax-M1
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    decay_vectors: bool = True  # false: norms and biases have no weight decay
    clip_norm: Annotated[float, Field(gt=0)] = 1.0  # gradients longer than this are shortened to it
    spike_norm: Annotated[float, Field(ge=0)] = 0.0  # longer ones skip their train step; 0: none do
    pack_tokens: Positive = 16384  # merged tokens of one forward pass: bounds memory
    pack_pairs: Positive = (
        1 << 28
    )  # (query, key) pairs of one forward pass: bounds its time where contexts are long
    dtype: Literal["float32", "bfloat16"] = (
        "float32"  # of the passes; weights, gradients and moments are float32 (ops/guides/precision.md)
    )
    activation_checkpointing: bool = False  # layers run again in the backward pass: less memory, more time
    keep_logprobs: bool = (
        True  # trainer logprobs of every trained token go to the data pool (ops/guides/losses.md)
    )
    keep_checkpoints: Positive = 3
    permute_advantages: bool = False  # the control: advantages shuffled within each batch

    @model_validator(mode="before")
    @classmethod
    def _bounds_of_loss(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        low, high = RATIO_BOUNDS.get(str(given.get("loss")), RATIO_BOUNDS["cispo"])
        return {"ratio_min": low, "ratio_max": high, **given}

    @model_validator(mode="after")
    def _bounds(self) -> "TrainerSection":
        if not (0 <= self.ratio_min <= 1 <= self.ratio_max and self.ratio_min < self.ratio_max):
            raise ValueError(
                f"ratio_min is {self.ratio_min} and ratio_max {self.ratio_max}: they are absolute ratios with 1 between them, "
                "so an offset of 0.2 above 1 is written 1.2"
            )
        if self.icepop_min >= self.icepop_max:
            raise ValueError(
                f"icepop_min ({self.icepop_min}) must be less than icepop_max ({self.icepop_max})"
            )
        return self

    @model_validator(mode="after")
    def _falls(self) -> "TrainerSection":
        if self.schedule != "constant" and self.decay_steps <= self.warmup_steps:
            raise ValueError(
                f"schedule is {self.schedule!r}, so decay_steps ({self.decay_steps}) must be more than warmup_steps ({self.warmup_steps})"
            )
        return self


class WatchdogSection(Section):
    """What counts as stuck: a loop that works and makes no progress for `no_progress_s`, an event loop that does not run for `lag_s`.

    A stuck loop is named in the log, in the metrics and by `penstock status`, and begun anew where that is safe; a process whose event loop
    hangs for `no_progress_s` ends, so that its supervisor starts another.

    No alarm comes later than a minute after the progress ended: 45 s, up to a twelfth until the heartbeat that says so, two looks of the
    orchestrator, a twelfth each: 45 × 15/12 = 56.25 s, and 3.75 s for what the heartbeat and the looks themselves take.
    """

    no_progress_s: Seconds = 45.0
    lag_s: Seconds = 5.0


class MetricsSection(Section):
    """Where each process answers Prometheus (ops/guides/metrics-and-logs.md). `ports`: of processes by name, { trainer = 9101 }; every other one
    takes a free port, and says in .penstock/run/NAME.metrics.json which."""

    host: str = "127.0.0.1"
    ports: dict[str, Annotated[int, Field(ge=0, le=65535)]] = Field(default={})


class WebSection(Section):
    """Where the dashboard listens; port 0 takes a free one, and the same again after a restart. Whoever has its token can steer the run, over
    HTTP without encryption: an address that other machines reach needs `exposed`, and `hosts` the names that browsers use for it."""

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 0
    exposed: bool = False
    hosts: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _loopback(self) -> "WebSection":
        try:
            loopback = ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            loopback = self.host == "localhost"
        if not loopback and not self.exposed:
            raise ValueError(
                f"host is {self.host!r}, which other machines may reach: leave it at 127.0.0.1 and use an SSH tunnel, or set web.exposed = true "
                "if everybody who can reach it may read the token on its way and steer the run"
            )
        return self


class Config(Section):
    """The resolved configuration of one run."""

    run: RunSection = RunSection()
    services: ServicesSection = ServicesSection()
    policy: PolicySection = PolicySection()
    queue: QueueSection = QueueSection()
    stage: StageSection = StageSection()
    sampling: SamplingSection = SamplingSection()
    rollout: RolloutSection = RolloutSection()
    sandbox: SandboxSection = SandboxSection()
    gateway: GatewaySection = GatewaySection()
    servers: ServersSection = ServersSection()
    processes: ProcessesSection = ProcessesSection()
    reward: RewardSection = RewardSection()
    trainer: TrainerSection = TrainerSection()
    clock: Clock = Clock()
    watchdog: WatchdogSection = WatchdogSection()
    web: WebSection = WebSection()
    metrics: MetricsSection = MetricsSection()

    @model_validator(mode="before")
    @classmethod
    def _tolerance_of_dtype(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        trainer, gateway = given.get("trainer", {}), given.get("gateway", {})
        if not (isinstance(trainer, dict) and isinstance(gateway, dict)):
            return given
        tolerance = CANARY_TOLERANCES.get(str(trainer.get("dtype")), CANARY_TOLERANCES["float32"])
        return {**given, "gateway": {"canary_tolerance": tolerance, **gateway}}

    def faster(self, scale: float) -> "Config":
        """Every time to live, watchdog, back-off and limit divided by `scale`, all together; counts and shares stay."""
        return self.model_copy(
            update={name: _faster(getattr(self, name), scale) for name in type(self).model_fields}
        )

    def to_json(self) -> dict[str, Any]:
        """What `runs.config` keeps: every key, without the URLs of services (they hold passwords)."""
        return self.model_dump(mode="json", exclude={"services"})

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> "Config":
        """The inverse of `to_json`."""
        queue = {key: value for key, value in stored["queue"].items() if key != "window"}
        return cls.model_validate({**stored, "queue": queue})


def as_kept(stored: dict[str, Any], own: Config) -> Config:
    """A run's configuration: what it began with (`Run.config`), but for the services, the slots of its runners and the budget of its trainer,
    which may change while it runs: `own` is what this process was started with."""
    rollout = {**stored["rollout"], "slots": own.rollout.slots}
    trainer = {
        **stored["trainer"],
        "pack_tokens": own.trainer.pack_tokens,
        "pack_pairs": own.trainer.pack_pairs,
    }
    services = own.services.model_dump()
    return Config.from_json({**stored, "services": services, "rollout": rollout, "trainer": trainer})


def _faster(section: BaseModel, scale: float) -> BaseModel:
    """A section with its durations divided."""
    update = {
        name: getattr(section, name) / scale
        for name, key in type(section).model_fields.items()
        if SCALED in key.metadata
    }
    return section.model_copy(update=update)


def differences(one: Config, other: Config) -> list[str]:
    """The dotted keys whose values differ, services apart."""
    mine, theirs = one.to_json(), other.to_json()
    return [
        f"{section}.{key}"
        for section in mine
        for key in mine[section]
        if mine[section][key] != theirs[section][key]
    ]


def _known(location: tuple[int | str, ...]) -> list[str]:
    """The keys that could stand where an unknown one was found."""
    if location[:2] == ("stage", "then"):
        return list((DomainLimits if "limits" in location else NextStage).model_fields)
    if location[:2] == ("stage", "limits"):
        return list(DomainLimits.model_fields)
    if len(location) > 2:  # below rollout.context.NAME, where pydantic puts the policy's name before the key
        choices = get_args(get_args(ContextSection)[0])
        return [
            key
            for choice in choices
            if location[-2] in get_args(choice.model_fields["policy"].annotation)
            for key in choice.model_fields
        ]
    section = Config.model_fields.get(str(location[0])) if len(location) > 1 else None
    model = section.annotation if section else Config
    return list(model.model_fields) if isinstance(model, type) and issubclass(model, BaseModel) else []


def _override(raw: dict[str, Any], assignment: str) -> None:
    key, separator, value = assignment.partition("=")
    path = key.strip().split(".")
    if not separator or not all(path):
        raise ConfigurationError(f"--set {assignment!r} is not of the form section.key=value")
    try:
        parsed = tomllib.loads(f"value = {value.strip()}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value.strip()  # a bare word is a string
    node = raw
    for part in path[:-1]:
        child = node.setdefault(part, {})
        if not isinstance(child, dict):
            raise ConfigurationError(f"--set {assignment!r}: {part} is a value, not a section")
        node = child
    node[path[-1]] = parsed


def _resolve_scaffolds(raw: dict[str, Any], directory: Path) -> None:
    """Scaffolds that are named by their place lie beside the configuration; processes start elsewhere."""
    rollout = raw.get("rollout")
    if isinstance(rollout, dict) and isinstance(named := rollout.get("scaffolds"), dict):
        rollout["scaffolds"] = {
            str((directory / name).resolve()) if "/" in name else name: share for name, share in named.items()
        }


def load(path: Path | None = None, overrides: Sequence[str] = ()) -> Config:
    """Read `path` (absent: defaults), apply `section.key=value` overrides and the environment's service URLs, validate.

    Raises ConfigurationError naming the file and every wrong key.
    """
    raw: dict[str, Any] = {}
    source = str(path) if path else "configuration"
    if path is not None:
        try:
            raw = tomllib.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ConfigurationError(f"{path} does not exist; `penstock init` writes one") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"{path} is not valid TOML: {error}") from None
        _resolve_scaffolds(raw, path.parent)
    for assignment in overrides:
        _override(raw, assignment)
    services = raw.setdefault("services", {})
    if isinstance(services, dict):
        for key, variable in (("database_url", "DATABASE_URL"), ("nats_url", "NATS_URL")):
            if not services.get(key) and (value := named(variable)):
                services[key] = value
    try:
        return Config.model_validate(raw)
    except ValidationError as error:
        raise ConfigurationError(explain(error, source, overrides, _known)) from None
