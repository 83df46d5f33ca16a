"""Two ranks against one: gradients and train steps to the last digits of float64, decisions made together, refusals in one sentence."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from ops.tiers import slowness
from orchestrator.settings.timeouts import Timeouts

TIMEOUT_S = 300 * slowness()
# The first test that uses `found` waits for all the scenarios.
pytestmark = [pytest.mark.timeout(TIMEOUT_S + 20), pytest.mark.tier("trainer")]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """The result of each scenario of ranks_at_work.py."""
    argv = [sys.executable, "-m", "tests.unit.trainer.ranks_at_work", str(tmp_path_factory.mktemp("ranks"))]
    quiet = {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    with subprocess.Popen(
        argv,
        env=os.environ | quiet,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, log = process.communicate(timeout=TIMEOUT_S)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, log[-6000:]
    yield json.loads(output.splitlines()[-1])


@pytest.mark.parametrize(
    "scenario",
    [
        "dense gradient in many passes",
        "dense gradient with activation checkpointing",
        "experts gradient in many passes",
        "a rank without samples",
        "adapters' gradient in many passes",
        "narrow adapters' gradient in many passes",
        "adapters' gradient with experts in many passes",
        "adapters' gradient above layers without any in many passes",
        "adapters, a rank without samples",
    ],
)
def test_the_gradient_of_two_ranks_is_that_of_one(found: dict[str, Any], scenario: str) -> None:
    result = found[scenario]
    assert result["weights"] < 1e-14 and result["metrics"] < 1e-12
    assert result["logprobs"] < 1e-6, "every rank has the logprobs of all"
    assert result["moved"] > 0.05, "the gradient is not nothing"
    assert ("many" not in scenario) or result["passes"][0] > 5


@pytest.mark.parametrize(
    "scenario",
    ["dense", "experts", "recorded experts", "adapters", "narrow adapters", "adapters with experts"],
)
def test_several_train_steps_of_two_ranks_give_the_weights_of_one(
    found: dict[str, Any], scenario: str
) -> None:
    result = found[scenario]
    assert result["weights"] < 1e-10 and result["metrics"] < 1e-10 and result["moved"] > 0.01


@pytest.mark.parametrize("scenario", ["dense", "adapters"])
def test_the_same_train_steps_give_the_same_bits_again(found: dict[str, Any], scenario: str) -> None:
    assert found[scenario]["repeated"] == [True]


def test_frozen_weights_are_gathered_and_no_gradient_of_them_is_reduced(found: dict[str, Any]) -> None:
    result = found["frozen"]
    assert result["counts"] == result["expected"]
    assert result["gradients"] == {"adapter": 2 * 7 * 2, "frozen": 0}


@pytest.mark.parametrize("scenario", ["bfloat16", "bfloat16 adapters"])
def test_ranks_round_as_one_does_and_keep_their_weights_in_float32(
    found: dict[str, Any], scenario: str
) -> None:
    result = found[scenario]
    assert result["kept"] == "torch.float32"
    assert result["passes"] == ["head torch.bfloat16", "hidden torch.bfloat16", "temperature torch.float64"]
    assert 1e-4 < result["together"] < 1.3 * result["alone"] < 0.1


@pytest.mark.parametrize("broken", ["loss", "gradient"])
def test_what_is_not_finite_on_one_rank_skips_the_train_step_on_all(
    found: dict[str, Any], broken: str
) -> None:
    assert found[broken]["ranks"] == [{"skip": f"{broken}_not_finite", "same": True}] * 2


def test_a_train_step_whose_tokens_are_all_masked_is_skipped_by_all_ranks(found: dict[str, Any]) -> None:
    assert found["mask"]["ranks"] == [{"skip": "all_tokens_masked", "same": True}] * 2


def test_a_budget_that_is_too_small_for_one_rank_is_refused_by_all(found: dict[str, Any]) -> None:
    first, second = found["refused"]
    assert first == second and "too small for a path of" in first and "trainer.pack_pairs" in first


def test_each_rank_scores_the_proximal_logprobs_of_the_samples_that_it_trains(found: dict[str, Any]) -> None:
    result = found["proximal"]
    assert sum(result["samples"]) == result["of"] and min(result["samples"]) > 0 and result["off"] < 1e-12


def test_a_checkpoint_of_one_rank_resumes_on_two_and_theirs_on_one(found: dict[str, Any]) -> None:
    result = found["resumed"]
    assert result["weights"] < 1e-5 and result["moments"] < 1e-5 and result["canary"] < 1e-4
    assert [name.split("-model")[0] for name in result["files"]] == [
        "trainer/shard-00001",
        "trainer/shard-00002",
        "trainer/state.json",
    ]


@pytest.mark.parametrize("adapters", ["adapters", "narrow adapters"])
def test_adapters_of_one_rank_resume_on_two_and_theirs_on_one(found: dict[str, Any], adapters: str) -> None:
    result = found[f"resumed with {adapters}"]
    assert result["weights"] < 1e-5 and result["moments"] < 1e-5 and result["canary"] < 1e-4
    assert result["moved"] > 5e-3
    assert [name.split("-model")[0] for name in result["files"]] == [
        "trainer/adapter.safetensors",
        "trainer/base.safetensors",
        "trainer/shard-00001",
        "trainer/shard-00002",
        "trainer/state.json",
    ]
    assert result["moments of"] == ["lora_A", "lora_B"], "nothing frozen has any"


@pytest.mark.parametrize("adapters", ["adapters", "narrow adapters"])
def test_two_ranks_write_adapter_and_merged_weights_that_one_rank_would_and_link_what_is_frozen(
    found: dict[str, Any], adapters: str
) -> None:
    result = found[f"resumed with {adapters}"]
    written = {
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "trainer/adapter.safetensors",
        "trainer/base.safetensors",
    }
    assert result["same"] == dict.fromkeys(written, True)
    frozen = ["model-00001-of-00002.safetensors", "trainer/base.safetensors"]
    assert result["linked"] == {"one to two": frozen, "two to one": frozen}


def test_what_two_ranks_export_is_the_whole_model_bit_for_bit(found: dict[str, Any]) -> None:
    assert found["exported"] == {"qwen3": 0.0, "minimax_m2": 0.0, "qwen3_moe": 0.0}


def test_a_model_that_rank_0_alone_reads_is_on_every_rank_as_if_that_had_read_it(
    found: dict[str, Any],
) -> None:
    models = [f"{name}, rank {rank}" for name in ("qwen3", "qwen3_moe", "minimax_m2") for rank in (0, 3)]
    assert found["dealt"] == {name: [] for name in models}


def test_ranks_of_different_code_or_arguments_refuse_each_other_in_one_sentence(
    found: dict[str, Any],
) -> None:
    assert (
        found["code"]
        == ["rank 1 runs other code of Penstock than rank 0: install the same revision for every rank"] * 2
    )
    assert (
        found["arguments"]
        == ["rank 1 was started with --run other, rank 0 with test: start every rank with the same arguments"]
        * 2
    )


def test_a_silent_rank_is_lost_after_the_time_that_is_set(found: dict[str, Any]) -> None:
    kind, sentence, seconds = found["silent"]
    assert kind == "RankLost" and sentence.startswith("a rank was lost while it trained, so the trainer ends")
    assert 1.0 <= seconds < Timeouts().rank_silence_s, "not after the default"
