"""`task.toml`: the settings of a task, as people write them.

Everything has a default, so an empty `task.toml` is valid. `[metadata]` is the author's own table: known keys are used if their values have
the expected type, and any other keys may be added. keys.py lists all other keys and their treatment. It applies to new tasks only; settings
accepted earlier are read here unchanged, within the limits of sizes.py.

    version = "1.0"

    [metadata]
    name = "agent-find-copy-1f0c9a52"
    domain = "agent"            # the default domain of its submission; may be a name of your own
    difficulty = "hard"
    tags = ["two-calls"]

    [agent]
    timeout_sec = 60.0          # wall clock of one rollout
    stall_s = 30.0              # the attempt ends after this long with no completion open, no output and no CPU time
    max_turns = 4               # completions
    reference_sec = 20.0        # time of a good agent: reference of the speed bonus; absent: the group is the reference

    [verifier]
    timeout_sec = 20.0
    env = { EXPECTED = "42" }   # for tests/test.sh
    performance = "tests"       # the number of reward.json that is the reward

`[[steps]]` are the steps of a task with several instructions (multi_step.py).
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from orchestrator.contracts.ids import is_domain
from orchestrator.contracts.quote import quoted
from orchestrator.tasks.collected import ArtifactSource, CollectHook, hooks, sources
from orchestrator.tasks.key_values import (
    REWARD,
    EnvironmentMode,
    RewardStrategy,
    default,
    min_reward,
    step_name,
)
from orchestrator.tasks.keys import FREE, TABLES
from orchestrator.tasks.sizes import TooLarge, read_task_toml
from sandboxes.users import is_user

GENERAL: Final = "general"
SuiteDomain = Literal["reasoning", "coding", "agent", "general"]
DOMAINS: Final[tuple[SuiteDomain, ...]] = get_args(SuiteDomain)
"""Domains of the built-in suite. Any other name that is valid in a subject is a domain, too."""
MAX_TURNS: Final = 2**31 - 1

Seconds = Annotated[float, Field(gt=0, le=7 * 86400, strict=True, allow_inf_nan=False)]
Text = Annotated[str, Field(strict=True, max_length=256)]
Count = Annotated[int, Field(gt=0, le=MAX_TURNS, strict=True)]


def _word(value: object) -> str | None:
    """Text of the author's table, cleaned for storage and display; None: it is not text, or empty."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    return "".join(each if each.isprintable() else "\ufffd" for each in str(value))[:256].strip() or None


def _domain(value: object) -> str:
    return value if isinstance(value, str) and is_domain(value) else GENERAL


def _tags(value: object) -> tuple[str, ...]:
    words = (_word(each) for each in (value if isinstance(value, list | tuple) else [value]))
    return tuple(word for word in words if word is not None)[:100]


def _phrasing(value: object) -> int | None:
    return value if type(value) is int and 0 <= value < 2**63 else None


def _texts(value: object) -> dict[str, str]:
    """The valid variables. Tasks accepted before this check may have invalid ones."""
    items = value.items() if isinstance(value, dict) else ()
    known = {name: text for name, text in items if isinstance(text, str) and "\0" not in name + text}
    return {name: found for name, text in known.items() if (found := default(text)) is not None}


def _user(value: object) -> str:
    """A user, by name or uid. Tasks accepted before this key was honoured name none."""
    return str(value) if is_user(value) else ""


Variables = Annotated[dict[str, str], BeforeValidator(_texts)]
User = Annotated[str, BeforeValidator(_user)]
Word = Annotated[str | None, BeforeValidator(_word)]


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Metadata(_Table):
    """Description of the task; `family` and `phrasing` name the template that generated it, if any. `domain`: general, if the author's word is not a
    valid name. `category`: Harbor's word for it, which a run may map to a domain."""

    name: Word = None
    category: Word = None
    domain: Annotated[str, BeforeValidator(_domain)] = GENERAL
    difficulty: Annotated[str, BeforeValidator(lambda value: _word(value) or "unknown")] = "unknown"
    family: Word = None
    phrasing: Annotated[int | None, BeforeValidator(_phrasing)] = None
    tags: Annotated[tuple[str, ...], BeforeValidator(_tags)] = ()

    def domain_in(self, domains: Mapping[str, str]) -> str:
        """The task's own domain; without one, that of its category in `domains` (`tasks.domains` of a run)."""
        if "domain" in self.model_fields_set or self.category is None:
            return self.domain
        return domains.get(self.category, self.domain)


class Package(_Table):
    """`[task]`: its name in a registry."""

    name: Word = None


class Healthcheck(_Table):
    """`[environment].healthcheck`, in seconds: a command that must succeed before the agent starts."""

    command: str
    interval_sec: float = 5.0
    timeout_sec: float = 30.0
    start_period_sec: float = 0.0
    start_interval_sec: float = 5.0
    retries: int = 3

    @property
    def longest_s(self) -> float:
        """The most seconds that it may take."""
        waits = self.start_period_sec + self.start_interval_sec
        return waits + (self.retries + 1) * (self.timeout_sec + self.interval_sec)


class _Networked(_Table):
    """A part of a task with its own `network_mode` and `allowed_hosts`, as they are written (`tasks.network` reads them)."""

    network_mode: Any = None
    allowed_hosts: Any = None

    @property
    def network(self) -> dict[str, Any]:
        """Its keys of the network."""
        return {"network_mode": self.network_mode, "allowed_hosts": self.allowed_hosts}


class AgentLimits(_Networked):
    """Budgets of one rollout; `max_turns` and `stall_s` None leave it to the run's configuration. Seconds.

    `reference_sec`: T_base of the speed bonus, the agent's own time without the platform's queues; None: the median of the successful siblings.
    `user`: who runs the agent, empty: the sandbox's own user.
    """

    timeout_sec: Seconds = 900.0
    stall_s: Seconds | None = None
    max_turns: Count | None = None
    reference_sec: Seconds | None = None
    user: User = ""


class VerifierLimits(_Networked):
    """Budget of one run of `tests/test.sh`, in seconds, and variables for it. `performance`: the name of the reward among several named numbers.
    `environment`: the table of an environment of its own. `user`: who runs it, empty: the sandbox's own user."""

    timeout_sec: Seconds = 600.0
    performance: Annotated[str, BeforeValidator(lambda value: value if isinstance(value, str) else "")] = ""
    env: Variables = {}
    environment_mode: Word = None
    environment: Annotated[
        dict[str, Any] | None, BeforeValidator(lambda value: value if isinstance(value, dict) else None)
    ] = None
    collect: Annotated[tuple[CollectHook, ...], BeforeValidator(hooks)] = ()
    user: User = ""

    @property
    def is_separate(self) -> bool:
        """Whether the tests get nothing of the agent's sandbox but the declared artifacts."""
        return self.environment_mode == EnvironmentMode.SEPARATE or (
            self.environment_mode is None and self.environment is not None
        )


class Solution(_Table):
    """Variables of the reference solution."""

    env: Variables = {}


class StepSettings(_Table):
    """One of `[[steps]]`. `agent` and `verifier` hold its tables unchanged: what they state replaces or extends the task's. `min_reward`: the least
    numbers of its tests, by name, without which the task ends."""

    name: str
    agent: dict[str, Any] = {}
    verifier: dict[str, Any] = {}
    min_reward: dict[str, float] = {}
    healthcheck: Healthcheck | None = None
    artifacts: Annotated[tuple[ArtifactSource, ...], BeforeValidator(sources)] = ()


def _steps(value: object) -> tuple[dict[str, Any], ...]:
    """The valid steps. Admission refuses others; tasks accepted before this check had them ignored."""
    listed = value if isinstance(value, list | tuple) else ()
    return tuple(
        _step(each) for each in listed if isinstance(each, dict) and step_name(each.get("name")) is None
    )


def _step(table: Mapping[str, Any]) -> dict[str, Any]:
    least = table.get("min_reward")
    if least is None or min_reward(least) is not None:
        least = {}
    check = table.get("healthcheck")
    return {
        "name": table["name"],
        "agent": table["agent"] if isinstance(table.get("agent"), dict) else {},
        "verifier": table["verifier"] if isinstance(table.get("verifier"), dict) else {},
        "min_reward": least if isinstance(least, dict) else {REWARD: least},
        "healthcheck": check if isinstance(check, dict) and isinstance(check.get("command"), str) else None,
        "artifacts": table.get("artifacts", ()),
    }


def _strategy(value: object) -> RewardStrategy:
    return RewardStrategy.FINAL if value == RewardStrategy.FINAL else RewardStrategy.MEAN


class TaskSettings(_Table):
    """A whole `task.toml`; `environment` holds its table unchanged."""

    version: Text = "1.0"
    task: Package = Package()
    metadata: Metadata = Metadata()
    agent: AgentLimits = AgentLimits()
    verifier: VerifierLimits = VerifierLimits()
    solution: Solution = Solution()
    artifacts: Annotated[tuple[ArtifactSource, ...], BeforeValidator(sources)] = ()
    environment: dict[str, Any] = {}
    steps: Annotated[tuple[StepSettings, ...], BeforeValidator(_steps)] = ()
    multi_step_reward_strategy: Annotated[RewardStrategy, BeforeValidator(_strategy)] = RewardStrategy.MEAN

    @property
    def judging(self) -> dict[str, Any]:
        """The environment's table of verification: `[verifier.environment]`, else `[environment]`."""
        own = self.verifier.environment
        return own if own is not None and self.verifier.is_separate else self.environment

    @property
    def agent_users(self) -> tuple[str, ...]:
        """Who runs the agent, in the steps of the task; admission refuses several."""
        named = [_user(step.agent.get("user")) or self.agent.user for step in self.steps]
        return tuple(dict.fromkeys(named or [self.agent.user]))

    @property
    def longest_step_s(self) -> float:
        """The longest time limit that the agent has at once: that of a step, where there are steps."""
        whole = self.agent.timeout_sec
        return max((float(step.agent.get("timeout_sec", whole)) for step in self.steps), default=whole)

    @property
    def healthcheck(self) -> Healthcheck | None:
        """`[environment].healthcheck`, valid since the task was accepted; None: nothing to wait for."""
        table = self.environment.get("healthcheck")
        return None if table is None else Healthcheck.model_validate(table)


def variables_of(table: Mapping[str, Any]) -> dict[str, str]:
    """`env` of an environment's table."""
    return _texts(table.get("env"))


def parse_settings(toml: str) -> TaskSettings:
    """Read a `task.toml`. ValueError: one sentence that names the key, the expected value and the actual one."""
    try:
        tables = read_task_toml(toml)
    except TooLarge:
        raise
    except ValueError as error:  # also for a number that is too long
        raise ValueError(f"task.toml: not valid TOML: {error}") from error
    except RecursionError:
        raise ValueError("task.toml: not valid TOML: it is nested too deeply") from None
    _drop_empty_texts(tables)
    try:
        return TaskSettings.model_validate(tables)
    except ValidationError as error:
        raise ValueError(f"task.toml: {_sentence(error)}") from error


def _drop_empty_texts(tables: dict[str, Any]) -> None:
    """Remove every key of `_NONE_IF_EMPTY` that is an empty text: it is none, as in Harbor. The tables may hold anything."""
    steps = tables.get("steps")
    owners: list[Any] = [tables, *(steps if isinstance(steps, list) else ())]
    owners += [owner.get("verifier") for owner in owners if isinstance(owner, dict)]
    for owner in owners:
        for name, keys in _NONE_IF_EMPTY.items():
            table = owner.get(name) if isinstance(owner, dict) else None
            for key in keys:
                if isinstance(table, dict) and table.get(key) == "":
                    del table[key]


_NONE_IF_EMPTY: Final = {
    "agent": ("user",),
    "environment": ("docker_image", "workdir", "skills_dir"),
    "verifier": ("user",),
}
_MUST_BE: Final = {
    "float_type": "a number",
    "int_type": "a whole number",
    "string_type": "text",
    "string_too_long": "shorter",
    "tuple_type": "a list",
    "dict_type": "a table",
    "model_type": "a table",
    "finite_number": "a finite number",
}
_BOUNDS: Final = {"gt": "more than", "ge": "at least", "le": "at most"}


def _sentence(error: ValidationError) -> str:
    """The first error, as `[agent].timeout_sec must be a number, got 'x'`."""
    first = error.errors(include_url=False)[0]
    location, context = first["loc"], first.get("ctx", {})
    if first["type"] in _MUST_BE:
        must_be = _MUST_BE[first["type"]]
    else:
        must_be = next(
            (f"{words} {context[bound]:g}" for bound, words in _BOUNDS.items() if bound in context),
            first["msg"],
        )
    return f"{_key(location)} must be {must_be}, got {quoted(first['input'])}"


def _key(location: tuple[int | str, ...]) -> str:
    """`[agent].timeout_sec`, `version`, `[metadata].tags item 2`."""
    items = [f" item {part + 1}" for part in location if isinstance(part, int)]
    names = [part for part in location if isinstance(part, str)]
    is_table = len(names) > 1 or names[0] in (*TABLES, FREE)
    head = f"[{names[0]}]" if is_table else names[0]
    return ".".join([head, *names[1:]]) + "".join(items)
