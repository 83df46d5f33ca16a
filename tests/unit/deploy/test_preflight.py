"""A fault of a configuration, a model directory or a port is named before anything is started."""

import json
import re
import socket
from pathlib import Path
from typing import Any

import pytest
from scaffolds.find import find
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.deploy.embedded.doctor import memory_bytes
from orchestrator.deploy.home import Home
from orchestrator.deploy.preflight import (
    check_config,
    check_disk,
    check_model,
    check_port,
    check_sandbox,
    check_scaffolds,
    missing,
    sandbox_shortages,
)
from orchestrator.deploy.stack import up
from orchestrator.settings.config import FILE, Config, load
from orchestrator.settings.trainer import TrainerSection

EXAMPLES = Path(__file__).parents[3] / "agents/scaffolds/examples"
KNOWN = ("mini-swe-agent", "oracle", "shell")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"reward": {"process": {"politeness": {"weight": 1}}}},
            "process signal 'politeness' is unknown; known: ill_formed_tool_call, ",
        ),
        ({"queue": {"policy": "lifo"}}, "queue policy 'lifo' is unknown; known: fifo, greedy, windowed"),
        (
            {"stage": {"domains": {"all": 1.0}}},
            "'all' is not the name of a domain: use .* but not all, which stands for every domain",
        ),
        ({"queue": {"min_batch_groups": 9}}, "min_batch_groups is 9"),
        (
            {"rollout": {"scaffolds": {"shall": 1}}},
            "unknown scaffold 'shall'; known: mini-swe-agent, oracle, shell",
        ),
        (
            {"rollout": {"scaffolds": {"oracle": 0.1, "shell": 1}}},
            "rollouts of 'oracle' never train: remove its share",
        ),
        (
            {"rollout": {"context": {"shall": {"policy": "sliding_window"}}}},
            "rollout.context: unknown scaffold 'shall'",
        ),
        (
            {"sandbox": {"provider": "jail"}},
            "unknown provider 'jail'; known: bubblewrap, container, kubernetes, local",
        ),
    ],
    ids=lambda x: next(iter(x)) if isinstance(x, dict) else None,
)
def test_a_configuration_that_cannot_run_is_refused_in_one_sentence(
    changes: dict[str, object], sentence: str
) -> None:
    check_config(Config(), KNOWN)
    with pytest.raises(ConfigurationError, match=sentence):
        check_config(Config.model_validate(changes), KNOWN)


@pytest.mark.anyio
async def test_a_run_that_would_sample_from_a_part_of_the_distribution_is_not_started_to_train(
    tmp_path: Path,
) -> None:
    (tmp_path / FILE).write_text('[policy]\nmodel = "nowhere"\n[sampling]\ntop_p = 0.9\n')
    with pytest.raises(ConfigurationError, match=r"sampling\.top_p is 0\.9: .*; set it to 1"):
        await up(Home.at(tmp_path))
    with pytest.raises(ConfigurationError, match="does not exist"):  # for evaluation, it is started
        await up(Home.at(tmp_path), only=("orchestrator", "gateway"))


@pytest.mark.parametrize("name", ["no/such.py", "n" * 300 + "/agent.py:Mine", "d/" * 2000 + "scaffold.toml"])
def test_a_scaffold_whose_path_leads_nowhere_is_missing_whatever_its_length(name: str) -> None:
    config = Config.model_validate({"rollout": {"scaffolds": {name: 1}}})
    assert f"rollout.scaffolds: {name} does not exist" in missing(config)


def test_a_scaffold_that_cannot_be_loaded_is_named_before_it_fails_every_attempt() -> None:
    check_scaffolds(Config())
    broken = Config.model_validate({"rollout": {"scaffolds": {"no_such_module:Mine": 1}}})
    with pytest.raises(ConfigurationError, match="'no_such_module:Mine' cannot be loaded"):
        check_scaffolds(broken)


@pytest.mark.parametrize("name", ["agent.py", "agent.py:Agent", "scaffold.toml", "./", "agent.py:Other"])
def test_a_scaffold_next_to_the_file_is_loaded_from_any_directory(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The working directory has a file of the same name, which is another one."""
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    for directory, title in ((run, "right"), (elsewhere, "wrong")):
        directory.mkdir()
        for file in ("white_box.py", "scaffold.toml"):
            text = (EXAMPLES / file).read_text().replace("example-agent", title)
            (directory / file.replace("white_box", "agent")).write_text(text)
    (run / FILE).write_text(f'[rollout]\nscaffolds = {{ "{name}" = 1.0 }}\n')
    monkeypatch.chdir(elsewhere)
    config = load(run / FILE)
    check_config(config, KNOWN)
    (found,) = config.rollout.scaffolds
    assert not [each for each in missing(config) if each.startswith("rollout.")]
    if name.endswith("Other"):
        with pytest.raises(ConfigurationError, match=r"cannot be loaded .* is not declared as a scaffold"):
            check_scaffolds(config)
        return
    check_scaffolds(config)
    assert find(found).manifest.name == "right"


@pytest.mark.parametrize("key", ["scaffolds", "context"])
def test_a_scaffold_whose_file_is_missing_is_named_by_its_key(key: str, tmp_path: Path) -> None:
    value = {"policy": "sliding_window"} if key == "context" else 1.0
    config = Config.model_validate({"rollout": {key: {f"{tmp_path}/agent.py:Mine": value}}})
    check_config(config, KNOWN)
    assert f"rollout.{key}: {tmp_path}/agent.py:Mine does not exist" in missing(config)


def test_context_management_for_a_black_box_is_refused_with_the_table_to_remove() -> None:
    table = {"policy": "sliding_window"}
    check_scaffolds(Config.model_validate({"rollout": {"context": {"shell": table}}}))
    black = Config.model_validate({"rollout": {"context": {"mini-swe-agent": table}}})
    with pytest.raises(ConfigurationError, match=r"remove the table rollout\.context\.mini-swe-agent"):
        check_scaffolds(black)


def a_model(directory: Path, vocabulary: int) -> Path:
    (directory / "config.json").write_text(json.dumps({"vocab_size": vocabulary}))
    (directory / "model.safetensors").touch()
    Tokenizer(WordLevel({"oak": 0, "elm": 1}, unk_token="oak")).save(str(directory / "tokenizer.json"))
    return directory


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_model_directory_without_one_of_its_files_is_named(tmp_path: Path, name: str) -> None:
    check_model(a_model(tmp_path, 2))
    (tmp_path / name).unlink()
    with pytest.raises(ConfigurationError, match=f"{tmp_path} has no {name}"):
        check_model(tmp_path)


def test_a_tokenizer_that_knows_more_ids_than_the_model_is_a_mismatch(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"vocabulary mismatch .* makes 2 ids and the model knows 1"):
        check_model(a_model(tmp_path, 1))


def test_a_policy_whose_routes_cannot_be_replayed_is_refused(tmp_path: Path) -> None:
    a_model(tmp_path, 2)
    with pytest.raises(
        ConfigurationError, match=r"trainer\.routing_replay is true, but the policy in .* no experts"
    ):
        check_model(tmp_path, TrainerSection(routing_replay=True))
    mixture = {"model_type": "mixtral", "vocab_size": 2, "num_hidden_layers": 1}
    mixture |= {"num_local_experts": 4, "num_experts_per_tok": 2}
    (tmp_path / "config.json").write_text(json.dumps(mixture))
    with pytest.raises(
        ConfigurationError,
        match=r"model_type is mixtral; known: minimax_m2, qwen3_moe\): begin a new run with",
    ):
        check_model(tmp_path, TrainerSection(routing_replay=True))
    (tmp_path / "config.json").write_text(json.dumps({**mixture, "model_type": "minimax_m2"}))
    check_model(tmp_path, TrainerSection(routing_replay=True))


@pytest.mark.parametrize(
    ("raw", "feature"),
    [
        ({"model_type": "gemma2", "final_logit_softcapping": 30.0}, "logit soft-capping"),
        ({"model_type": "mistral", "sliding_window": 4096}, "sliding-window attention"),
        ({"model_type": "qwen3_next", "layer_types": ["linear_attention"]}, "linear or recurrent attention"),
        ({"model_type": "gpt2", "resid_pdrop": 0.1}, "dropout"),
        ({"model_type": "llama", "rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rotary frequencies"),
    ],
)
def test_a_model_that_the_trainer_refuses_by_its_config_is_refused_before_anything_starts(
    tmp_path: Path, raw: dict[str, Any], feature: str
) -> None:
    a_model(tmp_path, 2)
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 2, **raw}))
    check_model(tmp_path)  # without a trainer
    with pytest.raises(
        ConfigurationError, match=rf"cannot train '{raw['model_type']}' of .*: it has {feature}"
    ):
        check_model(tmp_path, TrainerSection())


@pytest.mark.parametrize(
    "raw",
    [
        {"model_type": "qwen2", "sliding_window": 131072, "use_sliding_window": False},
        {"model_type": "qwen3", "layer_types": ["full_attention"], "sliding_window": None},
        {"model_type": "mistral", "sliding_window": None},
        {"model_type": "llama", "attention_dropout": 0.0, "classifier_dropout": 0.1},
        {"model_type": "llama", "rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
    ],
)
def test_a_model_that_the_trainer_takes_is_not_refused_before(tmp_path: Path, raw: dict[str, Any]) -> None:
    a_model(tmp_path, 2)
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 2, **raw}))
    check_model(tmp_path, TrainerSection())


@pytest.mark.parametrize(
    ("section", "sentence"),
    [
        ({"balance": 0.01}, r"trainer\.balance is 0\.01, .* no experts: begin a new run with trainer\.balance = 0$"),
        ({"expert_bias": "balance"}, r'trainer\.expert_bias is "balance", .* no experts: .* trainer\.expert_bias = "frozen"$'),
    ],
)  # fmt: skip
def test_a_dense_policy_whose_experts_should_be_balanced_is_refused_before_anything_starts(
    tmp_path: Path, section: dict[str, Any], sentence: str
) -> None:
    trainer = TrainerSection.model_validate(section)
    with pytest.raises(ConfigurationError, match=sentence):
        check_model(a_model(tmp_path, 2), trainer)
    config = Config.model_validate({"policy": {"model": str(tmp_path)}, "trainer": section})
    assert any(re.search(sentence, each) for each in missing(config))
    for experts in (
        {"num_experts": 4},
        {"text_config": {"vocab_size": 2, "ffn_config": {"moe_num_experts": 16}}},
    ):
        (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 2, **experts}))
        check_model(tmp_path, trainer)


@pytest.mark.anyio
async def test_a_sandbox_that_cannot_be_opened_is_named_with_its_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        ConfigurationError, match="bubblewrap cannot be used: bwrap is not installed: apt-get"
    ):
        await check_sandbox("bubblewrap")


def test_a_full_disk_is_named_with_what_is_needed(tmp_path: Path) -> None:
    check_disk(tmp_path, needed_mb=1)
    with pytest.raises(ConfigurationError, match=r"is full: \d+ MB are free and a run needs 1000000000 MB"):
        check_disk(tmp_path, needed_mb=10**9)


def test_slots_whose_sandboxes_may_use_more_than_the_machine_has_are_warned_of_with_both_settings() -> None:
    config = Config.model_validate(
        {"rollout": {"slots": 8, "verify_slots": 2}, "sandbox": {"memory_mb": 4096, "disk_mb": 10240}}
    )
    assert sandbox_shortages(config, memory_mb=40960, disk_mb=102400) == []
    memory, disk = sandbox_shortages(config, memory_mb=40959, disk_mb=102399)
    assert memory == (
        "sandboxes may use 40,960 MB together (rollout.slots = 8 + rollout.verify_slots = 2, each with sandbox.memory_mb = 4,096)"
        " and this machine has 40,959 MB of memory: lower rollout.slots, or begin a run with a smaller sandbox.memory_mb, "
        "unless your tasks need less than they may"
    )
    assert "102,400 MB together" in disk and "102,399 MB of disk free at " in disk
    assert disk.endswith(
        "lower rollout.slots, or begin a run with a smaller sandbox.disk_mb, unless your tasks need less than they may"
    )
    assert sandbox_shortages(config, ("verifier",), memory_mb=8192, disk_mb=20480) == []
    (alone,) = sandbox_shortages(config, ("verifier",), memory_mb=8191, disk_mb=20480)
    assert "(rollout.verify_slots = 2, each with" in alone and "lower rollout.verify_slots, or" in alone
    assert sandbox_shortages(config, ("gateway", "trainer"), memory_mb=1, disk_mb=1) == []


def test_sandboxes_that_lie_elsewhere_are_not_counted_on_this_machine() -> None:
    for provider, warned in (("kubernetes", 0), ("container", 1), ("bubblewrap", 2), ("local", 2)):
        config = Config.model_validate({"sandbox": {"provider": provider}})
        assert len(sandbox_shortages(config, memory_mb=1, disk_mb=1)) == warned, provider


def test_the_memory_of_a_machine_is_what_the_narrowest_control_group_above_allows(tmp_path: Path) -> None:
    whole = memory_bytes(tmp_path)
    for entry, file in (
        ("0::/a/b", "sys/fs/cgroup/a/memory.max"),
        ("0::/a/b", "sys/fs/cgroup/a/b/memory.max"),
        ("5:cpu,memory:/c", "sys/fs/cgroup/memory/c/memory.limit_in_bytes"),
    ):
        root = tmp_path / file.replace("/", "-")
        (root / "proc/self").mkdir(parents=True)
        (root / "proc/self/cgroup").write_text(f"{entry}\n")
        (root / file).parent.mkdir(parents=True)
        (root / file).write_text("max\n")
        assert memory_bytes(root) == whole
        (root / file).write_text("1048576\n")
        assert memory_bytes(root) == 1048576


def test_a_taken_port_is_named_with_its_key() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=rf"127\.0\.0\.1:{port} .*gateway\.port"):
            check_port("127.0.0.1", port)
    check_port("127.0.0.1", 0)
