"""What is wrong with a configuration, a model directory or a port is named before anything is started."""

import json
import socket
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from orchestrator.config import FILE, Config
from orchestrator.contracts.errors import ConfigurationError
from orchestrator.home import Home
from orchestrator.preflight import (
    check_config,
    check_disk,
    check_model,
    check_port,
    check_sandbox,
    check_scaffolds,
)
from orchestrator.stack import up

KNOWN = ("mini-swe-agent", "shell")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"reward": {"process_weight": -1}}, "process_weight is -1"),
        ({"reward": {"advantage_std": True, "zero_signal": "returns"}}, "advantage_std divides"),
        ({"queue": {"policy": "lifo"}}, "queue policy 'lifo' is unknown; known: fifo, greedy, windowed"),
        ({"queue": {"min_batch_groups": 9}}, "min_batch_groups is 9"),
        ({"stage": {"domains": {"coding": 0}}}, "shares must be numbers"),
        ({"rollout": {"scaffolds": {"shall": 1}}}, "unknown scaffold 'shall'; known: mini-swe-agent, shell"),
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
    with pytest.raises(ConfigurationError, match="there is no directory"):  # to evaluate, it is
        await up(Home.at(tmp_path), only=("orchestrator", "gateway"))


def test_a_scaffold_that_cannot_be_loaded_is_named_before_it_fails_every_attempt() -> None:
    check_scaffolds(Config())
    broken = Config.model_validate({"rollout": {"scaffolds": {"no_such_module:Mine": 1}}})
    with pytest.raises(ConfigurationError, match="'no_such_module:Mine' cannot be loaded"):
        check_scaffolds(broken)


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
        check_model(tmp_path, routing_replay=True)
    mixture = {"model_type": "mixtral", "vocab_size": 2, "num_hidden_layers": 1}
    mixture |= {"num_local_experts": 4, "num_experts_per_tok": 2}
    (tmp_path / "config.json").write_text(json.dumps(mixture))
    with pytest.raises(
        ConfigurationError, match=r"model_type is mixtral; known: minimax_m2, qwen3_moe\): set it to false"
    ):
        check_model(tmp_path, routing_replay=True)
    (tmp_path / "config.json").write_text(json.dumps({**mixture, "model_type": "minimax_m2"}))
    check_model(tmp_path, routing_replay=True)


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


def test_a_taken_port_is_named_with_its_key() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=rf"127\.0\.0\.1:{port} .*gateway\.port"):
            check_port("127.0.0.1", port)
    check_port("127.0.0.1", 0)
