"""Identifiers and encodings that cross process borders: names, message ids, token arrays, chain and row digests."""

import base64
import hashlib
import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from orchestrator.contracts.quote import quoted

Ids = npt.NDArray[np.int32]
Logprobs = npt.NDArray[np.float32]

NAME = re.compile(r"[a-z0-9_-]{1,32}")
NAME_RULE = "1 to 32 characters of a-z, 0-9, _ and -"
EVERY_DOMAIN = "all"
"""In the place of a domain: the total over all of them."""
DOMAIN_RULE = f"{NAME_RULE}, but not {EVERY_DOMAIN}, which stands for every domain"
WEIGHTS = re.compile(r"[0-9]{1,10}:[0-9a-f]{64}")
"""`version:digest`: the weights that generated a step, where the rollout server tells digests."""
NO_PARENT = bytes(32)  # the parent of a chain that starts from nothing


def is_name(name: str) -> bool:
    """Whether `name` can name a run or a pool."""
    return NAME.fullmatch(name) is not None


def is_domain(name: str) -> bool:
    """Whether `name` can name a domain."""
    return is_name(name) and name != EVERY_DOMAIN


def check_name(kind: str, name: str) -> str:
    """Return `name`, or raise ValueError naming the rule that it breaks."""
    if not is_name(name):
        raise ValueError(f"{kind} {quoted(name)} is not a valid name: use {NAME_RULE}")
    return name


def check_domain(name: str) -> str:
    """Return `name`, or raise ValueError naming the rule that it breaks as the name of a domain."""
    if not is_domain(name):
        raise ValueError(f"domain {quoted(name)} is not a valid name: use {DOMAIN_RULE}")
    return name


def sha256(data: bytes) -> bytes:
    """The 32-byte digest."""
    return hashlib.sha256(data).digest()


def ids_to_bytes(ids: Sequence[int] | Ids) -> bytes:
    """Token ids as little-endian int32, the encoding of the bus and of the data pool."""
    return np.asarray(ids, dtype="<i4").tobytes()


def ids_from_bytes(raw: bytes) -> Ids:
    """int32[n], read-only view of `raw`."""
    return np.frombuffer(raw, dtype="<i4")


LOGPROB_SLACK = 1e-4
"""How far above 0 a logprob may be through rounding. A fused kernel computes logit - logsumexp, both rounded to float32. The error is one unit
in their last place: 6e-5 for logits near 1,000. A larger value is not the logarithm of a probability."""


def logprobs_to_bytes(values: Sequence[float] | Logprobs) -> bytes:
    """Logprobs as little-endian float32."""
    return np.asarray(values, dtype="<f4").tobytes()


def logprobs_from_bytes(raw: bytes) -> Logprobs:
    """float32[n], read-only view of `raw`."""
    return np.frombuffer(raw, dtype="<f4")


def b64(raw: bytes) -> str:
    """Standard base64 text, as bus bodies carry binary."""
    return base64.b64encode(raw).decode("ascii")


def unb64(text: str) -> bytes:
    """The inverse of `b64`; ValueError on anything else."""
    return base64.b64decode(text, validate=True)


def prompt_sha(ids: bytes) -> bytes:
    """Content address of a root prompt, over its little-endian int32 ids."""
    return sha256(ids)


def chain_sha(parent: bytes, keep_len: int, delta: bytes, action: bytes) -> bytes:
    """sha256(parent ‖ int32le(keep_len) ‖ delta ‖ action).

    `parent` is the parent's chain_sha, or the prompt's sha256 for a root with a prompt, or `NO_PARENT`.
    """
    assert len(parent) == 32
    return sha256(parent + keep_len.to_bytes(4, "little", signed=True) + delta + action)


def row_sha(chain: bytes, logprobs: bytes, spans: Sequence[int], sampling: bytes) -> bytes:
    """Digest that fixes a step row: the chain, logprobs, version spans (flat: `contracts.spans`) and canonical sampling JSON."""
    return sha256(
        chain + sha256(logprobs) + sha256(np.asarray(spans, dtype="<i4").tobytes()) + sha256(sampling)
    )


def trajectory_digest(chain_shas: Sequence[bytes]) -> bytes:
    """sha256 of every step's chain_sha in idx order, as a sealed session announces it."""
    return sha256(b"".join(chain_shas))
