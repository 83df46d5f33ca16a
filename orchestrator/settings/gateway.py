"""`[gateway]` and `[servers]`."""

import re
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationInfo, field_validator, model_validator

from orchestrator.contracts.choices import UnprovenTemplate, WeightTransport
from orchestrator.contracts.http_urls import check_http_urls
from orchestrator.contracts.numbers import INT4
from orchestrator.settings.curriculum import Count, Positive
from orchestrator.settings.listening import ListenHost
from orchestrator.settings.scope import is_stored
from orchestrator.settings.section import Section
from orchestrator.settings.timeouts import Seconds, Wait

KEY_FILE, KEY_CONFIG = "{key_file}", "{key_config}"


class GatewaySection(Section):
    """Where the gateway listens, and what it keeps. Sandboxes reach it by a Unix socket, and from other hosts by `sandbox_port`
    (ops/guides/hosts.md)."""

    host: ListenHost = "127.0.0.1"
    """The address that the gateway listens on for runners, admin calls and metrics."""
    port: Annotated[int, Field(ge=0, le=65535)] = 0
    """The TCP port of the gateway; 0 takes a free one."""
    sandbox_port: Annotated[int, Field(ge=0, le=65535)] = 0
    """A second TCP port that serves only what sandboxes may reach, for sandboxes on other hosts; 0 opens none."""
    secret_file: str = ""
    """The file with the admin secret that all gateways of a run and their runners read; empty: the gateway makes one in the run's directory."""
    urls: tuple[str, ...] = ()
    """The URLs of the gateways that runners use; empty: the gateway on the same host."""
    body_limit_mb: Positive = 64
    """The largest request body in MiB; a larger one is refused with status 413."""
    spool_mb: Annotated[float, Field(gt=0, le=INT4)] = 512.0
    """MiB of recorded steps that the gateway keeps until Postgres has them; above it new completions wait."""
    routes_mb: Annotated[float, Field(gt=0, le=INT4)] = 6.0
    """The largest message in MiB of a step with recorded experts; a larger step is recorded with fewer routes or none."""
    session_ttl_s: Seconds = 86_400.0
    """Seconds that a session lives; more than rollout.timeout_s."""
    replay_hold_s: Seconds = 2.0
    """Seconds that a resumed program's unrecorded request waits for the recorded ones before it counts as diverged."""
    canary_tolerance: Annotated[float, Field(gt=0)] = 0.02
    """The largest difference of log-probabilities that the check of new weights accepts; when not given it follows the run's trainer.dtype."""
    unproven_template: UnprovenTemplate = UnprovenTemplate.REFUSE
    """The treatment of a model whose chat template rewrites the history: refuse to start, or render each request whole as a sample of its own."""

    @field_validator("urls")
    @classmethod
    def _gateways(cls, urls: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        if not is_stored(info):
            check_http_urls(urls, "a gateway")
        return urls

    @model_validator(mode="after")
    def _ports(self) -> "GatewaySection":
        if self.port and self.port == self.sandbox_port:
            raise ValueError(
                f"port and sandbox_port are both {self.port}: sandboxes must not reach the admin API, so give them a port of their own"
            )
        return self


class ServersSection(Section):
    """Rollout servers that speak SGLang's protocol: running ones (`urls`), or as many as `embedded` says are started here.

    In `command`, `{model}` is the policy's directory, `{port}` the port of 127.0.0.1 to listen on and `{seed}` a number of each server's own, the
    same at each of its starts: not for SGLang's `--random-seed`. `{key_file}` is a file with the run's key, `{key_config}` one with that key for
    SGLang's `--config`: a key on a command line could be read by every user of the machine. The last `evaluation` servers serve what open
    evaluations pin, and never train.
    """

    urls: list[str] = Field(default=[])
    """The URLs of running rollout servers; empty: `embedded` servers are started here."""
    embedded: Positive = 1
    """How many rollout servers are started here where `urls` is empty."""
    evaluation: Count = 0
    """How many of the rollout servers are kept for evaluations; with 0 evaluations run on the newest policy version alone."""
    command: list[str] = Field(default=[])
    """The program and arguments of a rollout server; {model}, {port}, {seed}, {key_file}, {key_config} are filled in; empty: the embedded one."""
    key_file: str = ""
    """The file with the key that rollout servers require as a bearer token; empty: servers that are started here with a key get one of their own."""
    max_running: Positive = 64
    """Requests that an embedded server runs at a time; a server of `command` has options of its own."""
    max_total_tokens: Positive = 262144
    """Tokens of KV cache of an embedded server; a server of `command` has options of its own."""
    probe_s: Seconds = 0.5
    """Seconds between two checks of a rollout server's health."""
    silence_s: Seconds = 5.0
    """Seconds without an answer after which a rollout server is lost and its calls go on elsewhere."""
    hang_s: Seconds = 60.0
    """Seconds without an answer after which a rollout server that was started here is ended and started again."""
    still_s: Seconds = 60.0
    """Seconds in which a rollout server with open calls generates nothing before a canary is sent; unanswered, its calls go on elsewhere."""
    spill_s: Seconds = 2.0
    """Seconds of expected wait above which a call leaves the server that has its session's prefix for another."""
    lease_ttl_s: Seconds = 10.0
    """Seconds after its last sign of life until a gateway loses its servers to another gateway."""
    drain_s: Seconds = 3.0
    """Seconds that a paused server has to hand over its requests before they are cut off."""
    weight_update_timeout_s: Seconds = 600.0
    """Seconds that a server may take to load new weights."""
    retry_s: Seconds = 10.0
    """The longest wait in seconds between two tries of a weight sync that failed."""
    canary_interval_s: Wait = 300.0
    """Seconds between two checks by log-probabilities of a server that serves, besides the check after each weight sync; 0: none."""
    version_poll_interval_s: Seconds = 2.0
    """Seconds between two looks into Postgres for policy versions that the bus did not announce."""
    transport: WeightTransport = WeightTransport.DIRECTORY
    """How new weights reach the servers: from a shared directory, or sent by a process of the gateway (distributed)."""
    sender_address: str = "127.0.0.1"
    """The address of this machine at which servers reach the sender of `transport = "distributed"`."""

    @field_validator("urls")
    @classmethod
    def _servers(cls, urls: list[str], info: ValidationInfo) -> list[str]:
        if not is_stored(info):
            check_http_urls(urls, "a rollout server")
        return urls

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

    @property
    def takes_key(self) -> bool:
        """Whether the servers that are started here require a key."""
        return not self.command or any(
            place in part for part in self.command for place in (KEY_FILE, KEY_CONFIG)
        )

    def starts(
        self, model: str, port: int, seed: int, *, key_file: Path, key_config: Path
    ) -> tuple[str, ...]:
        """`command` with its places filled in; empty: the embedded server."""
        placeholders = {"{model}": model, "{port}": str(port), "{seed}": str(seed)}
        placeholders |= {KEY_FILE: str(key_file), KEY_CONFIG: str(key_config)}
        return tuple(
            re.sub("|".join(placeholders), lambda found: placeholders[found[0]], part)
            for part in self.command
        )
