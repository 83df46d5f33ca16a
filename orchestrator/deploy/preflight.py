"""Errors that can be detected before anything is started, each as one sentence: ConfigurationError."""

import json
import os
import shutil
import socket
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from scaffolds.base import ScaffoldKind
from scaffolds.controls import CONTROLS
from scaffolds.find import find
from scaffolds.reference import is_path, split_path
from tokenizers import Tokenizer

from orchestrator.contracts.choices import SignalSource
from orchestrator.contracts.errors import ConfigurationError
from orchestrator.contracts.ids import DOMAIN_RULE, is_domain
from orchestrator.contracts.processes import WORKERS, ProcessRole
from orchestrator.contracts.quote import quoted
from orchestrator.deploy.embedded.doctor import memory_bytes
from orchestrator.rewards.settings import RewardSettings, check_rewards
from orchestrator.runner.context_policies import policy_of
from orchestrator.runtime.plugins import names
from orchestrator.runtime.plugins import provider as configured
from orchestrator.scheduling.admission import QueueSettings, check_queue, check_shares
from orchestrator.scheduling.queue_policies import queue_policy
from orchestrator.settings.config import Config
from orchestrator.settings.trainer import ExpertBias, TrainerSection
from orchestrator.tasks.verdict import SIGNAL_NAME
from orchestrator.trajectory.mergeable import unmergeable
from orchestrator.trajectory.routes import check_replay, names_experts, no_experts
from sandboxes.base import Provider, SandboxFull
from sandboxes.kubernetes import KUBERNETES
from sandboxes.reap import default_root

NEEDED_DISK_MB = 512  # a fresh PostgreSQL, its write-ahead log and a few checkpoints of a small policy


MEASURED = ("orchestrator", "gateway", "runner", "verifier", "trainer", "web")
"""The kinds of processes that answer scrapes at `metrics.ports`; rollout servers do at their own port."""


def check_config(config: Config, known_scaffolds: Sequence[str]) -> None:
    """Check everything about a configuration that only its parts know. Raises ConfigurationError, one sentence."""
    check_queue(QueueSettings.of(config))
    check_rewards(RewardSettings.of(config.reward))
    queue_policy(config.queue.policy, config.queue.capacity, config.queue.window_fraction)
    for stage in config.stage.all:
        if stage.domains:
            check_shares(stage.domains)
        for key, named in (("domains", stage.domains), ("limits", stage.limits)):
            _check_names(f"stage.{key}", named, is_domain, f"a domain: use {DOMAIN_RULE}")
    of_verifier = [
        name for name, signal in config.reward.process.items() if signal.source is SignalSource.VERIFIER
    ]
    _check_names(
        "reward.process",
        of_verifier,
        lambda name: SIGNAL_NAME.fullmatch(name) is not None,
        "a signal of the tests: write 1 to 64 of a-z, 0-9 and _, a letter first",
    )
    _check_names(
        "metrics.ports",
        config.metrics.ports,
        lambda name: name.partition("-")[0] in MEASURED,
        f"a process: write {', '.join(MEASURED)}, or one of several, such as runner-2",
    )
    for scaffold in config.rollout.scaffolds:
        if scaffold not in known_scaffolds and not is_path(scaffold):
            raise ConfigurationError(
                f"rollout.scaffolds: unknown scaffold {quoted(scaffold)}; known: {', '.join(known_scaffolds) or 'none'}"
            )
        if scaffold in CONTROLS and config.rollout.scaffolds[scaffold] > 0:
            raise never_trains(scaffold)
    for scaffold in config.rollout.context:
        if scaffold not in known_scaffolds and not is_path(scaffold):
            raise ConfigurationError(
                f"rollout.context: unknown scaffold {quoted(scaffold)}; known: {', '.join(known_scaffolds) or 'none'}"
            )
        policy_of(config.rollout.context, scaffold)
    if config.sandbox.provider not in (available := names("sandboxes")):
        raise ConfigurationError(
            f"sandbox.provider: unknown provider {quoted(config.sandbox.provider)}; known: {', '.join(available)}"
        )


def _check_names(key: str, named: Iterable[str], known: Callable[[str], bool], what: str) -> None:
    for name in named:
        if not known(name):
            raise ConfigurationError(f"{key}: {quoted(name)} is not the name of {what}")


def check_scaffolds(config: Config) -> None:
    """Load every named scaffold, as runners will. One that cannot be loaded would fail every attempt. Raises ConfigurationError."""
    for name in {**config.rollout.scaffolds, **config.rollout.context}:
        try:
            found = find(name)
            if found.manifest.kind == ScaffoldKind.BLACK:
                found.black().binds()  # checks that its program is installed
        except Exception as error:
            key = "scaffolds" if name in config.rollout.scaffolds else "context"
            raise ConfigurationError(
                f"rollout.{key}: {quoted(name)} cannot be loaded ({type(error).__name__}: {error})"
            ) from error
        if not found.manifest.trains and config.rollout.scaffolds.get(name, 0) > 0:
            raise never_trains(name)
        if name in config.rollout.context and found.manifest.kind != ScaffoldKind.WHITE:
            raise ConfigurationError(
                f"rollout.context: {quoted(name)} is a black box, which manages its context itself: remove the table rollout.context.{name}"
            )


def never_trains(scaffold: str) -> ConfigurationError:
    """The error for a share of a scaffold that only evaluations run."""
    return ConfigurationError(
        f"rollout.scaffolds: rollouts of {quoted(scaffold)} never train: remove its share, and run it with "
        f"`penstock eval --suite DIR --scaffold {scaffold}`"
    )


def check_model(directory: Path, trainer: TrainerSection | None = None) -> None:
    """Check a policy's directory: config.json, safetensors, a tokenizer whose ids the model has, and all that `trainer` needs of a model."""
    if not directory.is_dir():
        suffix = "" if directory.is_absolute() else f" in {Path.cwd()}"
        raise ConfigurationError(
            f"policy.model: directory {directory}{suffix} does not exist: name a Hugging Face directory, or make one (ops/guides/start.md, A policy)"
        )
    for name, purpose in (
        ("config.json", "it says what the model is"),
        ("tokenizer.json", "save the tokenizer next to the weights"),
    ):
        if not (directory / name).is_file():
            raise ConfigurationError(f"policy.model: {directory} has no {name}: {purpose}")
    if not list(directory.glob("model*.safetensors*")):
        raise ConfigurationError(
            f"policy.model: {directory} has no model.safetensors: save the weights there"
        )
    try:
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        vocabulary = int(config.get("text_config", config)["vocab_size"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigurationError(
            f"policy.model: {directory}/config.json names no vocab_size ({error})"
        ) from None
    try:
        size = Tokenizer.from_file(str(directory / "tokenizer.json")).get_vocab_size(with_added_tokens=True)
    except Exception as error:  # noqa: BLE001 (the library raises nothing narrower)
        raise ConfigurationError(
            f"policy.model: {directory}/tokenizer.json is not a tokenizer: {error}"
        ) from None
    if trainer is not None:
        if feature := unmergeable(config.get, config):
            raise ConfigurationError(
                f"policy.model: the trainer cannot train {quoted(config.get('model_type'))} of {directory}: it has {feature}; choose a model with "
                "full attention and without dropout (ops/guides/bring-your-own-model.md)"
            )
        _check_experts(config, directory, trainer)
    if size > vocabulary:
        raise ConfigurationError(
            f"policy.model: vocabulary mismatch in {directory}: the tokenizer makes {size} ids and the model knows {vocabulary}"
        )


def _check_experts(config: Mapping[str, Any], directory: Path, trainer: TrainerSection) -> None:
    """Raise ConfigurationError for keys that no model with this config.json can honour. `save_first` of the trainer looks at the model itself."""
    if trainer.routing_replay:
        check_replay(config, directory)
    if names_experts(config):
        return
    if trainer.balance:
        raise no_experts("balance", f"{trainer.balance}", directory, "0")
    if trainer.expert_bias is ExpertBias.BALANCE:
        raise no_experts("expert_bias", f'"{trainer.expert_bias}"', directory, f'"{ExpertBias.FROZEN}"')


def missing(config: Config) -> list[str]:
    """Everything that a configuration names and this machine does not have, one sentence each: the model, files, directories, programs. They may
    exist on the machine that the processes run on."""
    found = []
    if config.policy.model:
        try:
            check_model(Path(config.policy.model), config.trainer)
        except ConfigurationError as error:
            found.append(str(error))
    elif not config.servers.urls:
        found.append(
            "policy.model names no directory: name a Hugging Face directory, or rollout servers in servers.urls"
        )
    pods = config.sandbox.kubernetes
    files = {"gateway.secret_file": config.gateway.secret_file}
    if config.servers.urls:  # that of servers which are started here is made
        files["servers.key_file"] = config.servers.key_file
    if config.sandbox.provider == KUBERNETES:
        files |= {
            "sandbox.kubernetes.token_file": pods.token_file,
            "sandbox.kubernetes.ca_file": pods.ca_file,
        }
    found += [
        f"{key}: file {name} does not exist"
        for key, name in files.items()
        if name and not Path(name).is_file()
    ]
    directory = config.policy.directory
    if directory and not Path(directory).parent.is_dir():
        found.append(
            f"policy.directory: directory {Path(directory).parent}, the parent of {directory}, does not exist"
        )
    for key, scaffolds in (("scaffolds", config.rollout.scaffolds), ("context", config.rollout.context)):
        found += [
            f"rollout.{key}: {name} does not exist"
            for name in scaffolds
            if (place := split_path(name)) is not None and not os.path.exists(place[0])
        ]
    programs = {"servers.command": config.servers.command[:1]}
    if config.sandbox.provider == "container":
        programs["sandbox.container.engine"] = [config.sandbox.container.engine]
    found += [
        f"{key}: program {name} does not exist"
        for key, names in programs.items()
        for name in names
        if not shutil.which(name)
    ]
    return found


async def check_sandbox(name: str, tables: Mapping[str, Mapping[str, Any]] | None = None) -> None:
    """Check that the provider can open a sandbox here, by opening one. Also removes leftovers of dead owners."""
    provider: Provider = configured(name, tables)
    try:
        problems = await provider.problems()
    except SandboxFull as error:  # a starting worker waits for space; a person who starts a run can free some
        problems = (f"{error}.",)
    if problems:
        raise ConfigurationError(f"sandbox.provider: {name} cannot be used: {' '.join(problems)}")


def check_disk(directory: Path, needed_mb: int = NEEDED_DISK_MB) -> None:
    """Check that the run's directory, which exists, has space for services and journals."""
    free_mb = shutil.disk_usage(directory).free // 2**20
    if free_mb < needed_mb:
        raise ConfigurationError(
            f"the disk of {directory} is full: {free_mb} MB are free and a run needs {needed_mb} MB to start; free some space there"
        )


def sandbox_shortages(
    config: Config,
    only: Collection[str] = WORKERS,
    *,
    memory_mb: int | None = None,
    disk_mb: int | None = None,
) -> list[str]:
    """The resources that this machine has too little of for all slots of its runner and verifier at once, one sentence each. The start is not
    refused: the limits bound one sandbox and reserve nothing. The last two arguments replace the machine's values, in tests."""
    section = config.sandbox
    if section.provider == KUBERNETES:  # pods run elsewhere, and request what they need
        return []
    slots = {
        "rollout.slots": config.rollout.slots if ProcessRole.RUNNER in only else 0,
        "rollout.verify_slots": config.rollout.verify_slots if ProcessRole.VERIFIER in only else 0,
    }
    resources = {"memory": ("sandbox.memory_mb", memory_bytes() >> 20 if memory_mb is None else memory_mb)}
    if section.provider != "container":  # the engine has its own storage
        root = default_root()
        while not root.exists():
            root = root.parent
        free_mb = shutil.disk_usage(root).free >> 20 if disk_mb is None else disk_mb
        resources[f"disk free at {root}"] = ("sandbox.disk_mb", free_mb)
    found = []
    for resource, (key, available_mb) in resources.items():
        each_mb = int(getattr(section, key.partition(".")[2]))
        may_mb = each_mb * sum(slots.values())
        if may_mb > available_mb:
            counted = " + ".join(f"{name} = {count}" for name, count in slots.items() if count)
            setting = next(name for name, count in slots.items() if count)
            found.append(
                f"sandboxes may use {may_mb:,} MB together ({counted}, each with {key} = {each_mb:,}) and this machine has {available_mb:,} MB of "
                f"{resource}: lower {setting}, or begin a run with a smaller {key}, unless your tasks need less than they may"
            )
    return found


NAMED = {"gateway": "the gateway", "web": "the dashboard"}


def check_port(host: str, port: int, whose: str = "gateway") -> None:
    """Check the port of the gateway or the dashboard (`web`), unless it picks one itself (0)."""
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
