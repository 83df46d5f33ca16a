"""A rollout server generates by the model's probabilities, and pauses, aborts and updates exactly.

A real server process, driven through the gateway's client; transformers is the reference for every number. The embedded server by default,
SGLang with `--rollout-server sglang`: if the two differ, a test notes it."""

import math
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import anyio
import msgspec
import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families
from safetensors.torch import load_file, save_file

from orchestrator.contracts.processes import PauseMode
from orchestrator.gateway.servers.client import (
    Generation,
    RequestRefused,
    RolloutServerBroken,
    RolloutServerClient,
    SamplingParams,
    WeightUpdateRefused,
)
from orchestrator.runtime.weights_digest import weights_digest
from tests.contract.answers import CONTEXT, PROMPT, VOCABULARY, assert_close, logprobs_of, plain, spans
from tests.contract.rollout_server import ServerProcess, golden, running_server
from tests.waiting import eventually
from trainer.benchmarks.random_model import write_random_model
from trainer.serving.settings import parse_arguments

pytestmark = [pytest.mark.anyio, pytest.mark.tier("gateway")]


@pytest.fixture
def repeatable(server_kind: str) -> dict[str, Any]:
    """Sampling parameters under which the same ids give the same completion. SGLang uses a seed only with deterministic inference,
    which its attention for CPUs does not have."""
    parameters: dict[str, dict[str, Any]] = {"embedded": {"seed": 9}, "sglang": {"temperature": 0.0}}
    return parameters[server_kind]


async def status_for(url: str, authorization: bytes) -> int:
    """The status of a POST whose key is any bytes."""
    address = urlsplit(url)
    async with await anyio.connect_tcp(str(address.hostname), address.port or 80) as stream:
        head = b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nAuthorization: "
        await stream.send(head + authorization + b"\r\n\r\n{}")
        with anyio.fail_after(60):
            return int((await stream.receive()).split(b" ")[1])


async def test_a_server_with_a_key_answers_no_other_user_and_no_web_page(tmp_path: Path) -> None:
    """Any user of the machine, and a form of a page in a local browser, could otherwise replace the policy."""
    write_random_model(tmp_path / "model")
    file = tmp_path / "key"
    file.write_text("the key of the run\n")
    with running_server(tmp_path / "model", "--key-file", str(file)) as server:
        forged = {"model_path": str(tmp_path / "model"), "weight_version": "666"}
        async with aiohttp.ClientSession() as http:
            for path in (
                "/update_weights_from_disk",
                "/update_weight_version",
                "/generate",
                "/pause_generation",
                "/flush_cache",
            ):
                for headers in (
                    {},
                    {"Authorization": "Bearer the key of another"},
                    {"Authorization": "the key of the run"},
                ):
                    async with http.post(server.url + path, json=forged, headers=headers) as answer:
                        assert answer.status == 401, (path, headers)
                page = {
                    "Origin": "http://127.0.0.1:8000",
                    "Content-Type": "text/plain",
                    "Authorization": "Bearer the key of the run",
                }
                async with http.post(server.url + path, data=b"{}", headers=page) as answer:
                    assert answer.status == 403, path
            right = {"Authorization": "Bearer the key of the run"}
            for body in (b"[" * 3000, b'{"a":' * 3000, b'{"text":"\xff"}', b'"\xed\xa0\x80"', b"{", b"[]"):
                async with http.post(f"{server.url}/generate", data=body, headers=right) as answer:
                    assert answer.status == 400 and "the body" in await answer.text(), body[:9]
            assert (await status_for(server.url, b"Bearer \xff\xfe")) == 401
            async with http.get(f"{server.url}/model_info") as answer:
                assert answer.status == 200 and (await answer.json())["weight_version"] == "default"
        async with RolloutServerClient(server.url, key="another") as stranger:
            with pytest.raises(
                RolloutServerBroken, match=r"refuses this gateway's key \(servers\.key_file\)"
            ):
                await stranger.generate(PROMPT, SamplingParams(max_new_tokens=1))
        async with RolloutServerClient(server.url, key="the key of the run") as client:
            assert (await client.generate(PROMPT, SamplingParams(max_new_tokens=2))).output_ids


async def test_a_key_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    for name, why in (("missing", "cannot be read"), ("empty", "is empty")):
        with pytest.raises(ValueError, match=f"--key-file .*{name} {why}"):
            parse_arguments(["--model-path", "model", "--key-file", str(tmp_path / name)])


@pytest.mark.embedded("SGLang tells no digest")
async def test_a_server_tells_the_digest_of_the_weights_that_it_holds_whatever_they_are_called(
    client: RolloutServerClient, models: Path
) -> None:
    digests = [weights_digest([models / f"model{seed}" / "model.safetensors"]) for seed in (0, 1)]
    assert digests[0] != digests[1]
    for seed in (1, 0):
        await client.update_weights(str(models / f"model{seed}"), "the same label")
        info = await client.model_info()
        assert (info.weight_version, info.weights_digest) == ("the same label", digests[seed])
        got = await client.generate(PROMPT, plain(3))
        assert got.weights == {("the same label", digests[seed])}
        empty = await client.generate(PROMPT, plain(0))
        assert empty.weights == {("the same label", digests[seed])}
    async with aiohttp.ClientSession() as http:
        await http.post(f"{client.base_url}/update_weight_version", json={"new_version": "another"})
    got = await client.generate(PROMPT, plain(1))
    assert got.weights == {("another", digests[0])}


async def until(client: RolloutServerClient, condition: Callable[[dict[str, Any]], bool]) -> None:
    """Wait until the server's load meets the condition."""
    await eventually(client.loads, lambda seen: condition(msgspec.structs.asdict(seen)), within_s=20)


async def arrived(server: ServerProcess, act: Callable[[], object], count: int) -> None:
    """Start `count` completions with `act`; return when the server has read them, which its load does not show while it is paused."""

    async def read() -> float:
        async with aiohttp.ClientSession() as http, http.get(f"{server.url}/metrics") as response:
            families = text_string_to_metric_families(await response.text())
        counted = (sample for family in families for sample in family.samples)
        wanted = ("sglang:http_requests_total", "/generate")
        return sum(each.value for each in counted if (each.name, each.labels.get("endpoint")) == wanted)

    before = await read()
    act()
    await eventually(read, lambda seen: seen >= before + count, within_s=20)


# ---- numbers ----


async def test_greedy_output_equals_transformers_generate(
    client: RolloutServerClient, references: list[Any]
) -> None:
    got = await client.generate(PROMPT, plain(60, temperature=0.0))
    theirs = references[0].generate(
        torch.tensor([PROMPT]), max_new_tokens=60, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    assert list(got.output_ids) == theirs[0, len(PROMPT) :].tolist()
    assert got.finish.kind == "length"


@pytest.mark.parametrize("temperature", [1.0, 0.6, 0.0])
async def test_logprobs_are_those_of_the_temperature_scaled_distribution(
    client: RolloutServerClient, references: list[Any], temperature: float
) -> None:
    got = await client.generate(PROMPT, plain(80, temperature=temperature, seed=3))
    theirs = logprobs_of(references[0], [*PROMPT, *got.output_ids], temperature or 1.0)
    assert_close(got.logprobs, theirs[len(PROMPT) - 1 :])


async def test_truncated_sampling_keeps_to_the_nucleus_and_reports_untruncated_logprobs(
    client: RolloutServerClient, references: list[Any]
) -> None:
    got = await client.generate(PROMPT, plain(60, top_k=3, seed=5))
    ids = [*PROMPT, *got.output_ids]
    assert_close(got.logprobs, logprobs_of(references[0], ids)[len(PROMPT) - 1 :])
    with torch.no_grad():
        best = references[0](input_ids=torch.tensor([ids])).logits[0].topk(3).indices.tolist()
    assert all(token in best[len(PROMPT) - 1 + i] for i, token in enumerate(got.output_ids))
    sure = await client.generate(PROMPT, plain(20, top_p=1e-6, seed=5))
    greedy = await client.generate(PROMPT, plain(20, temperature=0.0))
    assert sure.output_ids == greedy.output_ids


async def test_prompt_logprobs_equal_transformers_with_and_without_a_warm_cache(
    client: RolloutServerClient, references: list[Any]
) -> None:
    ids = [(7 * i) % 290 + 3 for i in range(1500)]  # more than one prefill chunk
    theirs = logprobs_of(references[0], ids)
    assert_close(await client.prompt_logprobs(ids), theirs)
    assert_close(await client.prompt_logprobs(ids), theirs)


@pytest.mark.embedded("SGLang on CPU ignores seeds")
async def test_a_seed_gives_the_same_tokens_alone_and_in_a_crowd(client: RolloutServerClient) -> None:
    alone = await client.generate(PROMPT, plain(40, seed=11))
    got: dict[int, Generation] = {}

    async def one(seed: int) -> None:
        got[seed] = await client.generate([*PROMPT, seed][: len(PROMPT) + (seed != 11)], plain(40, seed=seed))

    async with anyio.create_task_group() as group:
        for seed in range(24):
            group.start_soon(one, seed)
    assert got[11].output_ids == alone.output_ids
    assert len({generation.output_ids for generation in got.values()}) == 24


# ---- stopping ----


async def test_a_stop_token_is_in_the_ids_and_logprobs_but_not_in_the_text(
    client: RolloutServerClient,
) -> None:
    free = await client.generate(PROMPT, plain(30, temperature=0.0))
    stop = free.output_ids[9]
    first = free.output_ids.index(stop)
    got = await client.generate(
        PROMPT, SamplingParams(max_new_tokens=30, temperature=0.0, stop_token_ids=(stop,))
    )
    assert got.output_ids == free.output_ids[: first + 1]
    assert (got.finish.kind, got.finish.matched) == ("stop", stop)
    shorter = await client.generate(PROMPT, plain(max(first, 1), temperature=0.0))
    assert got.text == (shorter.text if first else "")


async def test_min_new_tokens_forbids_stop_tokens_until_then(client: RolloutServerClient) -> None:
    everything = tuple(range(3, 150))
    got = await client.generate(
        PROMPT, SamplingParams(max_new_tokens=50, stop_token_ids=everything, min_new_tokens=20, seed=1)
    )
    assert got.finish.kind == "stop"
    assert got.completion_tokens >= 21
    assert not set(got.output_ids[:20]) & {*everything, 2}


async def test_a_stop_string_ends_the_completion_and_is_cut_from_the_text(
    client: RolloutServerClient, repeatable: dict[str, Any]
) -> None:
    free = await client.generate(PROMPT, plain(200, **repeatable))
    wanted = next(free.text[i : i + 3] for i in range(30, 200) if free.text[i : i + 3].isascii())
    assert len(wanted) == 3
    got = await client.generate(PROMPT, plain(200, **repeatable, stop=(wanted, "never written")))
    assert (got.finish.kind, got.finish.matched) == ("stop", wanted)
    assert got.text == free.text[: free.text.index(wanted)]
    assert got.output_ids == free.output_ids[: got.completion_tokens]


async def test_prompt_and_completion_must_fit_the_context(client: RolloutServerClient) -> None:
    with pytest.raises(RequestRefused, match="longer than the model's context length"):
        await client.generate([5] * CONTEXT, plain(1))
    with pytest.raises(RequestRefused, match="exceeds the model's maximum context length"):
        await client.generate([5] * (CONTEXT - 10), plain(11))
    # A request that fits is accepted; two places of the context stay empty.
    for requested, made in ((10, 8), (8, 8), (7, 7)):
        got = await client.generate([5] * (CONTEXT - 10), plain(requested, temperature=0.0))
        assert (got.completion_tokens, got.finish.kind) == (made, "length")
    with pytest.raises(RequestRefused, match=f"exceeds the maximum allowed length .{CONTEXT - 6} tokens"):
        await client.generate([5] * (CONTEXT - 5), plain(1))
    assert (await client.server_info()).max_req_input_len == CONTEXT - 6


# ---- the prefix cache ----


async def test_the_second_turn_prefills_only_its_new_tokens(
    client: RolloutServerClient, references: list[Any], repeatable: dict[str, Any]
) -> None:
    prompt = [(11 * i) % 290 + 3 for i in range(700)]
    first = await client.generate(prompt, plain(50, seed=1))
    assert first.cached_tokens == 0
    second_prompt = [*prompt, *first.output_ids, 17, 18, 19]
    second = await client.generate(second_prompt, plain(30, **repeatable))
    # The last sampled token was never fed.
    assert second.cached_tokens == len(prompt) + len(first.output_ids) - 1
    theirs = logprobs_of(references[0], [*second_prompt, *second.output_ids])
    assert_close(second.logprobs, theirs[len(second_prompt) - 1 :])
    await client.flush()
    cold = await client.generate(second_prompt, plain(30, **repeatable))
    assert (cold.cached_tokens, cold.output_ids) == (0, second.output_ids)
    assert_close(cold.logprobs, second.logprobs)


@pytest.mark.embedded("SGLang computes those that start in one batch side by side")
async def test_members_of_a_group_that_arrive_together_share_one_prefill(client: RolloutServerClient) -> None:
    prompt = [(13 * i) % 290 + 3 for i in range(400)]
    got: list[Generation] = []

    async def one(seed: int) -> None:
        got.append(await client.generate(prompt, plain(10, seed=seed)))

    await client.pause(PauseMode.IN_PLACE)  # so that they are all there before the first one starts
    async with anyio.create_task_group() as group:
        for seed in range(8):
            group.start_soon(one, seed)
        # Requests that SGLang holds are in no load.
        await until(client, lambda load: load["num_waiting_reqs"] == 8)
        await client.continue_()
    assert sorted(generation.cached_tokens for generation in got) == [0] + [len(prompt) - 1] * 7


# ---- pausing and updating in mid-flight ----


async def in_flight(
    client: RolloutServerClient, act: Callable[[], Any], *, tokens: int = 40, new: int = 200, **sampling: Any
) -> Generation:
    """Run one completion; `act` once it has made about `tokens` tokens."""
    got: list[Generation] = []

    async def generate() -> None:
        got.append(await client.generate(PROMPT, plain(new, **sampling), rid="flying"))

    async with anyio.create_task_group() as group:
        group.start_soon(generate)
        await until(client, lambda load: load["num_total_tokens"] >= len(PROMPT) + tokens)
        await act()
    return got[0]


async def test_a_pause_that_aborts_returns_the_partial_and_resubmitting_it_completes_the_same_output(
    client: RolloutServerClient, repeatable: dict[str, Any]
) -> None:
    whole = await client.generate(PROMPT, plain(200, **repeatable))
    partial = await in_flight(client, lambda: client.pause(PauseMode.ABORT), **repeatable)
    recorded = golden("midflight_abort")[1]["body"]["meta_info"]["finish_reason"]
    assert partial.finish.kind == recorded["type"] == "abort"
    assert partial.finish.message == recorded["message"]
    assert 40 <= partial.completion_tokens < 200
    assert spans(partial) == [("v0", 0, partial.completion_tokens)]
    await client.continue_()
    rest = await client.generate(
        [*PROMPT, *partial.output_ids], plain(200 - partial.completion_tokens, **repeatable)
    )
    assert partial.output_ids + rest.output_ids == whole.output_ids
    assert_close(partial.logprobs + rest.logprobs, whole.logprobs)
    assert rest.cached_tokens == len(PROMPT) + partial.completion_tokens - 1


async def test_a_retracted_request_is_recomputed_under_the_new_weights_with_exact_versions(
    client: RolloutServerClient, models: Path, references: list[Any]
) -> None:
    async def act() -> None:
        await client.pause(PauseMode.RETRACT)
        await client.update_weights(str(models / "model1"), "v1")
        await client.continue_()

    got = await in_flight(client, act)
    assert got.retractions == golden("midflight_retract")[1]["body"]["meta_info"]["num_retractions"] == 1
    cut = got.spans[0].end
    assert spans(got) == [("v0", 0, cut), ("v1", cut, 200)] and cut >= 40
    assert got.weight_version == "v1"
    ids = [*PROMPT, *got.output_ids]
    old, new = (logprobs_of(model, ids)[len(PROMPT) - 1 :] for model in references)
    assert_close(got.logprobs[:cut], old[:cut])
    assert_close(got.logprobs[cut:], new[cut:])


async def test_a_pause_in_place_keeps_the_old_keys_and_values(
    client: RolloutServerClient, models: Path, references: list[Any], server_kind: str
) -> None:
    from transformers import DynamicCache

    async def act() -> None:
        await client.pause(PauseMode.IN_PLACE)
        await client.update_weights(str(models / "model1"), "v1", flush_cache=False)
        await client.continue_()

    got = await in_flight(client, act)
    cut = got.spans[0].end
    recorded = golden("midflight_in_place")[1]["body"]["meta_info"]["weight_versions"]
    assert [span.end == after.start for span, after in zip(got.spans, got.spans[1:], strict=False)] == [True]
    assert len(recorded) == len(got.spans) == 2
    assert spans(got) == [("v0", 0, cut), ("v1", cut, 200)] and cut >= 40
    ids = torch.tensor([[*PROMPT, *got.output_ids]])
    fed = len(PROMPT) + cut - 1  # tokens that the old weights had seen
    with torch.no_grad():
        past = references[0](input_ids=ids[:, :fed], past_key_values=DynamicCache()).past_key_values
        logits = references[1](input_ids=ids[:, fed:-1], past_key_values=past).logits[0]
    mixed = torch.log_softmax(logits, -1).gather(1, ids[0, fed + 1 :, None])[:, 0].tolist()
    assert_close(got.logprobs[cut:], mixed)
    after = await client.generate([*PROMPT, *got.output_ids, 5], plain(1))
    # No prefix may reuse keys and values of two versions. SGLang would share them: one reason why the gateway pauses with abort.
    assert after.cached_tokens == {"embedded": 0, "sglang": len(PROMPT) + 199}[server_kind]


async def test_an_update_without_a_pause_waits_for_the_running_request(
    client: RolloutServerClient, models: Path
) -> None:
    order: list[str] = []

    async def act() -> None:
        # SGLang frees a request's entry only after its reply, and refuses to flush until then: the flush would race with the reply.
        await client.update_weights(str(models / "model1"), "v1", flush_cache=False)
        order.append("updated")

    got = await in_flight(client, act, new=400)
    assert spans(got) == [("v0", 0, 400)]
    recorded = golden("midflight_update_nopause")[1]["body"]["meta_info"]
    assert [one["version"] for one in recorded["weight_versions"]] == [recorded["weight_version"]]
    assert golden("update_while_running")[1]["status"] == 200
    assert order == ["updated"]
    assert (await client.model_info()).weight_version == "v1"


async def test_requests_that_arrive_while_paused_are_held_and_run_under_the_new_weights(
    client: RolloutServerClient, server: ServerProcess, models: Path
) -> None:
    got: list[Generation] = []

    async def generate() -> None:
        got.append(await client.generate(PROMPT, plain(5)))

    await client.pause(PauseMode.ABORT)
    async with anyio.create_task_group() as group:
        await arrived(server, lambda: group.start_soon(generate), 1)
        await client.update_weights(str(models / "model1"), "v1")
        assert got == []
        await client.continue_()
    assert spans(got[0]) == [("v1", 0, 5)]


async def test_abort_request_ends_one_request_and_leaves_the_others(client: RolloutServerClient) -> None:
    other: list[Generation] = []

    async def generate() -> None:
        other.append(await client.generate([*PROMPT, 9], plain(100)))

    async with anyio.create_task_group() as group:
        group.start_soon(generate)
        got = await in_flight(client, lambda: client.abort("flying"), tokens=60, new=3000)
    assert got.finish.kind == "abort" and got.completion_tokens < 3000
    assert (other[0].finish.kind, other[0].completion_tokens) == ("length", 100)


async def test_a_client_that_goes_away_takes_its_request_with_it(client: RolloutServerClient) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(client.generate, PROMPT, plain(3900))
        await until(client, lambda load: load["num_running_reqs"] == 1)
        group.cancel_scope.cancel()
    await until(client, lambda load: load["num_running_reqs"] == 0)


# ---- weights that must not be served ----


def _truncate(model: Path) -> None:
    file = model / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])


def _poison(model: Path) -> None:
    tensors = load_file(model / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"][3, 3] = math.nan
    save_file(tensors, model / "model.safetensors")


def _drop(model: Path) -> None:
    (model / "model.safetensors").unlink()


@pytest.mark.embedded(
    "a damaged file ends a SGLang server: the gateway compares every file with its published hash before"
)
@pytest.mark.parametrize(
    ("break_it", "shape", "reason"),
    [
        (_truncate, {}, "cannot be read as safetensors"),
        (_poison, {}, "up_proj.weight holds values that are not finite"),
        (_drop, {}, "lacks model.safetensors"),
        (None, {"vocab_size": 734}, "vocab_size differ in config.json"),
        (None, {"layers": 2}, "num_hidden_layers differ in config.json"),
    ],
)
async def test_bad_weights_are_refused_and_the_old_ones_stay(
    client: RolloutServerClient,
    models: Path,
    tmp_path: Path,
    break_it: Callable[[Path], None] | None,
    shape: dict[str, int],
    reason: str,
) -> None:
    before = await client.generate(PROMPT, plain(8, temperature=0.0))
    options = {"vocab_size": VOCABULARY, "hidden": 64, "layers": 3, "context_length": CONTEXT, **shape}
    bad = write_random_model(tmp_path / "bad", seed=5, **options)
    if break_it is not None:
        break_it(bad)
    with pytest.raises(WeightUpdateRefused, match=reason):
        await client.update_weights(str(bad), "v2")
    after = await client.generate(PROMPT, plain(8, temperature=0.0))
    assert after.output_ids == before.output_ids
    assert spans(after) == [("v0", 0, 8)]


# ---- the process ----


def start_and_fail(*arguments: str) -> str:
    """The one line of a server that cannot start."""
    done = subprocess.run(
        [sys.executable, "-m", "trainer.serving", *arguments], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


@pytest.mark.embedded("its own process")
def test_a_taken_port_is_named_in_one_sentence(models: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        error = start_and_fail("--model-path", str(models / "model0"), "--port", str(port))
    assert f"port {port} on 127.0.0.1 is taken" in error


@pytest.mark.embedded("its own process")
def test_a_model_without_tokenizer_and_a_vocabulary_mismatch_are_named_in_one_sentence(
    tmp_path: Path,
) -> None:
    model = write_random_model(tmp_path / "model", vocab_size=300, hidden=32, layers=1)
    config = model / "config.json"
    config.write_text(config.read_text().replace('"vocab_size": 300', '"vocab_size": 280'))
    error = start_and_fail("--model-path", str(model), "--port", "0")
    assert "the tokenizer has 300 tokens, config.json says vocab_size = 280" in error
    (model / "tokenizer.json").unlink()
    assert "has no tokenizer.json" in start_and_fail("--model-path", str(model), "--port", "0")
    assert "no model directory at" in start_and_fail("--model-path", str(tmp_path / "nowhere"), "--port", "0")


@pytest.mark.embedded("its own process")
async def test_sigterm_answers_what_runs_with_its_partial_output_and_ends_within_a_second(
    models: Path,
) -> None:
    took: list[float] = []
    while len(took) < 3 and (not took or took[-1] >= 1.0):  # a busy machine may take longer now and then
        took.append(await seconds_to_end(models / "model0"))
    assert took[-1] < 1.0, took


async def seconds_to_end(model: Path) -> float:
    """How long a server that is generating takes to end after the signal."""
    with running_server(model) as server:
        async with RolloutServerClient(server.url) as client:
            got: list[Generation] = []

            async def generate() -> None:
                got.append(await client.generate(PROMPT, plain(3900)))

            async with anyio.create_task_group() as group:
                group.start_soon(generate)
                await until(client, lambda load: load["num_total_tokens"] > len(PROMPT))
                started = time.monotonic()
                server.process.terminate()
            code = await anyio.to_thread.run_sync(server.process.wait)
            took = time.monotonic() - started
    assert code == 0
    assert got[0].finish.kind == "abort" and got[0].completion_tokens > 0
    return took
