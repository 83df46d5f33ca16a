"""The supervised loop: AdamW with a fixed number of train steps, so the result depends on the seed and not on the clock."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch.nn import functional

from orchestrator.runtime.output_place import directory_to_write
from trainer.model import load_model, own_weights, stored_weights
from trainer.policy.tokenizer import load_tokenizer
from trainer.sft.batches import PaddedBatch, demonstration_batches
from trainer.sft.corpus import Demonstrations, tokenizer_digest


@dataclass(frozen=True, slots=True, kw_only=True)
class SftSettings:
    """How to train. The defaults make a policy from a random one in about 70 CPU-seconds."""

    steps: int = 1_000  # train steps
    rows: int = 8  # demonstrations in a batch
    learning_rate: float = 2e-3
    weight_decay: float = 0.01
    clip: float = 1.0  # norm of the gradient
    warm_up: int = 30  # steps of linear rise
    constant: float = 0.4  # share of the steps after which the rate falls linearly to `last_rate`
    last_rate: float = 0.05  # of `learning_rate`

    def __post_init__(self) -> None:
        if self.steps < 1 or self.rows < 1:
            raise ValueError("supervised training needs at least one step of at least one demonstration")

    def rate(self, step: int) -> float:
        """Learning rate of train step `step`, counted from 0."""
        if step < self.warm_up:
            return self.learning_rate * (step + 1) / self.warm_up
        decay = max(0.0, (step / self.steps - self.constant) / (1 - self.constant))
        return self.learning_rate * (1 - (1 - self.last_rate) * decay)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of a training. Losses are means over the last tenth of the steps; `nll` is per action token, in nats."""

    steps: int
    demonstrations: int
    tokens: int  # forwarded, padding included
    loss_first: float  # weighted loss of the first step
    loss: float  # weighted loss
    nll: float  # unweighted, action tokens only
    accuracy: float  # share of action tokens that greedy decoding would have produced
    cpu_s: float
    wall_s: float


def train(
    demonstrations: Path,
    model: Path,
    out: Path,
    *,
    seed: int,
    settings: SftSettings | None = None,
    progress: Callable[[str], None] = print,
) -> Result:
    """Train the model directory `model` on a file of demonstrations and write a new model directory `out`.

    The same inputs, seed and number of threads give the same weights. Raises ValueError if the demonstrations were made
    with another tokenizer, do not fit into the context or have an id without an embedding, if the weights of `model` are not whole,
    if `out` cannot be written, or if the loss is not finite.
    """
    settings = settings or SftSettings()
    corpus = Demonstrations.load(demonstrations, tokenizer=tokenizer_digest(model))
    network: Any = load_model(model, backend=None)
    if np.diff(corpus.offsets).max() > network.config.max_position_embeddings:
        raise ValueError(f"a demonstration is longer than the context of {model}")
    known, highest = network.get_input_embeddings().num_embeddings, int(corpus.ids.max())
    if highest >= known:
        raise ValueError(
            f"a demonstration has the token {highest}, but {model} only knows the ids below {known}: name the model that they were recorded with"
        )
    words = word_mask(load_tokenizer(model), known)
    directory_to_write("--out", out)
    batches = demonstration_batches(corpus, words, rows=settings.rows, random=np.random.default_rng(seed))
    result = _loop(network, batches, settings, len(corpus), progress)
    _save(network, model, out)
    (out / "sft.json").write_text(
        json.dumps({"seed": seed, **asdict(settings), **asdict(result)}, indent=2) + "\n", encoding="utf-8"
    )
    return result


def word_mask(tokenizer: Tokenizer, size: int) -> npt.NDArray[np.bool_]:
    """bool[size]: the tokens made of letters and digits only. A model may have more embeddings than its tokenizer has ids; those are no words."""
    return np.array([tokenizer.decode([token], skip_special_tokens=False).isalnum() for token in range(size)])


def _loop(
    network: Any,
    batches: Iterator[PaddedBatch],
    settings: SftSettings,
    demonstrations: int,
    progress: Callable[[str], None],
) -> Result:
    optimizer = torch.optim.AdamW(
        network.parameters(), lr=settings.learning_rate, betas=(0.9, 0.95), weight_decay=settings.weight_decay
    )
    network.train()
    history: list[tuple[float, float, float]] = []
    tokens, cpu, wall = 0, time.process_time(), time.perf_counter()
    for step in range(settings.steps):
        batch = next(batches)
        optimizer.param_groups[0]["lr"] = settings.rate(step)
        loss, nll, accuracy = _losses(network, batch)
        if not torch.isfinite(loss):
            raise ValueError(f"the loss of train step {step} is not finite: lower the learning rate")
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(network.parameters(), settings.clip)
        optimizer.step()
        tokens += batch.tokens
        history.append((loss.item(), nll, accuracy))
        if (step + 1) % 100 == 0 or step + 1 == settings.steps:
            progress(
                f"sft {step + 1}/{settings.steps}  loss {loss.item():.3f}  "
                f"accuracy {accuracy:.3f}  {tokens / (time.perf_counter() - wall):,.0f} tok/s"
            )
    tail = np.mean(history[-max(1, len(history) // 10) :], axis=0)
    return Result(
        steps=settings.steps,
        demonstrations=demonstrations,
        tokens=tokens,
        loss_first=history[0][0],
        loss=float(tail[0]),
        nll=float(tail[1]),
        accuracy=float(tail[2]),
        cpu_s=time.process_time() - cpu,
        wall_s=time.perf_counter() - wall,
    )


def _losses(network: Any, batch: PaddedBatch) -> tuple[torch.Tensor, float, float]:
    """(weighted loss, mean negative log-likelihood of the action tokens, share of them that is the argmax)."""
    ids = torch.from_numpy(batch.ids)
    weight = torch.from_numpy(batch.weight)[:, 1:].flatten()
    action = torch.from_numpy(batch.action)[:, 1:].flatten()
    # Padding is on the right and attention is causal, so no token of a demonstration sees it: no mask is needed.
    logits = network(input_ids=ids, use_cache=False).logits[:, :-1].flatten(0, 1)
    targets = ids[:, 1:].flatten()
    token_losses = functional.cross_entropy(logits, targets, reduction="none")
    loss = (token_losses * weight).sum() / weight.sum()
    with torch.no_grad():
        accuracy = (logits[action].argmax(-1) == targets[action]).float().mean()
        return loss, token_losses[action].mean().item(), accuracy.item()


def _save(network: Any, model: Path, out: Path) -> None:
    """Write the weights to `out` and copy all other files of the model directory. Old weights in `out` are removed.

    A process that is killed here leaves the old weights, none, or the new ones, never a mixture.
    """
    out.mkdir(parents=True, exist_ok=True)
    old = own_weights(model)
    for file in sorted(model.iterdir()):
        copied = file.suffix != ".safetensors" and file not in old
        if file.is_file() and copied and out.resolve() != model.resolve():
            shutil.copy(file, out / file.name)
    (tensors,) = stored_weights(network)  # all of them train
    scratch = out / f".weights.{os.getpid()}"
    try:
        contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
        save_file(contiguous, scratch, metadata={"format": "pt"})
        scratch.chmod(0o644)  # the library makes it 0600
        for file in own_weights(out):
            file.unlink()
        os.replace(scratch, out / "model.safetensors")
    finally:
        scratch.unlink(missing_ok=True)
