"""A published version as a rollout server may load it: intact, with its canary and the digest of its weights."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from orchestrator.pool.policy_versions import PolicyVersion
from orchestrator.runtime.weights_digest import digest_of_lines, tensor_lines


class SyncFailed(Exception):
    """A version could not be made to serve. The message is one sentence for the row and the log."""


@dataclass(frozen=True, slots=True)
class Canary:
    """logprobs[i] = log p(ids[i + 1] | ids[: i + 1]) under the trainer, at temperature 1."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]

    def difference(self, served: Sequence[float]) -> float:
        """max |Δlogprob|; infinite for NaN and for another number of values."""
        if len(served) != len(self.logprobs):
            return float("inf")
        differences = [abs(a - b) for a, b in zip(served, self.logprobs, strict=True)]
        return max((d if d == d else float("inf") for d in differences), default=0.0)


@dataclass(frozen=True, slots=True)
class IntactVersion:
    """A published version with intact files. `bytes`: size of the files that a server loads, without the trainer's own state. `digest`: of its
    weights; None: it has none, in a run without weights."""

    canary: Canary
    bytes: int
    digest: str | None


def read_published(version: PolicyVersion) -> IntactVersion:
    """Read a published version. Raises SyncFailed unless the manifest is the published one and its files are intact."""
    directory, served, lines = Path(version.path), 0, list[str]()
    try:
        raw = (directory / "manifest.json").read_bytes()
        found = hashlib.sha256(raw).hexdigest()
        if found != version.manifest_sha:
            raise SyncFailed(f"{directory}/manifest.json is not the published one (sha256 {found[:12]}…)")
        manifest = json.loads(raw)
        canary = Canary(tuple(manifest["canary"]["ids"]), tuple(manifest["canary"]["logprobs"]))
        for name, expected in manifest["files"].items():
            if "/" in name:  # the trainer's own state is not served
                continue
            with (directory / name).open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != expected["sha256"]:
                    raise SyncFailed(f"{directory / name} does not match its published sha256")
            served += int(expected["bytes"])
            if name.endswith(".safetensors"):
                lines += _lines(directory / name, expected["sha256"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SyncFailed(f"{directory} cannot be served: {type(error).__name__} {error}") from None
    if len(canary.ids) < 2:
        raise SyncFailed(f"{directory}: the canary has fewer than 2 ids")
    return IntactVersion(canary, served, digest_of_lines(lines) if lines else None)


@lru_cache(maxsize=256)
def _lines(file: Path, sha256: str) -> tuple[str, ...]:
    """Those of an intact file, which are the same as long as its `sha256` is: it is not read for each server again."""
    return tensor_lines(file)
