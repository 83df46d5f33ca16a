"""What can be known to be wrong before anything is started, each as one sentence: ConfigurationError."""

import json
import shutil
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scaffolds.find import find, is_path
from tokenizers import Tokenizer

from orchestrator.config import Config
from orchestrator.contracts.errors import ConfigurationError
from orchestrator.contracts.routes import check_replay
from orchestrator.flow.complete import reward_settings
from orchestrator.flow.dispatcher import queue_settings
from orchestrator.plugins import names
from orchestrator.plugins import provider as configured
from orchestrator.rewards.settings import check_rewards
from orchestrator.scheduling.admission import check_queue, check_shares
from orchestrator.scheduling.policies import queue_policy
from sandboxes.base import Provider, SandboxFull

NEEDED_DISK_MB = 512  # a fresh PostgreSQL, its write-ahead log and a few checkpoints of a small policy


def check_config(config: Config, known_scaffolds: Sequence[str]) -> None:
    """Everything about a configuration that only its parts know. Raises ConfigurationError, one sentence."""
    check_queue(queue_settings(config))
    check_rewards(reward_settings(config))
    queue_policy(config.queue.policy, config.queue.capacity, config.queue.window_fraction)
    for stage in config.stage.all:
        if stage.domains:
            check_shares(stage.domains)
    for scaffold in config.rollout.scaffolds:
        if scaffold not in known_scaffolds and not is_path(scaffold):
            raise ConfigurationError(
                f"rollout.scaffolds: unknown scaffold {scaffold!r}; known: {', '.join(known_scaffolds) or 'none'}"
            )
    for scaffold in config.rollout.context:
        if scaffold not in known_scaffolds:
            raise ConfigurationError(
                f"rollout.context: unknown scaffold {scaffold!r}; known: {', '.join(known_scaffolds) or 'none'}"
            )
    if config.sandbox.provider not in (known := names("sandboxes")):
        raise ConfigurationError(
            f"sandbox.provider: unknown provider {config.sandbox.provider!r}; known: {', '.join(known)}"
        )


def check_scaffolds(config: Config) -> None:
    """Load every scaffold that is named, as runners will: one that cannot be loaded would fail every attempt. Raises ConfigurationError."""
    for name in {**config.rollout.scaffolds, **config.rollout.context}:
        try:
            found = find(name)
            if found.manifest.kind == "black":
                found.black().binds()  # its program is installed
        except Exception as error:
            key = "scaffolds" if name in config.rollout.scaffolds else "context"
            raise ConfigurationError(
                f"rollout.{key}: {name!r} cannot be loaded ({type(error).__name__}: {error})"
            ) from error
        if name in config.rollout.context and found.manifest.kind != "white":
            raise ConfigurationError(
                f"rollout.context: {name!r} is a black box, which manages its context itself: remove the table rollout.context.{name}"
            )


def check_model(directory: Path, *, routing_replay: bool = False) -> None:
    """A policy's directory: config.json, safetensors, a tokenizer whose ids the model has, and known routers where routes are to be
    replayed."""
    if not directory.is_dir():
        raise ConfigurationError(f"policy.model: there is no directory {directory}")
    for name, purpose in (
        ("config.json", "it says what the model is"),
        ("tokenizer.json", "save the tokenizer beside the weights"),
    ):
        if not (directory / name).is_file():
            raise ConfigurationError(f"policy.model: {directory} has no {name}: {purpose}")
    if not list(directory.glob("model*.safetensors*")):
        raise ConfigurationError(
            f"policy.model: {directory} has no model.safetensors: save the weights there"
        )
    try:
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        known = int(config.get("text_config", config)["vocab_size"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigurationError(
            f"policy.model: {directory}/config.json names no vocab_size ({error})"
        ) from None
    try:
        size = Tokenizer.from_file(str(directory / "tokenizer.json")).get_vocab_size(with_added_tokens=True)
    except Exception as error:  # noqa: BLE001 (the library raises nothing narrower)
        raise ConfigurationError(
            f"policy.model: {directory}/tokenizer.json is no tokenizer: {error}"
        ) from None
    if routing_replay:
        check_replay(config, directory)
    if size > known:
        raise ConfigurationError(
            f"policy.model: vocabulary mismatch in {directory}: the tokenizer makes {size} ids and the model knows {known}"
        )


async def check_sandbox(name: str, tables: Mapping[str, Mapping[str, Any]] | None = None) -> None:
    """Whether the provider can open a sandbox here: it opens one. Also removes what dead owners left."""
    provider: Provider = configured(name, tables)
    try:
        problems = await provider.problems()
    except SandboxFull as error:  # a worker that starts waits for room; a person who starts a run can make it
        problems = (f"{error}.",)
    if problems:
        raise ConfigurationError(f"sandbox.provider: {name} cannot be used: {' '.join(problems)}")


def check_disk(directory: Path, needed_mb: int = NEEDED_DISK_MB) -> None:
    """Room for services and journals in the run's directory, which exists."""
    free_mb = shutil.disk_usage(directory).free // 2**20
    if free_mb < needed_mb:
        raise ConfigurationError(
            f"the disk of {directory} is full: {free_mb} MB are free and a run needs {needed_mb} MB to start; free some space there"
        )


NAMED = {"gateway": "the gateway", "web": "the dashboard"}


def check_port(host: str, port: int, whose: str = "gateway") -> None:
    """The port of the gateway or the dashboard (`web`), unless it is to choose one (0)."""
    if not port:
        return
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError as error:
            raise ConfigurationError(
                f"{NAMED[whose]} cannot listen on {host}:{port} ({error.strerror}): stop what listens there or set {whose}.port"
            ) from None
