"""Routes: the experts of a mixture to which each token was sent. Rollout servers record them and training replays them (ops/guides/merging.md).

In a process, routes are int16[tokens, layers, top_k]. `layers` counts all hidden layers of the model; rows of layers without experts have no
meaning. The ids of a layer ascend, because servers list the same experts in any order. NOT_RECORDED fills a token without routes.
On the bus and in the data pool routes are the same array with one byte per id (two, little-endian, for more than 256 experts), without
unrecorded tokens. A step has the routes of positions `start` on. If the same weights continue a step, `start` is the last token of that step,
which was sampled there and is fed only here. For a root, and after a change of weights, `start` is 0. A step's own last token is
never fed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.contracts.ids import sha256

Routes = npt.NDArray[np.int16]

NOT_RECORDED = -1
REPLAYED = ("minimax_m2", "qwen3_moe")  # `model_type`s whose routers trainer/tree/replay.py computes

_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts")  # keys for the number of experts


@dataclass(frozen=True, slots=True)
class Experts:
    """The routing of a policy: `top_k` of `count` experts for every token in each of its `layers`."""

    layers: int
    top_k: int
    count: int

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "Experts | None":
        """Read from a model's config.json; None for a dense model."""
        text = config.get("text_config", config)
        count = next((text[key] for key in _COUNTS if text.get(key)), 0)
        layers, top_k = text.get("num_hidden_layers"), text.get("num_experts_per_tok")
        return cls(int(layers), int(top_k), int(count)) if count and layers and top_k else None

    @property
    def width(self) -> int:
        """Bytes of one id."""
        return 1 if self.count <= 256 else 2

    def bytes_of(self, tokens: int) -> int:
        """The bytes in which a rollout server sends the routes of `tokens` tokens, at most: base64 of int32, with its padding."""
        return 16 * self.layers * self.top_k * tokens // 3 + 4

    def tokens_in(self, size: int) -> int:
        """The number of tokens whose routes a rollout server sends in `size` bytes: base64 of int32."""
        return size * 3 // (16 * self.layers * self.top_k)

    def shaped(self, flat: npt.NDArray[np.int32]) -> Routes:
        """int16[n, layers, top_k] of a flat list of ids, in ascending order per layer. ValueError if they do not fit this model."""
        row = self.layers * self.top_k
        if len(flat) % row:
            raise ValueError(
                f"{len(flat)} expert ids do not hold whole rows of {self.layers} layers and {self.top_k} experts"
            )
        if len(flat) and not 0 <= flat.min() <= flat.max() < self.count:
            invalid = flat.min() if flat.min() < 0 else flat.max()
            raise ValueError(f"{invalid} is not one of {self.count} experts")
        ordered: Routes = np.sort(flat.reshape(-1, self.layers, self.top_k), axis=-1).astype(np.int16)
        return ordered


@dataclass(frozen=True, slots=True)
class Routed:
    """The known routes of a context before it is sent: those of its first `tokens`, by the weights of `version`."""

    tokens: int = 0
    version: int | None = None

    def first_wanted(self, version: int) -> int:
        """The first position whose routes are needed from the weights that continue the context. After a change of weights a server computes
        the context again, and its completion depends on the new routes."""
        return self.tokens if version == self.version else 0


def no_experts(key: str, value: str, directory: object, off: str) -> ConfigurationError:
    """The error for a key of `[trainer]` that only a mixture of experts can honour. `off`: its value for other models. Both as in a file."""
    return ConfigurationError(
        f"trainer.{key} is {value}, but the policy in {directory} has no experts: begin a new run with trainer.{key} = {off}"
    )


def names_experts(config: Mapping[str, Any]) -> bool:
    """Whether a config.json has experts under any key. Only False is certain: models have more names for them than `Experts` knows."""
    return any(
        value and ("expert" in key or "moe" in key or (isinstance(value, Mapping) and names_experts(value)))
        for key, value in config.items()
    )


def check_replay(config: Mapping[str, Any], directory: object) -> None:
    """Raise ConfigurationError when the routes of a model with this config.json cannot be replayed."""
    if Experts.of(config) is None:
        raise no_experts("routing_replay", "true", directory, "false")
    if (model_type := config.get("model_type")) not in REPLAYED:
        raise ConfigurationError(
            f"trainer.routing_replay does not know the routers of the policy in {directory} (its model_type is {model_type}; known: "
            f"{', '.join(REPLAYED)}): begin a new run with trainer.routing_replay = false"
        )


def routes_sha(chain: bytes, start: int, layers: int, top_k: int, width: int, routes: bytes) -> bytes:
    """The digest that fixes the routes of a step: sha256(chain_sha ‖ int32be of start, layers, top_k, width ‖ bytes)."""
    header = b"".join(value.to_bytes(4, "big") for value in (start, layers, top_k, width))
    return sha256(chain + header + routes)


def routes_to_bytes(routes: Routes, width: int) -> bytes:
    """Routes without gaps in their sent and stored form, `width` bytes per id."""
    assert not len(routes) or routes.min() >= 0
    return routes.astype("u1" if width == 1 else "<u2").tobytes()


def routes_from_bytes(raw: bytes, layers: int, top_k: int, width: int) -> Routes:
    """int16[n, layers, top_k]. ValueError if `raw` is not a whole number of rows."""
    if layers < 1 or top_k < 1 or width not in (1, 2) or len(raw) % (width * layers * top_k):
        raise ValueError(
            f"{len(raw)} bytes do not hold routes of {layers} layers, {top_k} experts and {width} bytes per id"
        )
    found: Routes = np.frombuffer(raw, "u1" if width == 1 else "<i2").reshape(-1, layers, top_k)
    return found.astype(np.int16)


def unrecorded(tokens: int, like: Routes) -> Routes:
    """Routes of `tokens` tokens, none of them recorded."""
    return np.full((tokens, *like.shape[1:]), NOT_RECORDED, np.int16)
