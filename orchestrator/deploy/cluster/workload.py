"""Known properties of the work and of the machines' speed: `workload.toml`, or measured from a run (`measured`). And the product's own costs.

No value is guessed: values that depend on model, tasks and hardware have no default, and the product's costs were measured (`PRODUCT`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.contracts.quote import cut, quoted
from orchestrator.deploy.cluster.toml import to_toml
from orchestrator.settings.assignments import assigned
from orchestrator.settings.section import Section
from sandboxes.text_files import read_toml

Count = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Amount = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, lt=1)]


class Workload(Section):
    """Means of one run. Times are seconds; a call is one completion, a turn of an agent."""

    turns: Amount  # calls per rollout
    new_tokens: Amount  # generated per call
    added_tokens: Count  # prompt and tool output that a call adds to its context
    tool_s: Count  # between two calls: tools, and the agent itself
    overhead_s: Count  # of a rollout in its slot in addition to its calls and tools: sandbox, session, result
    verify_s: Amount  # one verification in its slot
    stream_tokens_s: Amount  # of one call alone, its first token's wait included
    server_tokens_s: Amount  # of one rollout server at the concurrency of its use
    train_tokens_s: Amount  # of the trainer as a whole, tokens of merged prefix trees
    train_fixed_s: Count = 0.0  # of a train step regardless of its size: save, commit
    train_tokens: Count = 0.0  # of one rollout in the trainer's tree; 0: all of its tokens, nothing shared
    checkpoint_gb: Count = 0.0  # 10^9 bytes of one version's weights; 0: unknown, left out of the result
    filtered: Share = 0.0  # of groups: no signal, or too few members
    slot_cv: Count = 0.0  # a rollout's time in its slot: standard deviation ÷ mean; 0: constant
    slot_alike: Share = 0.0  # of that variance: between groups, so that the members of one are alike
    verify_cv: Count = 0.0
    verify_alike: Share = 0.0
    admit_s: Count = 0.1  # from freed capacity in the queue to the dispatch: half of the dispatcher's rest (roles/dispatcher.py)
    dispatch_s: Count = 0.0503  # from dispatch to the lease of a free slot (ops/benchmarks/pool.md)
    dispatch_cv: Count = 0.0
    # From a batch's last group to its claim by an idle trainer (ops/benchmarks/pool.md).
    claim_s: Count = 0.0262
    settle_s: Count = 0.0503  # from a rollout's end to its verification in a free slot: the same path
    settle_cv: Count = 0.0
    report_s: Count = 0.0  # from the end of work in a slot, which is then free, until the data pool has its result, for rollouts and verdicts
    conclude_s: Count = 0.0  # from the last verdict of a group until it is ready

    @property
    def tokens_of_rollout(self) -> float:
        """Tokens that the trainer computes for one rollout."""
        return self.train_tokens or self.turns * (self.added_tokens + self.new_tokens)


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured coefficient of the product."""

    value: float
    what: str
    source: str


PRODUCT = {
    "completions_cpu": Figure(683.0, "completions per CPU-second of a gateway, the slower of two runs", "ops/benchmarks/gateway.md"),
    "completions_target": Figure(500.0, "completions per CPU-second that a gateway must hold", "ops/benchmarks/gateway.md"),
    "session_cpu": Figure(0.0044, "CPU-seconds of a gateway to open a session", "ops/benchmarks/gateway.md"),
    "gateway_wait": Figure(0.0041, "seconds that a gateway adds to a call, 32 sessions, p50", "ops/benchmarks/gateway.md"),
    "step_rows": Figure(4130.0, "step rows per second into Postgres, 64 to a commit", "ops/benchmarks/pool.md"),
    "changes": Figure(5216.0, "state changes per second in Postgres", "ops/benchmarks/pool.md"),
    "relayed": Figure(3870.0, "messages per CPU-second of an orchestrator's relay", "ops/benchmarks/pool.md"),
    # At 768 + 256 tokens a row has 1,024 · (5.54 + 0.04 − 5.00) bytes in addition to its tokens, and so on.
    "step_bytes": Figure(1024 * 0.58, "bytes of a step row and its index, without its tokens", "ops/benchmarks/pool.md"),
    "message_bytes": Figure(1024 * 0.61, "bytes of a step's messages", "ops/benchmarks/pool.md"),
    "prompt_bytes": Figure(1024 * 0.209, "bytes of prompts per step", "ops/benchmarks/pool.md"),
}  # fmt: skip
"""The product's costs, on two cores of a shared virtual machine; `penstock size --json` shows them with their source."""


def product(name: str) -> float:
    return PRODUCT[name].value


def given(raw: dict[str, Any], source: str) -> Workload:
    """A workload from its keys. ConfigurationError, one line, names every key that is missing or wrong."""
    try:
        return Workload.model_validate(raw)
    except ValidationError as error:
        problems = [(".".join(map(str, item["loc"])), item["type"], item["msg"]) for item in error.errors()]
    missing = [key for key, kind, _ in problems if kind == "missing"]
    messages = [
        f"{key}: {'is not a known key' if kind == 'extra_forbidden' else message}"
        for key, kind, message in problems
        if kind != "missing"
    ]
    if missing:
        messages.append(
            f"{', '.join(missing)} must be given: measure them with --from-run, or write them with --workload or --set"
        )
    raise ConfigurationError(f"{source}: " + "; ".join(messages))


def read(path: Path) -> dict[str, Any]:
    """The keys of a workload's file. ConfigurationError if it is invalid."""
    try:
        return read_toml(path)
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigurationError(str(error)) from None


def changed(raw: dict[str, Any], assignments: Sequence[str]) -> dict[str, Any]:
    """`raw` with `key=value` of `--set`; a value is TOML, a key may lead through tables and lists: runners.0.slots=64."""
    for assignment in assignments:
        (*path, last), value = assigned(assignment, "--set")
        node: Any = raw
        try:
            for part in path:
                node = node[int(part)] if isinstance(node, list) else node.setdefault(part, {})
            node[int(last) if isinstance(node, list) else last] = value
        except (IndexError, ValueError, TypeError, AttributeError):
            raise ConfigurationError(
                f"--set {quoted(assignment)}: the key {cut('.'.join((*path, last)))} does not exist"
            ) from None
    return raw


def written(workload: Workload) -> str:
    """The text of a file that `read` accepts."""
    return to_toml(workload.model_dump())
