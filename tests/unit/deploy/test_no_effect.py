"""Unknown names in a configuration are refused, and keys that do nothing are named."""

import re
from typing import Any

import pytest

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.deploy.no_effect import NEEDS, no_effect
from orchestrator.deploy.preflight import check_config
from orchestrator.runtime.plugins import names
from orchestrator.settings.config import Config
from orchestrator.settings.keys import keys

REFUSED: dict[str, tuple[Any, str]] = {
    "metrics.ports": (
        {"trainers": 9101},
        "metrics.ports: 'trainers' is not the name of a process: write orchestrator, gateway, ",
    ),
    "stage.domains": ({"My Domain": 1.0}, "stage.domains: 'My Domain' is not the name of a domain"),
    "stage.limits": (
        {"My Domain": {"max_turns": 3}},
        "stage.limits: 'My Domain' is not the name of a domain",
    ),
    "rollout.scaffolds": ({"shall": 1.0}, "rollout.scaffolds: unknown scaffold 'shall'"),
    "rollout.context": ({"shall": {"policy": "none"}}, "rollout.context: unknown scaffold 'shall'"),
    "reward.process": (
        {"Big One": {"source": "verifier"}},
        "reward.process: 'Big One' is not the name of a signal of the tests: write 1 to 64 of a-z, 0-9 and _",
    ),
}
"""Tables by names that Penstock knows, with an unknown name and the sentence."""
FREE = {
    "tasks.domains": "categories are the words of the tasks' authors",
    "sandbox.images.bases": "names of images",
    "sandbox.images.build_env": "names of variables",
    "sandbox.images.build_files": "names of files",
    "sandbox.kubernetes.node_selector": "labels of the cluster",
    "sandbox.kubernetes.labels": "labels of the cluster",
}
"""Tables by names that people make up."""


def config(key: str, value: Any) -> Config:
    *sections, last = key.split(".")
    given: Any = {last: value}
    for section in reversed(sections):
        given = {section: given}
    return Config.model_validate(given)


@pytest.mark.parametrize("key", [key.name for key in keys() if key.type.startswith("table")])
def test_each_table_by_names_refuses_an_unknown_one_or_takes_names_of_ones_own(key: str) -> None:
    if key in FREE:
        return
    value, sentence = REFUSED[key]
    with pytest.raises(ConfigurationError, match=re.escape(sentence)):
        check_config(config(key, value), names("scaffolds"))


def test_the_names_of_processes_count_for_one_of_several_too() -> None:
    check_config(config("metrics.ports", {"trainer": 9101, "runner-2": 9102, "web": 0}), names("scaffolds"))
    with pytest.raises(ConfigurationError, match="'rollout-server' is not the name of a process"):
        check_config(config("metrics.ports", {"rollout-server": 9101}), names("scaffolds"))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"sandbox": {"kubernetes": {"image": "a"}}}, 'sandbox.kubernetes.image has no effect: it needs sandbox.provider = "kubernetes"'),
        ({"sandbox": {"container": {"cpus": 2.0}}}, 'sandbox.container.cpus has no effect: it needs sandbox.provider = "container"'),
        ({"sandbox": {"provider": "local", "images": {"build_env": {"A": "1"}}}}, "sandbox.images.build_env has no effect"),
        ({"sandbox": {"memory_mb": 8192, "max_memory_mb": 4096}}, "sandbox.max_memory_mb has no effect: it needs at least sandbox.memory_mb"),
        ({"sandbox": {"max_disk_mb": 7}}, "sandbox.max_disk_mb has no effect: it needs at least sandbox.disk_mb"),
        ({"web": {"exposed": True}}, "web.exposed has no effect: it needs a web.host that other machines reach"),
        ({"sandbox": {"egress_mb": 7}}, "sandbox.egress_mb has no effect: it needs sandbox.egress"),
        ({"servers": {"urls": ["http://a:1"], "max_running": 7}}, "servers.max_running has no effect: it needs embedded rollout servers"),
        ({"servers": {"urls": ["http://a:1"], "hang_s": 7.0}}, "servers.hang_s has no effect: it needs an empty servers.urls"),
        ({"trainer": {"lora_alpha": 7}}, "trainer.lora_alpha has no effect: it needs trainer.lora_rank above 0"),
        ({"trainer": {"mis_max": 7.0}}, 'trainer.mis_max has no effect: it needs trainer.mask = "mis"'),
        ({"trainer": {"decay_steps": 7}}, "trainer.decay_steps has no effect: it needs trainer.schedule"),
        ({"trainer": {"loss": "sft", "ratio_max": 3.0}}, "trainer.ratio_max has no effect: it needs a trainer.loss with a ratio (cispo, grpo, "),
        ({"trainer": {"loss": "reinforce", "ratio_min": 0.5}}, "trainer.ratio_min has no effect"),
        ({"trainer": {"loss": "sft", "negative_scale": 0.5}}, "trainer.negative_scale has no effect: it needs a trainer.loss with advantages"),
        ({"trainer": {"loss": "sft", "permute_advantages": True}}, "trainer.permute_advantages has no effect"),
        ({"trainer": {"loss": "sft"}, "reward": {"batch_scale": "std"}}, "reward.batch_scale has no effect"),
        ({"queue": {"policy": "fifo", "window_fraction": 0.5}}, "queue.window_fraction has no effect: it needs a queue.policy with a window"),
        ({"queue": {"policy": "greedy", "window_fraction": 0.5}}, "queue.window_fraction has no effect"),
        (
            {"queue": {"capacity": 64}},
            "queue.capacity = 64 has no effect on the groups in flight above (queue.max_staleness + 1) · queue.batch_groups = 24, and only "
            "widens the window to 19 positions",
        ),
        ({"queue": {"policy": "fifo", "capacity": 25}}, "queue.capacity = 25 has no effect on the groups in flight above"),
        ({"trainer": {"parts": 9}}, "trainer.parts has no effect above queue.batch_groups: a batch of 8 groups has 8 train steps, not 9"),
        ({"reward": {"speed_weight": 0.0, "noise_replays": 9}}, "reward.noise_replays has no effect: it needs reward.speed_weight above 0"),
        (
            {"reward": {"zero_signal": "performance", "noise_interval_s": 9.0}},
            'reward.noise_interval_s has no effect: it needs reward.speed_weight above 0, and reward.zero_signal = "returns" or reward.advantage_std',
        ),
        (
            {"sampling": {"repetition_tokens": 0, "repetition_probability": 0.9}},
            "sampling.repetition_probability has no effect: it needs sampling.repetition_tokens above 0",
        ),
        (
            {"rollout": {"observation_lines": 3, "observation_characters": 9}},
            "rollout.observation_characters has no effect: it needs rollout.observation_lines = 0",
        ),
        ({"sandbox": {"images": {"most_mb": 7}}}, "sandbox.images.most_mb has no effect: it needs sandbox.images.directory"),
        ({"sandbox": {"images": {"bases": {"a:1": "debian:12"}}}}, "sandbox.images.bases has no effect"),
        (
            {"stage": {"domains": {"coding": 1.0}, "limits": {"agent": {"max_turns": 3}}}},
            "stage.limits.agent holds in evaluations alone: agent has no share in the stage's domains",
        ),
        (
            {"stage": {"end_batches": 1, "then": [{"name": "b", "domains": {"coding": 1.0}, "limits": {"agent": {}}}]}},
            "stage.then (b).limits.agent holds in evaluations alone",
        ),
        (
            {"rollout": {"context": {"mini-swe-agent": {"policy": "none"}}}},
            "rollout.context.mini-swe-agent has no effect: mini-swe-agent is a black box",
        ),
        (
            {"rollout": {"scaffolds": {"codex": 1.0}, "context": {"shell": {"policy": "none"}}}},
            "rollout.context.shell holds in evaluations alone: shell has no share in rollout.scaffolds",
        ),
    ],
)  # fmt: skip
def test_a_key_that_does_nothing_is_named_with_the_reason(given: dict[str, Any], sentence: str) -> None:
    found = no_effect(Config.model_validate(given))
    assert len(found) == 1 and found[0].startswith(sentence), found


def test_a_configuration_whose_keys_all_count_has_no_warning() -> None:
    given = {
        "sandbox": {"provider": "kubernetes", "kubernetes": {"image": "a"}, "memory_mb": 8192, "max_memory_mb": 8192, "max_disk_mb": 20480},
        "web": {"host": "10.0.0.1", "exposed": True},
        "trainer": {"lora_rank": 8, "lora_alpha": 16, "schedule": "cosine", "decay_steps": 9, "mask": "mis", "mis_max": 3.0,
                    "parts": 8, "ratio_max": 3.0, "negative_scale": 0.5},
        "stage": {"limits": {"agent": {"max_turns": 3}}},
        "rollout": {"context": {"shell": {"policy": "none"}}, "observation_characters": 9},
        "reward": {"noise_replays": 9, "noise_interval_s": 9.0, "batch_scale": "std", "advantage_std": True},
        "sampling": {"repetition_probability": 0.9},
        "queue": {"policy": "mine", "window_fraction": 0.5},
    }  # fmt: skip
    assert no_effect(Config()) == [] == no_effect(Config.model_validate(given))


def test_a_loss_alone_has_no_warning_and_images_with_a_directory_count() -> None:
    for given in (
        {"trainer": {"loss": "sft"}},
        {"trainer": {"loss": "gspo"}},
        {"reward": {"speed_weight": 0.0}},
        {
            "reward": {
                "zero_signal": "performance",
                "advantage_std": True,
                "noise_replays": 9,
                "noise_interval_s": 9.0,
            }
        },
        {"sandbox": {"images": {"directory": "/images", "most_mb": 7, "build_env": {"A": "1"}}}},
    ):
        assert no_effect(Config.model_validate(given)) == []


def test_each_rule_names_keys_that_exist() -> None:
    known = [f"{key.name}." for key in keys()]
    assert [name for name in NEEDS if not any(key.startswith(f"{name}.") for key in known)] == []
