"""A rollout server takes weights from a sender as it takes them from a directory; SGLang with `--rollout-server sglang`."""

import errno
import shutil
from pathlib import Path
from typing import Any

import anyio
import pytest
from safetensors.torch import load_file, save_file

from orchestrator.contracts.processes import PauseMode
from orchestrator.gateway.servers.client import (
    RequestRefused,
    RolloutServerClient,
    WeightUpdateRefused,
)
from orchestrator.gateway.servers.transfer import TransferFailed, sending
from orchestrator.runtime.weights_digest import weights_digest
from tests.contract.answers import PROMPT, assert_close, logprobs_of, plain, spans

pytestmark = [pytest.mark.anyio, pytest.mark.tier("gateway")]


async def sent(
    client: RolloutServerClient, path: Path, version: str, *, part_bytes: int | None = None
) -> None:
    """Start a sender of the directory at `path`, and let the server load the sent weights."""
    limits = {} if part_bytes is None else {"part_bytes": part_bytes}
    async with sending(client, str(path), address="127.0.0.1", within=60.0, **limits) as sender:
        await client.pause(PauseMode.ABORT)
        await sender.deliver(version, timeout=60.0)
        await client.continue_()


@pytest.mark.parametrize("part_bytes", [None, 100_000], ids=["in one part", "in many parts"])
async def test_weights_from_a_sender_are_served_as_those_of_a_directory(
    client: RolloutServerClient, models: Path, references: list[Any], part_bytes: int | None
) -> None:
    before = await client.prompt_logprobs(PROMPT)
    assert_close(before, logprobs_of(references[0], PROMPT))
    await sent(client, models / "model1", "v1", part_bytes=part_bytes)
    assert (await client.model_info()).weight_version == "v1"
    assert_close(await client.prompt_logprobs(PROMPT), logprobs_of(references[1], PROMPT))
    assert spans(await client.generate(PROMPT, plain(4))) == [("v1", 0, 4)]


@pytest.mark.embedded("SGLang tells no digest")
async def test_weights_from_a_sender_have_the_digest_of_the_directory(
    client: RolloutServerClient, models: Path
) -> None:
    await sent(client, models / "model1", "v1", part_bytes=100_000)
    expected = weights_digest([models / "model1" / "model.safetensors"])
    assert (await client.model_info()).weights_digest == expected


async def test_a_group_that_was_never_opened_is_refused_and_the_weights_stay(
    client: RolloutServerClient,
) -> None:
    before = await client.prompt_logprobs(PROMPT)
    with pytest.raises(RequestRefused):
        await client.leave_transfer("unknown")
    assert await client.prompt_logprobs(PROMPT) == before


@pytest.mark.embedded("SGLang asserts, and its scheduler ends with it")
async def test_weights_of_a_group_that_was_never_opened_are_refused_in_a_sentence(
    client: RolloutServerClient,
) -> None:
    await client.begin_transfer()
    part = {"names": ["model.norm.weight"], "dtypes": ["float32"], "shapes": [[64]]}
    with pytest.raises(WeightUpdateRefused, match="group 'unknown' does not exist"):
        await client.receive_weights("unknown", part, "v1", flush_cache=True, timeout=20.0)
    await client.end_transfer()


async def test_weights_outside_of_a_session_are_refused_in_the_same_words(
    client: RolloutServerClient,
) -> None:
    part = {"names": ["model.norm.weight"], "dtypes": ["float32"], "shapes": [[64]]}
    with pytest.raises(WeightUpdateRefused, match="must run between begin_weight_update"):
        await client.receive_weights("unknown", part, "v1", flush_cache=True, timeout=20.0)
    with pytest.raises(
        WeightUpdateRefused, match="no weight-update session is open; call begin_weight_update"
    ):
        await client.end_transfer()
    await client.begin_transfer()
    with pytest.raises(
        WeightUpdateRefused, match="a weight-update session is already open; call end_weight_update"
    ):
        await client.begin_transfer()
    await client.end_transfer()


async def test_a_session_that_was_left_open_is_closed_by_the_next_transfer(
    client: RolloutServerClient, models: Path, references: list[Any]
) -> None:
    await client.begin_transfer()
    await sent(client, models / "model1", "v1")
    assert_close(await client.prompt_logprobs(PROMPT), logprobs_of(references[1], PROMPT))


@pytest.mark.embedded("SGLang takes over what it was given")
async def test_half_of_the_weights_is_refused_and_the_old_ones_stay(
    client: RolloutServerClient, models: Path, references: list[Any], tmp_path: Path
) -> None:
    half = tmp_path / "half"
    shutil.copytree(models / "model1", half)
    tensors = load_file(half / "model.safetensors")
    save_file(
        {name: tensors[name] for name in list(tensors)[: len(tensors) // 2]}, half / "model.safetensors"
    )
    with pytest.raises(WeightUpdateRefused, match="the weights lack"):
        await sent(client, half, "v2")
    await client.continue_()
    assert_close(await client.prompt_logprobs(PROMPT), logprobs_of(references[0], PROMPT))


@pytest.mark.embedded("SGLang waits until its group's time is over")
async def test_a_sender_that_dies_halfway_is_noticed_and_the_old_weights_stay(
    client: RolloutServerClient, models: Path, references: list[Any]
) -> None:
    async with sending(
        client, str(models / "model1"), address="127.0.0.1", within=60.0, part_bytes=1
    ) as sender:
        first, second, *_ = sender.parts
        await client.begin_transfer()
        await client.receive_weights(sender.group, first, None, flush_cache=False, timeout=20.0)
        await sender.end()
        with pytest.raises(WeightUpdateRefused, match="the weights did not arrive"):
            await client.receive_weights(sender.group, second, "v1", flush_cache=True, timeout=20.0)
        await client.end_transfer()
        with pytest.raises(TransferFailed, match="the sender ended before it had sent all"):
            await sender.deliver("v1", timeout=60.0)
    assert_close(await client.prompt_logprobs(PROMPT), logprobs_of(references[0], PROMPT))


@pytest.mark.embedded("SGLang asserts, and its scheduler ends with it")
async def test_a_dtype_that_does_not_exist_ends_the_transfer_and_the_old_weights_stay(
    client: RolloutServerClient, models: Path, references: list[Any]
) -> None:
    async with sending(client, str(models / "model1"), address="127.0.0.1", within=60.0) as sender:
        (part,) = sender.parts
        wrong = part | {"dtypes": ["float31", *part["dtypes"][1:]]}
        await client.begin_transfer()
        with pytest.raises(WeightUpdateRefused, match="has dtype 'float31', which torch does not have"):
            await client.receive_weights(sender.group, wrong, "v1", flush_cache=True, timeout=20.0)
        with pytest.raises(WeightUpdateRefused, match=r"group .* does not exist"):
            await client.receive_weights(sender.group, part, "v1", flush_cache=True, timeout=20.0)
        await client.end_transfer()
    assert_close(await client.prompt_logprobs(PROMPT), logprobs_of(references[0], PROMPT))


async def test_a_sender_for_which_no_process_is_left_is_a_failed_transfer(
    client: RolloutServerClient, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(anyio, "open_process", refuse)
    with pytest.raises(
        TransferFailed, match="the sender does not start: Resource temporarily unavailable"
    ) as failed:
        async with sending(client, str(models / "model1"), address="127.0.0.1", within=60.0):
            pass
    assert not failed.value.always


async def test_the_sender_refuses_a_directory_that_is_not_a_checkpoint(
    client: RolloutServerClient, tmp_path: Path
) -> None:
    with pytest.raises(TransferFailed, match="is not a model directory"):
        async with sending(client, str(tmp_path), address="127.0.0.1", within=60.0):
            pass
