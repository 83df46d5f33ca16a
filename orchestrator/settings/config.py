"""The configuration that people write: one TOML file plus dotted overrides, validated once, frozen, unknown keys refused by name.

`load` returns the resolved configuration; `runs.config` stores its JSON form. Times are seconds, sizes are counts unless named.
"""

import ipaddress
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import (
    BaseModel,
    Field,
    ValidationError,
    ValidationInfo,
    computed_field,
    field_validator,
    model_validator,
)
from scaffolds.reference import is_path

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.contracts.hosts import host_of
from orchestrator.contracts.ids import check_name
from orchestrator.contracts.numbers import INT8
from orchestrator.contracts.queue_window import places, staleness_bound, window_of
from orchestrator.contracts.quote import quoted
from orchestrator.runtime.run_option import FILE as FILE
from orchestrator.runtime.unreachable import AddressOrigin, named_url, of_key, of_override, remember
from orchestrator.settings.assignments import assigned, key_of, table_of
from orchestrator.settings.curriculum import (
    Count,
    Positive,
    Small,
    StageSection,
)
from orchestrator.settings.explain import LISTED, explain
from orchestrator.settings.gateway import GatewaySection, ServersSection
from orchestrator.settings.listening import ListenHost
from orchestrator.settings.renamed import now_called, old_keys
from orchestrator.settings.reward import RewardSection, as_stored
from orchestrator.settings.rollout import RolloutSection
from orchestrator.settings.sampling import SamplingSection as SamplingSection
from orchestrator.settings.sandbox import SandboxSection
from orchestrator.settings.scope import (
    AS_STORED,
    PROCESS,
    Scope,
    is_section,
    is_stored,
    merged,
    model_in,
    scope_of,
)
from orchestrator.settings.section import Section
from orchestrator.settings.storable import unstorable
from orchestrator.settings.tasks import TasksSection
from orchestrator.settings.timeouts import SCALED, Seconds, Timeouts
from orchestrator.settings.trainer import CANARY_TOLERANCES, TrainerSection
from orchestrator.settings.url_files import with_absolute_files
from sandboxes.text_files import read_toml

MAX_MEMBERS: Final = 2**15 - 1  # of a group, as the data pool counts them


class RunSection(Section):
    """Which run, and the seed that every other seed derives from."""

    name: str = "default"
    """The name of the run in the data pool; a new name begins a new run."""
    seed: Annotated[int, Field(ge=-INT8, le=INT8)] = 0
    """The seed that every other seed of the run derives from; training samples have none."""

    @field_validator("name")
    @classmethod
    def _name(cls, name: str) -> str:
        check_name("run", name)
        return name


class ServicesSection(Section):
    """Services to use instead of the embedded ones."""

    database_url: str = ""
    """The URL of PostgreSQL; empty: $DATABASE_URL, else the server that `penstock up` starts."""
    nats_url: str = ""
    """The URL of NATS, or those of a cluster with commas between (from three on, streams have three replicas); empty: $NATS_URL, else our own."""


class PolicySection(Section):
    """The first policy, and where the versions that follow are kept."""

    model: str = ""
    """The first policy: a Hugging Face directory with weights, config and tokenizer; its path is relative to this file."""
    directory: Annotated[str, PROCESS] = ""
    """The directory of all policy versions, at the same path for gateways, rollout servers and trainer; empty: .penstock/policies by the file."""


class QueueSection(Section):
    """Windowed FIFO, and the circuit breaker of admission. `capacity` (N) bounds dispatched − resolved − consumed; the window is
    max(1, ⌊fraction · N⌋), that of `fifo` is 1, and `greedy` has none."""

    policy: str = "windowed"
    """Which ready groups a batch may take: windowed, fifo, greedy, or an entry point of penstock.policies."""
    batch_groups: Small = 8
    """P: groups of a batch."""
    max_staleness: Count = 2
    """S: batches ahead in which groups start; they train at most S + (W - 1) ÷ P later, rounded up (greedy: no bound); 0: nearly on-policy, waits."""
    capacity: Positive = 24
    """N: groups in flight, dispatched and not yet consumed or resolved; more keeps slots busy and tokens older, above (S + 1) · P only widens W."""
    window_fraction: Annotated[float, Field(gt=0, le=1)] = 0.3
    """The share of `capacity` that the window has, so how far a fast group may pass a slow one."""
    group_size: Annotated[int, Field(ge=2, le=MAX_MEMBERS)] = 4
    """G: rollouts of a group."""
    max_attempts: Annotated[int, Field(ge=1, le=1000)] = 3
    """How many attempts a rollout, and tries a verification, may fail for the platform's sake before it is given up."""
    min_batch_groups: Count = 0
    """P_min: the fewest groups of a last, short batch; 0 is half of `batch_groups`, rounded up."""
    breaker_rate: Annotated[float, Field(gt=0, le=1)] = 0.5
    """The share of infrastructure failures among recently ended attempts from which on nothing is dispatched."""
    breaker_attempts: Positive = 50
    """The fewest ended attempts from which the circuit breaker concludes anything."""
    breaker_window_s: Seconds = 60.0
    """How many seconds back the circuit breaker counts ended attempts."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def window(self) -> int:
        """W of the policy, in queue positions."""
        return window_of(self.policy, self.capacity, self.window_fraction)

    @property
    def places(self) -> int:
        """The most groups in flight: min(N, (S+1)·P)."""
        return places(self.capacity, self.max_staleness, self.batch_groups)

    @property
    def staleness_bound(self) -> int | None:
        """The most batches between a group's dispatch and its own; None: no known bound."""
        return staleness_bound(self.policy, self.window, self.max_staleness, self.batch_groups)

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


class ProcessesSection(Section):
    """Processes that `penstock up` keeps alive."""

    restart_first_s: Seconds = 0.1
    """Seconds until a process that died starts again; the wait doubles with each further death in a row."""
    restart_longest_s: Seconds = 10.0
    """The longest wait in seconds before a restart."""
    restart_limit: Positive = 8
    """Deaths within `restart_window_s` after which a process is not restarted."""
    restart_window_s: Seconds = 60.0
    """How many seconds back deaths count towards `restart_limit`."""


class WatchdogSection(Section):
    """The limits of being stuck: a loop that works and makes no progress for `no_progress_s`, an event loop that does not run for `lag_s`.

    A stuck loop is named in the log, in the metrics and by `penstock status`, and restarted where that is safe; a process whose event loop
    hangs for `no_progress_s` ends, so that its supervisor starts another.

    No alarm comes later than a minute after the progress ended: 45 s, up to a twelfth until the heartbeat that says so, two looks of the
    orchestrator, a twelfth each: 45 × 15/12 = 56.25 s, and 3.75 s for what the heartbeat and the looks themselves take.
    """

    no_progress_s: Seconds = 45.0
    """Seconds without progress after which a working loop is stuck, and a process whose event loop hangs ends."""
    lag_s: Seconds = 5.0
    """Seconds for which an event loop may be blocked before the log says where."""


class MetricsSection(Section):
    """Where each process answers Prometheus (ops/guides/metrics-and-logs.md)."""

    host: ListenHost = "127.0.0.1"
    """The address at which each process answers Prometheus."""
    ports: dict[str, Annotated[int, Field(ge=0, le=65535)]] = Field(default={})
    """Ports by process name, { trainer = 9101 }; every other process takes a free one and writes it to .penstock/run/NAME.metrics.json."""


class WebSection(Section):
    """Where the dashboard listens; port 0 takes a free one, and the same again after a restart. Anyone with its token can steer the run, over
    HTTP without encryption: an address that other machines reach needs `exposed`, and `hosts` the names that browsers use for it."""

    host: ListenHost = "127.0.0.1"
    """The address that the dashboard listens on; one that other machines reach needs `exposed`."""
    port: Annotated[int, Field(ge=0, le=65535)] = 0
    """The port of the dashboard; 0 takes a free one, and the same again after a restart."""
    exposed: bool = False
    """Whether the dashboard may listen where other machines reach it, over HTTP without encryption."""
    hosts: tuple[str, ...] = ()
    """The names and addresses besides `host` under which browsers may ask for the dashboard, without a port."""

    @field_validator("hosts")
    @classmethod
    def _bare(cls, hosts: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        if is_stored(info):
            return hosts
        try:
            return tuple(str(host_of(host, labels=1)) for host in hosts)
        except ValueError as error:
            raise ValueError(
                f"{error}: write a name or an address alone, without http://, a port or a *"
            ) from None

    @property
    def loopback(self) -> bool:
        """Whether no other machine can reach `host`."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @model_validator(mode="after")
    def _loopback(self) -> "WebSection":
        if not self.loopback and not self.exposed:
            raise ValueError(
                f"host is {quoted(self.host)}, which other machines may reach: keep 127.0.0.1 and use an SSH tunnel, or set web.exposed = true "
                "if every user who can reach it may read the token in transit and steer the run"
            )
        return self


class Config(Section):
    """The resolved configuration of one run."""

    run: RunSection = RunSection()
    services: Annotated[ServicesSection, PROCESS] = ServicesSection()
    policy: PolicySection = PolicySection()
    queue: QueueSection = QueueSection()
    stage: StageSection = StageSection()
    sampling: SamplingSection = SamplingSection()
    tasks: TasksSection = TasksSection()
    rollout: RolloutSection = RolloutSection()
    sandbox: SandboxSection = SandboxSection()
    gateway: Annotated[GatewaySection, PROCESS] = GatewaySection()
    servers: Annotated[ServersSection, PROCESS] = ServersSection()
    processes: Annotated[ProcessesSection, PROCESS] = ProcessesSection()
    reward: RewardSection = RewardSection()
    trainer: TrainerSection = TrainerSection()
    timeouts: Annotated[Timeouts, PROCESS] = Timeouts()
    watchdog: Annotated[WatchdogSection, PROCESS] = WatchdogSection()
    web: Annotated[WebSection, PROCESS] = WebSection()
    metrics: Annotated[MetricsSection, PROCESS] = MetricsSection()

    @model_validator(mode="before")
    @classmethod
    def _text(cls, given: Any) -> Any:
        if (fault := unstorable(given)) is not None:
            raise ValueError(fault)
        return given

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

    @property
    def given_tolerance(self) -> float | None:
        """`gateway.canary_tolerance`; None if it is that of the dtype, as when not given: it then follows the dtype of the run."""
        tolerance = self.gateway.canary_tolerance
        return None if tolerance == CANARY_TOLERANCES[self.trainer.dtype] else tolerance

    def faster(self, scale: float) -> "Config":
        """Every time to live, watchdog, back-off and limit divided by `scale`, all together; counts and shares stay."""
        return self.model_copy(
            update={name: _faster(getattr(self, name), scale) for name in type(self).model_fields}
        )

    def to_json(self) -> dict[str, Any]:
        """The content of `runs.config`: every key, without the URLs of services (they hold passwords)."""
        return self.model_dump(mode="json", exclude={"services"})

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> "Config":
        """The inverse of `to_json`. Bounds that are newer than the run do not hold. Raises ConfigurationError for a key that has another name now."""
        _refuse_old_keys(stored)
        queue = {key: value for key, value in stored["queue"].items() if key != "window"}
        values = {**stored, "queue": queue, "reward": as_stored(stored.get("reward", {}))}
        return cls.model_validate(values, context=AS_STORED)


def is_process_key(key: str) -> bool:
    """Whether the value of a dotted key is the process's own and not the run's.

    >>> is_process_key("timeouts.rank_silence_s"), is_process_key("sandbox.memory_mb")
    (True, False)
    """
    return scope_of(Config, key) is Scope.PROCESS


def effective(stored: dict[str, Any], own: Config | Mapping[str, Mapping[str, Any]]) -> Config:
    """The run's effective configuration: `stored` (`StoredRun.config`), with the process keys of `own`.

    `own` is the configuration that this process was started with. A process without a configuration file passes the process keys of its command
    line, by section; the others stay as the run began. Raises ConfigurationError where `stored` and a configuration cannot go together.
    """
    _refuse_old_keys(stored)
    if not isinstance(own, Config):
        given = {name: {**stored.get(name, {}), **own.get(name, {})} for name in {**stored, **own}}
        return Config.from_json(merged(Config, stored, given))
    own_values = own.model_dump()
    if own.given_tolerance is None:
        del own_values["gateway"]["canary_tolerance"]
    config = Config.from_json(merged(Config, stored, own_values))
    _check_together(config, f"run {config.run.name!r}")
    return config


def ignored(stored: dict[str, Any], own: Config) -> list[str]:
    """The dotted keys whose value in `own` the run ignores: it keeps its original values."""
    return [key for key in differences(Config.from_json(stored), own) if not is_process_key(key)]


def describe_ignored(keys: Sequence[str]) -> str:
    """The sentence about `ignored` for people."""
    return f"this run keeps its original values of: {', '.join(keys)}; a new run.name begins a new run"


def _check_together(config: Config, source: str) -> None:
    """Check values of different sections against each other. A stored configuration is not checked by itself."""
    session_s, attempt_s = config.gateway.session_ttl_s, config.rollout.timeout_s
    if session_s <= attempt_s:
        raise ConfigurationError(
            f"{source}: gateway.session_ttl_s ({session_s:g}) must be greater than rollout.timeout_s ({attempt_s:g}): sessions outlive attempts"
        )


def _refuse_old_keys(stored: dict[str, Any]) -> None:
    if old := list(old_keys(stored)):
        more = f" and {len(old) - LISTED} more keys have other names" if len(old) > LISTED else ""
        raise ConfigurationError(
            f"the run began with another version of Penstock: {'; '.join(map(now_called, old[:LISTED]))}{more}. "
            "Begin a new run with a new run.name"
        )


def _faster(section: BaseModel, scale: float) -> BaseModel:
    """A section with its durations divided."""
    update = {
        name: getattr(section, name) / scale
        for name, key in type(section).model_fields.items()
        if SCALED in key.metadata
    }
    return section.model_copy(update=update)


PATHS: Final = (
    "policy.model",
    "policy.directory",
    "gateway.secret_file",
    "servers.key_file",
    "sandbox.images.directory",
    "sandbox.kubernetes.token_file",
    "sandbox.kubernetes.ca_file",
    "tasks.cache_dir",
)
"""The keys that hold a path. In a file they are relative to that file; in `--set` to the working directory."""


def differences(one: Config, other: Config) -> list[str]:
    """The dotted keys whose values differ, services apart."""
    left, right = one.to_json(), other.to_json()
    return [
        f"{section}.{key}"
        for section in left
        for key in left[section]
        if left[section][key] != right[section][key]
    ]


def _known(location: tuple[int | str, ...]) -> list[str]:
    """The keys that could stand where an unknown one was found."""
    model: type[BaseModel] | None = Config
    for part in location[:-1]:
        if model is not None and part in model.model_fields:
            model = model_in(model.model_fields[str(part)].annotation)
    return list(model.model_fields) if model is not None else []


def _override(raw: dict[str, Any], assignment: str) -> tuple[str, ...]:
    """Set one key, its paths made absolute from the working directory. The parts of the key, as they then are."""
    written, parsed = assigned(assignment)
    refused = f"override {quoted(assignment)}"
    if isinstance(parsed, dict) and is_section(Config, written):
        key = ".".join(written)
        example = f", as in --set {key}.{next(iter(parsed))}=…" if parsed else ""
        raise ConfigurationError(f"{refused}: {key} is a section: give its keys one at a time{example}")
    own = table_of([assignment])
    _check_text(own, "--set")
    try:
        here = Path.cwd()
    except FileNotFoundError:  # removed; absolute paths and other values do not need it
        here = Path()
    _check_places(own, here, refused)
    _resolve_paths(own, here)
    path: list[str] = []
    node, value = raw, own
    for _ in written:
        if path:
            node = node.setdefault(path[-1], {})
        if not isinstance(node, dict):
            raise ConfigurationError(f"{refused}: {path[-1]} is a value, not a section")
        [(part, value)] = value.items()
        path.append(part)
    node[path[-1]] = value
    return tuple(path)


def _resolve_paths(raw: dict[str, Any], directory: Path) -> None:
    """Make every path of a configuration absolute, from the directory of its file: processes start in other directories."""

    def resolved(name: Any) -> Any:
        return str(directory / name) if isinstance(name, str) and name else name

    for key in PATHS:
        table, name = _table(raw, *key.split(".")[:-1]), key.rpartition(".")[2]
        if name in table:
            table[name] = resolved(table[name])
    services = _table(raw, "services")
    if isinstance(url := services.get("database_url"), str):
        services["database_url"] = with_absolute_files(url, directory)
    # A program is a path if it has a slash, as for a shell.
    container, servers = _table(raw, "sandbox", "container"), _table(raw, "servers")
    if "/" in str(engine := container.get("engine")):
        container["engine"] = resolved(engine)
    if (
        isinstance(command := servers.get("command"), list)
        and command
        and "/" in str(command[0]).partition("{")[0]
    ):
        servers["command"] = [resolved(command[0]), *command[1:]]
    build_files = _table(raw, "sandbox", "images", "build_files")
    build_files.update({name: resolved(path) for name, path in build_files.items()})
    for name in ("scaffolds", "context"):
        found = _table(raw, "rollout", name)
        by_path = {
            str((directory / key).resolve()) if is_path(key) else key: value for key, value in found.items()
        }
        found.clear()
        found.update(by_path)


def _check_places(raw: dict[str, Any], directory: Path, source: str) -> None:
    """Raise ConfigurationError for two keys of a table that name one directory: one of their values would be dropped."""
    for name in ("scaffolds", "context"):
        found: dict[str, str] = {}
        for key in _table(raw, "rollout", name):
            place = str((directory / key).resolve()) if is_path(key) else key
            if (other := found.setdefault(place, key)) != key:
                raise ConfigurationError(
                    f"{source}: rollout.{name}: {quoted(other)} and {quoted(key)} are the same directory: keep one of them"
                )


def _check_text(raw: dict[str, Any], source: str) -> None:
    if (fault := unstorable(raw)) is not None:
        raise ConfigurationError(f"{source}: {fault}")


def _table(raw: dict[str, Any], *keys: str) -> dict[str, Any]:
    """The table below `keys`; a new empty one if there is none."""
    found: Any = raw
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}


def load(path: Path | None = None, overrides: Sequence[str] = ()) -> Config:
    """Read `path` (absent: defaults), apply `section.key=value` overrides and the environment's service URLs, validate.

    Raises ConfigurationError naming the file and every wrong key.
    """
    raw: dict[str, Any] = {}
    source = str(path) if path else "configuration"
    if path is not None:
        try:
            raw = read_toml(path)
        except FileNotFoundError:
            raise ConfigurationError(f"{path} does not exist; `penstock init` writes one") from None
        except ValueError as error:
            raise ConfigurationError(str(error)) from None
        _check_text(raw, source)
        _check_places(raw, path.parent.resolve(), source)
        _resolve_paths(raw, path.parent.resolve())
    given = {_override(raw, assignment): assignment for assignment in overrides}
    _check_text(raw, "--set" if overrides else source)
    services = raw.setdefault("services", {})
    if isinstance(services, dict):
        for key, variable in (("database_url", "DATABASE_URL"), ("nats_url", "NATS_URL")):
            if isinstance(value := services.get(key), str) and value:
                remember(value, _origin(f"services.{key}", source, overrides))
            elif not value and (value := named_url(variable)):
                services[key] = value
    try:
        config = Config.model_validate(raw)
    except ValidationError as error:
        raise ConfigurationError(explain(error, source, given, _known)) from None
    _check_together(config, source)
    for url in config.gateway.urls:
        remember(url, _origin("gateway.urls", source, overrides))
    return config


def _origin(key: str, source: str, overrides: Sequence[str]) -> AddressOrigin:
    given = any(".".join(key_of(assignment)) == key for assignment in overrides)
    return of_override(key) if given else of_key(key, source)
