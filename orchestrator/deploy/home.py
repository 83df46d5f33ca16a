"""A run's directory: the location of `penstock.toml`, Penstock's own files next to it, and the services of the run.

<directory>/penstock.toml
<directory>/.penstock/data, logs, run       services and the supervisor (deploy.embedded.layout)
<directory>/.penstock/policies/             weights by version: trainer → gateway → rollout servers
<directory>/.penstock/journal/<process>/    messages that are not in Postgres yet
<directory>/.penstock/run/<process>.prom    its watchdog's metrics
<directory>/.penstock/run/<process>.metrics.json   the address of its metrics for Prometheus
"""

import hashlib
import os
import shlex
import socket
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from orchestrator.bus.address_file import named_file
from orchestrator.bus.base import BusError
from orchestrator.contracts.errors import ConfigurationError, PenstockError
from orchestrator.contracts.ids import check_name, is_name
from orchestrator.deploy.embedded.layout import RunLayout
from orchestrator.deploy.embedded.own_urls import embedded_nats, embedded_postgres
from orchestrator.pool.address import address_of
from orchestrator.runtime.environment import named
from orchestrator.runtime.metrics import SUFFIX, Target
from orchestrator.runtime.run_option import run_option
from orchestrator.runtime.unreachable import name_of
from orchestrator.settings.config import FILE, Config, load
from sandboxes.owned import sockets_root

UNKNOWN = "no service is known here: run `penstock up{option}`, or set {variable}"
SHOWN = 3
"""Runs that an error names."""


@dataclass(frozen=True, slots=True)
class Home:
    """One configuration file and the directory that belongs to it."""

    file: Path
    overrides: tuple[str, ...] = ()

    @classmethod
    def at(cls, path: Path, overrides: tuple[str, ...] = ()) -> "Home":
        """`path` is the TOML file or its directory. Raises ConfigurationError if it does not exist."""
        file = (path / FILE if path.is_dir() else path).resolve()
        if not file.exists():
            if path == Path("."):  # nothing was named
                raise ConfigurationError(_none_here())
            directory = file.parent if file.name == FILE or file.suffix == ".toml" else file
            raise ConfigurationError(
                f"{file} does not exist; write one with: penstock init {shlex.quote(str(directory))}"
            )
        return cls(file, overrides)

    @property
    def option(self) -> str:
        """The end of a command line that means this run."""
        return run_option(self.file)

    @property
    def layout(self) -> RunLayout:
        return RunLayout(self.file.parent / ".penstock")

    @property
    def policies(self) -> Path:
        """The directory with the weights of all versions."""
        configured = load(self.file, self.overrides).policy.directory
        return Path(configured) if configured else self.layout.policies

    @property
    def run_model_file(self) -> Path:
        """The name of the run that was last started here, and the first policy that it keeps, one per line."""
        return self.layout.run / "policy.model"

    @property
    def gateway_url_file(self) -> Path:
        return self.layout.run / "gateway.url"

    @property
    def gateway_secret(self) -> Path:
        """The admin secret's file: in the run's directory, or the one that gateways and runners of several hosts share."""
        secret_file = load(self.file, self.overrides).gateway.secret_file
        return Path(secret_file) if secret_file else self.layout.run / "gateway.secret"

    @property
    def server_key(self) -> Path | None:
        """The file with the key of the run's rollout servers: `servers.key_file`; else one for those that are started here with a key. None: they
        have none."""
        servers = load(self.file, self.overrides).servers
        if servers.key_file:
            return Path(servers.key_file)
        return None if servers.urls or not servers.takes_key else self.layout.run / "server.key"

    @property
    def server_key_config(self) -> Path:
        """The same key as a file for SGLang's `--config`."""
        return self.layout.run / "server.key.yaml"

    @property
    def web_url_file(self) -> Path:
        """The dashboard's URL with its token; for its owner's eyes."""
        return self.layout.run / "web.url"

    @property
    def web_token(self) -> Path:
        return self.layout.run / "web.token"

    def journal(self, process: str) -> Path:
        """The journal directory of one process."""
        return self.layout.journals / process

    @property
    def workers(self) -> str:
        """The prefix of the names of this run's workers on this machine, as used in leases and sandboxes."""
        return f"{socket.gethostname()}:{self.layout.root}:"

    def metrics(self, process: str) -> Path:
        """The file of one process's watchdog metrics: Prometheus text, for a collector of such files."""
        return self.layout.run / f"{process}.prom"

    def target(self, process: str, config: Config | None = None) -> Target:
        """The configured address of one process's metrics, and the file that announces it."""
        config = config or self.config()
        section = config.metrics
        file = self.layout.run / f"{process}{SUFFIX}"
        return Target(
            file=file,
            run=config.run.name,
            process=process,
            host=section.host,
            port=section.ports.get(process, 0),
        )

    @property
    def gateway_socket(self) -> Path:
        """The socket that sandboxes see: alone in a directory that unprivileged users can enter, and short."""
        digest = hashlib.sha256(os.fsencode(self.layout.root)).hexdigest()[:12]
        directory = sockets_root() / digest
        for level, mode in ((directory.parent, 0o711), (directory, 0o755)):
            level.mkdir(mode=mode, exist_ok=True)
            found = level.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
                raise ConfigurationError(
                    f"{level} belongs to another user or is writable by others; remove it and start again"
                )
        return directory / "gateway.sock"

    def config(self) -> Config:
        """The file with overrides; service URLs from the file, the environment, else the embedded services that run here."""
        config = load(self.file, self.overrides)
        services = config.services
        self._check_url("database_url", services.database_url, address_of)
        if named_file(services.nats_url) is None:  # the address that `penstock up` writes
            from orchestrator.bus.link import urls_of  # the driver takes time to import

            self._check_url("nats_url", services.nats_url, urls_of)
        found = {
            "database_url": embedded_postgres(self.layout, services.database_url) or services.database_url,
            "nats_url": embedded_nats(self.layout, services.nats_url) or services.nats_url,
        }
        return config.model_copy(update={"services": services.model_copy(update=found)})

    def _check_url(self, key: str, url: str, parse: Callable[[str], object]) -> None:
        """ConfigurationError for a URL that cannot be read, by the name under which a person wrote it."""
        variable = key.upper()
        try:
            if url:
                parse(url)
        except (PenstockError, BusError) as error:
            known, option = name_of(url, variable), f"--set services.{key}"
            in_file = option if known == option else f"{self.file}: services.{key}"
            origin = variable if named(variable) == url else in_file
            fault = str(error)
            for name in (known, variable, origin):
                fault = fault.removeprefix(f"{name} ")
            between = ": " if fault == str(error) else " "
            raise ConfigurationError(f"{origin}{between}{fault}") from None

    def connected(self) -> Config:
        """`config()`, or ConfigurationError if a service is neither named nor was ever started here."""
        config = self.reading()
        if not config.services.nats_url:
            raise ConfigurationError(UNKNOWN.format(option=self.option, variable="NATS_URL"))
        return config

    def reading(self) -> Config:
        """As `connected`, for readers of the data pool: only the database must be known."""
        config = self.config()
        if not config.services.database_url:
            raise ConfigurationError(UNKNOWN.format(option=self.option, variable="DATABASE_URL"))
        return config


def _none_here() -> str:
    """The sentence for a working directory without a run: the runs below it, as `-c` takes them, or how to write one."""
    here = f"{FILE} is not in this directory: name the run with -c DIR"
    try:
        found = sorted(
            str(each.parent)
            for level in ("*", "*/*")
            for each in Path(".").glob(f"{level}/{FILE}")
            if each.is_file()
        )
    except OSError:
        found = []
    if not found:
        return f"{here}, or write a new run's with: penstock init DIR"
    more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return f"{here} (found: {', '.join(f'-c {shlex.quote(each)}' for each in found[:SHOWN])}{more})"


TEMPLATE = """\
# Penstock: the configuration of one run. Every key is optional; `penstock config` prints all of them, resolved.

[run]
name = {name}
seed = 0

[policy]
# A Hugging Face directory: config.json, model.safetensors, tokenizer.json. It becomes policy version 0.
model = {model}

[queue]
batch_groups = 8      # P: groups per batch
group_size = 4        # G: rollouts per group
capacity = 24         # N: groups in flight
window_fraction = 0.3 # the window is max(1, floor(fraction * N)) positions
max_staleness = 2     # S: batches

[stage]
max_turns = 200       # completions per rollout; a task's own [agent].max_turns comes first
max_context = 0       # tokens of state and action; 0: the model's context

[sampling]
max_new_tokens = 32768 # per completion, and no more than the context has left

[rollout]
slots = 8             # concurrent rollouts
timeout_s = 14400     # of an attempt, at most; a task's own [agent].timeout_sec (900) holds below it
scaffolds = {{ shell = 1.0 }}

[sandbox]
# Limits of one sandbox, not reservations; with provider = "kubernetes" a pod requests them.
memory_mb = 4096
processes = 512
cpu_s = 14400         # CPU seconds of one program
disk_mb = 10240

[trainer]
lr = 1e-5
parts = 1             # U: train steps per batch
"""


def write_template(directory: Path, name: str, model: str) -> Path:
    """Write a new `penstock.toml`; never over an existing one. Without `name` the run gets the name of its directory, if that is valid."""
    name = name or (own if is_name(own := directory.resolve().name) else "default")
    check_name("run", name)
    file = directory / FILE
    if file.exists():
        raise ConfigurationError(f"{file} exists already; edit it, or choose another directory")
    directory.mkdir(parents=True, exist_ok=True)
    file.touch(mode=0o600)  # it may get passwords
    file.write_text(TEMPLATE.format(name=_toml(name), model=_toml(model)), encoding="utf-8")
    load(file)
    return file


def _toml(text: str) -> str:
    import tomlkit  # loaded by `penstock init` alone

    return tomlkit.item(text).as_string()
