"""Context policies by name: the built-in ones, and those of other packages with settings of their own."""

from pathlib import Path
from typing import Any

import pytest
from scaffolds.context.base import ContextPolicy
from scaffolds.context.drop_replies import DropReplies
from scaffolds.context.periodic_summary import PeriodicSummary
from scaffolds.context.sliding_window import SlidingWindow

from orchestrator.contracts.errors import ConfigurationError
from orchestrator.deploy.preflight import check_config
from orchestrator.runner.context import ManagedHistory
from orchestrator.runner.context_policies import policy_of
from orchestrator.settings.config import Config


def config(**table: Any) -> Config:
    return Config.model_validate({"rollout": {"context": {"shell": table}}})


def policy(**table: Any) -> ContextPolicy | None:
    return policy_of(config(**table).rollout.context, "shell")


def test_the_configuration_names_one_policy_per_scaffold() -> None:
    assert policy(policy="none") is None
    assert policy_of(config(policy="drop_replies").rollout.context, "another") is None
    assert policy(policy="sliding_window", max_turns=6, keep_turns=2) == SlidingWindow(6, 2)
    assert policy(policy="sliding_window") == SlidingWindow(8, 4)
    assert policy(policy="periodic_summary") == PeriodicSummary(8, 1)
    assert policy(policy="drop_replies") == DropReplies(0.3, 0)
    assert policy(policy="drop_replies", past=0.5, keep_turns=1) == DropReplies(0.5, 1)


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ({"policy": "forget"}, r"context\.shell\.policy: unknown context policy 'forget'; known: drop_replies, none, p"),
        ({"policy": "sliding_window", "keep": 3}, r"shell\.keep is not a known key.*\(known: policy, max_turns, keep_turns\)"),
        ({"policy": "sliding_window", "keep_turn": 3}, r"keep_turn is not a known key: did you mean keep_turns\?"),
        ({"policy": "sliding_window", "max_turns": 2}, r"shell: keep_turns \(4\) must be less than max_turns \(2\)"),
        ({"policy": "sliding_window", "keep_turns": 0}, r"shell\.keep_turns: Input should be greater than or equal to 1"),
        ({"policy": "drop_replies", "past": 1.5}, r"shell\.past: Input should be less than or equal to 1"),
        ({"policy": "drop_replies", "keep_turns": "two"}, r"shell\.keep_turns: Input should be a valid integer"),
        ({"policy": "none", "max_turns": 3}, r"shell\.max_turns is not a known key"),
    ],
)  # fmt: skip
def test_an_error_in_a_policys_table_is_reported_with_its_key_before_a_run_starts(
    table: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        check_config(config(**table), ["shell"])


THIRD_PARTY = """
from dataclasses import dataclass
from pydantic import BaseModel, Field
from scaffolds.context.base import newest, turns_of

@dataclass(frozen=True)
class Halve:
    at: int = 10
    name = "halve"

    def __post_init__(self):
        if self.at % 2:
            raise ValueError(f"at ({self.at}) must be even")

    async def fit(self, past):
        turns = turns_of(past.rest)
        return newest(turns, self.at // 2) if len(turns) >= self.at else None

class Nested(BaseModel):
    least: int = Field(ge=1)
    words: dict[str, int] = {}
    name: str = "nested"
    async def fit(self, past):
        return None

@dataclass
class Unfit:
    name: str = "unfit"

def make(**settings):
    return None
"""


@pytest.fixture
def third_party(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A third-party package, installed."""
    info = tmp_path / "short_memories-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: short-memories\nVersion: 1\n")
    named = "".join(
        f"{name} = short_memories:{made}\n"
        for name, made in {"halve": "Halve", "nested": "Nested", "unfit": "Unfit", "made": "make"}.items()
    )
    (info / "entry_points.txt").write_text(f"[penstock.context_policies]\n{named}")
    (tmp_path / "short_memories.py").write_text(THIRD_PARTY)
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.anyio
async def test_a_policy_of_another_package_is_found_configured_and_applied(third_party: None) -> None:
    check_config(config(policy="halve", at=4), ["shell"])
    found = policy(policy="halve", at=4)
    assert found is not None

    async def never(messages: Any) -> Any:
        raise AssertionError

    turns = [{"role": role, "content": str(n)} for n in range(4) for role in ("assistant", "tool")]
    task = {"role": "user", "content": "task"}
    history = ManagedHistory(found, 100)
    assert await history.fit([task, *turns], never, never) == ([task, *turns[4:]], "halve")
    nested = policy(policy="nested", least="2", words={"oak": 1})
    assert nested is not None and nested.name == "nested"


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        (
            {"policy": "halve", "att": 4},
            r"shell\.att is not a known key: did you mean at\? \(known: policy, at\)",
        ),
        ({"policy": "halve", "at": "four"}, r"shell\.at: Input should be a valid integer"),
        ({"policy": "halve", "at": 3}, r"rollout\.context\.shell: at \(3\) must be even"),
        ({"policy": "nested"}, r"shell\.least: Field required"),
        (
            {"policy": "nested", "least": 1, "words": {"oak": "x"}},
            r"shell\.words\.oak: Input should be a valid integer",
        ),
        ({"policy": "nested", "least": 1, "most": 1}, r"shell\.most is not a known key"),
        ({"policy": "unfit"}, r"shell\.policy: 'unfit' needs a method `fit` and a `name`"),
        ({"policy": "made"}, r"shell\.policy: 'made' is neither a dataclass nor a pydantic model"),
        (
            {"policy": "forget"},
            r"known: drop_replies, halve, made, nested, none, periodic_summary, sliding_window, unfit",
        ),
    ],
)
def test_a_refusal_by_another_packages_policy_names_its_key(
    third_party: None, table: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        check_config(config(**table), ["shell"])
